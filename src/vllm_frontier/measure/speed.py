"""How fast an attempt decoded, from its runs: one figure and its range."""

from __future__ import annotations

import math
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
        speed = run.decode_tok_s
        if run.kind != "decode" or run.concurrency != 1 or speed is None:
            continue
        if math.isfinite(speed) and speed > 0:
            by_task[run.task].append(speed)
            by_repeat[run.repeat].append(speed)
    if not by_task:
        return None
    overall = _median_of_medians(by_task.values())
    repeats = [statistics.median(each) for each in by_repeat.values()]
    return Speed(overall, low=min(overall, *repeats), high=max(overall, *repeats))


def _median_of_medians(groups: Iterable[list[float]]) -> float:
    return statistics.median(statistics.median(each) for each in groups)
