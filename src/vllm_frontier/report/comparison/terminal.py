"""Sweeps side by side, for a terminal of 80 columns or more."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from vllm_frontier.analyze.comparison.memory import FOR_CACHE
from vllm_frontier.analyze.comparison.windows import Reach
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.grid import shortest
from vllm_frontier.report.comparison import words
from vllm_frontier.report.terminal.plain_table import NONE, columns, extra_axes, number, table
from vllm_frontier.report.window_ends import NOT_IN_GRID, marks, window_end
from vllm_frontier.report.wording import listed, on_off, several, titled

_DIM = "dim"
_COLUMN = 7  # letters of a heading in a line, unless a word is longer
_ALIKE = (Reach.SAME, Reach.AT_END)
_ALONE = (Reach.ONLY_BASE, Reach.ONLY_OTHER)
_SIGNS = {Verdict.FASTER: "+", Verdict.SLOWER: "-", Verdict.NO_CLEAR_DIFFERENCE: "="}


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print what `compare` tells.

    Args:
        document: from `document.compare`.
        console: where to; colours only where it is a terminal.
    """
    for place, part in enumerate(_parts(document)):
        if place:
            console.print()
        console.print(part)


def _parts(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    simulated = all(each["simulated"] for each in document["sweeps"])
    yield Group(*_heading(document, simulated))
    if document["differences"]:
        yield _differences(document)
    for note in document["notes"]:
        yield Text(note, style="yellow")
    if document["only_in"]:
        yield Group(*(Text(line) for line in words.only_in(document)))
    for each in document["sweeps"][1:]:
        yield _windows(document, each["name"], simulated)
    for each in document["speeds"]:
        yield _speeds(document, each, simulated)
    for each in document["sweeps"][1:]:
        yield _memory(document, each["name"], simulated)
    yield _choices(document, simulated)


def _heading(document: Mapping[str, Any], simulated: bool) -> Iterator[Text]:
    heading = words.heading([each["name"] for each in document["sweeps"]])
    yield Text(titled(heading, simulated=simulated), style="bold")
    for each in document["sweeps"]:
        yield Text(f"  {words.of_sweep(each)}")


def _differences(document: Mapping[str, Any]) -> RenderableType:
    names = [each["name"] for each in document["sweeps"]]
    told = table("What differs")
    columns(told, ("", *names), "left")
    for each in document["differences"]:
        told.add_row(each["word"], *(words.value(each["values"][name]) for name in names))
    return told


def _windows(document: Mapping[str, Any], name: str, simulated: bool) -> RenderableType:
    rows = [row for row in document["windows"] if row["against"] == name]
    differing = [row for row in rows if row["reach"] not in _ALIKE]
    against = words.heading([document["base"], name])
    summary = words.windows(rows, document["base"], name)
    if not differing:
        heading = titled(f"How far windows reach, {against}", simulated=simulated)
        return Group(Text(heading, style="bold"), Text(summary))
    extra = extra_axes(differing)
    shares = words.share_of_base(differing)
    told = table(titled(f"Longest window that works, {against}", simulated=simulated))
    columns(told, ("depth",))
    columns(told, ("graphs",), "left")
    columns(told, ("util", *extra, document["base"], name, "tokens"))
    columns(told, ["share"] if shares else [])
    columns(told, ("",), "left")
    for row in differing:
        told.add_row(
            *_place(row, extra),
            _end(row["base"]),
            _end(row["other"]),
            NONE if row["difference"] is None else f"{row['difference']:+d}",
            *([NONE if row["share"] is None else words.percent(row["share"])] if shares else []),
            # Where one of them does not have it in its grid, its figure says so.
            "" if row["reach"] in _ALONE else row["reach"],
        )
    return Group(told, Text(summary, style=_DIM), *_end_notes(differing))


def _end(side: Mapping[str, Any] | None) -> str:
    """The longest window that works, and what that rests on."""
    return NOT_IN_GRID if side is None else window_end(side, NONE)


def _end_notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    sides = [side for row in rows for side in (row["base"], row["other"]) if side is not None]
    told = []
    if any(row["reach"] == Reach.OPEN for row in rows):
        told.append("open: by what is known the ends may lie at the same window")
    told += marks(sides)
    if told:
        yield Text("; ".join(told) + ".", style=_DIM)


def _speeds(
    document: Mapping[str, Any], speeds: Mapping[str, Any], simulated: bool
) -> RenderableType:
    base, name = document["base"], speeds["against"]
    what = f"Decode speed, tokens/s, {words.heading([base, name])}"
    heading = titled(what, simulated=simulated)
    if not speeds["compared"]:
        why = Text(f"Not compared: {speeds['reason']}.", style="yellow")
        return Group(Text(heading, style="bold"), why)
    rows, fewer = words.telling(speeds["rows"])
    if not rows:
        none = Text(words.nothing_fast(base, name))
        return Group(Text(heading, style="bold"), none)
    signs = (
        f"ratio: {words.quoted(name)} over {words.quoted(base)}. "
        "+ faster, - slower, = no clear difference."
    )
    notes = [*([f"{fewer} All: --json."] if fewer else []), signs, *speeds["notes"]]
    return Group(
        _speed_table(heading, rows, base, name),
        Text(words.speeds(speeds, base)),
        *(Text(note, style=_DIM) for note in notes),
    )


def _speed_table(
    heading: str, rows: Sequence[Mapping[str, Any]], base: str, name: str
) -> RenderableType:
    tasks = sorted({task for row in rows for task in row["tasks"]})
    extra = extra_axes(rows)
    sides = [side for row in rows for side in (row["base"], row["other"])]
    # With one share everywhere, its column would only take room.
    shares = len({side["utilization"] for side in sides}) > 1
    told = table(heading)
    columns(told, ("depth",))
    columns(told, ("graphs",), "left")
    columns(told, ("context", *(["util"] if shares else []), *extra))
    columns(told, (base, name, "ratio", "95 %", *tasks))
    for row in rows:
        own, others = row["base"], row["other"]
        context = words.windows_of(own["context"], others["context"])
        share = words.shares_of(own["utilization"], others["utilization"])
        told.add_row(
            str(row["depth"]),
            on_off(row["graphs"]),
            context + ("" if row["same_cell"] else "~"),
            *([share] if shares else []),
            *(str(row.get(axis, NONE)) for axis in extra),
            number(own["decode_tok_s"], 1) + ("!" if own["broken"] else ""),
            number(others["decode_tok_s"], 1) + ("!" if others["broken"] else ""),
            _ratio(row),
            _interval(row),
            *(_ratio(row["tasks"].get(task)) for task in tasks),
        )
    return told


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["ratio_low"], row["ratio_high"]
    if low is None or high is None:
        return NONE
    return f"{low:.2f}-{high:.2f}{'*' if row['basis'] == RUNS else ''}"


def _ratio(told: Mapping[str, Any] | None) -> str:
    """With a sign of the verdict."""
    return NONE if told is None else f"{number(told['ratio'], 2)}{_SIGNS[told['verdict']]}"


def _memory(document: Mapping[str, Any], name: str, simulated: bool) -> RenderableType:
    base = document["base"]
    what = f"Memory, GiB, {words.quoted(name)} less {words.quoted(base)}"
    heading = titled(what, simulated=simulated)
    every = [row for row in document["memory"] if row["against"] == name]
    rows, untold = words.untold(words.at_largest_share(every))
    if not rows:
        none = Text("No combination of which both sweeps know where the memory goes.")
        return Group(Text(heading, style="bold"), none)
    parts, others = words.unlike(rows)
    extra = extra_axes(rows)
    told = table(heading)
    columns(told, ("depth",))
    columns(told, ("graphs",), "left")
    columns(told, ("util", *extra))
    columns(told, map(_narrow, parts))
    # Where there is not enough room, names of sweeps give way first.
    for column in told.columns:
        column.no_wrap = True
    columns(told, (f"KV,\n{_narrow(each)}" for each in (base, name)))
    columns(told, ("KV +-",))
    for row in rows:
        by_part = {part["part"]: part for part in row["parts"]}
        cache = by_part.get(FOR_CACHE, {})
        told.add_row(
            *_place(row, extra),
            *(_change(by_part.get(part)) for part in parts),
            number(cache.get("base"), 2),
            number(cache.get("other"), 2),
            _change(cache),
        )
    lines = [
        "KV: what is left for the KV cache. At the largest share that both sweeps know.",
        *words.graphs_moved(rows, base, name),
        *words.window_needs(document, name),
        *others,
        *([] if untold is None else [untold]),
    ]
    told_of = [each for row in rows for each in row["parts"] if each["part"] in (*parts, FOR_CACHE)]
    if any(each["difference"] is None for each in told_of):
        lines.append("? not known of both.")
    return Group(told, *(Text(line, style=_DIM) for line in lines))


def _narrow(heading: str) -> str:
    """A heading in short lines, no word of it broken."""
    return "\n".join(textwrap.wrap(heading, _COLUMN, break_long_words=False))


def _change(part: Mapping[str, Any] | None) -> str:
    if not part:
        return NONE
    if part["difference"] is None:
        return "?"
    told = f"{part['difference']:+.2f}"
    return "0" if float(told) == 0 else told


def _choices(document: Mapping[str, Any], simulated: bool) -> RenderableType:
    rows = [
        (each["choice"], name, cell)
        for each in document["choices"]
        for name, cell in each["sweeps"].items()
    ]
    extra = extra_axes([cell for _, _, cell in rows if cell is not None])
    told = table(titled("Choices of each", simulated=simulated))
    columns(told, ("", "sweep"), "left")
    columns(told, ("context", "depth"))
    columns(told, ("graphs",), "left")
    columns(told, ("util", *extra, "tokens/s", "95 %", "spare"))
    before = ""
    for choice, name, cell in rows:
        first = choice if choice != before else ""
        before = choice
        if cell is None:
            told.add_row(first, name, *(NONE for _ in range(7 + len(extra))))
            continue
        low, high = cell["decode_tok_s_low"], cell["decode_tok_s_high"]
        told.add_row(
            first,
            name,
            str(cell["context"]),
            str(cell["depth"]),
            on_off(cell["graphs"]),
            shortest(cell["utilization"]),
            *(str(cell.get(axis, NONE)) for axis in extra),
            number(cell["decode_tok_s"], 1),
            NONE if low is None else f"{low:.1f}-{high:.1f}{_within(cell)}",
            number(cell["kv_headroom_gib"], 2),
        )
    return Group(told, *_choice_notes(document))


def _within(cell: Mapping[str, Any]) -> str:
    return "*" if cell["interval_basis"] == RUNS else ""


def _choice_notes(document: Mapping[str, Any]) -> Iterable[Text]:
    refused = [each["against"] for each in document["speeds"] if not each["compared"]]
    if refused:
        names = listed([words.quoted(name) for name in refused])
        told = f"No speeds: {names} measured something else than the base."
        yield Text(told, style=_DIM)
    yield Text(
        f"spare: GiB of KV cache beyond one window. {several(document['shared'], 'cell', 'cells')}"
        " of the grids in all sweeps.",
        style=_DIM,
    )


def _place(row: Mapping[str, Any], extra: Sequence[str]) -> list[str]:
    return [
        str(row["depth"]),
        on_off(row["graphs"]),
        shortest(row["utilization"]),
        *(str(row.get(name, NONE)) for name in extra),
    ]
