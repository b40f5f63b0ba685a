"""What all tables in a terminal share: their look, and how figures are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table

NONE = "-"
"""What stands where there is no figure."""
_ENDLESS = 10_000  # characters


def number(value: float | None, digits: int) -> str:
    """A figure with fixed digits; a dash where there is none."""
    return NONE if value is None else f"{value:.{digits}f}"


def table(heading: str) -> Table:
    """An empty table with a heading, narrow and without a frame."""
    # No padding: the edge of this box is a blank already, and 80 columns are few.
    return Table(
        title=heading,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE,
        padding=0,
        show_edge=False,
    )


def columns(of: Table, names: Iterable[str], justify: Literal["left", "right"] = "right") -> None:
    """Add columns; what is too long for one is folded."""
    for name in names:
        # Folded, never cut: a figure that lost its end would be another figure.
        of.add_column(name, justify=justify, overflow="fold")


def fits(drawn: Table, console: Console, options: ConsoleOptions) -> bool:
    """Whether a table needs no folding at the width that there is."""
    needed = console.measure(drawn, options=options.update(max_width=_ENDLESS)).maximum
    return needed <= options.max_width


def extra_axes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all further axes."""
    return sorted({name for row in rows for name in row.get("extra_axes", ())})
