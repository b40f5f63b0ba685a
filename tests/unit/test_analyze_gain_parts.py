"""How much of a gain is the graphs' and how much the speculation's."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_of_speeds import published

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
