"""Speeds of settings: cells that differ in window and share are taken together."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from checked_sweep import launch
from sweep_of_speeds import decoding, published, tables

from vllm_frontier.analyze.intervals import cell_figures, t_quantile
from vllm_frontier.analyze.speed_groups import leading, speed_groups


def test_published_figures_come_out_as_they_are() -> None:
    groups = speed_groups(*published())
    told = {
        (row["depth"], row["graphs"], row["task"]): row["decode_tok_s"]
        for row in groups.iter_rows(named=True)
    }
    assert len(told) == 7 * 4
    assert told[4, False, "edit"] == 115.4
    assert told[4, True, None] == 190.0  # the median over tasks
    assert told[0, False, None] == 23.7


def test_a_cell_by_itself_is_as_sure_as_it_is_alone() -> None:
    trials, runs = tables(
        [launch(2)], decoding(launch(2), {"edit": [50.0, 52.0, 55.0], "code": [60.0, 61.0, 66.0]})
    )
    own = cell_figures(trials, runs).sort("task", nulls_last=False)
    group = speed_groups(trials, runs)
    for name in ("low", "high", "decode_tok_s"):
        assert group[name].to_list() == pytest.approx(own[name].to_list())
    assert group["basis"].to_list() == ["runs"] * 3


def test_cells_with_other_windows_are_taken_together() -> None:
    cells = [launch(1, context=each) for each in (8192, 16384, 32768)]
    runs = [
        run
        for of, speed in zip(cells, (40.0, 44.0, 45.0), strict=True)
        for run in decoding(of, {"edit": [speed] * 3})
    ]
    (overall, edit) = speed_groups(*tables(cells, runs)).iter_rows(named=True)
    assert (overall["task"], edit["task"]) == (None, "edit")
    assert (edit["decode_tok_s"], edit["launches"], edit["runs"], edit["cells"]) == (44.0, 3, 9, 3)


def test_launches_of_all_cells_make_the_interval_narrower() -> None:
    cells = [
        launch(depth, context=context, attempt=attempt, hours=attempt)
        for depth in (0, 1)
        for context in (8192, 16384)
        for attempt in (1, 2)
    ]
    runs = [
        run
        for of in cells
        for run in decoding(of, {"edit": [50.0 * (1.02 if of["attempt"] == 2 else 1.0)]})
    ]
    trials, runs = tables(cells, runs)
    group = speed_groups(trials, runs).filter(depth=1, task="edit").row(0, named=True)
    variance = math.log(1.02) ** 2 / 2  # of one launch; four cells with one degree of freedom each
    half = float(t_quantile(np.array([4.0]))[0]) * math.sqrt(variance / 4)
    middle = 50.0 * math.sqrt(1.02)
    assert group["basis"] == "launches"
    assert group["low"] == pytest.approx(middle * math.exp(-half))
    assert group["high"] == pytest.approx(middle * math.exp(half))


def test_what_is_wrong_with_one_cell_is_told_of_the_group() -> None:
    cells = [
        launch(0),
        launch(2, spec_state="working"),
        launch(2, context=16384, spec_state="ineffective"),
    ]
    runs = [run for of in cells for run in decoding(of, {"edit": [50.0]})]
    for of, likely in zip(cells, (-0.5, -9.0, -0.5), strict=True):
        runs += decoding(
            of,
            {"edit": [0.0, 0.0]},
            kind="probe",
            output_logprob=likely,
            output_logprob_expected=-0.5,
        )
    groups = speed_groups(*tables(cells, runs)).filter(task="edit")
    assert groups.select("depth", "cells", "broken", "spec_state").rows() == [
        (0, 1, 0, None),
        (2, 2, 1, "ineffective"),
    ]


def test_cells_that_do_not_work_and_an_empty_sweep_have_no_speed() -> None:
    refused = launch(1, status="infeasible")
    assert speed_groups(*tables([refused], decoding(refused, {"edit": [9.0]}))).is_empty()
    assert speed_groups(*tables([], [])).is_empty()


def half_of(row: dict[str, Any]) -> float:
    return math.log(row["high"] / row["low"]) / 2


def test_an_interval_within_launches_holds_the_speed_of_every_cell() -> None:
    cells = [launch(4, utilization=share) for share in (0.9, 0.97)]
    by_cell = zip(cells, (130.0, 187.0), strict=True)
    runs = [run for of, speed in by_cell for run in decoding(of, {"code": [speed, speed * 1.001]})]
    row = speed_groups(*tables(cells, runs)).filter(task="code").row(0, named=True)
    assert (row["basis"], row["cells"]) == ("runs", 2)
    assert row["low"] <= 130.065
    assert row["high"] >= 187.0935


def test_cells_of_all_groups_tell_how_far_such_cells_lie_apart() -> None:
    cells = [launch(depth, context=size) for depth in (0, 1, 2) for size in (8192, 16384)]
    runs = [
        run
        for of in cells
        for run in decoding(of, {"code": [50.0 * (1.02 if of["context"] == 8192 else 1.0)]})
    ]
    alone = launch(3)
    runs += decoding(alone, {"code": [80.0]})
    groups = speed_groups(*tables([*cells, alone], runs)).filter(task="code")
    deviation = math.log(1.02) / math.sqrt(2)  # of three pairs, each with one degree of freedom
    half = float(t_quantile(np.array([3.0]))[0]) * deviation / math.sqrt(2)
    for row in groups.filter(pl.col("depth") < 3).iter_rows(named=True):
        assert row["basis"] == "runs"
        assert half_of(row) == pytest.approx(half)
    assert groups.filter(depth=3).select("low", "high").row(0) == (None, None)


def test_runs_of_several_cells_make_an_interval_within_launches_narrower() -> None:
    def half(contexts: tuple[int, ...]) -> float:
        cells = [launch(1, context=each) for each in contexts]
        runs = [run for of in cells for run in decoding(of, {"code": [40.0, 44.0, 50.0]})]
        return half_of(speed_groups(*tables(cells, runs)).filter(task="code").row(0, named=True))

    assert half((8192, 16384, 32768, 65536)) == pytest.approx(half((8192,)) / 2)


def test_every_launch_counts_the_same_in_what_verdicts_compare() -> None:
    cells = [launch(1, attempt=number) for number in (1, 2, 3)]
    speeds = [50.0, 51.0, 52.0]
    cells.append(launch(1, context=16384))
    speeds.append(60.0)
    by_launch = zip(cells, speeds, strict=True)
    runs = [run for of, speed in by_launch for run in decoding(of, {"code": [speed]})]
    row = speed_groups(*tables(cells, runs)).filter(task="code").row(0, named=True)
    assert row["headline"] == pytest.approx(sum(map(math.log, speeds)) / 4)
    assert row["launches"] == 4


def test_what_was_measured_after_a_change_is_apart() -> None:
    cells = [launch(4), launch(4, utilization=0.97, changed="vllm 0.1 -> 0.2")]
    by_cell = zip(cells, (100.0, 140.0), strict=True)
    runs = [run for of, speed in by_cell for run in decoding(of, {"code": [speed] * 2})]
    groups = speed_groups(*tables(cells, runs)).filter(task="code")
    told = groups.select("changed", "decode_tok_s", "cells", "low", "high").rows()
    assert told == [
        ("", 100.0, 1, pytest.approx(100.0), pytest.approx(100.0)),
        ("vllm 0.1 -> 0.2", 140.0, 1, pytest.approx(140.0), pytest.approx(140.0)),
    ]
    assert groups["cell_id"].n_unique() == 2


def leaders_of(speeds: dict[int, float], broken: int | None = None) -> list[tuple[Any, ...]]:
    cells = [launch(depth) for depth in speeds]
    runs = []
    for of in cells:
        runs += decoding(of, {"code": [speeds[of["depth"]]] * 2})
        likely = -9.0 if of["depth"] == broken else -0.5
        runs += decoding(
            of,
            {"code": [0.0, 0.0]},
            kind="probe",
            output_logprob=likely,
            output_logprob_expected=-0.5,
        )
    return leading(speed_groups(*tables(cells, runs))).select("depth", "against").rows()


def test_the_fastest_comes_with_those_it_does_not_differ_from() -> None:
    assert leaders_of({1: 99.0, 2: 100.0, 3: 90.0}) == [(2, None), (1, "runs")]
    assert leaders_of({1: 100.0, 2: 100.0, 3: 99.5}) == [(1, None), (2, "runs"), (3, "runs")]
    assert leaders_of({1: 100.0}) == [(1, None)]


def test_broken_output_leads_only_where_there_is_nothing_else() -> None:
    assert leaders_of({0: 50.0, 1: 99.0, 2: 100.0}, broken=2) == [(1, None)]
    assert leaders_of({0: 98.5, 1: 100.0, 2: 99.5}, broken=2) == [(1, None), (0, "runs")]
