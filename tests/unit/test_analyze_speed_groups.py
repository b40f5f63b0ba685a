"""Speeds of settings: cells that differ in window and share are taken together."""

import math

import numpy as np
import pytest
from checked_sweep import launch
from sweep_of_speeds import decoding, published, tables

from vllm_frontier.analyze.intervals import cell_figures, t_quantile
from vllm_frontier.analyze.speed_groups import speed_groups


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
