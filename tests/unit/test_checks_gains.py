"""Gains over no speculation that are impossible, or that acceptance does not explain."""

import numpy as np
import pytest
from checked_sweep import Row, decode, drafting, judged, launch, verdicts

PLAIN = launch(0)


def gain(depth: int, base: list[float], speeds: list[float], **more: object) -> list[dict]:
    deep = launch(depth)
    runs = decode(PLAIN, *base) + decode(deep, *speeds, **more)
    return judged("speedup_bound", [PLAIN, deep], runs)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.5, "pass"), (2.0, "pass"), (2.01, "warn"), (2.05, "warn"), (2.07, "fail"), (3.0, "fail")],
)
def test_a_draft_of_one_token_doubles_the_speed_at_most(ratio: float, verdict: str) -> None:
    (row,) = gain(1, [20.0], [20.0 * ratio])
    assert (row["verdict"], row["expected"], row["unit"]) == (verdict, 2.0, "x")
    assert row["value"] == pytest.approx(ratio)
    assert (row["depth"], row["task"], row["attempt"]) == (1, "edit", None)


def test_launches_that_agree_leave_nothing_to_luck() -> None:
    one, other, deep = PLAIN, launch(0, attempt=2), launch(1)
    again = launch(1, attempt=2)
    runs = [run for each in (one, other) for run in decode(each, 20.0)]
    runs += [run for each in (deep, again) for run in decode(each, 40.4)]
    assert verdicts("speedup_bound", [one, other, deep, again], runs) == ["fail"]


def test_what_pairs_of_runs_differ_by_is_granted() -> None:
    (row,) = gain(1, [20.0, 20.0, 20.0], [36.0, 44.0, 52.0])
    assert (row["verdict"], round(row["value"], 3)) == ("pass", 2.2)
    assert "within what runs and launches differ by" in row["detail"]
    (row,) = gain(1, [19.9, 20.0, 20.1], [43.8, 44.0, 44.2])
    assert row["verdict"] == "fail"


def test_prompts_that_differ_excuse_nothing() -> None:
    prompts = [16.0, 20.0, 25.0]
    (row,) = gain(1, prompts, [2.2 * speed for speed in prompts])
    assert (row["verdict"], round(row["value"], 3)) == ("fail", 2.2)
    # Without a prompt that both were asked, runs of both cells are all that tells.
    deep = launch(1)
    runs = decode(PLAIN, *prompts) + decode(deep, *(2.2 * each for each in prompts), variant=9)
    assert verdicts("speedup_bound", [PLAIN, deep], runs) == ["pass"]


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.15])
def test_what_other_cells_differ_by_excuses_nothing(spread: float) -> None:
    rng = np.random.default_rng(1)
    cells = {0: 100.0, 1: 212.0, 3: 300.0, 5: 350.0}
    runs = []
    for depth, speed in cells.items():
        for task in ("code", "edit", "prose"):
            prompts = np.array([-spread, 0.0, spread]) * (depth > 1)
            speeds = speed * np.exp(prompts + rng.normal(0, 0.01, 3))
            runs += decode(launch(depth), *speeds.tolist(), task=task)
    found = judged("speedup_bound", [launch(depth) for depth in cells], runs)
    assert {(row["depth"], row["verdict"]) for row in found} == {
        (1, "fail"),
        (3, "pass"),
        (5, "pass"),
    }
    assert found[0]["value"] == pytest.approx(2.12, rel=0.02)


def test_noise_does_not_excuse_everything() -> None:
    wild = [20.0, 60.0, 90.0]
    (row,) = gain(1, [20.0, 20.0, 20.0], wild)
    assert (row["verdict"], row["value"]) == ("warn", pytest.approx(3.0))
    assert row["detail"].endswith(
        "the baseline or a clock is wrong, or runs differ too much to tell"
    )
    (row,) = gain(1, [20.0, 20.0, 20.0], [30.0, 43.9, 90.0])
    assert (row["verdict"], row["value"]) == ("pass", pytest.approx(2.195))
    # What accepted tokens allow is known less well than what depth does.
    (row,) = gain(3, [20.0, 20.0, 20.0], wild, drafts=100, accepted_tokens=20)
    assert (row["verdict"], row["expected"]) == ("pass", pytest.approx(1.2))


@pytest.mark.parametrize("check", ["speedup_bound", "acceptance_explains"])
def test_a_run_of_few_tokens_is_not_judged(check: str) -> None:
    deep, other = launch(1), launch(2)
    counters = {"drafts": 3, "draft_tokens": 3, "accepted_tokens": 3}
    runs = decode(PLAIN, 20.0) + decode(deep, 90.0, completion_tokens=15, **counters)
    runs += drafting(other, 30.0, accepted=80)
    found = judged(check, [PLAIN, deep, other], runs)
    told = {row["depth"]: (row["verdict"], row["value"]) for row in found}
    assert told == {1: ("unknown", None), 2: ("pass", pytest.approx(1.5))}
    (short,) = (row for row in found if row["depth"] == 1)
    assert short["detail"] == "a run has 15 tokens only, of which its last draft takes too many"
    runs[1]["completion_tokens"] = 16
    assert verdicts(check, [PLAIN, deep], runs[:2]) == ["fail"]


def test_what_launches_of_the_cell_differ_by_is_granted() -> None:
    deep, again = launch(1), launch(1, attempt=2)
    runs = decode(PLAIN, 20.0) + decode(deep, 46.0) + decode(again, 38.6)
    assert verdicts("speedup_bound", [PLAIN, deep, again], runs) == ["pass"]
    runs = decode(PLAIN, 20.0) + decode(deep, 46.0) + decode(again, 45.8)
    assert verdicts("speedup_bound", [PLAIN, deep, again], runs) == ["fail"]


def test_accepted_tokens_bound_the_gain_as_well() -> None:
    counters = {"drafts": 100, "draft_tokens": 300, "accepted_tokens": 120}
    (row,) = gain(3, [20.0], [43.0], **counters)
    assert (row["verdict"], row["expected"]) == ("pass", pytest.approx(2.2))
    (row,) = gain(3, [20.0], [50.0], **counters)
    assert row["verdict"] == "fail"
    assert "2.5 times the speed of depth 0, where 2.2 is the most" in row["detail"]
    by_position = {"drafts": 100, "accepted_per_position": [80, 30, 10]}
    (row,) = gain(3, [20.0], [50.0], **by_position)
    assert (row["verdict"], row["expected"]) == ("fail", pytest.approx(2.2))
    # Even what no draft can do is exceeded: that is the firmer word.
    (row,) = gain(3, [20.0], [90.0], **counters)
    assert row["expected"] == 4.0


def test_the_baseline_is_that_of_the_same_window_where_it_was_measured() -> None:
    trials = [launch(0), launch(0, context=4096), launch(2), launch(2, context=16384)]
    speeds = (20.0, 30.0, 50.0, 50.0)
    runs = [run for each, speed in zip(trials, speeds, strict=True) for run in decode(each, speed)]
    found = {row["context"]: row["value"] for row in judged("speedup_bound", trials, runs)}
    assert found == {8192: pytest.approx(2.5), 16384: pytest.approx(50 / 600**0.5)}


@pytest.mark.parametrize(
    "other", [{"graphs": False}, {"extra": '{"a": 1}'}, {"changed": "engine"}, {"workload": "w"}]
)
def test_without_a_comparable_baseline_nothing_is_judged(other: dict) -> None:
    base, deep = launch(0, **other), launch(1)
    (row,) = judged("speedup_bound", [base, deep], decode(base, 1.0) + decode(deep, 99.0))
    assert (row["verdict"], row["cell_id"]) == ("unknown", None)
    assert row["detail"].startswith("no cell without speculation has a speed at the same task")


def stepping(steps: list[float], accepted: int = 50) -> list[dict]:
    """Cells of depth 1 and on whose step takes so long (ms); without speculation it is 20."""
    deep = [launch(depth + 1) for depth in range(len(steps))]
    runs = decode(PLAIN, 50.0)
    for each, step in zip(deep, steps, strict=True):
        runs += drafting(each, (1 + accepted / 100) * 1000 / step, accepted=accepted)
    return judged("acceptance_explains", [PLAIN, *deep], runs)


def test_a_gain_that_steps_and_acceptance_make_up_is_explained() -> None:
    found = stepping([22.0, 23.0, 24.0, 25.0])
    assert [row["verdict"] for row in found] == ["pass"] * 4
    assert found[1]["value"] == pytest.approx(found[1]["expected"])
    assert found[1]["detail"] == "1.5 tokens a step of 23.0 ms; without speculation 20.0 ms"


def test_a_step_cannot_be_shorter_than_one_without_speculation() -> None:
    found = stepping([18.0, 23.0])
    assert [row["verdict"] for row in found] == ["fail", "pass"]
    assert (
        "a step would take 18.0 ms, where one without speculation takes 20.0"
        in (found[0]["detail"])
    )


def test_prompts_that_differ_do_not_excuse_a_short_step() -> None:
    deep, prompts = launch(1), [40.0, 50.0, 62.0]
    speeds = [1.5 * 1000 / 18.0 * each / 50.0 for each in prompts]
    runs = decode(PLAIN, *prompts) + drafting(deep, *speeds, accepted=50)
    assert verdicts("acceptance_explains", [PLAIN, deep], runs) == ["fail"]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("off", [0.7, 1.35])
def test_one_depth_that_strays_is_told_and_its_neighbours_are_not(place: int, off: float) -> None:
    steps = [40.0, 41.0, 42.0, 43.0, 44.0]
    steps[place] *= off
    found = stepping(steps)
    assert [row["verdict"] for row in found] == [
        "warn" if number == place else "pass" for number in range(5)
    ]
    words = "more than by the line" if off > 1 else "less than by the line"
    assert words in found[place]["detail"]


def test_steps_that_bend_a_little_and_few_depths_are_no_finding() -> None:
    assert {row["verdict"] for row in stepping([40.0, 41.2, 42.1, 42.9, 43.4])} == {"pass"}
    assert {row["verdict"] for row in stepping([40.0, 60.0, 42.0])} == {"pass"}


def tallied(method: str | None = None, **counters: int) -> list[Row]:
    deep = launch(2)
    runs = decode(PLAIN, 50.0) + drafting(deep, 60.0, accepted=100, **counters)
    return judged("acceptance_explains", [PLAIN, deep], runs, method)


def tally(method: str | None = None, **counters: int) -> str:
    return str(tallied(method, **counters)[0]["verdict"])


def test_counters_and_tokens_must_tally() -> None:
    assert tally() == "pass"
    assert tally(completion_tokens=198) == "pass"  # the end cut the last draft short
    assert tally(completion_tokens=180) == "warn"
    assert tally(completion_tokens=213) == "warn"
    (row,) = tallied(completion_tokens=180)
    assert row["expected"] == pytest.approx(row["value"] * 200 / 179)
    # Drafts that are looked up are not found at every step.
    assert tally("ngram", completion_tokens=400) == "pass"
    assert tally("ngram", completion_tokens=180) == "warn"


def test_without_counters_nothing_is_explained() -> None:
    deep = launch(2)
    runs = decode(PLAIN, 50.0) + decode(deep, 60.0)
    (row,) = judged("acceptance_explains", [PLAIN, deep], runs)
    assert (row["verdict"], row["detail"]) == (
        "unknown",
        "no run tells how many of its drafts were accepted",
    )
