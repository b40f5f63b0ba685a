"""What the checks found, for a terminal: how many, and each thing that should be looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vllm_frontier.analyze.checks import NAMES, PRECISION, Verdict
from vllm_frontier.report.disagreement import axes
from vllm_frontier.report.wording import several

OUTPUT = "output_sane"
_OF_BASELINE = (OUTPUT, "depth_applied")

_AT_MOST = 12  # findings in a terminal; the JSON document has all of them
_OF_A_KIND = 2
_DIM = "dim"
_STYLES = {Verdict.FAIL: "red", Verdict.WARN: "yellow"}
_WORST_FIRST = (Verdict.FAIL, Verdict.WARN)

Row = Mapping[str, Any]


def section(rows: Sequence[Row], heading: str) -> RenderableType:
    """A line for each check, the findings, worst first, and what is to be known of the sweep.

    Args:
        rows: of the table `checks`, as objects.
        heading: the line above.
    """
    return Group(_counts(rows, heading), *_findings(rows), *_of_sweep(rows))


def are_told(rows: Sequence[Row]) -> bool:
    """Whether anything was judged at all."""
    return any(row["verdict"] != Verdict.UNKNOWN for row in rows)


def summary(rows: Sequence[Row]) -> str:
    """How many findings there are, in a sentence; empty where nothing was judged."""
    if not are_told(rows):
        return ""
    counts = Counter(row["verdict"] for row in rows)
    found = [f"{counts[each]} {each.value}" for each in _WORST_FIRST if counts[each]]
    if not found:
        return "Checks: nothing to report."
    total = sum(counts[each] for each in _WORST_FIRST)
    return f"Checks: {several(total, 'finding', 'findings')} ({', '.join(found)})."


def about(rows: Sequence[Row], cells: Collection[str]) -> list[dict[str, Any]]:
    """The findings about some cells, worst first, as `check`, `verdict` and `detail`.

    That nothing tells whether the output of a cell is right is one of them.
    """
    unrated = [row for row in rows if row["check"] == OUTPUT and row["verdict"] == Verdict.UNKNOWN]
    return [
        {"check": row["check"], "verdict": row["verdict"], "detail": _detail(row)}
        for group in [*groups(rows), unrated]
        for row in group
        if row["cell_id"] in cells
    ]


def cells_of(rows: Sequence[Row], check: str, verdict: Verdict) -> set[str]:
    """The cells of which a check says so."""
    return {
        row["cell_id"] for row in rows if row["check"] == check and row["verdict"] == verdict
    } - {None}


def failed_cells(rows: Sequence[Row]) -> set[str]:
    """The cells of which any check says that a number cannot be trusted."""
    return {row["cell_id"] for row in rows if row["verdict"] == Verdict.FAIL} - {None}


def rests_on_doubt(rows: Sequence[Row], cell: Row) -> bool:
    """Whether the gain of a cell over depth 0 without graphs is over something that is not that.

    So it is where depth 0 does not write as expected, or drafts were made there, with the same
    further axes as the cell has.
    """
    return any(
        row["verdict"] in _WORST_FIRST
        and row["check"] in _OF_BASELINE
        and (row["depth"], row["graphs"]) == (0, False)
        and _further(row) == _further(cell)
        for row in rows
    )


def _further(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in row.get("extra_axes", ())}


def _counts(rows: Sequence[Row], heading: str) -> Table:
    counts = Counter((row["check"], row["verdict"]) for row in rows)
    table = Table(
        title=heading,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    table.add_column("")
    for verdict in Verdict:
        table.add_column(verdict.value, justify="right")
    for name in NAMES:
        if name == PRECISION and not any(row["check"] == name for row in rows):
            continue
        told = [_count(counts[name, verdict], verdict) for verdict in Verdict]
        table.add_row(name, *told)
    return table


def _count(count: int, verdict: Verdict) -> Text:
    return Text(str(count) if count else "", style=_STYLES.get(verdict, "") if count else "")


def _findings(rows: Sequence[Row]) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    room, rest = _AT_MOST, 0
    for group in groups(rows):
        some = group[: min(_OF_A_KIND, room)]
        room -= len(some)
        for row in some:
            verdict = Verdict(row["verdict"])
            table.add_row(Text(verdict.value, style=_STYLES[verdict]), Text(line(row)))
        left = len(group) - len(some)
        if some and left:
            more = f"{left} more of {group[0]['check']}; see --json"
            table.add_row("", Text(more, style=_DIM))
        rest += 0 if some else left
    if rest:
        more = f"and {several(rest, 'finding', 'findings')} of other checks; see --json"
        table.add_row("", Text(more, style=_DIM))
    if table.row_count:
        yield Text()
        yield table


def _of_sweep(rows: Sequence[Row]) -> Iterator[RenderableType]:
    told = of_sweep(rows)
    if told:
        yield Text()
        yield Text("\n".join(told), style=_DIM)


def of_sweep(rows: Sequence[Row]) -> list[str]:
    """What is as it should be, and yet to be known: how launches differ, which runs are far off."""
    return [
        f"{row['check']}: {row['detail']}"
        for row in rows
        if row["cell_id"] is None and row["verdict"] == Verdict.PASS and row["value"]
    ]


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The findings of one check and verdict together, worst first."""
    found = [
        [row for row in rows if row["check"] == name and row["verdict"] == verdict]
        for verdict in _WORST_FIRST
        for name in NAMES
    ]
    return [sorted(group, key=_distance, reverse=True) for group in found if group]


def _distance(row: Row) -> float:
    """How far what was found is from what it is held against; relative to that, where it can be."""
    value, expected = row["value"], row["expected"]
    if value is None or expected is None:
        return 0.0
    return float(abs(value - expected) / (abs(expected) or 1.0))


def line(row: Row) -> str:
    """A row in a sentence: the check, the cell that is judged, what was found."""
    where = [axes(row)] if row["depth"] is not None else []
    where += [f"attempt {row['attempt']}"] if row["attempt"] is not None else []
    where += [row["task"]] if row["task"] is not None else []
    return f"{', '.join([row['check'], *where])}: {row['detail']}"


def _detail(row: Row) -> str:
    """The sentence, with the task that it is about."""
    return row["detail"] if row["task"] is None else f"{row['task']}: {row['detail']}"
