import itertools
import json
from collections import Counter
from typing import Any

import polars as pl
import pytest
from plotted import Mark, marks, panels, texts

from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.cell_states import cell_states
from vllm_frontier.outcome import FailureClass
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.plots.fits import fits
from vllm_frontier.report.plots.windows import Windows
from vllm_frontier.store.tables import frame

Row = dict[str, Any]


def trial(depth: int, context: int, status: str = "measured", **more: Any) -> Row:
    axes = {"depth": depth, "context": context, "graphs": True, "utilization": 0.9, "extra": "{}"}
    axes |= {name: more.pop(name) for name in list(more) if name in axes}
    row = {"cell_id": "/".join(map(str, axes.values())), "attempt": 1, "status": status}
    return {**axes, **row, **more}


def refused(depth: int, context: int, **more: Any) -> Row:
    told = {"failure_class": "kv_too_small", "phase": "allocate_kv"}
    return trial(depth, context, "infeasible", **{**told, **more})


def inferred(like: Row, context: int, **more: Any) -> Row:
    told = {"evidence_cell": like["cell_id"], "failure_class": like.get("failure_class")}
    return trial(like["depth"], context, "inferred", attempt=0, **{**told, **more})


def figure(rows: list[Row], planned: list[Row] | None = None, simulated: bool = False) -> Figure:
    trials = frame("trials", rows).lazy()
    plan = None if planned is None else frame("trials", planned).lazy()
    cells = cell_states(trials, planned=plan).collect()
    found = fits(cells, boundaries(trials, plan).collect(), simulated=simulated)
    assert found is not None
    return found


def by_words(found: list[Mark], words: str) -> Mark:
    [mark] = [each for each in found if each.words.startswith(words)]
    return mark


def two_depths() -> list[Row]:
    fails = refused(
        3,
        16_384,
        kv_needed_gib=0.36,
        kv_available_gib=0.3,
        max_context_estimate=13_000,
    )
    return [
        trial(0, 16_384),
        inferred(trial(0, 16_384), 8192),
        trial(3, 8192),
        fails,
        inferred(fails, 32_768),
        refused(0, 32_768),
    ]


def test_every_cell_is_a_mark_that_says_what_it_is() -> None:
    [svg] = panels(figure(two_depths()))
    cells = marks(svg, "cell")
    place = "depth 3, graphs on, utilization 0.9"
    assert len(cells) == 6
    fails = by_words(cells, "16,384 tokens, depth 3")
    assert fails.words == (
        f"16,384 tokens, {place}: refused: kv_too_small; "
        "needs 0.36 GiB of KV cache; has 0.30 GiB; 13,000 tokens would fit"
    )
    follows = by_words(cells, "32,768 tokens, depth 3")
    assert follows.words == (
        f"32,768 tokens, {place}: refused, inferred: kv_too_small; follows from 16,384 tokens, "
        "depth 3 (needs 0.36 GiB of KV cache, has 0.30 GiB, 13,000 tokens would fit)"
    )
    assert by_words(cells, "8,192 tokens, depth 3").words.endswith(": works")


def test_cells_stand_at_their_window_and_depth_and_inferred_ones_are_open() -> None:
    [svg] = panels(figure(two_depths()))
    cells = marks(svg, "cell")
    short, middle, long = (
        by_words(cells, f"{each} tokens, depth 3") for each in ("8,192", "16,384", "32,768")
    )
    assert short.right < middle.left < middle.right < long.left
    assert middle.right - middle.left == pytest.approx(long.right - long.left, abs=0.1)
    below = by_words(cells, "16,384 tokens, depth 0")
    assert below.left == middle.left
    assert below.top > middle.bottom
    assert (middle.fill, middle.opacity) == ("var(--refused)", 1.0)
    assert long.fill == "var(--refused)"
    assert long.opacity < 0.5
    assert below.fill == "var(--works)"


def test_the_boundary_runs_between_what_works_and_what_does_not() -> None:
    [svg] = panels(figure(two_depths()))
    cells = marks(svg, "cell")
    [line] = marks(svg, "line")
    assert line.words == (
        "Boundary: depth 0 works up to 16,384, refused from 32,768; "
        "depth 3 works up to 8,192, refused from 16,384"
    )
    works, fails = (by_words(cells, f"{each} tokens, depth 3") for each in ("8,192", "16,384"))
    assert works.right < line.left < fails.left
    last = by_words(cells, "16,384 tokens, depth 0").right
    assert last < line.right < by_words(cells, "32,768 tokens, depth 0").left


def test_the_summary_counts_and_says_how_far_windows_reach() -> None:
    found = figure(two_depths())
    assert found.summary == (
        "3 of 6 cells work, 3 do not (too little memory for the KV cache). The longest window "
        "that works is 16,384 tokens, with depth 0, graphs on, utilization 0.9. 2 cells follow "
        "from launches of others."
    )
    assert found.table is not None
    assert found.table.to_dicts() == [
        {"graphs": "on", "utilization": 0.9, "depth 0": "16384", "depth 3": "8192"}
    ]
    assert found.title == "What fits"
    assert figure(two_depths(), simulated=True).title == "What fits (simulated)"


def by_share(depth: int, graphs: bool, utilization: float, longest: int | None) -> list[Row]:
    """Windows of 8192 to 32768, all launched: those up to the longest work."""
    axes = {"graphs": graphs, "utilization": utilization}
    return [
        (trial if longest is not None and context <= longest else refused)(depth, context, **axes)
        for context in (8192, 16_384, 32_768)
    ]


def test_the_longest_window_is_told_with_settings_that_were_seen_with_it() -> None:
    # The deepest needs the larger share, and has the smaller one at a shorter window only.
    rows = [
        *by_share(0, True, 0.9, 16_384),
        *by_share(0, True, 0.95, 16_384),
        *by_share(6, True, 0.9, 8192),
        *by_share(6, True, 0.95, 8192),
        *by_share(6, False, 0.9, 8192),
        *by_share(6, False, 0.97, 16_384),
        *by_share(6, False, 0.95, 16_384),
        *by_share(0, False, 0.99, None),
    ]
    assert (
        "The longest window that works is 16,384 tokens, in 4 of 8 combinations of the other "
        "settings, up to depth 6 (with graphs off, utilization 0.95)."
    ) in figure(rows).summary
    same = [*by_share(0, True, 0.9, 8192), *by_share(3, True, 0.9, 8192)]
    assert "is 8,192 tokens, with all other settings." in figure(same).summary
    open_end = figure([trial(0, 8192)], [trial(0, 8192), trial(0, 16_384)])
    assert "The longest window known to work is 8,192 tokens" in open_end.summary


def crash(depth: int, context: int, **more: Any) -> Row:
    return trial(depth, context, "failed", failure_class="engine_crashed", **more)


def test_the_table_tells_what_an_end_rests_on() -> None:
    off: Row = {"graphs": False}
    rows = [
        *(trial(0, 8192), trial(0, 16_384)),
        *(trial(1, 8192), inferred(refused(1, 8192), 16_384)),
        *(crash(2, 8192), crash(2, 16_384)),
        *(refused(3, 8192), refused(3, 16_384)),
        *(trial(4, 8192), crash(4, 16_384)),
        *(refused(5, 8192), trial(5, 16_384)),
        *(crash(6, 8192), refused(6, 16_384)),
        *(trial(0, 8192, **off), refused(0, 16_384, **off)),
    ]
    found = figure(rows)
    assert found.table is not None
    without, graphs = found.table.to_dicts()
    ends = {name: end for name, end in graphs.items() if name.startswith("depth")}
    assert ends == {
        "depth 0": ">=16384",
        "depth 1": "8192~",
        "depth 2": "not known",
        "depth 3": "none",
        "depth 4": ">=8192?",
        "depth 5": "16384!",
        "depth 6": "none?",
    }
    assert without["depth 0"] == "8192"
    assert {without[f"depth {depth}"] for depth in range(1, 7)} == {"not in grid"}
    assert found.notes[-1] == (
        "In the table: >= nothing longer in the grid is refused; ~ it, or what is refused next, "
        "follows from launches of other cells; ? cells between are not known yet; ! a longer "
        "window works than one that is refused."
    )


def test_the_line_is_broken_where_no_end_is_known() -> None:
    rows = [
        *(trial(0, 8192), refused(0, 16_384)),
        *(crash(1, 8192), crash(1, 16_384)),
        *(trial(2, 8192), refused(2, 16_384)),
    ]
    found = figure(rows)
    [svg] = panels(found)
    below, above = marks(svg, "line")
    assert below.words == "Boundary: depth 0 works up to 8,192, refused from 16,384"
    assert above.words == "Boundary: depth 2 works up to 8,192, refused from 16,384"
    cells = marks(svg, "cell")
    unknown = by_words(cells, "8,192 tokens, depth 1")
    assert above.bottom <= unknown.top < unknown.bottom <= below.top
    assert "There is no line where neither what works nor what is refused is known." in found.notes


def dashes(svg: str) -> list[bool]:
    """Whether each line is dashed."""
    paths = [each.partition("/>")[0] for each in svg.split("<path")]
    lines = [each for each in paths if 'aria-roledescription="line"' in each]
    return ['stroke-dasharray="5,3"' in each for each in lines]


def test_the_line_is_dashed_where_the_end_is_not_proven() -> None:
    rows = [
        *(trial(0, 8192), trial(0, 16_384), refused(0, 32_768)),
        *(trial(1, 8192), crash(1, 16_384), refused(1, 32_768)),
        *(trial(2, 8192), refused(2, 16_384), trial(2, 32_768)),
        *(trial(3, 8192), trial(3, 16_384), trial(3, 32_768)),
        *(crash(4, 8192), refused(4, 16_384), refused(4, 32_768)),
    ]
    found = figure(rows)
    [svg] = panels(found)
    assert [each.words.removeprefix("Boundary: ") for each in marks(svg, "line")] == [
        "depth 0 works up to 16,384, refused from 32,768",
        "depth 1 works up to 8,192, refused from 32,768, not proven; "
        "depth 2 works up to 32,768, though 16,384 is refused",
        "depth 3 works up to 32,768, nothing is refused",
        "depth 4 is not known to work, refused from 16,384, not proven",
    ]
    assert dashes(svg) == [False, True, False, True]
    proven, unproven = marks(svg, "line")[:2]
    assert unproven.bottom == pytest.approx(proven.top)  # joined
    assert unproven.right > proven.right
    assert found.notes[:3] == (
        "The line stands behind the longest window of each depth that works.",
        "Dashed, that is not proven: windows in between are not known, or launches disagree.",
        "Where a longer window works than one that is refused, the line is behind the longer.",
    )
    assert not any("ashed" in note for note in figure(two_depths()).notes)


@pytest.mark.parametrize("unproven", [0, 1])
def test_what_joins_two_ends_is_dashed_where_one_is_not_proven(unproven: int) -> None:
    proven = 1 - unproven
    rows = [
        *(trial(unproven, 8192), crash(unproven, 16_384), refused(unproven, 32_768)),
        *(trial(proven, 8192), trial(proven, 16_384), refused(proven, 32_768)),
    ]
    [svg] = panels(figure(rows))
    lines = dict(zip(dashes(svg), marks(svg, "line"), strict=True))
    assert lines[True].left < lines[False].left
    assert lines[True].right == pytest.approx(lines[False].right)  # reaches over to the other
    assert lines[False].left == lines[False].right


def test_windows_are_named_as_in_the_map_of_the_terminal() -> None:
    [svg] = panels(figure([trial(0, 32_768), trial(0, 131_072)]))
    assert {"32k", "128k", "context, tokens (k: 1024)"} <= set(texts(svg))
    [svg] = panels(figure([trial(0, 32_768), trial(0, 130_000)]))
    assert {"33k", "130k", "context, tokens (k: 1000)"} <= set(texts(svg))
    [svg] = panels(figure([trial(0, 500), trial(0, 900)]))
    assert {"500", "900", "context, tokens"} <= set(texts(svg))
    some = Windows([32_768, 65_536], 280, grid=[32_768, 65_536, 100_000])
    assert some.labels[65_536] == "66k"


def test_every_outcome_has_a_colour_a_sign_and_a_line_in_the_legend() -> None:
    rows = [
        trial(0, 1024 * (1 + place), each.status.value, failure_class=each.value)
        for place, each in enumerate(FailureClass)
    ]
    rows += [trial(1, 1024), trial(1, 2048, "interrupted")]
    plan = [*rows, trial(1, 4096)]
    found = figure(rows, plan)
    [svg] = panels(found)
    cells = marks(svg, "cell")
    assert len(cells) == len(plan)
    fills = Counter(each.fill for each in cells)
    assert fills == {
        "var(--refused)": 9,
        "var(--invalid)": 8,
        "var(--failed)": 10,
        "var(--works)": 1,
        "var(--unknown)": 2,
    }
    signs = [words[0] for _, words in found.legend]
    assert len(set(signs)) == len(signs) == 8
    assert by_words(cells, "4,096 tokens, depth 1").words.endswith("not tried")


def test_there_is_a_panel_for_graphs_utilization_and_further_axes() -> None:
    rows = [
        trial(0, 8192, graphs=graphs, utilization=share, extra=json.dumps({"max_num_seqs": many}))
        for graphs, share, many in itertools.product((False, True), (0.9, 0.95), (1, 16))
    ]
    found = figure(rows)
    svgs = panels(found)
    assert len(svgs) == 8
    headings = [" ".join(texts(svg)) for svg in svgs]
    assert "graphs off, utilization 0.9, max_num_seqs" in headings[0]
    assert len(set(headings)) == 8
    assert found.table is not None
    assert sorted(found.table["further"]) == ["max_num_seqs=1"] * 4 + ["max_num_seqs=16"] * 4


def test_one_cell_and_none() -> None:
    found = figure([trial(0, 4096)])
    assert found.summary.startswith("1 of 1 cell works. The longest window that works is 4,096")
    [svg] = panels(found)
    assert len(marks(svg, "cell")) == 1
    nothing = frame("trials").lazy()
    empty = fits(cell_states(nothing).collect(), boundaries(nothing).collect(), simulated=False)
    assert empty is None


def test_where_nothing_works_the_line_stands_before_all_windows() -> None:
    found = figure([refused(0, 4096), refused(0, 8192)])
    [svg] = panels(found)
    [line] = marks(svg, "line")
    assert line.words == "Boundary: depth 0 works nowhere, refused from 4,096"
    assert line.right < min(each.left for each in marks(svg, "cell"))
    assert found.notes == ()


def test_what_is_hostile_stays_text() -> None:
    row = trial(0, 4096, extra=json.dumps({"served": '</svg><img onerror="x">'}))
    [svg] = panels(figure([row]))
    assert "<img" not in svg
    assert marks(svg, "cell")[0].words.count("<img onerror=") == 1


def test_more_panels_than_anybody_looks_at_are_told() -> None:
    shares = [round(0.5 + each / 100, 2) for each in range(40)]
    found = figure([trial(0, 4096, utilization=share) for share in shares])
    assert len(found.panels) == 36
    left_out = "more panels are left out here, those of the smallest shares first; all tables have"
    assert f"4 {left_out} them." in found.notes
    titles = [json.dumps(each.to_dict()["title"]) for each in found.panels]
    assert "0.54" in titles[0]
    assert "0.89" in titles[-1]


def test_panels_that_are_left_out_are_so_of_both_switches() -> None:
    shares = [round(0.5 + each / 100, 2) for each in range(40)]
    found = figure([trial(0, 4096, utilization=u, graphs=g) for u in shares for g in (True, False)])
    titles = [json.dumps(each.to_dict()["title"]) for each in found.panels]
    assert sum("graphs on" in title for title in titles) == 18
    assert "0.72" in titles[0]


def test_windows_keep_their_distance_but_none_is_too_narrow() -> None:
    even = Windows([1000, 2000, 3000, 4000], 280)
    assert (even.logarithmic, even.true_to_scale) == (False, True)
    assert [even.left(each) for each in even.contexts] == [0, 70, 140, 210]
    doubling = Windows([1024 * 2**power for power in range(8)], 280)
    assert (doubling.logarithmic, doubling.true_to_scale) == (True, True)
    assert doubling.right(1024) == pytest.approx(35.0)
    uneven = Windows([2048, 4096, 100_000, 100_100, 262_144], 280)
    assert not uneven.true_to_scale
    widths = [uneven.right(each) - uneven.left(each) for each in uneven.contexts]
    assert min(widths) == pytest.approx(9.0, abs=0.01)
    assert sum(widths) == pytest.approx(280, abs=0.1)
    crowded = Windows(list(range(1000, 1100)), 280)
    assert crowded.right(1099) == pytest.approx(280, abs=0.1)


def test_two_thousand_cells_are_a_picture_of_less_than_a_megabyte() -> None:
    rows = []
    last = trial(0, 8192)
    for share, graphs, depth, place in itertools.product(
        (0.85, 0.9, 0.93, 0.95), (False, True), range(10), range(25)
    ):
        told = {"graphs": graphs, "utilization": share}
        context, works = 8192 + 10_000 * place, place < 22 - 2 * depth
        make = trial if works else refused
        if abs(place - 22 + 2 * depth) <= 1:
            rows.append(last := make(depth, context, **told))
        else:
            told |= {"attempt": 0, "evidence_cell": last["cell_id"], "status": "inferred"}
            rows.append(make(depth, context) | told)
    found = figure(rows)
    svgs = panels(found)
    assert len(svgs) == 8
    assert sum(len(marks(svg, "cell")) for svg in svgs) == 2000
    assert sum(map(len, svgs)) < 1_000_000
    assert isinstance(found.table, pl.DataFrame)
    assert found.table.height == 8
