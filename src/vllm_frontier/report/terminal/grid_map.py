"""The whole grid at a glance: signs for every cell, in the fewest lines that can be read.

Rows are depths, columns are windows; graphs and further axes have a panel each, side by side
where the width allows. A window has a sign for each utilization while that stays small, and
else one sign that tells the lowest utilization at which the cell works.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_frontier.grid import shortest
from vllm_frontier.report.terminal.grid_signs import (
    NOT_REACHED,
    RUNNING,
    Row,
    Sign,
    folded,
    legend,
    refused,
    sign,
    works,
)
from vllm_frontier.report.wording import K, in_k

AT_MOST = 16  # lines of signs and labels, before utilizations are folded into one sign
_LONGEST = 32  # lines; beyond that panels are left out
_BETWEEN = 2  # columns between two panels


class _Header(Enum):
    """How windows are named over their columns, roomiest first."""

    LABELS = "each over its column"
    STAGGERED = "each over its column, in two lines by turns"
    RULER = "some over their columns"

    def column(self, signs: int, longest: int) -> int:
        """How wide a column of so many signs is, under names of at most that length."""
        if self is _Header.LABELS:
            return max(signs, longest) + 1
        if self is _Header.STAGGERED:
            return max(signs + 1, (longest + 2) // 2)
        return signs + (signs > 1)

    def lines(self, names: Sequence[str], column: int) -> list[Text]:
        """The names of windows in lines."""
        if self is _Header.LABELS:
            return [Text("".join(name.ljust(column) for name in names))]
        if self is _Header.STAGGERED:
            above = "".join(name.ljust(2 * column) for name in names[::2])
            below = " " * column + "".join(name.ljust(2 * column) for name in names[1::2])
            return [Text(above), Text(below)]
        widest = max(len(name) for name in names) + 1
        step = -(-widest // column)
        marked = names[::step]
        labels = "".join(name.ljust(step * column) for name in marked)
        ticks = "|".ljust(step * column) * len(marked)
        return [Text(labels), Text(ticks, style="dim")]


@dataclass(frozen=True)
class _Panel:
    """The cells with the same graphs and further axes, by depth and window."""

    title: str
    at: Mapping[tuple[int, int], list[Row | None]]


@dataclass(frozen=True)
class _Drawing:
    """The lines of one way to draw the map, and what is to be said of it."""

    lines: list[Text]
    used: set[Sign]
    folded: bool
    header: _Header
    left_out: int = 0


class GridMap:
    """A map of cells; see `grid_map`."""

    def __init__(self, cells: Sequence[Row], heading: str, *, whole: bool) -> None:
        self._cells, self._heading, self._whole = cells, heading, whole
        self._utilizations = sorted({cell["utilization"] for cell in cells})
        self._depths = sorted({cell["depth"] for cell in cells})
        self._contexts = sorted({cell["context"] for cell in cells})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._cells:
            return
        drawing = self._drawn(options.max_width)
        yield self._heading_line(drawing)
        yield from drawing.lines
        yield from legend(drawing.used, options.max_width)
        yield from self._remarks(drawing)

    def is_whole(self, width: int) -> bool:
        """Whether every cell has a sign of its own at a width in characters."""
        if not self._cells:
            return True
        drawing = self._drawn(width)
        return not drawing.folded and not drawing.left_out

    def _drawn(self, width: int) -> _Drawing:
        """The most that can be read: the first drawing that is short, else the shortest."""
        several = len(self._utilizations) > 1 and not self._whole
        drawings = [
            self._drawing(width, header, fold=fold)
            for fold in ((False, True) if several else (False,))
            for header in _Header
        ]
        short = [each for each in drawings if len(each.lines) <= AT_MOST]
        chosen = short[0] if short else min(drawings, key=lambda each: len(each.lines))
        if self._whole:
            return chosen
        return self._cut(chosen)

    def _cut(self, drawing: _Drawing) -> _Drawing:
        """Whole rows of panels only, as many as are bearable; at least one."""
        starts = [number for number, line in enumerate(drawing.lines) if not line]
        ends = [each for each in starts if each <= _LONGEST]
        if len(drawing.lines) <= _LONGEST or not starts:
            return drawing
        end = ends[-1] if ends else starts[0]
        left = sum(each >= end for each in starts)
        return _Drawing(drawing.lines[:end], drawing.used, drawing.folded, drawing.header, left)

    @cached_property
    def _panels(self) -> list[_Panel]:
        by_title: dict[str, dict[tuple[int, int], list[Row | None]]] = {}
        number = {each: place for place, each in enumerate(self._utilizations)}
        for cell in sorted(self._cells, key=_panel_order):
            at = by_title.setdefault(_title(cell), {})
            there = at.setdefault((cell["depth"], cell["context"]), [None] * len(number))
            there[number[cell["utilization"]]] = cell
        return [_Panel(title, at) for title, at in by_title.items()]

    def _drawing(self, width: int, header: _Header, *, fold: bool) -> _Drawing:
        labels = [f"depth {each}" for each in self._depths]
        margin = max(len(each) for each in labels) + _BETWEEN
        room = max(1, width - margin)
        used: set[Sign] = set()
        blocks = [
            block
            for panel in self._panels
            for block in self._blocks(panel, room, header, used, fold=fold)
        ]
        lines: list[Text] = []
        for band in _bands(blocks, room):
            if lines:
                lines.append(Text())
            lines += _side_by_side(band, labels, margin)
        return _Drawing(lines, used, fold, header)

    def _blocks(
        self, panel: _Panel, room: int, header: _Header, used: set[Sign], *, fold: bool
    ) -> Iterator[list[Text]]:
        """A panel as blocks of lines that are no wider than the room there is."""
        names = [self._window(each) for each in self._contexts]
        longest = max(len(each) for each in names)
        column = header.column(1 if fold else len(self._utilizations), longest)
        tail = longest + 1 if header is _Header.RULER else 0
        for first, last in _parts(len(names), room, column, tail):
            shown = range(first, last)
            content = header.lines([names[each] for each in shown], column)
            for depth in self._depths:
                cells = [panel.at.get((depth, self._contexts[each])) for each in shown]
                line = self._row(cells, column, used, fold=fold)
                if tail and last == len(names):
                    line.append(f" {self._longest(panel, depth)}")
                content.append(line)
            title = textwrap.wrap(panel.title, room) or [""]
            yield [Text(each, style="bold") for each in title] + content

    def _row(
        self, cells: Sequence[list[Row | None] | None], column: int, used: set[Sign], *, fold: bool
    ) -> Text:
        line = Text()
        for there in cells:
            every = there or [None] * len(self._utilizations)
            signs = [folded(every, self._utilizations)] if fold else [_sign(each) for each in every]
            for each in signs:
                line.append(each.character if each else " ", each.style if each else "")
                used |= {each} if each else set()
            line.append(" " * (column - len(signs)))
        return line

    def _longest(self, panel: _Panel, depth: int) -> str:
        """The longest window that works at any utilization."""
        working = [
            context
            for context in self._contexts
            if any(cell and works(cell) for cell in panel.at.get((depth, context), ()))
        ]
        return self._window(working[-1]) if working else "-"

    @cached_property
    def _in_k(self) -> bool:
        return in_k(self._contexts)

    def _window(self, tokens: int) -> str:
        return f"{tokens // K}k" if self._in_k else str(tokens)

    def _heading_line(self, drawing: _Drawing) -> Text:
        told = ["depth by window in tokens"]
        if self._in_k:
            told[0] += f" (k: {K})"
        shares = " ".join(shortest(each) for each in self._utilizations)
        if len(self._utilizations) == 1:
            told.append(f"utilization {shares}")
        elif drawing.folded:
            told.append(f"a digit is the lowest utilization known to work, of {shares}")
        else:
            told.append(f"one sign a utilization: {shares}")
        return Text.assemble((self._heading, "bold"), f"  {'; '.join(told)}")

    def _remarks(self, drawing: _Drawing) -> Iterator[Text]:
        if drawing.header is _Header.RULER:
            yield Text("At the end of a row: the longest window that works.", style="dim")
        if drawing.folded:
            nowhere = [each for each in self._utilizations if self._works_nowhere(each)]
            if nowhere:
                named = ", ".join(shortest(each) for each in nowhere)
                yield Text(f"Nothing works at utilization {named}.", style="yellow")
        if drawing.left_out:
            yield Text("Not all panels are here; `vllm-frontier show` has the rest.", style="dim")

    def _works_nowhere(self, utilization: float) -> bool:
        cells = [cell for cell in self._cells if cell["utilization"] == utilization]
        return all(refused(cell) for cell in cells)


def grid_map(cells: Sequence[Row], heading: str, *, whole: bool = False) -> GridMap:
    """A map of cells.

    Args:
        cells: objects with the axes, `status` (of a trial, `running` or `not_reached`),
            `failure_class` and `extra_axes` (names of further axes, keys of the object). What
            is not among them is not in the grid, and stays blank.
        heading: what the line above begins with.
        whole: a sign for every cell, however long the map gets.
    """
    return GridMap(cells, heading, whole=whole)


def with_planned(
    known: Sequence[Row], planned: Sequence[Row], running: Sequence[Row] = ()
) -> list[dict[str, Any]]:
    """All cells of a grid: what is known of some, the rest `not_reached`.

    Args:
        known: cells as in `show --json`.
        planned: the axes of every cell of the grid, by name.
        running: the axes of cells that are being tried now: `running`, whatever is known.
    """
    rows = {_key(cell): dict(cell) for cell in known}
    for axes in planned:
        extra = sorted(set(axes) - {"depth", "context", "graphs", "utilization"})
        new = {**axes, "extra_axes": extra, "status": NOT_REACHED, "failure_class": None}
        rows.setdefault(_key(new), new)
    for axes in running:
        if _key(axes) in rows:
            rows[_key(axes)]["status"] = RUNNING
    return list(rows.values())


def _key(cell: Row) -> tuple[Any, ...]:
    built_in = tuple(cell[name] for name in ("depth", "context", "graphs", "utilization"))
    apart = {"depth", "context", "graphs", "utilization", "attempt"}
    names = cell.get("extra_axes", sorted(set(cell) - apart))
    return (*built_in, *((name, cell[name]) for name in names))


def _sign(cell: Row | None) -> Sign | None:
    return None if cell is None else sign(cell)


def _extra(cell: Row) -> list[tuple[str, Any]]:
    return [(name, cell[name]) for name in cell.get("extra_axes", ())]


def _panel_order(cell: Row) -> tuple[Any, ...]:
    further = tuple(
        (name, isinstance(value, str), "" if isinstance(value, str) else value, str(value))
        for name, value in _extra(cell)
    )
    return further, bool(cell["graphs"])


def _title(cell: Row) -> str:
    words = [f"{name}={value}" for name, value in _extra(cell)]
    return ", ".join(["graphs" if cell["graphs"] else "eager", *words])


def _parts(count: int, room: int, column: int, tail: int) -> Iterator[tuple[int, int]]:
    """So many columns, cut where there is no room for more; the last part has a tail."""
    fitting = max(1, room // column)
    first = 0
    while first < count:
        last = min(first + fitting, count)
        if last == count and first + 1 < count and (last - first) * column + tail > room:
            last -= max(1, -(-tail // column))
            last = max(last, first + 1)
        yield first, last
        first = last


def _bands(blocks: Sequence[list[Text]], room: int) -> Iterator[list[list[Text]]]:
    """Blocks that stand side by side."""
    band: list[list[Text]] = []
    taken = 0
    for block in blocks:
        needed = _width(block) + (_BETWEEN if band else 0)
        if band and taken + needed > room:
            yield band
            band, taken, needed = [], 0, _width(block)
        band.append(block)
        taken += needed
    if band:
        yield band


def _side_by_side(band: Sequence[list[Text]], labels: Sequence[str], margin: int) -> list[Text]:
    """The lines of a band; a title that takes more lines than others ends where they end."""
    height = max(len(block) for block in band)
    names = [""] * (height - len(labels)) + list(labels)
    lines = [Text(name.ljust(margin)) for name in names]
    for place, block in enumerate(band):
        width = _width(block)
        above = [Text()] * (height - len(block))
        for line, part in zip(lines, [*above, *block], strict=True):
            line.append_text(part)
            if place < len(band) - 1:
                line.append(" " * (width - len(part) + _BETWEEN))
    for line in lines:
        line.rstrip()
    return lines


def _width(block: Sequence[Text]) -> int:
    return max(len(line.plain.rstrip()) for line in block)
