from __future__ import annotations

import math
import random
import statistics

import pytest

from vllm_frontier.measure.precision import half_widths
from vllm_frontier.outcome import Run

# Prompts' means are estimated from the same runs, and repeats end where they look narrow.
WIDER = 1.15


def run(task: str, repeat: int, speed: float | None, variant: int, kind: str = "decode") -> Run:
    return Run(task, repeat, kind, decode_tok_s=speed, variant=variant)


def series(speeds: list[float], variants: int, task: str = "edit") -> list[Run]:
    return [run(task, at, speed, at % variants) for at, speed in enumerate(speeds)]


def test_two_runs_of_one_prompt() -> None:
    width = half_widths(series([100.0, 110.0], 1))["edit"]

    # The mean of two: t of one degree of freedom times the standard error, on the logarithm.
    spread = abs(math.log(110 / 100)) / math.sqrt(2)
    assert math.log1p(width) == pytest.approx(WIDER * 12.706 * spread / math.sqrt(2), rel=0.05)


def test_twelve_runs_of_one_prompt_have_the_standard_error_of_a_median() -> None:
    draw = random.Random(5)
    speeds = [100 * math.exp(draw.gauss(0, 0.02)) for _ in range(12)]

    width = half_widths(series(speeds, 1))["edit"]

    noise = statistics.stdev(math.log(speed) for speed in speeds)
    assert math.log1p(width) == pytest.approx(
        WIDER * 2.201 * 1.2533 * noise / math.sqrt(12), rel=0.06
    )


def test_prompts_that_differ_leave_the_median_to_the_middle_one() -> None:
    draw = random.Random(6)
    centres = [80.0, 100.0, 125.0]
    speeds = [centre * math.exp(draw.gauss(0, 0.01)) for _ in range(4) for centre in centres]

    width = half_widths(series(speeds, 3))["edit"]

    groups = [[math.log(each) for each in speeds[at::3]] for at in range(3)]
    noise = math.sqrt(statistics.fmean(statistics.variance(group) for group in groups))
    # Nine degrees of freedom; the median of twelve lies among the four runs of the middle prompt.
    assert math.log1p(width) == pytest.approx(WIDER * 2.262 * noise * 1.09 / math.sqrt(4), rel=0.1)
    assert width < 0.03


def test_intervals_hold_the_truth_in_95_percent_where_repeats_end_early() -> None:
    draw = random.Random(8)
    held = []
    for _ in range(80):
        centres = {task: [draw.gauss(0, 0.05) for _ in range(3)] for task in "ab"}
        runs: list[Run] = []
        while len(runs) < 24:
            runs += [
                run(task, 0, 100 * math.exp(centres[task][variant] + draw.gauss(0, 0.02)), variant)
                for variant in range(3)
                for task in "ab"
            ]
            widths = half_widths(runs)
            if max(widths.values()) <= 0.02:
                break
        for task, width in widths.items():
            speeds = [each.decode_tok_s or 0.0 for each in runs if each.task == task]
            truth = 100 * math.exp(statistics.median(centres[task]))
            held.append(abs(statistics.median(speeds) / truth - 1) <= width)
    assert 0.91 <= statistics.fmean(held) <= 0.99


def test_a_difference_of_prompts_counts_as_noise_until_they_were_asked_twice() -> None:
    once = [80.0, 100.0, 125.0]

    assert half_widths(series(once, 3))["edit"] > 0.3
    assert half_widths(series([*once, *once], 3))["edit"] < 1e-9


def test_noise_is_that_of_all_tasks() -> None:
    quiet = series([100.0, 100.0], 1, "code")
    loud = series([100.0, 104.0], 1, "prose")

    widths = half_widths([*quiet, *loud])

    assert widths["code"] == widths["prose"] > 0.01
    assert half_widths(quiet)["code"] < 1e-9


def test_one_run_tells_nothing_and_other_kinds_do_not_count() -> None:
    only = [run("edit", 0, 100.0, 0), run("edit", 1, None, 1), run("edit", 1, 50.0, 1, "probe")]

    assert half_widths(only) == {"edit": math.inf}
    assert half_widths([]) == {}
