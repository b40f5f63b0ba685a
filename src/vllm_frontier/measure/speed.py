"""How fast an attempt decoded, from its runs: one figure and its range."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from vllm_frontier.outcome import Run, Speed


def decode_speed(runs: Iterable[Run]) -> Speed | None:
    """The speed of an attempt; None where no decode run has one.

    As `analyze.speed.cell_speeds` tells it of the table `runs`. Medians do not commute, so that
    the figure itself may lie a hair outside the range of repeats; the range is widened to it.

    Args:
        runs: of one attempt; only decode runs of one request at a time count.
    """
    by_task: dict[str, list[float]] = defaultdict(list)
    by_repeat: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        if run.kind == "decode" and run.concurrency == 1 and run.decode_tok_s is not None:
            by_task[run.task].append(run.decode_tok_s)
            by_repeat[run.repeat].append(run.decode_tok_s)
    if not by_task:
        return None
    speed = _median_of_medians(by_task.values())
    repeats = [statistics.median(each) for each in by_repeat.values()]
    return Speed(speed, low=min(speed, *repeats), high=max(speed, *repeats))


def _median_of_medians(groups: Iterable[list[float]]) -> float:
    return statistics.median(statistics.median(each) for each in groups)
