"""The map of the grid: what each sign says, and that it stays small and readable."""

import io
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from vllm_frontier.report.terminal.grid_map import AT_MOST, grid_map, with_planned

Row = dict[str, Any]


def cell(
    context: int,
    utilization: float = 0.9,
    status: str = "measured",
    failure: str | None = None,
    *,
    depth: int = 3,
    graphs: bool = True,
    **extra: Any,
) -> Row:
    axes = {"depth": depth, "graphs": graphs, "context": context, "utilization": utilization}
    told = {"status": status, "failure_class": failure, "extra_axes": sorted(extra)}
    return axes | told | extra


def cells(
    depths: Sequence[int],
    contexts: Sequence[int],
    shares: Sequence[float],
    status: str = "measured",
) -> list[Row]:
    every = itertools.product(depths, (False, True), contexts, shares)
    return [cell(c, u, status, depth=d, graphs=g) for d, g, c, u in every]


def drawn(rows: Sequence[Row], width: int = 80, **options: Any) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(grid_map(rows, "Grid", **options))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_every_cell_has_a_sign_and_only_signs_that_occur_are_explained() -> None:
    rows = [
        cell(1024, 0.8),
        cell(1024, 0.9, "inferred"),
        cell(2048, 0.8, "inferred", "kv_none"),
        cell(2048, 0.9, "infeasible", "kv_none"),
        cell(4096, 0.9, "failed", "killed"),
    ]
    assert drawn(rows) == [
        "Grid  depth by window in tokens (k: 1024); one sign a utilization: 0.8 0.9",
        "         graphs",
        "         1k 2k 4k",
        "depth 3  #+ -x  !",
        "# works  + works, inferred  x does not fit  - does not fit, inferred  ! failed",
    ]


@pytest.mark.parametrize(
    ("status", "failure", "sign"),
    [
        ("measured", None, "#"),
        ("inferred", None, "+"),
        ("inferred", "kv_too_small", "-"),
        ("infeasible", "kv_too_small", "x"),
        ("invalid", "context_exceeds_model", "i"),
        ("failed", "killed", "!"),
        ("interrupted", None, "?"),
        ("running", None, "o"),
        ("not_reached", None, "."),
    ],
)
def test_each_outcome_has_a_sign_of_its_own(status: str, failure: str | None, sign: str) -> None:
    lines = drawn([cell(8192, 0.9, status, failure)])
    assert lines[3] == f"depth 3  {sign}"
    assert lines[4].startswith(f"{sign} ")
    assert lines[0].endswith("; utilization 0.9")


def test_eager_and_graphs_stand_side_by_side() -> None:
    rows = cells([0, 12], [8192, 16384], [0.8, 0.9])
    rows[0]["status"] = "failed"
    assert drawn(rows)[1:5] == [
        "          eager    graphs",
        "          8k  16k  8k  16k",
        "depth 0   !#  ##   ##  ##",
        "depth 12  ##  ##   ##  ##",
    ]


def test_windows_are_told_in_k_only_where_all_of_them_are_exact() -> None:
    exact = drawn(cells([0], [8192, 131_072], [0.9]))
    assert exact[2].split() == ["8k", "128k"] * 2
    assert "(k: 1024)" in exact[0]
    other = drawn(cells([0], [130_000, 131_072], [0.9]))
    assert other[2].split() == ["130000", "131072"] * 2
    assert "k:" not in other[0]


def test_names_that_are_too_wide_take_turns_in_two_lines() -> None:
    contexts = [number * 10_000 for number in range(1, 9)]
    lines = drawn(cells(range(8), contexts, [0.9]), 75)
    assert lines[2].split() == ["10000", "30000", "50000", "70000"] * 2
    assert lines[3].split() == ["20000", "40000", "60000", "80000"] * 2
    row = next(line for line in lines if line.startswith("depth 0"))
    for names in lines[2:4]:
        for place, character in enumerate(names):
            if character != " " and names[place - 1] == " ":
                assert row[place] == "#", names


def test_many_windows_have_a_ruler_and_the_longest_that_works_beside() -> None:
    contexts = [4096 * number for number in range(1, 26)]
    rows = cells([0, 1], contexts, [0.9], "infeasible")
    for row in rows:
        if row["context"] <= 40_960 and row["depth"] == 0:
            row["status"] = "measured"
    lines = drawn(rows)
    ruler, ticks, first, second = lines[2:6]
    assert [first[at] for at, mark in enumerate(ticks) if mark == "|"][:3] == ["#", "#", "x"]
    begin = ticks.index("|")
    for at, mark in enumerate(ticks[: begin + 25]):
        if mark == "|":
            assert ruler[at:].split()[0] == f"{4 * (at - begin + 1)}k"
    assert first == "depth 0  " + "  ".join(["#" * 10 + "x" * 15 + " 40k"] * 2)
    assert second == "depth 1  " + "    ".join(["x" * 25 + " -"] * 2)
    assert "the longest window that works" in lines[-1]


SHARES = [0.8, 0.85, 0.9, 0.95]


def big(statuses: Sequence[tuple[str, str | None]]) -> list[Row]:
    """2,000 cells; those with the shortest window are as told, by utilization."""
    rows = cells(range(10), [4096 * number for number in range(1, 26)], SHARES, "infeasible")
    for row in rows:
        if row["context"] == 4096:
            row["status"], row["failure_class"] = statuses[SHARES.index(row["utilization"])]
    return rows


NO, YES = ("infeasible", "kv_none"), ("measured", None)


@pytest.mark.parametrize(
    ("statuses", "sign"),
    [
        ([YES, YES, YES, YES], "1"),
        ([NO, ("inferred", None), YES, YES], "2"),
        ([NO, NO, NO, YES], "4"),
        ([NO, NO, NO, NO], "x"),
        ([("inferred", "kv_none")] * 4, "-"),
        ([NO, ("inferred", "kv_none"), NO, ("invalid", "context_exceeds_model")], "x"),
        ([("invalid", "context_exceeds_model")] * 4, "i"),
        # What is open may still work: it is not told as refused.
        ([NO, NO, NO, ("not_reached", None)], "."),
        ([NO, NO, NO, ("failed", "killed")], "!"),
        ([NO, NO, ("interrupted", None), ("not_reached", None)], "?"),
        ([NO, ("running", None), YES, YES], "o"),
    ],
)
def test_of_many_utilizations_the_lowest_that_works_is_told(
    statuses: Sequence[tuple[str, str | None]], sign: str
) -> None:
    lines = drawn(big(statuses))
    assert len(lines) <= 20
    (row,) = (line for line in lines if line.startswith("depth 7"))
    assert row.split()[2][0] == sign
    legend = {line[0] for text in lines[15:] for line in text.split("  ")}
    assert sign in legend


def test_a_utilization_at_which_nothing_works_is_named() -> None:
    assert not any("Nothing works" in line for line in drawn(big([NO, YES, YES, NO])[:0]))
    lines = drawn(big([NO, YES, YES, NO]))
    assert "Nothing works at utilization 0.8, 0.95." in lines


def test_more_utilizations_than_digits_go_on_with_letters() -> None:
    shares = [number / 100 for number in range(50, 100)]
    rows = cells(range(4), [4096 * number for number in range(1, 9)], shares, "infeasible")
    for row in rows:
        lowest = {4096: 0.58, 8192: 0.59, 12288: 0.84, 16384: 0.99}.get(row["context"], 1.0)
        if row["utilization"] >= lowest:
            row["status"] = "measured"
    lines = drawn(rows)
    row = next(line for line in lines if line.startswith("depth 0"))
    assert row.split()[2:6] == ["9", "A", "Z", "Z"]
    text = " ".join(lines)
    assert "9 works from 0.58  A works from 0.59  Z works from 0.84 or more" in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_whole_map_has_every_cell_at_any_width(width: int) -> None:
    contexts = [4096 * number for number in range(1, 41)]
    every = itertools.product(contexts, range(80, 99), (1, 2))
    rows = [cell(context, share / 100, a=a) for context, share, a in every]
    lines = drawn(rows, width, whole=True)
    assert max(len(line) for line in lines) <= width
    assert "".join(lines).count("#") == len(rows) + 1  # and one in the legend
    assert any("graphs, a=1" in line for line in lines)
    assert any("graphs, a=2" in line for line in lines)
    assert not grid_map(rows, "Grid").is_whole(width)
    small = drawn(rows, width)
    assert len(small) <= AT_MOST + 6
    assert max(len(line) for line in small) <= width


def test_long_names_of_further_axes_are_wrapped_and_never_cut() -> None:
    value = '{"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE", "pass_config": {"fuse": true}}'
    lines = drawn([cell(8192, compilation_config=value)], 60)
    assert max(len(line) for line in lines) <= 60
    assert value.replace(" ", "") in "".join("".join(lines).split())


def test_panels_that_are_too_many_are_left_to_show() -> None:
    rows = [
        cell(4096 * number, depth=depth, seqs=seqs)
        for number in range(1, 26)
        for depth in range(8)
        for seqs in range(1, 13)
    ]
    lines = drawn(rows)
    assert len(lines) <= 38
    assert lines[-1] == "Not all panels are here; `vllm-frontier show` has the rest."
    assert not grid_map(rows, "").is_whole(80)
    assert sum("seqs=" in line for line in drawn(rows, whole=True)) == 6


def test_numbers_of_further_axes_are_in_order() -> None:
    rows = [cell(8192, seqs=seqs) for seqs in (16, 2, 4)]
    assert drawn(rows)[1].split("graphs, ")[1:] == ["seqs=2  ", "seqs=4  ", "seqs=16"]


def test_one_cell_none_known_and_none_at_all() -> None:
    axes = {"depth": 0, "context": 8192, "graphs": True, "utilization": 0.9}
    assert drawn(with_planned([], [axes]))[3:] == ["depth 0  .", ". not tried"]
    assert drawn([]) == []
    assert grid_map([], "Grid").is_whole(80)


def test_what_runs_now_is_told_whatever_is_known() -> None:
    planned = [
        {"depth": 0, "context": context, "graphs": True, "utilization": 0.9, "seqs": seqs}
        for context in (1024, 2048)
        for seqs in (1, 2)
    ]
    known = [cell(1024, depth=0, seqs=1), cell(2048, depth=0, seqs=2), cell(4096, depth=1, seqs=1)]
    now = {**planned[0], "attempt": 2}
    found = with_planned(known, planned, [now])
    assert [each["status"] for each in known] == ["measured"] * 3
    by = {(each["context"], each["seqs"]): each["status"] for each in found}
    assert by == {
        (1024, 1): "running",
        (2048, 2): "measured",
        (4096, 1): "measured",  # of a grid that was another one before
        (2048, 1): "not_reached",
        (1024, 2): "not_reached",
    }


def test_colour_repeats_what_signs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    rows = big([NO, YES, YES, YES])

    def through(**environ: str) -> str:
        out = io.StringIO()
        settings_ = {"file": out, "width": 80, "force_terminal": True}
        Console(**settings_, _environ={"TERM": "xterm-256color", **environ}).print(
            grid_map(rows, "Grid")
        )
        return out.getvalue()

    assert "\x1b[32m2" in through()
    assert "\x1b[3" not in through(NO_COLOR="1")
    assert "\x1b" not in through(TERM="dumb")
    assert through(TERM="dumb").splitlines() == plain(rows)


def plain(rows: Sequence[Row]) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80).print(grid_map(rows, "Grid"))
    return out.getvalue().splitlines()


statuses_ = st.sampled_from(["measured", "infeasible", "invalid", "failed", "not_reached"])


@settings(max_examples=25, deadline=None)
@given(
    depths=st.sets(st.integers(0, 16), min_size=1, max_size=10),
    contexts=st.sets(st.integers(1, 300_000), min_size=1, max_size=30),
    shares=st.sets(st.integers(1, 99), min_size=1, max_size=8),
    width=st.integers(60, 200),
    data=st.data(),
)
def test_any_grid_fits_the_width_and_shows_each_cell_once(
    depths: set[int], contexts: set[int], shares: set[int], width: int, data: st.DataObject
) -> None:
    rows = cells(sorted(depths), sorted(contexts), [share / 100 for share in sorted(shares)])
    some = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
    for number in some:
        rows[number]["status"] = "failed"
    lines = drawn(rows, width, whole=True)
    assert max(len(line) for line in lines) <= width
    signs = "".join(line for line in lines if line.startswith("depth"))
    assert signs.count("!") == len(set(some))
    assert signs.count("#") == len(rows) - len(set(some))
    assert max(len(line) for line in drawn(rows, width)) <= width
