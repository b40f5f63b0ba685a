"""The samples of a run in one line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from vllm_frontier.conditions import Conditions, Sample

# A sample that is further from a run says nothing about it, seconds.
NEAR_S = 5.0

_Round = Sequence[Sample]


def summarize(samples: Iterable[Sample], start: float, end: float) -> Conditions:
    """What cards and machine were like during a run.

    Samples of one moment, one of each card, belong together. Where no moment lies within the run,
    which may be shorter than the time between two, the nearest one stands for it.

    Args:
        samples: oldest first.
        start: of the run, seconds since the epoch.
        end: of it.
    """
    moments = [list(group) for _, group in itertools.groupby(samples, key=attrgetter("at"))]
    rounds = [each for each in moments if start <= each[0].at <= end]
    if not rounds:
        middle = (start + end) / 2
        nearest = min(moments, key=lambda each: abs(each[0].at - middle), default=None)
        if nearest is None or not start - NEAR_S <= nearest[0].at <= end + NEAR_S:
            return Conditions()
        rounds = [nearest]
    told = [each.throttle_reasons for group in rounds for each in group]
    reasons = [each for each in told if each is not None]
    foreign = _of(rounds, "foreign_processes", sum, max)
    return Conditions(
        memory_used_gib=_of(rounds, "memory_used_gib", sum, max),
        sm_clock_mhz=_of(rounds, "sm_clock_mhz", min, _mean),
        memory_clock_mhz=_of(rounds, "memory_clock_mhz", min, _mean),
        power_w=_of(rounds, "power_w", sum, _mean),
        temperature_c=_of(rounds, "temperature_c", max, max),
        gpu_utilization=_of(rounds, "gpu_utilization", _mean, _mean),
        throttle_reasons=tuple(sorted({word for each in reasons for word in each}))
        if reasons
        else None,
        throttled_share=sum(bool(each) for each in reasons) / len(reasons) if reasons else None,
        foreign_processes=None if foreign is None else round(foreign),
        foreign_gib=_of(rounds, "foreign_gib", sum, max),
        cpu_cores=_of(rounds, "cpu_cores", max, _mean),
        foreign_cores=_of(rounds, "foreign_cores", max, _mean),
        cpu_mhz=_of(rounds, "cpu_mhz", max, _mean),
    )


def _of(
    rounds: Sequence[_Round],
    name: str,
    over_cards: Callable[[list[float]], float],
    over_time: Callable[[list[float]], float],
) -> float | None:
    """A counter over the cards of each moment, and then over time.

    A moment at which one of its cards does not tell it counts not at all: a sum would be too low.
    """
    by_moment = [[getattr(each, name) for each in group] for group in rounds]
    found = [over_cards(values) for values in by_moment if None not in values]
    return over_time(found) if found else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
