"""The picture of acceptance and of where the next token stops paying."""

import re

import polars as pl
from checked_sweep import launch
from sweep_of_speeds import PUBLISHED, data_of, decoding, marks, published, tables

from vllm_frontier.analyze.speed_groups import speed_groups
from vllm_frontier.analyze.worth import acceptance_by_position, depth_steps, pays_up_to
from vllm_frontier.report.plots import render
from vllm_frontier.report.plots.acceptance import acceptance
from vllm_frontier.report.plots.figure import Figure


def drawn(trials: pl.LazyFrame, runs: pl.LazyFrame, **more: bool) -> Figure | None:
    groups = speed_groups(trials, runs)
    positions = acceptance_by_position(trials, runs)
    return acceptance(positions, depth_steps(groups), pays_up_to(groups), **more)


def whole() -> Figure:
    figure = drawn(*published())
    assert figure is not None
    return figure


def test_acceptance_by_position_and_task() -> None:
    accepted, *_ = marks(whole())
    assert len(accepted) == 3 * 5  # positions of each task
    assert accepted[0] == (
        "code, position 1: 95 % of 1,800 drafts accepted up to here; 95 % at depth 1, 95 % at "
        "depth 2, 95 % at depth 3, 95 % at depth 4, 95 % at depth 5"
    )
    assert accepted[4] == "code, position 5: 70 % of 300 drafts accepted up to here"


def test_gains_and_their_signs() -> None:
    figure = whole()
    _, overall, code, _, prose = marks(figure)
    # Four steps without graphs and one with them, and an end for each.
    assert [len(panel) for panel in (overall, code, prose)] == [7, 7, 7]
    assert "code, without graphs, from 0 to 1 tokens drafted: +104.6 %, faster" in code
    assert "prose, with graphs, from 4 to 5 tokens drafted: +0.0 %, no clear difference" in prose
    signs = [row["sign"] for row in data_of(figure) if "sign" in row]
    assert signs.count("triangle-up") == 4 * 4 + 3
    assert signs.count("circle") == 1


def test_the_end_is_drawn_and_told() -> None:
    figure = whole()
    prose = marks(figure)[4]
    assert "with graphs: pays up to 4" in prose
    assert "without graphs: still gains at 4, the deepest" in prose
    ends = {row["words"]: row["at"] for row in data_of(figure) if "at" in row}
    assert round(ends["with graphs: pays up to 4"]) == 4
    assert figure.summary == (
        "Accepted up to the first position and at position 5: code 95 % and 70 %, prose 95 % and "
        "70 % of the drafts. Without graphs: the last token still gains at 4; deeper was not "
        "measured. With graphs: the last token still gains at 5; deeper was not measured (but "
        "prose pays up to 4)."
    )
    assert "with graphs: pays up to 4" in re.sub("<[^>]*>", "|", render.panels(figure)[4])
    assert figure.table is not None
    assert figure.table.filter(task="prose", graphs="on").rows() == [
        ("prose", "on", 4, 5, "no clear difference")
    ]


def test_drafting_that_does_not_pay_is_told() -> None:
    figure = drawn(*published({(0, True): (50.0,), (2, True): (40.0,)}), simulated=True)
    assert figure is not None
    assert figure.title.endswith("(simulated)")
    assert "Code, with graphs: drafting does not pay, more is slower." in figure.summary
    assert "with graphs: drafting does not pay" in marks(figure)[1]


def test_one_depth_has_acceptance_only_and_depth_zero_gains_only() -> None:
    figure = drawn(*published({(3, True): PUBLISHED[3, False]}))
    assert figure is not None
    assert [len(panel) for panel in marks(figure)] == [9]
    assert figure.table is None
    silent = [launch(0), launch(1)]
    runs = [run for of in silent for run in decoding(of, {"edit": [50.0 + 9 * of["depth"]]})]
    figure = drawn(*tables(silent, runs))
    assert figure is not None
    assert [len(panel) for panel in marks(figure)] == [2]
    assert drawn(*published({(0, True): PUBLISHED[0, False]})) is None
