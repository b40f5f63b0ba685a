"""How far the window reaches in one sweep and in another."""

from __future__ import annotations

from enum import StrEnum

import polars as pl

from vllm_frontier.analyze.boundaries import OTHER_AXES
from vllm_frontier.analyze.comparison.matching import matchable


class Reach(StrEnum):
    """What the window of a sweep is against that of the base."""

    LONGER = "longer"
    SHORTER = "shorter"
    SAME = "same"
    AT_END = "both to the end"  # of the grid; what comes behind it is not known
    OPEN = "open"  # the two ends lie in ranges that overlap
    ONLY_BASE = "only in base"
    ONLY_OTHER = "only in other"


class Known(StrEnum):
    """What an end of the window rests on."""

    LAUNCHED = "launched"
    INFERRED = "inferred"
    OPEN = "open"  # cells between both sides are not known
    NOT_MONOTONE = "not monotone"  # a longer window works than one that does not


_ENDS = ("max_context_works", "min_context_fails", "failure_class", "cells")


def matched_windows(base: pl.LazyFrame, other: pl.LazyFrame) -> pl.DataFrame:
    """The ends of the window for every combination of the other axes in either sweep.

    An end is only known to lie between the longest window that works and the shortest that does
    not. One sweep reaches further than the other where these ranges do not overlap; with other
    windows in their grids two figures may differ though the cards do not.

    Args:
        base: the table `boundaries` of the sweep that is compared with.
        other: of the sweep that is compared.

    Returns:
        A row per combination: the axes, `max_context_works`, `min_context_fails`, `failure_class`,
        `cells` and `known` (of `Known`) of the base, the same with `_other`, `difference` (tokens,
        other less base) and `share` (the same over that of the base), null unless a window works
        in both, and `reach` (of `Reach`).
    """
    own, others = (_ends(each) for each in (base, other))
    found = own.join(others, on=OTHER_AXES, how="full", coalesce=True, suffix="_other")
    works, works_other = pl.col("max_context_works"), pl.col("max_context_works_other")
    difference = works_other - works
    return (
        found.with_columns(
            difference=difference,
            share=difference / works,
            reach=pl.when(pl.col("known_other").is_null())
            .then(pl.lit(Reach.ONLY_BASE.value))
            .when(pl.col("known").is_null())
            .then(pl.lit(Reach.ONLY_OTHER.value))
            .otherwise(_reach()),
        )
        .sort("extra", "depth", "graphs", "utilization")
        .collect()
    )


def known() -> pl.Expr:
    """What the ends of a row of `boundaries` rest on, of `Known`."""
    return (
        pl.when(~pl.col("monotone"))
        .then(pl.lit(Known.NOT_MONOTONE.value))
        .when(~pl.col("verified"))
        .then(pl.lit(Known.OPEN.value))
        .when(~pl.col("launched"))
        .then(pl.lit(Known.INFERRED.value))
        .otherwise(pl.lit(Known.LAUNCHED.value))
    )


def _ends(boundaries: pl.LazyFrame) -> pl.LazyFrame:
    return matchable(boundaries).select(*OTHER_AXES, *_ENDS, known=known())


def _reach() -> pl.Expr:
    """By the ranges: at least `longest works`, less than `shortest refused`."""
    low, low_other = (_least(suffix) for suffix in ("", "_other"))
    high, high_other = (pl.col(f"min_context_fails{suffix}") for suffix in ("", "_other"))
    orderly = (pl.col("known") != Known.NOT_MONOTONE) & (
        pl.col("known_other") != Known.NOT_MONOTONE
    )
    alike = low.eq_missing(low_other) & high.eq_missing(high_other)
    settled = (pl.col("known") != Known.OPEN) & (pl.col("known_other") != Known.OPEN)
    return (
        pl.when(orderly & (low_other >= high).fill_null(False))
        .then(pl.lit(Reach.LONGER.value))
        .when(orderly & (low >= high_other).fill_null(False))
        .then(pl.lit(Reach.SHORTER.value))
        .when(orderly & alike & settled & high.is_null())
        .then(pl.lit(Reach.AT_END.value))
        .when(orderly & alike & settled)
        .then(pl.lit(Reach.SAME.value))
        .otherwise(pl.lit(Reach.OPEN.value))
    )


def _least(suffix: str) -> pl.Expr:
    """The longest window that works; 0 where the shortest of the grid is refused already."""
    return pl.col(f"max_context_works{suffix}").fill_null(0)
