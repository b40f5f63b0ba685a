"""The frontier as a table for a terminal, and what is to be known of its cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from vllm_frontier.analyze import checks as judged
from vllm_frontier.analyze.checks.output import BROKEN_ALL_THE_SAME
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.grid import shortest
from vllm_frontier.outcome import Status
from vllm_frontier.report import checks
from vllm_frontier.report.terminal.plain_table import NONE, columns, extra_axes, fits, number, table
from vllm_frontier.report.wording import on_off, several, titled

_AT_MOST = 8  # rows where the table is to be short
# What a narrow terminal goes without, first what is missed least.
_SPARED = ("prefill", "x base", "spare")
_DIM = "dim"

Row: TypeAlias = Mapping[str, Any]


def frontier_section(document: Row, *, short: bool = False) -> RenderableType:
    """The frontier, or why there is none.

    Args:
        document: with `frontier`, `choices`, `checks`, `simulated`, `reason` and `without_speed`
            of `documents.show_document`.
        short: a few rows, every choice among them, and what the marks mean in few words.
    """
    if not document["frontier"]:
        reason = document["reason"] or "no cell has a measured speed yet"
        return Text(f"{reason[0].upper()}{reason[1:]}.")
    parts = [
        frontier_table(
            document["frontier"],
            document["choices"],
            bool(document["simulated"]),
            document["checks"],
            short=short,
        )
    ]
    if document["without_speed"]:
        parts.append(_unmeasured(document["without_speed"]))
    return Group(*parts)


def frontier_table(
    rows: Sequence[Row],
    choices: Sequence[Row],
    simulated: bool = False,
    checked: Sequence[Row] = (),
    *,
    short: bool = False,
) -> RenderableType:
    """The frontier for the median over tasks, and which of its cells are the choices.

    Args:
        rows: of the table `frontier`.
        choices: of `analyze.choices`.
        simulated: for the title.
        checked: of the table `checks`; cells with a number that cannot be trusted are marked.
        short: see `frontier_section`.
    """
    chosen = {choice["cell_id"]: choice["choices"] for choice in choices}
    return _Frontier(rows, chosen, titled("Frontier", simulated), checked, short)


@dataclass(frozen=True)
class _Frontier:
    """The table and what is to be known of it, with the columns that there is room for."""

    rows: Sequence[Row]
    chosen: Mapping[str, Any]
    heading: str
    checked: Sequence[Row]
    short: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        leading = [row for row in self.rows if "all" in row["on_frontier_for"]]
        shown = _few(leading, self.chosen) if self.short else leading
        for count in range(len(_SPARED) + 1):
            without = _SPARED[:count]
            drawn = self._table(shown, without)
            if fits(drawn, console, options):
                break
        yield drawn
        if self.short:
            yield from _in_short(shown, len(leading), without)
        else:
            yield from notes(self.rows, leading, without)
        yield from warnings(leading, self.checked, "`show`" if self.short else "Checks")

    def _table(self, shown: Sequence[Row], without: Collection[str]) -> Table:
        extra = extra_axes(shown)
        further = [name for name in ("x base", "prefill", "spare") if name not in without]
        drawn = table(self.heading)
        columns(drawn, ("context", "depth"))
        columns(drawn, ("graphs",), "left")
        columns(drawn, ("util", *extra, "tokens/s", "95 %", *further))
        columns(drawn, ("",), "left")
        for row, mark in zip(shown, marks(shown, self.checked), strict=True):
            names = self.chosen.get(row["cell_id"], [])
            figures = {
                "x base": number(row["gain_no_graphs"], 2) + ("!" if _gain_in_doubt(row) else ""),
                "prefill": number(row["prefill_tok_s"], 1),
                "spare": number(row["kv_headroom_gib"], 2),
            }
            drawn.add_row(
                str(row["context"]),
                str(row["depth"]),
                on_off(row["graphs"]),
                shortest(row["utilization"]),
                *(str(row.get(name, NONE)) for name in extra),
                number(row["decode_tok_s"], 1),
                interval(row),
                *(figures[name] for name in further),
                mark + "".join(name[0].upper() for name in names),
                style="bold" if names else None,
            )
        return drawn


def _few(leading: Sequence[Row], chosen: Mapping[str, Any]) -> list[Row]:
    """The choices and, of the others, some that are spread evenly."""
    others = [row["cell_id"] for row in leading if row["cell_id"] not in chosen]
    room = max(1, _AT_MOST - (len(leading) - len(others)))
    kept = {*chosen, *others[:: max(1, -(-len(others) // room))]}
    return [row for row in leading if row["cell_id"] in kept]


def marks(rows: Sequence[Row], checked: Sequence[Row]) -> list[str]:
    """The marks of each row: what `notes` and `warnings` are about.

    Args:
        rows: of the table `frontier`.
        checked: of the table `checks`.
    """
    doubtful = checks.failed_cells(checked) | _unlike_sampling(checked)
    unrated = checks.cells_of(checked, checks.OUTPUT, judged.Verdict.UNKNOWN)
    return [_marks(row, doubtful, unrated) for row in rows]


def _marks(row: Row, doubtful: Set[str], unrated: Set[str]) -> str:
    names = {row["cell_id"], row["speed_cell"]}
    marks = "~" if row["status"] == Status.INFERRED else ""
    marks += "=" if row.get("against_fastest") == Verdict.NO_CLEAR_DIFFERENCE else ""
    marks += "?" if unrated & names else ""
    return marks + ("!" if doubtful & names else "")


def _unmeasured(cells: int) -> Text:
    told = "1 more cell works" if cells == 1 else f"{cells} more cells work"
    return Text(f"{told}, but no speed was measured at that depth and graphs.", style="yellow")


def _in_short(shown: Sequence[Row], leading: int, without: Collection[str] = ()) -> Iterator[Text]:
    """What the marks that occur mean, and which rows and columns were left out."""
    words = ["F fastest, L longest, B balanced; 95 %: interval of tokens/s"]
    words += [told for name, told in _COLUMNS if name not in (*without, "prefill")]
    words += [short for mark, _, short in _MARKS if any(mark(row) for row in shown)]
    if leading > len(shown):
        words.append(f"{leading - len(shown)} more cells on the frontier: `vllm-frontier show`")
    words += _left_out(without)
    yield Text(f"{'; '.join(words)}.", style=_DIM)


def notes(
    rows: Sequence[Row], leading: Sequence[Row], without: Collection[str] = ()
) -> Iterable[Text]:
    """What columns and marks mean, a line each.

    Args:
        rows: of the table `frontier`.
        leading: those of them that are shown.
        without: columns that are not.
    """
    words = ["F fastest, L longest, B balanced", "95 %: interval of tokens/s"]
    words += [told for name, told in _COLUMNS if name not in without]
    words += _left_out(without)
    yield Text(f"{'. '.join(words)}.", style=_DIM)
    for mark, told, _ in _MARKS:
        if any(mark(row) for row in leading):
            yield Text(told, style=_DIM)
    others = len(rows) - len(leading)
    if others:
        tasks = sorted({task for row in rows for task in row["on_frontier_for"]} - {"all"})
        yield Text(
            f"{others} more {'cell leads' if others == 1 else 'cells lead'} for single tasks "
            f"({', '.join(tasks)}); see --json.",
            style=_DIM,
        )


def _left_out(without: Collection[str]) -> list[str]:
    return [f"no room here for: {', '.join(without)}"] if without else []


def interval(row: Row) -> str:
    """The 95 % interval of the speed; with a mark where it is of one launch only."""
    low, high = row["decode_tok_s_low"], row["decode_tok_s_high"]
    if low is None or high is None:
        return NONE
    return f"{low:.1f}-{high:.1f}{'*' if _is_within(row) else ''}"


def _is_within(row: Row) -> bool:
    return bool(row.get("interval_basis") == RUNS)


def _gain_in_doubt(row: Row) -> bool:
    return bool(row.get("gain_in_doubt")) and row["gain_no_graphs"] is not None


def _unlike_sampling(checked: Sequence[Row]) -> set[str]:
    """The cells whose output is broken at another temperature than it was measured at, or odd."""
    return checks.cells_of(checked, checks.OUTPUT, judged.Verdict.WARN)


def warnings(
    leading: Sequence[Row], checked: Sequence[Row], more: str = "Checks"
) -> Iterable[Text]:
    """What is to be known of cells before they are served, a line each; `more`: see where."""
    if any(_gain_in_doubt(row) for row in leading):
        yield Text(f"! x base is in doubt, as depth 0 without graphs is: see {more}.", style="red")
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
            else f"the output is not what it should be; see {more}"
        )
        yield Text(f"! depth {named}: {told}.", style="yellow")
    if checks.cells_of(checked, checks.OUTPUT, judged.Verdict.UNKNOWN) & names:
        yield Text("? output not rated: nothing tells whether it is right.", style="yellow")
    if checks.failed_cells(checked) & names:
        yield Text(f"! a number of this cell cannot be trusted: see {more}.", style="red")
    broken = checks.cells_of(checked, checks.OUTPUT, judged.Verdict.FAIL)
    if broken:
        cells = several(len(broken), "measured cell is", "measured cells are")
        yield Text(f"{cells} left out: the output is broken, see {more}.", style="red")


_COLUMNS = (
    ("x base", "x base: over depth 0 without graphs"),
    ("prefill", "prefill: tokens/s"),
    ("spare", "spare: GiB of KV cache beyond one window"),
)
"""What columns are that may be left out."""

_MARKS: tuple[tuple[Callable[[Row], bool], str, str], ...] = (
    (
        lambda row: _is_within(row) and interval(row) != NONE,
        "* interval within one launch: launches do not show how much they differ.",
        "* interval within one launch",
    ),
    (
        lambda row: row.get("against_fastest") == Verdict.NO_CLEAR_DIFFERENCE,
        "= no clear difference to the fastest.",
        "= no clear difference to the fastest",
    ),
    (
        lambda row: row["status"] == Status.INFERRED,
        "~ inferred: not launched itself, but works by the launch of a cell that asks for more.",
        "~ inferred, not launched itself",
    ),
    (
        lambda row: row["speed_cell"] != row["cell_id"],
        "Where speed was not measured, it is that of the longest window measured at the same "
        "depth and graphs.",
        "speeds that were not measured are those of the longest window that was",
    ),
)
"""When a note is needed, the note, and the same in few words."""
