"""The picture of acceptance and of where the next token stops paying."""

import re
from itertools import pairwise

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
    assert (
        "code, without graphs, from 0 to 1 tokens drafted: +104.6 %, faster (within launches)"
        in code
    )
    assert (
        "prose, with graphs, from 4 to 5 tokens drafted: +0.0 %, no clear difference (within "
        "launches)"
    ) in prose
    signs = [row["sign"] for row in data_of(figure) if "sign" in row]
    assert signs.count("triangle-up") == 4 * 4 + 3
    assert signs.count("circle") == 1


def test_the_end_is_drawn_and_told() -> None:
    figure = whole()
    prose = marks(figure)[4]
    assert "with graphs: pays up to 4 (within launches)" in prose
    assert "without graphs: still gains at 4, the deepest (within launches)" in prose
    ends = {row["words"]: row["at"] for row in data_of(figure) if "at" in row}
    assert round(ends["with graphs: pays up to 4 (within launches)"]) == 4
    assert figure.summary == (
        "Accepted at the first position and up to position 5: code 95 % and 70 %, prose 95 % and "
        "70 % of the drafts. Without graphs: the last token still gains at 4; deeper was not "
        "measured. With graphs: the last token still gains at 5; deeper was not measured (but "
        "prose pays up to 4). Depths are compared within launches, so that a difference may be "
        "luck."
    )
    assert "with graphs: pays up to 4 *" in re.sub("<[^>]*>", "|", render.panels(figure)[4])
    assert figure.table is not None
    assert figure.table.filter(task="prose", graphs="on").rows() == [
        ("prose", "on", "4 *", 5, "no clear difference")
    ]


def test_drafting_that_does_not_pay_is_told() -> None:
    figure = drawn(*published({(0, True): (50.0,), (2, True): (40.0,)}), simulated=True)
    assert figure is not None
    assert figure.title.endswith("(simulated)")
    assert "Code, with graphs: drafting does not pay, more is slower." in figure.summary
    assert "with graphs: drafting does not pay (within launches)" in marks(figure)[1]
    assert figure.table is not None
    assert figure.table["task"].to_list() == ["code"]  # once, and not as "all tasks" again


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


def replicated(speeds: dict[int, float], once: int = -1) -> Figure:
    """Three launches of every depth, which differ by 0.1 %; one says nothing of launches."""
    trials = [launch(depth, attempt=attempt) for depth in speeds for attempt in (1, 2, 3)]
    runs = [
        run
        for of in trials
        for run in decoding(of, {"code": [speeds[of["depth"]] * (1 + of["attempt"] / 1000)] * 2})
    ]
    within = pl.when(pl.col("depth") == once).then(pl.lit("runs")).otherwise("basis")
    groups = speed_groups(*tables(trials, runs)).with_columns(basis=within)
    positions = acceptance_by_position(*tables(trials, runs))
    figure = acceptance(positions, depth_steps(groups), pays_up_to(groups))
    assert figure is not None
    return figure


def test_only_what_rests_on_runs_within_launches_is_marked_as_luck() -> None:
    sure = replicated({0: 50.0, 1: 80.0, 2: 90.0})
    told = " ".join([sure.summary, *sure.notes, *marks(sure)[0]])
    assert "within launches" not in told
    assert "beyond doubt" not in told
    assert sure.table is not None
    assert sure.table["pays up to"].to_list() == ["2"]
    assert [row["star"] for row in data_of(sure) if "star" in row] == ["", ""]
    unsure = replicated({0: 50.0, 1: 80.0, 2: 90.0, 3: 95.0}, once=3)
    assert [row["star"] for row in data_of(unsure) if "star" in row] == ["", "", "*"]
    assert any(note.startswith("* within launches: ") for note in unsure.notes)
    assert unsure.table is not None
    assert unsure.table["pays up to"].to_list() == ["3 *"]


def pooled(shares: dict[str, tuple[float, float]], task: str = "edit") -> list[dict[str, object]]:
    return [
        {
            "extra": extra,
            "changed": "",
            "task": task,
            "depth": None,
            "position": position,
            "accepted": share,
            "drafts": 100,
        }
        for extra, each in shares.items()
        for position, share in enumerate(each, start=1)
    ]


def accepted_of(rows: list[dict[str, object]]) -> Figure:
    found = pl.DataFrame(rows, schema_overrides={"depth": pl.Int64})
    nothing = speed_groups(*tables([], []))
    figure = acceptance(found.reverse(), depth_steps(nothing), pays_up_to(nothing))
    assert figure is not None
    return figure


def test_shares_of_one_setting_are_not_mixed_with_those_of_another() -> None:
    rows = pooled({'{"a": 1}': (0.9, 0.8), '{"a": 2}': (0.3, 0.2)})
    rows += pooled({'{"a": 1}': (0.7, 0.6), '{"a": 2}': (0.7, 0.6)}, "prose")
    told = accepted_of(rows).summary
    where = "at the first position and up to position 2"
    one = f"Accepted with a=1, {where}: edit 90 % and 80 %, prose 70 % and 60 % of the drafts."
    two = f"Accepted with a=2, {where}: prose 70 % and 60 %, edit 30 % and 20 % of the drafts."
    assert one in told
    assert two in told


def test_what_is_accepted_alike_is_told_once_and_many_settings_are_not_all_told() -> None:
    alike = accepted_of(pooled({f'{{"a": {each}}}': (0.9, 0.8) for each in range(5)}))
    assert alike.summary == (
        "Accepted at the first position and up to position 2: edit 90 % and 80 % of the drafts."
    )
    apart = accepted_of(pooled({f'{{"a": {each}}}': (0.9, each / 10) for each in range(5)}))
    assert apart.summary.count("Accepted with ") == 3
    assert apart.summary.endswith("2 more settings of other axes have panels of their own.")


def test_lines_of_acceptance_are_named_at_their_ends() -> None:
    figure = whole()
    panel_svg = render.panels(figure)[0]
    panel = re.sub("<[^>]*>", "|", panel_svg)
    assert all(f"|{task}|" in panel for task in ("code", "edit", "prose"))
    names = {row["name"]: row for row in data_of(figure) if "name" in row}
    assert {row["position"] for row in names.values()} == {5}
    told = dict(
        re.findall(r'<path aria-label="(\w+), position 1:[^>]*fill="var\(--([^)]*)', panel_svg)
    )
    legend = {words: colour for colour, words in figure.legend}
    assert told == {
        "code": legend["accepted: code (circle)"],
        "edit": legend["accepted: edit (square)"],
        "prose": legend["accepted: prose (triangle)"],
    }
    assert not {"series-1", "series-2"} & set(told.values())  # those of graphs
    places = sorted(row["place"] for row in names.values())
    assert min(high - low for low, high in pairwise(places)) > 0.08
    assert all(0 <= place <= 1 for place in places)


def test_many_or_long_names_do_not_run_into_each_other() -> None:
    tasks = [f"task number {each}" for each in range(14)]
    rows = [row for task in tasks for row in pooled({"{}": (0.5, 0.4)}, task)]
    assert not any("name" in row for row in data_of(accepted_of(rows)))
    low = [row for task in tasks[:4] for row in pooled({"{}": (0.1, 0.0)}, task)]
    names = [row for row in data_of(accepted_of(low)) if "name" in row]
    places = sorted(row["place"] for row in names)
    assert places[0] >= 0
    assert min(high - below for below, high in pairwise(places)) > 0.08
    assert {row["name"] for row in names} == {"task number…"}


def test_gains_with_and_without_graphs_are_told_apart_by_more_than_colour() -> None:
    _, overall, *_ = render.panels(whole())
    signs = re.findall(r'<path aria-label="[^"]* from (\d) to[^>]*fill="([^"]*)"', overall)
    assert dict(signs) == {
        **{str(depth): "var(--page)" for depth in range(4)},  # without: open
        "4": "var(--series-1)",  # with: filled
    }
    steps = re.findall(
        r'<line [^>]*stroke="var\(--series-(\d)\)" stroke-width="1.5"[^>]*>', overall
    )
    assert sorted(steps) == ["1", "2", "2", "2", "2"]
    lines = re.findall(r"<line [^>]*--series-[12][^>]*>", overall)
    assert len(lines) == 5 + 2  # steps, and where they end
    for line in lines:
        assert ('stroke-dasharray="5,3"' in line) == ("--series-2" in line)
