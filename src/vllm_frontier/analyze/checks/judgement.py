"""The words and rows in which checks speak."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import polars as pl


class Verdict(StrEnum):
    """What a check says of what it looked at."""

    PASS = "pass"
    WARN = "warn"  # the numbers stand, but look at it
    FAIL = "fail"  # the number cannot be trusted, or the output is broken
    UNKNOWN = "unknown"  # data is missing


SUBJECT = ("cell_id", "attempt", "task")
ROW = ("verdict", *SUBJECT, "value", "expected", "unit", "detail")

Judgement: TypeAlias = "pl.DataFrame | str"
"""Rows with the columns `ROW`, or why there is nothing to judge."""

_KINDS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("verdict", "cell_id", "task", "unit", "detail"), pl.String),
    **dict.fromkeys(("value", "expected"), pl.Float64),
    "attempt": pl.Int64,
}


def rows(found: pl.DataFrame, unit: str, *, nothing: str) -> Judgement:
    """What a check found, as rows of the table `checks`; without any, why.

    Args:
        found: with `verdict`, `value`, `expected`, `detail`, and what there is of the subject:
            cell_id, attempt and task.
        unit: of value and expected.
        nothing: why there is nothing, in a sentence without its full stop.
    """
    if found.is_empty():
        return nothing
    missing = [pl.lit(None).alias(name) for name in SUBJECT if name not in found.columns]
    whole = found.with_columns(*missing, unit=pl.lit(unit))
    return whole.select(pl.col(name).cast(_KINDS[name]) for name in ROW).with_columns(
        # What is no number cannot be compared, and JSON has no word for it.
        pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)
        for name in ("value", "expected")
    )


def unknown(why: str) -> pl.DataFrame:
    """The row of a check that had nothing to judge."""
    only = {"verdict": Verdict.UNKNOWN.value, "detail": why}
    return pl.DataFrame([only], schema=_KINDS).select(ROW)


def together(*told: Judgement, nothing: str) -> Judgement:
    """All rows that several parts of a check found; without any, why."""
    found = [each for each in told if isinstance(each, pl.DataFrame)]
    return pl.concat(found) if found else nothing


def when(condition: pl.Expr, verdict: Verdict, otherwise: pl.Expr | Verdict) -> pl.Expr:
    """One verdict where a condition holds (null: it does not), else another."""
    other = pl.lit(otherwise.value) if isinstance(otherwise, Verdict) else otherwise
    return pl.when(condition.fill_null(False)).then(pl.lit(verdict.value)).otherwise(other)


def figure(value: pl.Expr, digits: int) -> pl.Expr:
    """A number in words."""
    return value.cast(pl.Float64).round(digits).cast(pl.String).fill_null("?")


def percent(share: pl.Expr) -> pl.Expr:
    """A share in words, such as `12 %`; one below 10 % with a decimal."""
    whole = (share * 100).abs()
    few = whole.round(1).cast(pl.String)
    many = whole.round(0).fill_nan(None).cast(pl.Int64, strict=False).cast(pl.String)
    return pl.format("{} %", pl.when(whole < 10).then(few).otherwise(many).fill_null("?"))


def counted(number: pl.Expr, one: str, more: str) -> pl.Expr:
    """A number with its noun."""
    noun = pl.when(number == 1).then(pl.lit(one)).otherwise(pl.lit(more))
    return pl.format("{} {}", number.fill_null(0), noun)
