"""The picture of what the gain is made of."""

import math

import polars as pl
import pytest
from checked_sweep import launch
from sweep_of_speeds import data_of, decoding, marks, published, tables

from vllm_frontier.analyze.gain_parts import gain_parts
from vllm_frontier.analyze.speed_groups import speed_groups
from vllm_frontier.report.plots import render
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.plots.gain import gain

FOUR = {
    (0, False): (20.0, 20.0, 20.0),
    (0, True): (40.0, 40.0, 40.0),
    (2, False): (60.0, 60.0, 60.0),
    (2, True): (90.0, 90.4, 89.0),
}
LUCK = " All of this is within launches, so that a difference may be luck."


def gained(groups: pl.DataFrame) -> Figure:
    figure = gain(gain_parts(groups))
    assert figure is not None
    return figure


def test_the_gain_goes_both_ways() -> None:
    figure = gained(speed_groups(*published(FOUR)))
    assert figure.summary == (
        "Over all tasks, 2 tokens drafted, with graphs: ×4.50 of no speculation without graphs: "
        "graphs alone ×2.00 and speculation on top ×2.25; or the other way round, speculation "
        "alone ×3.00 and graphs on top ×1.50. Together they are worth 25 % less than one would "
        "expect of each alone (×6.00)." + LUCK
    )
    overall = marks(figure)[0]
    assert len(overall) == 5
    assert overall[1] == (
        "all tasks, speculation on top: ×2.25 (2 tokens drafted, with graphs, over no speculation, "
        "with graphs), faster (within launches)"
    )
    bars = [row for row in data_of(figure) if row.get("words", "").startswith("all tasks, ")]
    at = {row["step"]: (row["start"], row["end"]) for row in bars}
    assert at == {
        "graphs alone": (1.0, 2.0),
        "speculation on top": (2.0, pytest.approx(4.5)),
        "speculation alone": (1.0, 3.0),
        "graphs on top": (3.0, pytest.approx(4.5)),
        "both": (1.0, pytest.approx(4.5)),
    }


def test_a_launch_that_is_missing_is_named() -> None:
    figure = gained(speed_groups(*published()))
    assert "More cannot be told without a speed of: no speculation, with graphs." in figure.summary
    assert "4 tokens drafted, with graphs: ×8.02" in figure.summary
    assert len(marks(figure)[0]) == 3
    assert figure.notes[-1].endswith("; no speculation, with graphs.")


def test_without_a_graphs_axis_only_speculation_is_told() -> None:
    only = {corner: speeds for corner, speeds in FOUR.items() if corner[1]}
    figure = gained(speed_groups(*published(only)))
    assert figure.summary == (
        "Over all tasks, 2 tokens drafted: speculation on top ×2.25. How much of the gain is the "
        "graphs' cannot be told without a speed of: no speculation, without graphs; 2 tokens "
        "drafted, without graphs." + LUCK
    )
    assert [len(panel) for panel in marks(figure)] == [1, 1, 1, 1]


def test_a_part_that_is_unsure_has_a_sign() -> None:
    figure = gained(speed_groups(*published(FOUR | {(0, True): (20.2, 20.2, 20.2)})))
    assert "×1.01 ≈" in render.panels(figure)[0]
    assert "≈: no clear difference between the two speeds." in figure.notes


def bars(figure: Figure) -> dict[str, dict[str, object]]:
    """The bars of the first panel, by their step."""
    (rows, *_) = figure.panels[0].to_dict()["datasets"].values()
    return {row["step"]: row for row in rows}


def several(noise: float, launches: int = 3) -> pl.DataFrame:
    """The corners of `FOUR` for one task, in launches that differ by `noise`."""
    trials, runs = [], []
    for (depth, graphs), (speed, *_) in FOUR.items():
        for attempt in range(1, launches + 1):
            of = launch(depth, attempt=attempt, graphs=graphs)
            trials.append(of)
            each = speed * math.exp(noise * (attempt - 2))
            runs += decoding(of, {"code": [each, each]})
    return speed_groups(*tables(trials, runs))


def test_each_part_has_its_colour() -> None:
    figure = gained(speed_groups(*published(FOUR)))
    colours = {step: row["colour"] for step, row in bars(figure).items()}
    assert colours == {
        "graphs alone": "var(--series-1)",
        "graphs on top": "var(--series-1)",
        "speculation alone": "var(--series-4)",
        "speculation on top": "var(--series-4)",
        "both": "var(--muted)",
    }
    assert figure.legend == (
        ("series-1", "what graphs give"),
        ("series-4", "what speculation gives"),
        ("muted", "both"),
    )


def test_what_runs_within_launches_tell_has_a_star_and_what_launches_tell_has_none() -> None:
    within = gained(speed_groups(*published(FOUR)))
    assert next(row["figure"] for row in bars(within).values()) == "×2.00 *"
    assert any(note.startswith("* within launches: ") for note in within.notes)
    assert within.table is not None
    assert within.table.select("graphs alone", "both").row(0) == ("×2.00 *", "×4.50 *")
    over = gained(several(0.001))
    assert next(row["figure"] for row in bars(over).values()) == "×2.00"
    assert "*" not in "".join(over.notes)
    assert "luck" not in over.summary
    assert "within launches" not in "".join(marks(over)[0])


def test_one_task_is_named_and_told_once() -> None:
    figure = gained(several(0.001))
    assert figure.summary.startswith("On code, 2 tokens drafted, with graphs: ×4.50 of ")
    assert [len(panel) for panel in marks(figure)] == [5]
    assert figure.table is not None
    assert figure.table.height == 1


def test_an_interaction_is_only_told_where_it_exceeds_what_it_is_unsure_by() -> None:
    assert "25 % less than one would expect of each alone (×6.00)" in gained(several(0.01)).summary
    unsure = gained(several(0.2))
    assert "% less" not in unsure.summary
    assert "Whether each is worth less with the other than alone is not clear." in unsure.summary
    assert unsure.table is not None
    (told,) = unsure.table["both over the product (95 %)"]
    assert told.startswith("×0.75 (0.")
    nothing = pl.lit(None, dtype=pl.Float64)
    alone = several(0.0, launches=1).with_columns(low=nothing, high=nothing)
    assert "How well they go together is not known" in gained(alone).summary


def test_parts_that_do_not_touch_each_other_are_said_to_be_worth_the_same() -> None:
    plain = {
        (0, False): (20.0,),
        (0, True): (40.0,),
        (2, False): (60.0,),
        (2, True): (120.0,),
    }
    figure = gained(speed_groups(*published(plain)))
    assert "Each is worth the same with and without the other." in figure.summary


def test_a_part_without_a_clear_difference_says_so_in_the_summary() -> None:
    figure = gained(speed_groups(*published(FOUR | {(0, True): (20.2, 20.2, 20.2)})))
    assert "graphs alone ×1.01 (no clear difference) and speculation on top" in figure.summary


def test_without_the_speed_with_neither_bars_do_not_claim_to_be_multiples_of_it() -> None:
    lacking = {corner: speeds for corner, speeds in FOUR.items() if corner != (0, False)}
    (panel, *_) = render.panels(gained(speed_groups(*published(lacking))))
    assert "times the speed without it" in panel
    assert "with neither" not in panel
    assert (
        "times the speed with neither" in render.panels(gained(speed_groups(*published(FOUR))))[0]
    )
