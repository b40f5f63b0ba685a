"""How much of a gain is the graphs' and how much the speculation's."""

import math
from typing import Any

import polars as pl
import pytest
from checked_sweep import launch
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_of_speeds import decoding, published, tables

from vllm_frontier.analyze.gain_parts import CORNERS, STEPS, gain_parts
from vllm_frontier.analyze.speed_groups import speed_groups

FOUR = {
    (0, False): (20.0, 20.0, 20.0),
    (0, True): (40.0, 40.0, 40.0),
    (2, False): (60.0, 60.0, 60.0),
    (2, True): (90.0, 90.0, 90.4),
}


def parts_of(speeds: dict[tuple[int, bool], tuple[float, ...]]) -> pl.DataFrame:
    return gain_parts(speed_groups(*published(speeds)))


def test_both_orders_end_at_the_same_total() -> None:
    row = parts_of(FOUR).row(0, named=True)
    assert (row["task"], row["depth"], row["missing"], row["broken"]) == (None, 2, [], False)
    told = {name: row[name] for name in STEPS}
    assert told == pytest.approx(
        {
            "graphs_first": 2.0,
            "then_speculation": 2.25,
            "speculation_first": 3.0,
            "then_graphs": 1.5,
            "total": 4.5,
        }
    )
    assert row["interaction"] == pytest.approx(0.75)
    assert {row[f"{name}_verdict"] for name in STEPS} == {"faster"}


def test_a_part_that_is_within_noise_says_so() -> None:
    row = parts_of(FOUR | {(0, True): (20.2, 20.2, 20.2)}).row(0, named=True)
    assert row["graphs_first"] == pytest.approx(1.01)
    assert row["graphs_first_verdict"] == "no clear difference"
    assert row["then_speculation_verdict"] == "faster"


def test_the_published_sweep_lacks_a_corner() -> None:
    found = gain_parts(speed_groups(*published())).filter(pl.col("task").is_null())
    assert found["depth"].to_list() == [1, 2, 3, 4, 5]
    four, five = found.row(3, named=True), found.row(4, named=True)
    assert four["missing"] == ["graphs_only"]
    assert (four["graphs_first"], four["then_speculation"], four["interaction"]) == (None,) * 3
    assert four["speculation_first"] == pytest.approx(96.9 / 23.7)
    assert four["then_graphs"] == pytest.approx(190 / 96.9)
    assert four["total"] == pytest.approx(190 / 23.7)
    assert five["missing"] == ["graphs_only", "speculation_only"]
    assert five["total"] == pytest.approx(202 / 23.7)
    assert five["then_graphs_verdict"] is None


def test_without_depths_that_draft_there_is_nothing_to_part() -> None:
    assert parts_of({(0, False): (20.0,), (0, True): (40.0,)}).is_empty()


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(1.0, 1000.0), min_size=4, max_size=4), st.sets(st.integers(0, 3), max_size=3)
)
def test_what_is_told_multiplies(speeds: list[float], lacking: set[int]) -> None:
    corners = ((0, False), (0, True), (2, False), (2, True))
    given_ = {
        corner: (speed,)
        for place, (corner, speed) in enumerate(zip(corners, speeds, strict=True))
        if place not in lacking
    }
    for row in parts_of(given_).iter_rows(named=True):
        known = {name for name in CORNERS if row[name] is not None}
        assert set(row["missing"]) == set(CORNERS) - known
        for first, second in (
            ("graphs_first", "then_speculation"),
            ("speculation_first", "then_graphs"),
        ):
            if row[first] is not None and row[second] is not None:
                assert row[first] * row[second] == pytest.approx(row["total"])
        assert (row["interaction"] is None) == bool(row["missing"])


CORNER = ((0, False), (0, True), (2, False), (2, True))


def square(
    speeds: tuple[float, ...], noise: float, launches: int = 1, **more: dict[int, Any]
) -> dict[str, Any]:
    """The four corners, each with three runs that differ by `noise`, for one task."""
    trials, runs = [], []
    for place, ((depth, graphs), speed) in enumerate(zip(CORNER, speeds, strict=True)):
        for attempt in range(1, launches + 1):
            own = {name: values[place] for name, values in more.items() if place in values}
            of = launch(depth, attempt=attempt, graphs=graphs, **own)
            trials.append(of)
            by_launch = speed * math.exp(noise * (attempt - 1))
            each = [by_launch * math.exp(noise * (number - 1)) for number in range(3)]
            runs += decoding(of, {"code": each})
    parts = gain_parts(speed_groups(*tables(trials, runs)))
    return parts.filter(task="code").row(0, named=True)


def test_an_interaction_is_as_unsure_as_its_corners() -> None:
    sure = square((20.0, 40.0, 60.0, 90.0), noise=0.001)
    assert sure["interaction"] == pytest.approx(0.75)
    assert sure["interaction_low"] < 0.75 < sure["interaction_high"] < 0.76
    unsure = square((20.0, 40.0, 60.0, 90.0), noise=0.1)
    groups_half = math.log(unsure["interaction_high"] / 0.75)
    assert groups_half == pytest.approx(100 * math.log(sure["interaction_high"] / 0.75))
    assert unsure["interaction_low"] == pytest.approx(0.75 * math.exp(-groups_half))
    assert unsure["interaction_low"] < 1 < unsure["interaction_high"]


def test_four_corners_make_the_interval_twice_as_wide_as_one() -> None:
    speeds = (20.0, 40.0, 60.0, 90.0)
    trials = [launch(depth, graphs=graphs) for depth, graphs in CORNER]
    runs = []
    for of, speed in zip(trials, speeds, strict=True):
        runs += decoding(of, {"code": [speed * math.exp(each) for each in (-0.1, 0.0, 0.1)]})
    groups = speed_groups(*tables(trials, runs)).filter(task="code")
    row = groups.filter(depth=0, graphs=True).row(0, named=True)
    one = math.log(row["high"] / row["low"]) / 2
    found = gain_parts(groups).row(0, named=True)
    assert math.log(found["interaction_high"] / found["interaction"]) == pytest.approx(2 * one)


def test_the_basis_of_each_part_is_told() -> None:
    within = square((20.0, 40.0, 60.0, 90.0), noise=0.001)
    assert {within[f"{name}_basis"] for name in (*STEPS, "interaction")} == {"runs"}
    over = square((20.0, 40.0, 60.0, 90.0), noise=0.001, launches=2)
    assert {over[f"{name}_basis"] for name in (*STEPS, "interaction")} == {"launches"}


def test_without_an_interval_nothing_tells_how_sure_an_interaction_is() -> None:
    trials = [launch(depth, graphs=graphs) for depth, graphs in CORNER]
    by_launch = zip(trials, (20.0, 40.0, 60.0, 90.0), strict=True)
    runs = [run for of, speed in by_launch for run in decoding(of, {"code": [speed]})]
    row = gain_parts(speed_groups(*tables(trials, runs))).row(0, named=True)
    assert row["interaction"] == pytest.approx(0.75)
    assert (row["interaction_low"], row["interaction_high"]) == (None, None)


def test_output_that_is_broken_in_one_of_both_is_told() -> None:
    trials = [launch(depth, graphs=graphs) for depth, graphs in CORNER]
    runs = []
    for of in trials:
        runs += decoding(of, {"code": [50.0] * 2})
        runs += decoding(
            of,
            {"code": [0.0, 0.0]},
            kind="probe",
            output_logprob=-9.0 if of["depth"] and of["graphs"] else -0.5,
            output_logprob_expected=-0.5,
        )
    assert gain_parts(speed_groups(*tables(trials, runs)))["broken"].to_list() == [True, True]


def test_settings_from_before_and_after_a_change_are_not_compared() -> None:
    row = square((20.0, 40.0, 60.0, 90.0), 0.001, changed={3: "vllm 0.1 -> 0.2"})
    assert (row["changed"], row["missing"]) == ("", ["both"])
    assert row["speculation_first"] == pytest.approx(3.0)
