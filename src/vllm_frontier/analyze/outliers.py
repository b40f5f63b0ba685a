"""Which runs are far off. They are told, and count like all others: medians bear them."""

from __future__ import annotations

import math

import polars as pl

from vllm_frontier.analyze.latest import CELL
from vllm_frontier.dominance import TIE

DEVIATIONS = 3.5
"""Robust standard deviations from the median beyond which a run is far off."""

_GROUP_MIN = 3  # runs that share a median
_SCALE_MIN = 5  # runs that share a deviation
_NORMAL = 1.4826  # standard deviation over the median absolute one


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
    speed = (
        pl.when(pl.col("kind") == "prefill").then("prefill_tok_s").otherwise(pl.col("decode_tok_s"))
    )
    told = (
        runs.filter(
            pl.col("kind").is_in(["decode", "prefill"]),
            pl.col("concurrency").fill_null(1) == 1,
            speed.is_finite() & (speed > 0),
        )
        .select(*CELL, "task", "repeat", "kind", "variant", _log=speed.log())
        .with_columns(pl.col("cell_id", "task", "kind").cast(pl.Categorical))
        .with_columns(_asked=pl.when(pl.col("kind") == "prefill").then(0).otherwise("variant"))
    )
    cell, launch = ("cell_id", "kind", "task"), (*CELL, "kind", "task")
    alike = pl.len().over(*cell, "_asked") >= _GROUP_MIN
    told = told.with_columns(_alike=alike & pl.col("_asked").is_not_null())
    far = pl.concat(
        [
            _far_off(told.filter("_alike"), (*cell, "_asked"), cell),
            _far_off(told.filter(~pl.col("_alike")), launch, launch),
        ]
    )
    return far.sort(
        pl.col("ratio").log().abs(), *CELL, "task", "repeat", descending=[True] + [False] * 4
    )


def _far_off(told: pl.LazyFrame, asked: tuple[str, ...], alike: tuple[str, ...]) -> pl.LazyFrame:
    """Runs far from the median of a group, by the deviation of groups that are alike."""
    off = pl.col("_off").abs()
    # The one in the middle is the median itself and says nothing of the deviation.
    zero = pl.col("_off") == 0
    middle = (pl.len() % 2 == 1) & zero & (zero.cum_sum() == 1)
    scale = off.filter(~pl.col("_middle")).median() * _NORMAL
    return (
        told.with_columns(_off=pl.col("_log") - pl.col("_log").median().over(asked))
        .with_columns(_middle=middle.over(asked))
        .with_columns(_scale=scale.over(alike), _runs=pl.len().over(alike))
        .filter(
            pl.col("_runs") >= _SCALE_MIN,
            off > DEVIATIONS * pl.col("_scale"),
            off > -math.log1p(-TIE),
        )
        .select(
            pl.col("cell_id").cast(pl.String),
            "attempt",
            pl.col("task").cast(pl.String),
            "repeat",
            pl.col("kind").cast(pl.String),
            ratio=pl.col("_off").exp(),
        )
    )
