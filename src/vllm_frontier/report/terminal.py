"""What a sweep found, as tables for a terminal of 80 columns or more."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vllm_frontier.analyze import checks as judged
from vllm_frontier.analyze.checks.output import BROKEN_ALL_THE_SAME
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.grid import shortest
from vllm_frontier.outcome import Purpose, SpecState, Status
from vllm_frontier.report import checks
from vllm_frontier.report.again import launched_again
from vllm_frontier.report.disagreement import disagreement
from vllm_frontier.report.grid_map import grid_map
from vllm_frontier.report.wording import several

EVIDENCE_WIDTH = 300  # characters
_AGAIN = (Purpose.REPLICATE, Purpose.REFERENCE)
_NONE = "-"
_DIM = "dim"
_DOUBTFUL = {
    SpecState.INEFFECTIVE.value: "next to nothing of what is drafted is accepted",
    SpecState.SUSPECT.value: "the counters are too good to be true, or contradict each other",
}


def print_show(document: Mapping[str, Any], console: Console) -> None:
    """Print what `show` tells.

    Args:
        document: from `documents.show_document`.
        console: where to; colours only where it is a terminal.
    """
    for number, part in enumerate(show(document)):
        if number:
            console.print()
        console.print(part)


def show(document: Mapping[str, Any]) -> list[RenderableType]:
    """The parts of `show`, in order."""
    simulated = bool(document["simulated"])
    parts: list[RenderableType] = [_headline(document)]
    if document["frontier"]:
        leading = frontier_table(
            document["frontier"], document["choices"], simulated, document["checks"]
        )
        parts.append(leading)
    else:
        reason = document["reason"] or "no cell has a measured speed yet"
        parts.append(Text(f"{reason[0].upper()}{reason[1:]}."))
    if document["frontier"] and document["without_speed"]:
        parts[-1] = Group(parts[-1], _unmeasured(document["without_speed"]))
    if document["boundaries"]:
        parts.append(boundaries_table(document["boundaries"], document["contested"], simulated))
    if document["contradictions"]:
        heading = title("Not monotone: refused, though what asks for more works", simulated)
        parts.append(disagreement(document, heading))
    if document["speeds"]:
        notes = speculation_notes(document["grid"])
        parts.append(Group(speeds_table(document["speeds"], simulated), *notes))
    if checks.are_told(document["checks"]):
        parts.append(checks.section(document["checks"], title("Checks", simulated)))
    if document["failures"]:
        parts.append(failures_table(document["failures"], simulated))
    if document["grid"]:
        parts.append(grid_map(document["grid"], title("Grid", simulated)))
    return parts


def title(text: str, simulated: bool) -> str:
    """A table's title; what was simulated says so."""
    return f"{text} (simulated)" if simulated else text


def frontier_table(
    rows: Sequence[Mapping[str, Any]],
    choices: Sequence[Mapping[str, Any]],
    simulated: bool = False,
    checked: Sequence[Mapping[str, Any]] = (),
) -> RenderableType:
    """The frontier for the median over tasks, and which of its cells are the choices.

    Args:
        rows: of the table `frontier`.
        choices: of `analyze.choices`.
        simulated: for the title.
        checked: of the table `checks`; cells with a number that cannot be trusted are marked.
    """
    leading = [row for row in rows if "all" in row["on_frontier_for"]]
    chosen = {choice["cell_id"]: choice["choices"] for choice in choices}
    extra = _extra_axes(leading)
    doubtful = checks.failed_cells(checked) | _unlike_sampling(checked)
    unrated = checks.cells_of(checked, checks.OUTPUT, judged.Verdict.UNKNOWN)
    table = _table(title("Frontier", simulated))
    _columns(table, ("context", "depth"))
    _columns(table, ("graphs",), "left")
    _columns(table, ("util", *extra, "tokens/s", "95 %", "x base", "prefill", "spare"))
    _columns(table, ("",), "left")
    for row in leading:
        names = chosen.get(row["cell_id"], [])
        table.add_row(
            str(row["context"]),
            str(row["depth"]),
            on_off(row["graphs"]),
            shortest(row["utilization"]),
            *(str(row.get(name, _NONE)) for name in extra),
            number(row["decode_tok_s"], 1),
            _interval(row),
            number(row["gain_no_graphs"], 2) + ("!" if _gain_in_doubt(row) else ""),
            number(row["prefill_tok_s"], 1),
            number(row["kv_headroom_gib"], 2),
            _marks(row, doubtful, unrated) + "".join(name[0].upper() for name in names),
            style="bold" if names else None,
        )
    return Group(table, *_notes(rows, leading), *_warnings(leading, checked))


def _marks(row: Mapping[str, Any], doubtful: Set[str], unrated: Set[str]) -> str:
    names = {row["cell_id"], row["speed_cell"]}
    marks = "~" if row["status"] == Status.INFERRED else ""
    marks += "=" if row.get("against_fastest") == Verdict.NO_CLEAR_DIFFERENCE else ""
    marks += "?" if unrated & names else ""
    return marks + ("!" if doubtful & names else "")


def speculation_notes(grid: Sequence[Mapping[str, Any]]) -> Iterable[Text]:
    """A line for each state of speculation that is no good, whatever became of the cell."""
    for state, meaning in _DOUBTFUL.items():
        depths = sorted({row["depth"] for row in grid if row["spec_state"] == state})
        if depths:
            named = ", ".join(str(depth) for depth in depths)
            yield Text(f"speculation is {state} at depth {named}: {meaning}.", style="yellow")


def boundaries_table(
    rows: Sequence[Mapping[str, Any]],
    contested: Sequence[Mapping[str, Any]] = (),
    simulated: bool = False,
) -> RenderableType:
    """What fits: where the window ends for every combination of the other axes.

    Args:
        rows: of the table `boundaries`.
        contested: inferred cells of which launches say both.
        simulated: for the title.
    """
    doubted = {_place(cell, cell["context"]) for cell in contested}
    extra = _extra_axes(rows)
    table = _table(title("What fits", simulated))
    _columns(table, ("depth",))
    _columns(table, ("graphs",), "left")
    _columns(table, ("util", *extra, "works up to", "refused from"))
    _columns(table, ("because of",), "left")
    _columns(table, ("cells",))
    _columns(table, ("",), "left")
    for row in rows:
        table.add_row(
            str(row["depth"]),
            on_off(row["graphs"]),
            shortest(row["utilization"]),
            *(str(row.get(name, _NONE)) for name in extra),
            _NONE if row["max_context_works"] is None else str(row["max_context_works"]),
            _NONE if row["min_context_fails"] is None else str(row["min_context_fails"]),
            row["failure_class"] or "",
            str(row["cells"]),
            _doubt(row, doubted),
        )
    return table


def speeds_table(rows: Sequence[Mapping[str, Any]], simulated: bool = False) -> RenderableType:
    """How fast each depth is on each task, and how often its drafts are accepted."""
    extra = _extra_axes(rows)
    table = _table(title("How fast, tokens/s", simulated))
    _columns(table, ("depth",))
    _columns(table, ("task",), "left")
    _columns(table, (*extra, "eager", "graphs"))
    _columns(table, ("accepted at each position",), "left")
    for row in rows:
        table.add_row(
            str(row["depth"]),
            row["task"],
            *(str(row.get(name, _NONE)) for name in extra),
            number(row["eager"], 1),
            number(row["graphs"], 1),
            " ".join(f"{share:.2f}" for share in row["acceptance"] or ()),
        )
    return table


def failures_table(rows: Sequence[Mapping[str, Any]], simulated: bool = False) -> RenderableType:
    """Why cells have no result, each reason with one line of evidence."""
    table = _table(title("Without a result", simulated))
    _columns(table, ("cells",))
    _columns(table, ("status", "reason", "evidence (of one cell)"), "left")
    for row in rows:
        where = f"attempts/{row['cell_id']}/{row['attempt']}/server.log"
        if row["evidence_line"] is not None:
            where += f":{row['evidence_line']}"
        evidence = Text.assemble(_shortened(row["evidence"]), "\n", (where, _DIM))
        table.add_row(str(row["cells"]), row["status"], row["failure_class"] or _NONE, evidence)
    return table


def _shortened(evidence: str | None) -> str:
    """The words that decide come first; advice and links follow, and stand in the log."""
    if not evidence:
        return _NONE
    return textwrap.shorten(evidence, EVIDENCE_WIDTH, placeholder=" ...")


def number(value: float | None, digits: int) -> str:
    """A figure with fixed digits; a dash where there is none."""
    return _NONE if value is None else f"{value:.{digits}f}"


def on_off(value: bool) -> str:
    """A switch in words."""
    return "on" if value else "off"


def _table(heading: str) -> Table:
    # No padding: the edge of this box is a blank already, and 80 columns are few.
    return Table(
        title=heading,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE,
        padding=0,
        show_edge=False,
    )


def _columns(
    table: Table, names: Iterable[str], justify: Literal["left", "right"] = "right"
) -> None:
    for name in names:
        # Folded, never cut: a figure that lost its end would be another figure.
        table.add_column(name, justify=justify, overflow="fold")


def _headline(document: Mapping[str, Any]) -> Text:
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
    name = title(document["sweep"], bool(document["simulated"]))
    total = sum(counts.values()) + running + left
    return Text.assemble((name, "bold"), f": {total} cells", f" ({told})" if told else "")


def _unmeasured(cells: int) -> Text:
    told = "1 more cell works" if cells == 1 else f"{cells} more cells work"
    return Text(f"{told}, but no speed was measured at that depth and graphs.", style="yellow")


def _notes(
    rows: Sequence[Mapping[str, Any]], leading: Sequence[Mapping[str, Any]]
) -> Iterable[Text]:
    yield Text(
        "F fastest, L longest, B balanced. 95 %: interval of tokens/s. x base: over depth 0 "
        "without graphs. prefill: tokens/s. spare: GiB of KV cache beyond one window.",
        style=_DIM,
    )
    if any(_is_within(row) and _interval(row) != _NONE for row in leading):
        yield Text(
            "* interval within one launch: launches do not show how much they differ.", style=_DIM
        )
    if any(row.get("against_fastest") == Verdict.NO_CLEAR_DIFFERENCE for row in leading):
        yield Text("= no clear difference to the fastest.", style=_DIM)
    if any(row["status"] == Status.INFERRED for row in leading):
        yield Text(
            "~ inferred: not launched itself, but works by the launch of a cell that asks for "
            "more.",
            style=_DIM,
        )
    if any(row["speed_cell"] != row["cell_id"] for row in leading):
        yield Text(
            "Where speed was not measured, it is that of the longest window measured at the same "
            "depth and graphs.",
            style=_DIM,
        )
    if any(_gain_in_doubt(row) for row in leading):
        yield Text("! x base is in doubt, as depth 0 without graphs is: see Checks.", style="red")
    others = len(rows) - len(leading)
    if others:
        tasks = sorted({task for row in rows for task in row["on_frontier_for"]} - {"all"})
        yield Text(
            f"{others} more {'cell leads' if others == 1 else 'cells lead'} for single tasks "
            f"({', '.join(tasks)}); see --json.",
            style=_DIM,
        )


def _doubt(row: Mapping[str, Any], doubted: Set[tuple[Any, ...]]) -> str:
    """What is to be known of a boundary beside its figures."""
    if not row["monotone"]:
        return "not monotone"
    sides = (row["max_context_works"], row["min_context_fails"])
    if any(_place(row, side) in doubted for side in sides):
        return "in doubt"
    if not row["verified"]:
        return "open"
    return "" if row["launched"] else "inferred"


def _place(row: Mapping[str, Any], context: int | None) -> tuple[Any, ...]:
    further = tuple((name, row[name]) for name in row.get("extra_axes", ()))
    return (row["depth"], row["graphs"], row["utilization"], further, context)


def _interval(row: Mapping[str, Any]) -> str:
    """The 95 % interval of the speed; with a mark where it is of one launch only."""
    low, high = row["decode_tok_s_low"], row["decode_tok_s_high"]
    if low is None or high is None:
        return _NONE
    return f"{low:.1f}-{high:.1f}{'*' if _is_within(row) else ''}"


def _is_within(row: Mapping[str, Any]) -> bool:
    return bool(row.get("interval_basis") == RUNS)


def _gain_in_doubt(row: Mapping[str, Any]) -> bool:
    return bool(row.get("gain_in_doubt")) and row["gain_no_graphs"] is not None


def _unlike_sampling(checked: Sequence[Mapping[str, Any]]) -> set[str]:
    """The cells whose output is broken at another temperature than it was measured at, or odd."""
    return checks.cells_of(checked, checks.OUTPUT, judged.Verdict.WARN)


def _warnings(
    leading: Sequence[Mapping[str, Any]], checked: Sequence[Mapping[str, Any]]
) -> Iterable[Text]:
    """What is to be known of cells before they are served."""
    names = {name for row in leading for name in (row["cell_id"], row["speed_cell"])}
    unlike = [
        row
        for row in checked
        if row["cell_id"] in names
        and (row["check"], row["verdict"]) == (checks.OUTPUT, judged.Verdict.WARN)
    ]
    if unlike:
        named = ", ".join(str(depth) for depth in sorted({row["depth"] for row in unlike}))
        right = all(BROKEN_ALL_THE_SAME in row["detail"] for row in unlike)
        told = (
            f"sampled output is broken; {BROKEN_ALL_THE_SAME}"
            if right
            else "the output is not what it should be; see Checks"
        )
        yield Text(f"! depth {named}: {told}.", style="yellow")
    if checks.cells_of(checked, checks.OUTPUT, judged.Verdict.UNKNOWN) & names:
        yield Text("? output not rated: nothing tells whether it is right.", style="yellow")
    if checks.failed_cells(checked) & names:
        yield Text("! a number of this cell cannot be trusted: see Checks.", style="red")
    broken = checks.cells_of(checked, checks.OUTPUT, judged.Verdict.FAIL)
    if broken:
        cells = several(len(broken), "measured cell is", "measured cells are")
        yield Text(f"{cells} left out: the output is broken, see Checks.", style="red")


def _extra_axes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({name for row in rows for name in row.get("extra_axes", ())})
