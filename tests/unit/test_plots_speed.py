"""The picture of speed by depth."""

import re
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from checked_sweep import launch
from sweep_of_speeds import data_of, decoding, marks, published, tables

from vllm_frontier.analyze.gain_parts import gain_parts
from vllm_frontier.analyze.speed_groups import speed_groups
from vllm_frontier.report.plots import render
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.plots.gain import gain
from vllm_frontier.report.plots.speed import MOST_PANELS, speed

GROUPS = speed_groups(*published())


def drawn(groups: pl.DataFrame, **more: bool) -> Figure:
    figure = speed(groups, **more)
    assert figure is not None
    return figure


def gained(groups: pl.DataFrame) -> Figure:
    figure = gain(gain_parts(groups))
    assert figure is not None
    return figure


def test_every_setting_has_a_mark_in_every_panel() -> None:
    figure = drawn(GROUPS)
    assert [len(panel) for panel in marks(figure)] == [7, 7, 7, 7]
    overall, code, edit, prose = marks(figure)
    assert overall[0].startswith(
        "all tasks, no speculation, without graphs: 23.7 tokens/s; 95 % interval "
    )
    assert edit[4].startswith("edit, 4 tokens drafted, without graphs: 115.4 tokens/s")
    assert edit[4].endswith(
        "within launches only, 1 launch; ×4.87 of no speculation without graphs"
    )
    assert prose[-1].startswith("prose, 5 tokens drafted, with graphs: 159.0 tokens/s")
    assert all("edit" not in words for words in code)


def test_marks_stand_where_the_figures_are() -> None:
    rows = [row for row in data_of(drawn(GROUPS)) if row.get("words", "").startswith("edit, ")]
    at = {(row["depth"], round(row["x"] - row["depth"], 2)): row["decode_tok_s"] for row in rows}
    assert at[4, -0.06] == 115.4  # without graphs, a little to the left
    assert at[4, 0.06] == 228.0
    assert at[0, -0.06] == 23.7
    bases = {row["base"] for row in data_of(drawn(GROUPS)) if "base" in row and "words" not in row}
    assert bases == {23.7}


def test_graphs_are_told_apart_by_more_than_colour() -> None:
    (panel, *_) = render.panels(drawn(GROUPS))
    assert panel.count('fill="var(--page)"') == 5  # open: the five without graphs
    assert panel.count('fill="var(--series-1)"') == 2
    assert 'stroke-dasharray="5,3"' in panel


def test_the_summary_gives_the_answer_in_figures() -> None:
    figure = drawn(GROUPS, simulated=True)
    assert figure.title == "How fast (simulated)"
    assert figure.summary == (
        "Fastest over all tasks: 5 tokens drafted, with graphs, 202.0 tokens/s (95 % interval "
        "202.0 to 202.0, within launches), ×8.52 of the 23.7 of no speculation without graphs. "
        "By task: edit 253.0, code 202.0, prose 159.0."
    )
    assert figure.table is not None
    assert figure.table.select("tokens drafted", "graphs", "edit").rows()[4] == (4, "off", "115.4")
    assert drawn(GROUPS).title == "How fast"


def test_one_cell_has_one_mark_and_no_gain() -> None:
    groups = speed_groups(*tables([launch(0)], decoding(launch(0), {"edit": [50.0, 51.0]})))
    (panel,) = marks(drawn(groups))
    assert len(panel) == 1
    once = speed_groups(*tables([launch(0)], decoding(launch(0), {"edit": [50.0]})))
    assert marks(drawn(once)) == [
        ["edit, no speculation, with graphs: 50.0 tokens/s; 95 % interval not known, 1 launch"]
    ]
    assert gain(gain_parts(groups)) is None
    nothing = speed_groups(*tables([], []))
    assert speed(nothing) is None
    assert gain(gain_parts(nothing)) is None


def doubtful(**more: Any) -> pl.DataFrame:
    """Depth 2 is the fastest, but something is wrong with it."""
    cells = [launch(0), launch(1, spec_state="working"), launch(2, **more)]
    speeds = (50.0, 80.0, 120.0)
    runs = [
        run
        for of, each in zip(cells, speeds, strict=True)
        for run in decoding(of, {"edit": [each] * 3})
    ]
    if "spec_state" not in more:
        for of, likely in zip(cells, (-0.5, -0.5, -9.0), strict=True):
            runs += decoding(
                of,
                {"edit": [0.0]},
                kind="probe",
                output_logprob=likely,
                output_logprob_expected=-0.5,
            )
    return speed_groups(*tables(cells, runs))


def test_broken_output_is_marked_and_does_not_win() -> None:
    figure = drawn(doubtful())
    (panel,) = marks(figure)
    assert [words.endswith("its output is broken") for words in panel] == [False, False, True]
    assert render.panels(figure)[0].count(">!</text>") == 1
    assert figure.summary.startswith("Fastest on edit: 1 token drafted")
    assert ("refused", "!: its output is broken, or speculation does not work") in figure.legend
    assert "1 token drafted" in gained(doubtful()).summary


def test_speculation_that_does_not_work_is_marked() -> None:
    figure = drawn(doubtful(spec_state="ineffective"))
    assert marks(figure)[0][2].endswith("speculation is ineffective")
    assert figure.summary.endswith("But speculation is ineffective.")


def test_further_axes_have_panels_of_their_own_until_there_are_too_many() -> None:
    def sweep(count: int) -> pl.DataFrame:
        cells = [launch(0, extra=f'{{"block_size": {each}}}') for each in range(count)]
        by_task = {task: [50.0] for task in ("code", "edit")}
        return speed_groups(*tables(cells, [run for of in cells for run in decoding(of, by_task)]))

    figure = drawn(sweep(2))
    assert len(figure.panels) == 2 * 3
    assert marks(figure)[0][0].startswith("all tasks, no speculation, with graphs, block_size=0: ")
    figure = drawn(sweep(MOST_PANELS))
    assert len(figure.panels) == MOST_PANELS
    assert figure.notes[-1] == "There are too many combinations to draw every task."


@pytest.mark.parametrize("make", [drawn, gained])
def test_no_description_can_break_out_of_the_picture(
    make: Callable[[pl.DataFrame], Figure],
) -> None:
    task = '</svg><script>alert("x")</script>'
    cells = [launch(0), launch(1, spec_state="working")]
    runs = [run for of in cells for run in decoding(of, {task: [50.0 + of["depth"]] * 3})]
    figure = make(speed_groups(*tables(cells, runs)))
    svg = render.svg_file(figure)
    assert "<script" not in svg
    assert svg.count("</svg>") == 1


def of_code(speeds: dict[int, float], launches: int = 1, **more: dict[int, Any]) -> pl.DataFrame:
    """Depths with one task, in launches that differ by 0.1 %."""
    trials, runs = [], []
    for depth, typical in speeds.items():
        for attempt in range(1, launches + 1):
            own = {name: values[depth] for name, values in more.items() if depth in values}
            of = launch(depth, attempt=attempt, **own)
            trials.append(of)
            runs += decoding(of, {"code": [typical * (1 + attempt / 1000)] * 2})
    return speed_groups(*tables(trials, runs))


def test_the_fastest_names_those_it_does_not_differ_from() -> None:
    told = drawn(of_code({1: 100.0, 2: 102.0, 3: 101.0, 4: 90.0})).summary
    assert "No clear difference to 3 tokens drafted, with graphs (101.1) and 1 token" in told
    assert "4 tokens drafted" not in told
    many = drawn(of_code(dict.fromkeys(range(1, 7), 100.0))).summary
    assert many.endswith(
        "3 tokens drafted, with graphs (100.1), 4 tokens drafted, with graphs (100.1) and 2 more."
    )
    assert "No clear difference" not in drawn(of_code({0: 50.0, 1: 80.0})).summary


def test_one_task_is_named_and_has_no_column_beside_itself() -> None:
    figure = drawn(of_code({0: 50.0, 1: 80.0}))
    assert figure.summary.startswith("Fastest on code: 1 token drafted, with graphs, 80.1 tokens/s")
    assert figure.table is not None
    assert figure.table.columns == [
        "tokens drafted",
        "graphs",
        "code, tokens/s",
        "95 % interval",
        "launches",
    ]


def test_intervals_within_launches_are_pale_and_others_are_not() -> None:
    def opacities(figure: Figure) -> set[str]:
        (panel, *_) = render.panels(figure)
        bars = re.findall(r'<line [^>]*stroke-width="3"[^>]*>', panel)
        return {re.findall(r'(?<![-\w])opacity="([^"]*)"', bar)[0] for bar in bars}

    within, over = drawn(of_code({0: 50.0, 1: 80.0})), drawn(of_code({0: 50.0, 1: 80.0}, 3))
    assert opacities(within) == {"0.4"}
    assert opacities(over) == {"0.9"}
    assert within.table is not None
    assert over.table is not None
    assert all(told.endswith(" *") for told in within.table["95 % interval"])
    assert not any("*" in told for told in over.table["95 % interval"])
    assert "within launches" in within.summary
    assert "within launches" not in over.summary + "".join(over.notes)


def test_what_was_measured_after_a_change_has_a_panel_and_words_of_its_own() -> None:
    figure = drawn(of_code({0: 50.0, 1: 80.0, 2: 90.0}, changed={2: "vllm 0.1 -> 0.2; b 1 -> 2"}))
    before, after = marks(figure)
    assert [len(before), len(after)] == [2, 1]
    assert after[0].startswith(
        "code, 2 tokens drafted, with graphs, after vllm 0.1 -> 0.2 and b 1 -> 2: 90.1 tokens/s"
    )
    assert "after vllm 0.1 -&gt; 0.2 and b 1 -&gt; 2" in render.panels(figure)[1]
    assert any("went on with something else" in note for note in figure.notes)
    assert figure.table is not None
    assert figure.table["further axes"].to_list()[-1] == "after vllm 0.1 -> 0.2 and b 1 -> 2"
    assert not any("something else" in note for note in drawn(of_code({0: 50.0})).notes)
