"""How exactly a launch has measured: the interval of each task's median speed.

The noise of a run is one figure for the launch, on the logarithm of speed, because a few runs of
one task tell too little of it. Prompts of a task differ in speed, and that is no noise once each
was asked twice. Where the median falls among prompts that differ, only the runs of the nearest
one decide it; what the noise does to it is therefore not sigma over the root of all runs but found
by drawing the runs again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

from vllm_frontier.outcome import Run

_LEVEL = 0.975  # two sides of 95 %
_DRAWS = 4000
# The prompts' means are estimated from the same runs, and repeats end as soon as they look narrow:
# without this the intervals of 3 to 12 repeats cover 90 to 93 %.
_WIDER = 1.15
_LARGEST = 700.0  # whose exponential is still a number


def half_widths(runs: Iterable[Run]) -> dict[str, float]:
    """How far the median speed of each task may be off, by its noise within this launch.

    Until prompts were asked twice their differences count as noise, so that the figure is an
    upper bound.

    Args:
        runs: of one launch; only decode runs with a speed count.

    Returns:
        By task, half of its 95 % interval as a share of the median; infinite where the runs do
        not tell.
    """
    speeds: dict[str, list[tuple[int | None, float]]] = defaultdict(list)
    for run in runs:
        if run.kind == "decode" and run.decode_tok_s is not None and run.decode_tok_s > 0:
            speeds[run.task].append((run.variant, math.log(run.decode_tok_s)))
    groups = _groups(speeds, by_prompt=True)
    by_prompt = any(len(group) > 1 for group in groups.values())
    if not by_prompt:
        groups = _groups(speeds, by_prompt=False)
    noise, freedom = _pooled_noise(groups.values())
    if freedom == 0:
        return dict.fromkeys(speeds, math.inf)
    times = _WIDER * float(stdtrit(freedom, _LEVEL))
    return {
        task: math.expm1(min(_LARGEST, times * _noise_of_median(_centres(pairs, by_prompt), noise)))
        for task, pairs in speeds.items()
    }


def _groups(
    speeds: Mapping[str, Iterable[tuple[int | None, float]]], *, by_prompt: bool
) -> dict[Hashable, list[float]]:
    """Runs that differ by noise alone, as far as that is known."""
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for task, pairs in speeds.items():
        for variant, value in pairs:
            groups[task, variant if by_prompt else None].append(value)
    return groups


def _pooled_noise(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """The standard deviation within groups, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for group in groups:
        mean = math.fsum(group) / len(group)
        squares += math.fsum((value - mean) ** 2 for value in group)
        freedom += len(group) - 1
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


def _centres(pairs: Iterable[tuple[int | None, float]], by_prompt: bool) -> list[float]:
    """Around what each run of a task lies: the mean of its prompt, or one for all."""
    of_prompt: dict[int | None, list[float]] = defaultdict(list)
    for variant, value in pairs:
        of_prompt[variant if by_prompt else None].append(value)
    return [math.fsum(each) / len(each) for each in of_prompt.values() for _ in each]


def _noise_of_median(centres: Sequence[float], noise: float) -> float:
    """The standard deviation of the median of runs around these centres."""
    draws = np.random.default_rng(0).standard_normal((_DRAWS, len(centres)))
    return float(np.std(np.median(np.asarray(centres) + noise * draws, axis=1)))
