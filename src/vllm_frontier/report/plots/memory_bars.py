"""Which cells' memory is shown: the choices, and beside each the window that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from vllm_frontier.analyze.latest import AXES
from vllm_frontier.analyze.memory_split import Part
from vllm_frontier.report.plots import words
from vllm_frontier.report.wording import listed

ROUNDED_GIB = 0.006
"""What may be due to rounding alone."""

_OTHERS = ("depth", "graphs", "utilization", "extra")
_UNSEEN = 0.003  # share of the card that is less than a pixel
_REFUSED = ", refused"


@dataclass(frozen=True, slots=True)
class Bar:
    """One cell: what it is called, the lines of words above it, and its parts in order."""

    name: str
    lines: tuple[str, ...]
    parts: pl.DataFrame

    @property
    def refused(self) -> bool:
        """Whether it is there to show why it does not work."""
        return self.name.endswith(_REFUSED)

    @property
    def row(self) -> dict[str, Any]:
        """What holds for all of its parts."""
        return self.parts.row(0, named=True)


def bars(split: pl.DataFrame, chosen: pl.DataFrame, boundaries: pl.DataFrame) -> Iterator[Bar]:
    """The cells to show; see `memory`."""
    shown: set[tuple[Any, ...]] = set()
    for name, cell in _chosen(split, chosen, boundaries):
        found = _of(split, cell)
        if found.is_empty():
            continue
        yield _bar(name, found)
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
            yield _bar(f"{name}{_REFUSED}", found)


def _chosen(
    split: pl.DataFrame, chosen: pl.DataFrame, boundaries: pl.DataFrame
) -> Iterator[tuple[str, dict[str, Any]]]:
    if not chosen.is_empty():
        for row in chosen.iter_rows(named=True):
            yield listed(row["choices"]), row
        return
    works = boundaries.filter(pl.col("max_context_works").is_not_null())
    if not works.is_empty():
        longest = works.sort("max_context_works", "utilization", descending=[True, False])
        row = longest.row(0, named=True)
        yield "longest that works", {**row, "context": row["max_context_works"]}
        return
    missing = split.filter(pl.col("part") == Part.MISSING.value).sort("gib", *AXES)
    for row in missing.head(1).iter_rows(named=True):
        yield f"nearest{_REFUSED}", row


def _of(split: pl.DataFrame, cell: dict[str, Any]) -> pl.DataFrame:
    least = pl.min_horizontal(ROUNDED_GIB, _UNSEEN * pl.col("card_gib"))
    rounding = (pl.col("part") == Part.OTHER.value) & (pl.col("gib").abs() < least)
    return split.filter(~rounding, *(pl.col(axis) == cell[axis] for axis in AXES))


def _bar(name: str, parts: pl.DataFrame) -> Bar:
    row = parts.row(0, named=True)
    window = f"{words.tokens(row['context'])} tokens"
    if name.endswith(_REFUSED):
        reason = f" ({row['failure_class']})" if row["failure_class"] else ""
        return Bar(name, (f"refused: {window}{reason}",), parts)
    return Bar(name, (f"{name}: {window}", words.settings(row)), parts)
