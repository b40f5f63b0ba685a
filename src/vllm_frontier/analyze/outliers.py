"""Which runs are far off. They are told, and count like all others: medians bear them."""

from __future__ import annotations

import math

import polars as pl

from vllm_frontier.analyze.latest import CELL
from vllm_frontier.analyze.packed import packed
from vllm_frontier.dominance import TIE

DEVIATIONS = 3.5
"""Robust standard deviations from the median beyond which a run is far off."""

_GROUP_MIN = 3  # runs that share a median
_SCALE_MIN = 5  # runs that share a deviation
_NORMAL = 1.4826  # standard deviation over the median absolute one
_SPEED = (
    pl.when(pl.col("kind") == "prefill").then("prefill_tok_s").otherwise(pl.col("decode_tok_s"))
)


def outliers(runs: pl.LazyFrame) -> pl.LazyFrame:
    """Decode and prefill runs whose speed is far from that of runs that were asked the same.

    The same: the same prompt in any launch of the cell. Where prompts were hardly repeated, runs
    of the task in one launch, if there are five; prompts differ then, and so does more.

    Args:
        runs: the table `runs`.

    Returns:
        `cell_id`, `attempt`, `task`, `repeat`, `kind` and `ratio` (to the median), the furthest
        off first. Only runs that differ by more than `TIE`.
    """
    told = (
        runs.filter(is_timed())
        .select(*CELL, "task", "repeat", "kind", "variant", _log=_SPEED.log())
        .with_columns(pl.col("cell_id", "task", "kind").cast(pl.Categorical))
        .with_columns(_asked=pl.when(pl.col("kind") == "prefill").then(0).otherwise("variant"))
        .collect()
    )
    cell, launch = ("cell_id", "kind", "task"), (*CELL, "kind", "task")
    told = _off(told, asked=(*cell, "_asked"), alike=cell)
    alike = (pl.col("_same") >= _GROUP_MIN) & pl.col("_asked").is_not_null()
    far = pl.concat(
        [
            _far_off(told.filter(alike)),
            _far_off(_off(told.filter(~alike), asked=launch, alike=launch)),
        ]
    )
    return far.lazy().sort(
        pl.col("ratio").log().abs(), *CELL, "task", "repeat", descending=[True] + [False] * 4
    )


def is_timed() -> pl.Expr:
    """Whether a run is of those that are looked at: one request at a time, with a speed."""
    return (
        pl.col("kind").is_in(["decode", "prefill"])
        & (pl.col("concurrency").fill_null(1) == 1)
        & _SPEED.is_finite()
        & (_SPEED > 0)
    )


def _off(told: pl.DataFrame, asked: tuple[str, ...], alike: tuple[str, ...]) -> pl.DataFrame:
    """With how many runs were asked the same, and how far each is off their median."""
    groups = told.with_columns(_asked_same=packed(*asked), _alike=packed(*alike))
    # Both at once, so that the groups are made once.
    found = groups.with_columns(
        _same=pl.len().over("_asked_same"), _median=pl.col("_log").median().over("_asked_same")
    )
    return found.with_columns(_off=pl.col("_log") - pl.col("_median"))


def _far_off(told: pl.DataFrame) -> pl.DataFrame:
    """Runs far from their median, by the deviation of groups that are alike."""
    off = pl.col("_off").abs()
    # The one in the middle of an odd number is the median itself and says nothing of the
    # deviation: as many of the smallest are left out as there are such groups.
    odd = pl.col("_same") % 2 == 1
    weighed = told.select("_alike", _far=off, _middle=odd.cast(pl.Float64) / pl.col("_same"))
    middles = pl.col("_middle").sum().round().cast(pl.Int64)
    scales = weighed.group_by("_alike").agg(
        _scale=pl.col("_far").sort().slice(middles).median() * _NORMAL, _runs=pl.len()
    )
    return (
        told.lazy()
        .filter(off > -math.log1p(-TIE))
        .join(scales.lazy(), on="_alike", how="left")
        .filter(
            pl.col("_runs") >= _SCALE_MIN,
            off > DEVIATIONS * pl.col("_scale"),
        )
        .select(
            pl.col("cell_id").cast(pl.String),
            "attempt",
            pl.col("task").cast(pl.String),
            "repeat",
            pl.col("kind").cast(pl.String),
            ratio=pl.col("_off").exp(),
        )
        .collect()
    )
