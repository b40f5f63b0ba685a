"""Figures as text, and frames as the tables of a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from markupsafe import Markup, escape

from vllm_frontier.grid import shortest
from vllm_frontier.report import wording

NONE = "–"
_CONTEXT = re.compile(r"\b(context|window of) (\d{4,})\b")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)+")
_WORD = re.compile(r"[a-z]+(?=[ ,:]|$)")


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people: headings, cells as text, and which columns are figures."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]


def table(frame: pl.DataFrame, caption: str) -> Table:
    """A frame as text, figures of a column with the same number of digits."""
    columns = [_texts(frame[name]) for name in frame.columns]
    return Table(
        caption=caption,
        columns=tuple(frame.columns),
        rows=tuple(zip(*columns, strict=True)),
        numeric=tuple(kind.is_numeric() for kind in frame.dtypes),
    )


def from_rows(
    caption: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]
) -> Table:
    """A table of texts; every column has a heading and whether it is of figures."""
    return Table(
        caption,
        tuple(name for name, _ in columns),
        tuple(tuple(row) for row in rows),
        tuple(numeric for _, numeric in columns),
    )


def grouped(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return NONE if value is None else f"{value:,}"


def fixed(value: float | None, digits: int) -> str:
    """A figure with fixed digits; a dash where there is none."""
    return NONE if value is None else f"{value:,.{digits}f}"


def share(value: float) -> str:
    """A share as it was set, in the shortest way."""
    return shortest(value)


def on_off(value: bool | None) -> str:
    """A switch in words; a dash where there is none."""
    return NONE if value is None else wording.on_off(value)


def apart(text: str) -> str:
    """Words about cells, with the thousands of their windows apart."""
    return _CONTEXT.sub(lambda found: f"{found[1]} {int(found[2]):,}", text)


def sentence(text: str, *names: str) -> str:
    """Words with a capital letter first and a full stop; a name that stands first is left alone."""
    told = text if text.endswith((".", "!", "?")) else f"{text}."
    first = _WORD.match(told)
    if first is None or any(name and told.startswith(name) for name in names):
        return told
    return f"{told[:1].upper()}{told[1:]}"


def unbroken(text: str) -> Markup:
    """Text whose flags, such as `--max-model-len`, stay in one line."""
    return Markup(_FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(text))))


def _texts(column: pl.Series) -> list[str]:
    kind = column.dtype
    if kind == pl.Boolean:
        return [on_off(value) for value in column]
    if kind.is_integer():
        return [grouped(value) for value in column]
    if kind.is_float():
        digits = _digits(column)
        return [fixed(value, digits) for value in column]
    return [NONE if value is None else str(value) for value in column]


def _digits(column: pl.Series) -> int:
    """So many that the largest figure has about four."""
    largest = column.abs().max()
    if not isinstance(largest, float) or largest >= 1000:
        return 0
    return 1 if largest >= 100 else 2 if largest >= 1 else 3


FILTERS: Mapping[str, Callable[..., Any]] = {
    "grouped": grouped,
    "fixed": fixed,
    "share": share,
    "on_off": on_off,
    "unbroken": unbroken,
}
