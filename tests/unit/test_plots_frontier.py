import itertools
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest
from checked_sweep import decode, launch
from plotted import Mark, marks, panels, texts

from vllm_frontier.analyze.frontier import frontier as leading
from vllm_frontier.analyze.memory_split import memory_split
from vllm_frontier.analyze.standing import standing
from vllm_frontier.report.plots import frontier_places as places
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.plots.frontier import frontier
from vllm_frontier.report.plots.windows import Windows
from vllm_frontier.store.tables import frame

Row = dict[str, Any]


def cell(depth: int, context: int, share: float = 0.9, graphs: bool = True, **more: Any) -> Row:
    told = {"context": context, "utilization": share, "graphs": graphs, "card_memory_gib": 32.0}
    return launch(depth, **told, **more)


def stands(speeds: list[tuple[Row, float | None]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """How cells stand, and their memory; those without a speed are inferred."""
    rows = [row for row, _ in speeds]
    runs = [
        run
        for row, speed in speeds
        if speed is not None
        for run in decode(row, speed * 0.999, speed, speed * 1.001)
    ]
    trials, measured = frame("trials", rows).lazy(), frame("runs", runs).lazy()
    found = standing(trials, measured, leading(trials, measured))
    return found.collect(), memory_split(trials).collect()


def figure(speeds: list[tuple[Row, float | None]], simulated: bool = False) -> Figure:
    found = frontier(*stands(speeds), simulated=simulated)
    assert found is not None
    return found


def by_words(found: list[Mark], words: str) -> Mark:
    [mark] = [each for each in found if words in each.words]
    return mark


def middle(mark: Mark) -> tuple[float, float]:
    return (mark.left + mark.right) / 2, (mark.top + mark.bottom) / 2


SWEEP: list[tuple[Row, float | None]] = [
    (cell(0, 40_000, kv_available_gib=4.0, kv_tokens=50_000), 50.0),
    (cell(3, 10_000, kv_available_gib=4.0, kv_tokens=40_000), 200.0),
    (cell(2, 30_000, kv_available_gib=4.0, kv_tokens=30_000), 150.0),
    (cell(1, 20_000, 0.95), 100.0),
]


def test_how_cells_stand() -> None:
    found, _ = stands(SWEEP)
    rows = {row["depth"]: row for row in found.iter_rows(named=True)}
    assert [row["context"] for row in found.iter_rows(named=True)] == [
        40_000, 30_000, 20_000, 10_000
    ]  # fmt: skip
    assert {depth: row["leads"] for depth, row in rows.items()} == {
        0: True, 1: False, 2: True, 3: True
    }  # fmt: skip
    assert rows[0]["choices"] == ["longest"]
    assert rows[2]["choices"] == ["balanced"]
    assert rows[3]["choices"] == ["fastest"]
    assert rows[1]["choices"] is None
    against = {depth: row["against_fastest"] for depth, row in rows.items()}
    assert against == {0: "slower", 1: None, 2: "slower", 3: None}


def test_marks_stand_at_window_and_speed_and_say_what_they_are() -> None:
    [svg] = panels(figure(SWEEP))
    cells = marks(svg, "cell")
    assert len(cells) == 4
    fastest, longest = by_words(cells, "fastest;"), by_words(cells, "longest;")
    assert fastest.words.startswith(
        "fastest; 10,000 tokens, depth 3, graphs on, utilization 0.9; 200.0 tokens/s (95 %: "
    )
    assert fastest.words.endswith("; 3.00 GiB left")
    assert by_words(cells, "beaten").words.startswith("20,000 tokens, depth 1")
    (x, y), (right, low) = middle(fastest), middle(longest)
    balanced = middle(by_words(cells, "balanced;"))
    assert x < balanced[0] < right
    # From 200 to 150 is a third of the way from 200 to 50.
    assert (balanced[1] - y) / (low - y) == pytest.approx(1 / 3, abs=0.02)
    assert (balanced[0] - x) / (right - x) == pytest.approx(2 / 3, abs=0.02)


def test_the_larger_a_mark_the_more_memory_is_left() -> None:
    [svg] = panels(figure(SWEEP))
    cells = marks(svg, "cell")
    widths = [by_words(cells, name).right - by_words(cells, name).left for name in
              ("fastest;", "longest;", "balanced;")]  # fmt: skip
    assert widths[0] > widths[1] > widths[2] > 4


def test_the_line_is_the_best_of_both() -> None:
    [svg] = panels(figure(SWEEP))
    [line] = marks(svg, "line")
    assert line.words == (
        "Best with utilization 0.9 or less: 10,000 tokens at 200.0 tokens/s; 30,000 tokens at "
        "150.0 tokens/s; 40,000 tokens at 50.0 tokens/s"
    )
    x, y = middle(by_words(marks(svg, "cell"), "fastest;"))
    assert line.top == pytest.approx(y, abs=0.6)
    assert line.left == 0.0
    assert x > 0


def test_every_share_that_changes_it_has_a_line() -> None:
    more = [*SWEEP, (cell(3, 40_000, 0.97), 200.0)]
    [svg] = panels(figure(more))
    lines = [each.words.partition(":")[0] for each in marks(svg, "line")]
    assert lines == ["Best with utilization 0.9 or less", "Best with utilization 0.97 or less"]
    assert {"0.9", "0.97"} <= set(texts(svg))


def test_cells_that_follow_from_others_are_open_and_have_their_speed() -> None:
    follows = cell(3, 8_000, 0.85) | {"status": "inferred", "attempt": 0}
    found = figure([*SWEEP, (follows, None)])
    [svg] = panels(found)
    cells = marks(svg, "cell")
    inferred = by_words(cells, "8,000 tokens")
    assert inferred.fill == "var(--page)"
    assert by_words(cells, "fastest; 10,000").fill == "var(--series-1)"
    assert "200.0 tokens/s" in inferred.words
    assert "follows from a launch" in inferred.words
    assert any("open" in words for _, words in found.legend)


def test_what_is_as_fast_as_the_fastest_is_marked() -> None:
    tied = cell(5, 8_000, 0.8)
    found = figure([*SWEEP, (tied, 199.0)])
    [svg] = panels(found)
    assert "no clear difference" in by_words(marks(svg, "cell"), "8,000 tokens").words
    assert "=" in texts(svg)
    assert "1 cell is as fast as the fastest" in found.summary
    assert ("text", "= no clear difference to the fastest") in found.legend


def test_what_has_the_speed_of_the_fastest_is_as_fast() -> None:
    lent = [cell(3, context, share) | {"status": "inferred", "attempt": 0}
            for context, share in ((9_000, 0.85), (8_000, 0.8))]  # fmt: skip
    found = figure([*SWEEP, *((each, None) for each in lent)])
    [svg] = panels(found)
    assert texts(svg).count("=") == 2
    assert "2 cells are as fast as the fastest" in found.summary
    assert found.table is not None
    assert found.table[""].to_list()[-2:] == ["as fast as the fastest, inferred"] * 2


def test_more_cells_that_lead_are_told_with_their_own_shares() -> None:
    small = (cell(0, 41_000, 0.5), 20.0)  # the longest, so not one of the others
    assert "more cell" not in figure(SWEEP).summary
    one = figure([*SWEEP, small]).summary
    assert "1 more cell leads, with utilization 0.9." in one
    others = [(cell(4, 9_000, 0.8), 180.0), (cell(4, 8_000, 0.7), 170.0)]
    assert (
        "3 more cells lead, with utilization 0.7 to 0.9."
        in figure([*SWEEP, small, *others]).summary
    )


def test_cells_without_graphs_are_squares_in_another_colour() -> None:
    off = (cell(3, 10_000, 0.8, graphs=False), 100.0)
    found = figure([*SWEEP, off])
    [svg] = panels(found)
    shapes = {}
    for element in ElementTree.fromstring(svg).iter():
        if element.get("aria-roledescription") == "cell":
            words = element.get("aria-label") or ""
            shapes[words] = ("A" in (element.get("d") or ""), element.get("stroke"))
    for words, told in shapes.items():
        if "beaten" not in words:
            on = "graphs on" in words
            assert told == (on, "var(--series-1)" if on else "var(--series-2)")
    assert sum("graphs off" in words for words in shapes) == 1
    assert {("series-1", "● graphs on"), ("series-2", "■ graphs off")} <= set(found.legend)


def test_memory_that_no_launch_told_is_that_of_launches_alike() -> None:
    follows = cell(3, 10_000, 0.85) | {"status": "inferred", "attempt": 0}
    found = figure([*SWEEP, (follows, None)])
    assert found.table is not None
    # 4 GiB at 0.9 of 32 are 2.4 at 0.85, and a window needs 1.
    row = found.table.filter(pl.col("utilization") == "0.85")
    assert row["spare GiB"].to_list() == ["1.40"]


def test_intervals_of_several_launches_are_within_launches_not_one() -> None:
    twice = [(cell(3, 10_000, attempt=each), 200.0) for each in (1, 2)]
    found = figure([*twice, (cell(0, 40_000), 50.0)])
    assert "95 %: 199.4 to 200.6, within launches" in found.summary
    assert "one launch" not in f"{found.summary}{found.notes}{found.table}"


def test_windows_are_named_by_those_of_the_whole_grid() -> None:
    sweep = [(cell(0, 32_768), 50.0), (cell(3, 16_384), 200.0)]
    cells, split = stands(sweep)
    for grid, names in (
        (None, {"16k", "32k"}),
        ([16_384, 32_768, 65_536], {"16k", "32k"}),
        ([16_384, 32_768, 100_000], {"16k", "33k"}),
    ):
        [svg] = panels(frontier(cells, split, simulated=False, grid=grid))
        assert names <= set(texts(svg))


def test_the_summary_names_the_choices() -> None:
    told = figure(SWEEP).summary
    assert "Longest: 40,000 tokens at 50.0 tokens/s (95 %: " in told
    assert "Fastest: 10,000 tokens at 200.0 tokens/s (95 %: " in told
    assert "with depth 2, graphs on, utilization 0.9. " in told
    assert figure(SWEEP, simulated=True).title == "The frontier (simulated)"
    table = figure(SWEEP).table
    assert table is not None
    assert table["context"].to_list() == [40_000, 30_000, 10_000]
    assert table["spare GiB"].to_list() == ["0.80", "0.00", "3.00"]
    assert table[""].to_list() == ["longest", "balanced", "fastest"]


def test_names_of_choices_do_not_stand_over_each_other() -> None:
    close = [
        (cell(0, 40_000), 199.0 / 1.05),
        (cell(3, 39_000), 200.0),
        (cell(2, 39_500), 199.0 / 1.02),
    ]
    [svg] = panels(figure(close))
    names = {"fastest", "longest", "balanced"}
    told = [each for each in texts(svg) if names & set(each.replace(",", "").split())]
    assert {word for each in told for word in each.replace(",", "").split()} >= names
    places = _places(svg, set(told))
    for (_, one), (_, other) in itertools.combinations(sorted(places.items()), 2):
        assert abs(one - other) >= 12


def test_names_do_not_stand_over_signs_of_ties() -> None:
    lent = [cell(3, context, share) | {"status": "inferred", "attempt": 0}
            for context, share in ((39_000, 0.85), (38_000, 0.8))]  # fmt: skip
    [svg] = panels(figure([(cell(3, 40_000), 200.0), *((each, None) for each in lent)]))
    places = _places(svg, {"fastest, longest and balanced", "="})
    assert places["="] - places["fastest, longest and balanced"] >= 12


def test_one_cell_leads_alone_and_without_speed_there_is_nothing() -> None:
    found = figure([(cell(0, 4096), 10.0)])
    [svg] = panels(found)
    [only] = marks(svg, "cell")
    assert only.words.startswith("fastest, longest and balanced; 4,096 tokens")
    assert frontier(*stands([]), simulated=False) is None


def _places(svg: str, wanted: set[str]) -> dict[str, float]:
    """How far down words stand, from their transforms."""
    found = {}
    for line in svg.split("<text")[1:]:
        words = line.partition(">")[2].partition("<")[0]
        if words in wanted:
            found[words] = float(line.partition("translate(")[2].partition(")")[0].split(",")[1])
    return found


def test_names_stand_on_no_part_of_the_line() -> None:
    best = [(10_000, 200.0), (30_000, 150.0), (40_000, 50.0)]
    ground = places.Ground(Windows([each for each, _ in best], places.WIDTH), 240.0)
    curve = list(places.parts(best, ground))
    x, y = ground.x(40_000), ground.y(50.0)
    name = (x - 12 - 80, 80.0)  # to the left of the longest window
    # A little above the mark it would stand on the fall to it.
    assert places.covers(curve, *name, next(places.around(y)))
    free = next(at for at in places.around(y) if not places.covers(curve, *name, at))
    assert free - y >= places.LINE / 2
    for left, right, top, bottom in curve:
        assert right <= name[0] or left >= sum(name) or bottom <= free - 6 or top >= free + 6
