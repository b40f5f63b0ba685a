"""What a sweep found, as tables for a terminal of 80 columns or more."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.text import Text

from vllm_frontier.grid import shortest
from vllm_frontier.outcome import Purpose, SpecState, Status
from vllm_frontier.report import checks
from vllm_frontier.report.again import launched_again
from vllm_frontier.report.disagreement import disagreement
from vllm_frontier.report.terminal.frontier_table import frontier_section
from vllm_frontier.report.terminal.grid_map import grid_map, with_planned
from vllm_frontier.report.terminal.plain_table import NONE, columns, extra_axes, number, table
from vllm_frontier.report.unread import unread
from vllm_frontier.report.wording import on_off, several, titled

EVIDENCE_WIDTH = 300  # characters
_AGAIN = (Purpose.REPLICATE, Purpose.REFERENCE)
_DIM = "dim"

Row: TypeAlias = Mapping[str, Any]
_DOUBTFUL = {
    SpecState.INEFFECTIVE.value: "next to nothing of what is drafted is accepted",
    SpecState.SUSPECT.value: "the counters are too good to be true, or contradict each other",
}


def print_show(
    document: Row, console: Console, planned: Sequence[Row] = (), *, short: bool = False
) -> None:
    """Print what `show` tells.

    Args:
        document: from `documents.show_document`.
        console: where to; colours only where it is a terminal.
        planned: the axes of every cell of the grid; without them, only what is known is mapped.
        short: only what fits a screen, as at the end of a sweep: the map and the frontier.
    """
    parts = overview(document, planned, short=short)
    if not short:
        parts += _details(document, with_planned(document["grid"], planned), console.width)
    for place, part in enumerate(parts):
        if place:
            console.print()
        console.print(part)


def overview(
    document: Row, planned: Sequence[Row] = (), *, short: bool = False
) -> list[RenderableType]:
    """What comes first: what became of the cells, their map, the frontier."""
    parts: list[RenderableType] = [_headline(document)]
    if told := unread(document.get("damaged", ())):
        parts.append(Text(f"{told}.", style="yellow"))
    cells = with_planned(document["grid"], planned)
    if cells:
        parts.append(grid_map(cells, titled("Grid", bool(document["simulated"]))))
    return [*parts, frontier_section(document, short=short)]


def _details(document: Row, cells: Sequence[Row], width: int) -> list[RenderableType]:
    """The tables behind it, in order."""
    simulated = bool(document["simulated"])
    parts: list[RenderableType] = []
    if document["boundaries"]:
        parts.append(boundaries_table(document, titled("What fits", simulated)))
    if document["contradictions"]:
        heading = titled("Not monotone: refused, though what asks for more works", simulated)
        parts.append(disagreement(document, heading))
    if document["speeds"]:
        notes = speculation_notes(document["grid"])
        parts.append(Group(speeds_table(document["speeds"], simulated), *notes))
    if checks.are_told(document["checks"]):
        parts.append(checks.section(document["checks"], titled("Checks", simulated)))
    if document["failures"]:
        parts.append(failures_table(document["failures"], simulated))
    if not grid_map(cells, "").is_whole(width):
        parts.append(grid_map(cells, titled("Every cell", simulated), whole=True))
    return parts


def speculation_notes(grid: Sequence[Row]) -> Iterable[Text]:
    """A line for each state of speculation that is no good, whatever became of the cell."""
    for state, meaning in _DOUBTFUL.items():
        depths = sorted({row["depth"] for row in grid if row["spec_state"] == state})
        if depths:
            named = ", ".join(str(depth) for depth in depths)
            yield Text(f"speculation is {state} at depth {named}: {meaning}.", style="yellow")


def boundaries_table(document: Row, heading: str) -> RenderableType:
    """What fits: where the window ends for every combination of the other axes.

    Args:
        document: with `boundaries`, `contested` and `grid` of `documents.show_document`.
        heading: of the table.
    """
    rows = document["boundaries"]
    extra, inferred = extra_axes(rows), inferred_ends(rows, document["grid"])
    works, fails = (any(ends) for ends in zip(*inferred, strict=True))
    drawn = table(heading)
    columns(drawn, ("depth",))
    columns(drawn, ("graphs",), "left")
    columns(drawn, ("util", *extra, "works up to", "refused from"))
    columns(drawn, ("because of",), "left")
    columns(drawn, ("cells",))
    columns(drawn, ("",), "left")
    doubted = _disputed(document["contested"])
    for row, (works_inferred, fails_inferred) in zip(rows, inferred, strict=True):
        drawn.add_row(
            str(row["depth"]),
            on_off(row["graphs"]),
            shortest(row["utilization"]),
            *(str(row.get(name, NONE)) for name in extra),
            _end(row["max_context_works"], works_inferred, marked=works),
            _end(row["min_context_fails"], fails_inferred, marked=fails),
            row["failure_class"] or "",
            str(row["cells"]),
            _doubt(row, doubted),
        )
    if not (works or fails):
        return drawn
    told = "~ inferred: not launched itself, but follows from the launch of another cell."
    return Group(drawn, Text(told, style=_DIM))


def _end(tokens: int | None, inferred: bool, *, marked: bool) -> str:
    """The end of a window, with room for the mark where another one has it."""
    mark = "~" if inferred else " " if marked else ""
    return f"{NONE if tokens is None else tokens}{mark}"


def inferred_ends(rows: Sequence[Row], grid: Sequence[Row]) -> list[tuple[bool, bool]]:
    """Of each boundary whether its working and its refused end were inferred, not launched.

    Args:
        rows: of the table `boundaries`.
        grid: what is known of every cell, as `grid` of `documents.show_document`.
    """
    inferred = {
        _place(cell, cell["context"]) for cell in grid if cell["status"] == Status.INFERRED.value
    }
    return [
        (
            _place(row, row["max_context_works"]) in inferred,
            _place(row, row["min_context_fails"]) in inferred,
        )
        for row in rows
    ]


def boundary_doubts(rows: Sequence[Row], contested: Sequence[Row]) -> list[str]:
    """What is to be known of each boundary beside its figures, in a word or two.

    Args:
        rows: of the table `boundaries`.
        contested: inferred cells of which launches say both.
    """
    doubted = _disputed(contested)
    inferred = {True: "", False: "inferred"}
    return [_doubt(row, doubted) or inferred[row["launched"]] for row in rows]


def speeds_table(rows: Sequence[Row], simulated: bool = False) -> RenderableType:
    """How fast each depth is on each task, and how often its drafts are accepted."""
    extra = extra_axes(rows)
    drawn = table(titled("How fast, tokens/s", simulated))
    columns(drawn, ("depth",))
    columns(drawn, ("task",), "left")
    columns(drawn, (*extra, "eager", "graphs"))
    columns(drawn, ("accepted at each position",), "left")
    for row in rows:
        drawn.add_row(
            str(row["depth"]),
            row["task"],
            *(str(row.get(name, NONE)) for name in extra),
            number(row["eager"], 1),
            number(row["graphs"], 1),
            " ".join(f"{share:.2f}" for share in row["acceptance"] or ()),
        )
    return drawn


def failures_table(rows: Sequence[Row], simulated: bool = False) -> RenderableType:
    """Why cells have no result, each reason with one line of evidence."""
    drawn = table(titled("Without a result", simulated))
    columns(drawn, ("cells",))
    columns(drawn, ("status", "reason", "evidence (of one cell)"), "left")
    for row in rows:
        where = f"attempts/{row['cell_id']}/{row['attempt']}/server.log"
        if row["evidence_line"] is not None:
            where += f":{row['evidence_line']}"
        evidence = Text.assemble(_shortened(row["evidence"]), "\n", (where, _DIM))
        drawn.add_row(str(row["cells"]), row["status"], row["failure_class"] or NONE, evidence)
    return drawn


def _shortened(evidence: str | None) -> str:
    """The words that decide come first; advice and links follow, and stand in the log."""
    if not evidence:
        return NONE
    return textwrap.shorten(evidence, EVIDENCE_WIDTH, placeholder=" ...")


def _headline(document: Row) -> Text:
    """How many cells there are, what became of them, and what that took."""
    counts, left = document["cells"], document["not_reached"]
    running = sum(cell["status"] == "running" for cell in document["grid"])
    words = [f"{count} {status}" for status, count in counts.items()]
    words += [f"{running} running"] if running else []
    words += [f"{left} not reached"] if left else []
    told = ", ".join(words)
    again = [document["launches"].get(name, 0) for name in _AGAIN]
    made = sum(document["launches"].values()) - sum(again)
    if document["inferred"]["cells"]:
        saved = max(0, sum(counts.values()) - made)
        told += f"; {several(made, 'launch', 'launches')}, {saved} saved"
    beside = launched_again(*again)
    told += f"; {beside}" if beside else ""
    name = titled(document["sweep"], bool(document["simulated"]))
    total = sum(counts.values()) + running + left
    return Text.assemble((name, "bold"), f": {total} cells", f" ({told})" if told else "")


def _doubt(row: Row, doubted: Set[tuple[Any, ...]]) -> str:
    if not row["monotone"]:
        return "not monotone"
    sides = (row["max_context_works"], row["min_context_fails"])
    if any(_place(row, side) in doubted for side in sides):
        return "in doubt"
    return "" if row["verified"] else "open"


def _disputed(contested: Sequence[Row]) -> set[tuple[Any, ...]]:
    return {_place(cell, cell["context"]) for cell in contested}


def _place(row: Row, context: int | None) -> tuple[Any, ...]:
    further = tuple((name, row[name]) for name in row.get("extra_axes", ()))
    return (row["depth"], row["graphs"], row["utilization"], further, context)
