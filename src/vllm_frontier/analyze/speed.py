"""How fast launches are: medians over repeats, then over tasks.

What several launches of a cell come to is told by `intervals`.
"""

from __future__ import annotations

import math

import polars as pl

from vllm_frontier.analyze.latest import CELL
from vllm_frontier.outcome import Status

SPEEDS = (
    "decode_tok_s",
    "decode_tok_s_low",
    "decode_tok_s_high",
    "task_decode_tok_s",
    "prefill_tok_s",
)
"""The columns that tell a speed.

What low and high are depends on whose speed it is. Of one attempt (`cell_speeds`, and the table
`trials`) they are the range of its repeats. Of a cell (`intervals.pooled_speeds`, and the table
`frontier`) they are the 95 % interval of its speed over launches.
"""


def cell_speeds(runs: pl.LazyFrame) -> pl.LazyFrame:
    """The speed of every attempt that has one: what `measure.speed` tells of its runs.

    Returns:
        One row per cell_id and attempt: `decode_tok_s` (median over tasks of their medians,
        tokens/s), `decode_tok_s_low` and `decode_tok_s_high`, `task_decode_tok_s` (list of
        task and median) and `prefill_tok_s` (median).

        Low and high are the *range of repeats*: for every repeat the median over its tasks,
        and of these the smallest and the largest. It is what was seen, not a confidence
        interval.
    """
    by_task = (
        decode_runs(runs)
        .group_by(*CELL, "task")
        .agg(pl.col("decode_tok_s").median())
        .sort(*CELL, "task")
    )
    over_tasks = by_task.group_by(*CELL, maintain_order=True).agg(
        pl.struct("task", "decode_tok_s").alias("task_decode_tok_s"),
        pl.col("decode_tok_s").median(),
    )
    by_repeat = decode_runs(runs).group_by(*CELL, "repeat").agg(pl.col("decode_tok_s").median())
    ranges = by_repeat.group_by(*CELL).agg(
        pl.col("decode_tok_s").min().alias("decode_tok_s_low"),
        pl.col("decode_tok_s").max().alias("decode_tok_s_high"),
    )
    return (
        over_tasks.join(ranges, on=CELL, how="left")
        .join(prefill_speeds(runs), on=CELL, how="full", coalesce=True)
        .with_columns(
            # Medians do not commute, so that the figure itself may lie a hair outside.
            pl.min_horizontal("decode_tok_s_low", "decode_tok_s"),
            pl.max_horizontal("decode_tok_s_high", "decode_tok_s"),
        )
        .select(*CELL, *SPEEDS)
        .sort(*CELL)
    )


def launch_figures(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.LazyFrame:
    """The decode speed of every launch that was measured, for each task and for all of them.

    Args:
        trials: the table `trials`; only attempts with status `measured` count.
        runs: the table `runs`.

    Returns:
        Rows of `sweep`, `graphs`, `cell_id`, `attempt`, `at` (when it started, seconds since the
        epoch), `task` (null: all tasks), `decode_tok_s` (median over repeats; for all tasks the
        median of these), `runs`, and as natural logarithms `headline` (of that speed) and `level`
        (mean over tasks of theirs). `unit_variance` is the variance of `headline` where single
        runs have the variance 1. Of a launch that lacks a task of its cell the level is as if
        it had done as well there as on its others.
    """
    launches = trials.filter(pl.col("status") == Status.MEASURED.value).select(
        "sweep", "graphs", *CELL, at=pl.col("started_at").dt.epoch("us") / 1e6
    )
    log = pl.col("decode_tok_s").log()
    by_task = (
        decode_runs(runs)
        .group_by(*CELL, "task")
        .agg(pl.col("decode_tok_s").median(), pl.len().cast(pl.Int64).alias("runs"))
        .join(launches, on=CELL, how="inner")
        # In one order, so that the same rows always give the same figures to the last bit.
        .sort(*CELL, "task")
        .with_columns(headline=log, level=log, unit_variance=_variance_of_median("runs"))
    )
    overall = _over_tasks(by_task)
    return pl.concat([by_task, overall.select(by_task.collect_schema().names())])


def _over_tasks(by_task: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of `launch_figures` for all tasks together, from those of each."""
    of_task = pl.col("level").mean().over("cell_id", "task")
    typical = (
        by_task.group_by("cell_id", "task")
        .agg(pl.col("level").mean())
        .group_by("cell_id")
        .agg(pl.col("level").sort().mean().alias("_typical"))
    )
    variances = pl.col("unit_variance").sort_by("decode_tok_s", "task")
    lower, upper = variances.get((pl.len() - 1) // 2), variances.get(pl.len() // 2)
    return (
        by_task.with_columns(_ahead=pl.col("level") - of_task)
        .group_by("sweep", "graphs", *CELL, "at", maintain_order=True)
        .agg(
            pl.col("decode_tok_s").median(),
            pl.col("runs").sum(),
            pl.col("_ahead").mean(),
            pl.when(pl.len() % 2 == 1)
            .then(lower)
            .otherwise((lower + upper) / 4)
            .alias("unit_variance"),
        )
        .join(typical, on="cell_id", how="left", maintain_order="left")
        .with_columns(
            task=pl.lit(None, dtype=pl.String),
            headline=pl.col("decode_tok_s").log(),
            level=pl.col("_ahead") + pl.col("_typical"),
        )
    )


def _variance_of_median(count: str) -> pl.Expr:
    """Of the median of so many normal values with variance 1.

    Exact for one and for many, within 2 % for odd counts between; a little too much for even ones.
    """
    return math.pi / 2 / (pl.col(count) + math.pi / 2 - 1)


def prefill_speeds(runs: pl.LazyFrame) -> pl.LazyFrame:
    """The prefill speed of every attempt: cell_id, attempt, `prefill_tok_s` (median, tokens/s).

    A prompt that was partly in the prefix cache was not computed, so that its speed says nothing.
    """
    uncached = pl.col("cached_tokens").fill_null(0) <= 0
    return (
        runs.filter(pl.col("kind") == "prefill", uncached, is_speed("prefill_tok_s"))
        .group_by(*CELL)
        .agg(pl.col("prefill_tok_s").median())
    )


def decode_runs(runs: pl.LazyFrame) -> pl.LazyFrame:
    """Runs of one request at a time that have a decode speed."""
    return runs.filter(
        pl.col("kind") == "decode", pl.col("concurrency") == 1, is_speed("decode_tok_s")
    )


def is_speed(column: str) -> pl.Expr:
    """Whether a figure can be a speed: null, 0 and less, infinite and NaN are none."""
    return (pl.col(column).is_finite() & (pl.col(column) > 0)).fill_null(False)
