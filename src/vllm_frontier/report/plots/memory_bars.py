"""Which cells' memory is shown: the choices, and below the window that is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from vllm_frontier.analyze.latest import AXES, is_inferred
from vllm_frontier.analyze.memory_split import Part
from vllm_frontier.outcome import FailureClass, Status
from vllm_frontier.report.plots import words
from vllm_frontier.report.wording import listed

ROUNDED_GIB = 0.006
"""What may be due to rounding alone."""

_OTHERS = ("depth", "graphs", "utilization", "extra")
_UNSEEN = 0.003  # share of the card that is less than a pixel
_SAME = ("depth", "graphs", "extra")
_WANT_OF_MEMORY = [each.value for each in FailureClass if each.status is Status.INFEASIBLE]


@dataclass(frozen=True, slots=True)
class Bar:
    """One cell: what it is called, the lines of words above it, and its parts in order.

    Attributes:
        name: one of the choices, or why it is here.
        title: what it is, for a sentence.
        lines: the same, for the picture.
        parts: its rows of `memory_split`.
        refused: whether it is there to show why it does not work.
    """

    name: str
    title: str
    lines: tuple[str, ...]
    parts: pl.DataFrame
    refused: bool

    @property
    def row(self) -> dict[str, Any]:
        """What holds for all of its parts."""
        return self.parts.row(0, named=True)


def bars(split: pl.DataFrame, chosen: pl.DataFrame, boundaries: pl.DataFrame) -> list[Bar]:
    """The cells to show; see `memory`."""
    found = list(_working(split, chosen, boundaries))
    if not any(bar.refused for bar in found):
        found += _nearest(split, [bar.row for bar in found])
    return found


def _working(split: pl.DataFrame, chosen: pl.DataFrame, boundaries: pl.DataFrame) -> Iterator[Bar]:
    """Cells that work, each with the shortest window that is refused with its settings."""
    shown: set[tuple[Any, ...]] = set()
    for name, cell in _chosen(chosen, boundaries):
        found = _of(split, cell)
        if found.is_empty():
            continue
        title = f"{name}: {_window(cell)}"
        yield Bar(name, title, (title, words.settings(cell)), found, refused=False)
        others = tuple(cell[axis] for axis in _OTHERS)
        refused = boundaries.filter(
            pl.col("min_context_fails").is_not_null(), *(pl.col(a) == cell[a] for a in _OTHERS)
        )
        if others in shown or refused.is_empty():
            continue
        shown.add(others)
        context = refused["min_context_fails"].item(0)
        found = _of(split, {**cell, "context": context})
        if context != cell["context"] and not found.is_empty():
            row = found.row(0, named=True)
            title = f"refused: {_window(row)}{_class(row)}"
            yield Bar(f"{name}, refused", title, (title,), found, refused=True)


def _chosen(chosen: pl.DataFrame, boundaries: pl.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in chosen.iter_rows(named=True):
        yield listed(row["choices"]), row
    works = boundaries.filter(pl.col("max_context_works").is_not_null())
    if chosen.is_empty() and not works.is_empty():
        longest = works.sort("max_context_works", "utilization", descending=[True, False])
        row = longest.row(0, named=True)
        yield "longest that works", {**row, "context": row["max_context_works"]}


def _nearest(split: pl.DataFrame, like: Sequence[Mapping[str, Any]]) -> Iterator[Bar]:
    """The cell that is refused for want of memory and misses least.

    One of the same depth, graphs and further axes as those shown, where there is one; one that
    misses memory for its KV cache before one that is refused for something else, and of equals
    one that was launched.
    """
    alike = pl.lit(value=False)
    for row in like:
        alike |= pl.all_horizontal(*(pl.col(name) == row[name] for name in _SAME))
    missing = pl.col("gib").filter(pl.col("part") == Part.MISSING.value).sum()
    refused = split.filter(pl.col("failure_class").is_in(_WANT_OF_MEMORY))
    cells = refused.group_by(AXES).agg(missing=missing, inferred=is_inferred().any())
    # Of equals one that was launched: its log tells more.
    order = (~pl.col("alike"), pl.col("missing") == 0, "missing", "inferred", *AXES)
    nearest = cells.with_columns(alike=alike).sort(*order)
    for cell in nearest.head(1).iter_rows(named=True):
        found = _of(split, cell)
        row = found.row(0, named=True)
        title = f"nearest refused: {_window(row)}"
        lines = (title, words.settings(row), row["failure_class"])
        title += f", {words.settings(row)}{_class(row)}"
        yield Bar("nearest refused", title, lines, found, refused=True)


def _of(split: pl.DataFrame, cell: dict[str, Any]) -> pl.DataFrame:
    least = pl.min_horizontal(ROUNDED_GIB, _UNSEEN * pl.col("card_gib"))
    rounding = (pl.col("part") == Part.OTHER.value) & (pl.col("gib").abs() < least)
    return split.filter(~rounding, *(pl.col(axis) == cell[axis] for axis in AXES))


def _window(row: Mapping[str, Any]) -> str:
    return f"{words.tokens(row['context'])} tokens"


def _class(row: Mapping[str, Any]) -> str:
    return f" ({row['failure_class']})" if row["failure_class"] else ""
