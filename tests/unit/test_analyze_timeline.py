"""The launches of a sweep in order."""

from datetime import timedelta

import polars as pl
import pytest
from checked_sweep import BEGAN, Row, launch
from sweep_of_speeds import decoding, tables

from vllm_frontier.analyze.timeline import launch_order


def ordered(launches: list[tuple[Row, float | None]], **conditions: float) -> pl.DataFrame:
    runs = [
        run
        for of, speed in launches
        if speed is not None
        for run in decoding(of, {"edit": [speed * 0.9, speed, speed * 1.3]}, **conditions)
    ]
    return launch_order(*tables([of for of, _ in launches], runs))


def test_launches_stand_in_the_order_in_which_they_began() -> None:
    found = ordered(
        [
            (launch(1, hours=2.0), 30.0),
            (launch(0, hours=0.0), 20.0),
            (launch(3, hours=1.0, status="infeasible", failure_class="kv_too_small"), None),
            (launch(5, attempt=0, status="inferred", started_at=None), None),
        ]
    )
    assert found.select("launch", "depth", "status", "failure_class", "minutes").rows() == [
        (1, 0, "measured", None, 0.0),
        (2, 3, "infeasible", "kv_too_small", 60.0),
        (3, 1, "measured", None, 120.0),
    ]
    assert found["decode_tok_s"].to_list() == [20.0, None, 30.0]


def test_speed_is_held_against_launches_of_the_same_depth_and_graphs() -> None:
    found = ordered(
        [
            (launch(1, hours=0.0), 50.0),
            (launch(1, hours=1.0, context=16384), 55.0),
            (launch(1, hours=2.0, attempt=2), 45.0),
            (launch(1, hours=3.0, graphs=False), 20.0),
            (launch(1, hours=4.0, extra='{"a": 1}'), 70.0),
            (launch(1, hours=5.0, utilization=0.97, changed="vllm 0.1 -> 0.2"), 80.0),
        ]
    )
    assert found["relative"].to_list() == pytest.approx([1.0, 1.1, 0.9, 1.0, 1.0, 1.0])
    assert found["alike"].to_list() == [3, 3, 3, 1, 1, 1]
    assert found["changed"].to_list() == [""] * 5 + ["vllm 0.1 -> 0.2"]


def test_one_odd_launch_does_not_move_what_the_others_are_held_against() -> None:
    speeds = {1: 50.0, 2: 50.0, 3: 9.0}
    found = ordered([(launch(1, attempt=each, hours=each), speeds[each]) for each in speeds])
    assert found["relative"].to_list() == pytest.approx([1.0, 1.0, 0.18])


def test_the_reference_cell_is_marked_from_its_first_launch_on() -> None:
    found = ordered(
        [
            (launch(3, hours=0.0), 50.0),
            (launch(1, hours=1.0, purpose="proof"), 50.0),
            (launch(3, hours=2.0, attempt=2, purpose="reference"), 50.0),
            # One that could be launched only once does not watch over anything.
            (launch(0, hours=3.0, purpose="reference"), 50.0),
        ]
    )
    assert found["reference"].to_list() == [True, False, True, False]
    assert not ordered([(launch(1), 50.0)])["reference"].any()


def test_what_a_launch_that_failed_had_measured_is_no_speed() -> None:
    found = ordered([(launch(1, status="failed", failure_class="killed"), 50.0)])
    assert found.select("decode_tok_s", "relative", "alike").row(0) == (None, None, None)


def test_conditions_are_those_of_the_decode_runs() -> None:
    found = ordered([(launch(1), 50.0)], sm_clock_mhz=2500.0, temperature_c=61.0)
    assert found.select("sm_clock_mhz", "temperature_c", "cpu_mhz").row(0) == (2500.0, 61.0, None)


def test_launches_without_a_time_come_last_and_an_empty_sweep_has_none() -> None:
    found = ordered([(launch(1, started_at=None), 50.0), (launch(2, hours=1.0), 60.0)])
    assert found.select("depth", "minutes").rows() == [(2, 0.0), (1, None)]
    assert found["started_at"].to_list() == [BEGAN + timedelta(hours=1), None]
    assert ordered([]).is_empty()
