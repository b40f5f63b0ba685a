"""Where the next token drafted stops paying, and acceptance by position."""

import polars as pl
import pytest
from checked_sweep import launch
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_of_speeds import decoding, published, tables

from vllm_frontier.analyze.speed_groups import speed_groups
from vllm_frontier.analyze.worth import acceptance_by_position, depth_steps, pays_up_to


def groups_of(speeds: dict[int, float]) -> pl.DataFrame:
    given_ = {(depth, True): (speed,) for depth, speed in speeds.items()}
    return speed_groups(*published(given_)).filter(task="code")


def end_of(speeds: dict[int, float]) -> tuple[int, bool, str | None]:
    (row,) = pays_up_to(groups_of(speeds)).iter_rows(named=True)
    return row["pays_up_to"], row["still_gains"], row["after"]


def test_steps_of_the_published_sweep() -> None:
    groups = speed_groups(*published())
    steps = depth_steps(groups).filter(task="code")
    assert steps.select("graphs", "depth", "next_depth").rows() == [
        (False, 0, 1),
        (False, 1, 2),
        (False, 2, 3),
        (False, 3, 4),
        (True, 4, 5),
    ]
    assert steps["ratio"].to_list() == pytest.approx(
        [48.5 / 23.7, 68.2 / 48.5, 86.4 / 68.2, 96.9 / 86.4, 202 / 190]
    )
    assert set(steps["verdict"]) == {"faster"}
    ends = pays_up_to(groups).filter("graphs")
    assert ends.select("task", "pays_up_to", "deepest", "still_gains", "after").rows() == [
        (None, 5, 5, True, None),
        ("code", 5, 5, True, None),
        ("edit", 5, 5, True, None),
        ("prose", 4, 5, False, "no clear difference"),
    ]


def test_a_step_over_several_tokens_is_told_by_token() -> None:
    (row,) = depth_steps(groups_of({1: 100.0, 3: 121.0})).iter_rows(named=True)
    assert row["ratio"] == pytest.approx(1.21)
    assert row["per_token"] == pytest.approx(0.10)
    (row,) = depth_steps(groups_of({1: 100.0, 3: 81.0})).iter_rows(named=True)
    assert (row["per_token"], row["verdict"]) == (pytest.approx(-0.10), "slower")


@pytest.mark.parametrize(
    ("speeds", "told"),
    [
        ({0: 50, 1: 80, 2: 100}, (2, True, None)),
        ({0: 50, 1: 80, 2: 81}, (1, False, "no clear difference")),
        ({0: 50, 1: 80, 2: 70}, (1, False, "slower")),
        ({0: 50, 1: 40, 2: 30}, (0, False, "slower")),
        # A dip on the way does not end it, nor do steps that are too small each.
        ({0: 50, 1: 45, 3: 60}, (3, True, None)),
        ({0: 50, 1: 50.8, 2: 51.6, 3: 52.4}, (2, False, "no clear difference")),
        ({2: 50, 4: 60, 5: 60}, (4, False, "no clear difference")),
    ],
)
def test_it_pays_until_nothing_deeper_is_faster(
    speeds: dict[int, float], told: tuple[int, bool, str | None]
) -> None:
    assert end_of(speeds) == told


def test_a_single_depth_tells_nothing() -> None:
    assert pays_up_to(groups_of({2: 50.0})).is_empty()
    assert depth_steps(groups_of({2: 50.0})).is_empty()


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.integers(0, 8), st.floats(10.0, 500.0), min_size=2))
def test_nothing_deeper_than_the_end_is_faster(speeds: dict[int, float]) -> None:
    end, still_gains, after = end_of(speeds)
    assert all(speed <= speeds[end] / 0.98 for depth, speed in speeds.items() if depth > end)
    assert still_gains == (end == max(speeds))
    assert (after is None) == still_gains


def test_acceptance_is_pooled_over_drafts() -> None:
    one, other = launch(1, spec_state="working"), launch(2, graphs=False, spec_state="working")
    runs = decoding(one, {"code": [50.0]}, accepted=[90])
    runs += decoding(other, {"code": [50.0], "prose": [40.0]}, accepted=[60, 30], drafts=300)
    found = acceptance_by_position(*tables([one, other], runs))
    told = {
        (row["task"], row["depth"], row["position"]): (row["accepted"], row["drafts"])
        for row in found.iter_rows(named=True)
    }
    assert told["code", 1, 1] == (0.9, 100)
    assert told["code", 2, 1] == (0.2, 300)
    assert told["code", None, 1] == (150 / 400, 400)
    assert told["code", None, 2] == (0.1, 300)
    assert told[None, None, 1] == (210 / 700, 700)
    assert ("prose", 1, 1) not in told


def test_runs_whose_counters_are_lost_tell_nothing_of_acceptance() -> None:
    of = launch(2)
    runs = decoding(of, {"code": [50.0]}, accepted=[90, 80])
    for broken in ({"drafts": 0}, {"accepted_per_position": [None, 5]}, {"kind": "probe"}):
        runs += [runs[0] | broken]
    found = acceptance_by_position(*tables([of], runs)).filter(task="code", depth=2)
    assert found.select("position", "accepted", "drafts").rows() == [(1, 0.9, 100), (2, 0.8, 100)]


def twice(speeds: dict[int, float]) -> pl.DataFrame:
    """Two launches of every depth, which differ by 0.1 %."""
    trials = [
        launch(depth, attempt=attempt, spec_state="working" if depth else None)
        for depth in speeds
        for attempt in (1, 2)
    ]
    runs = [
        run
        for of in trials
        for run in decoding(of, {"code": [speeds[of["depth"]] * (1 + of["attempt"] / 1000)] * 2})
    ]
    return speed_groups(*tables(trials, runs)).filter(task="code")


def test_what_rests_on_runs_within_launches_says_so() -> None:
    assert set(depth_steps(groups_of({0: 50, 1: 80}))["basis"]) == {"runs"}
    assert pays_up_to(groups_of({0: 50, 1: 80}))["basis"].to_list() == ["runs"]
    several = twice({0: 50, 1: 80, 2: 100, 3: 80, 4: 70})
    assert set(depth_steps(several)["basis"]) == {"launches"}
    assert pays_up_to(several).select("pays_up_to", "basis").rows() == [(2, "launches")]


@pytest.mark.parametrize("once", [0, 2, 4])
def test_an_end_is_as_sure_as_the_least_sure_depth(once: int) -> None:
    groups = twice({0: 50, 1: 80, 2: 100, 3: 80, 4: 70})
    within = pl.when(pl.col("depth") == once).then(pl.lit("runs")).otherwise("basis")
    ends = pays_up_to(groups.with_columns(basis=within))
    assert ends.select("pays_up_to", "basis").rows() == [(2, "runs")]


def test_depths_from_before_and_after_a_change_are_not_compared() -> None:
    trials = [launch(0), launch(1), launch(2, changed="vllm 0.1 -> 0.2", spec_state="working")]
    runs = [run for of in trials for run in decoding(of, {"code": [50.0 + of["depth"]] * 2})]
    steps = depth_steps(speed_groups(*tables(trials, runs)))
    assert steps.select("changed", "depth", "next_depth").unique().rows() == [("", 0, 1)]


def test_acceptance_is_apart_by_what_was_launched() -> None:
    trials = [launch(1), launch(1, context=16384, changed="vllm 0.1 -> 0.2")]
    runs = [
        run
        for of, share in zip(trials, (90, 30), strict=True)
        for run in decoding(of, {"code": [50.0]}, accepted=[share])
    ]
    found = acceptance_by_position(*tables(trials, runs)).filter(task="code", depth=1)
    assert found.select("changed", "accepted").rows() == [("", 0.9), ("vllm 0.1 -> 0.2", 0.3)]


def test_a_cell_that_does_not_work_in_the_end_tells_nothing_of_acceptance() -> None:
    trials = [launch(1), launch(1, attempt=2, hours=1.0, status="infeasible")]
    trials += [launch(1, context=16384)]
    runs = decoding(trials[0], {"code": [50.0]}, accepted=[30])
    runs += decoding(trials[2], {"code": [50.0]}, accepted=[90])
    found = acceptance_by_position(*tables(trials, runs)).filter(task="code", depth=1)
    assert found.select("accepted", "drafts").rows() == [(0.9, 100)]
