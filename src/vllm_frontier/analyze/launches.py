"""The figures of single launches, for all that is said of how sure a speed is."""

from __future__ import annotations

import math

import polars as pl

from vllm_frontier.analyze.digest import Digest
from vllm_frontier.analyze.latest import CELL


def launch_figures(
    trials: pl.LazyFrame, runs: pl.LazyFrame, *, digest: Digest | None = None
) -> pl.LazyFrame:
    """The decode speed of every launch that was measured, for each task and for all of them.

    Args:
        trials: the table `trials`; only attempts with status `measured` count.
        runs: the table `runs`.
        digest: of both, where it is there already.

    Returns:
        Rows of `launch` and `cell` (numbers), `sweep`, `graphs`, `cell_id`, `attempt`, `at` (when
        it started, seconds since the epoch), `task` (null: all tasks), `decode_tok_s` (median over
        repeats; for all tasks the median of these), `runs`, and as natural logarithms `headline`
        (of that speed) and `level` (mean over tasks of theirs). `unit_variance` is the variance of
        `headline` where single runs have the variance 1. Of a launch that lacks a task of its cell
        the level is as if it had done as well there as on its others.
    """
    digest = digest or Digest(trials, runs)
    launches = digest.launches.lazy().select(
        "launch", "cell", "sweep", "graphs", *CELL, at=pl.col("started_at").dt.epoch("us") / 1e6
    )
    log = pl.col("decode_tok_s").log()
    by_task = (
        digest.by_launch.lazy()
        .select("launch", "task", "decode_tok_s", "runs")
        .join(launches, on="launch", how="inner")
        # In one order, so that the same rows always give the same figures to the last bit.
        .sort("launch", "task")
        .with_columns(headline=log, level=log, unit_variance=_variance_of_median("runs"))
    )
    overall = _over_tasks(by_task)
    return pl.concat([by_task, overall.select(by_task.collect_schema().names())])


def _over_tasks(by_task: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of `launch_figures` for all tasks together, from those of each."""
    of_task = pl.col("level").mean().over("cell", "task")
    typical = (
        by_task.group_by("cell", "task")
        .agg(pl.col("level").mean())
        .group_by("cell")
        .agg(pl.col("level").sort().mean().alias("_typical"))
    )
    variances = pl.col("unit_variance").sort_by("decode_tok_s", "task")
    lower, upper = variances.get((pl.len() - 1) // 2), variances.get(pl.len() // 2)
    return (
        by_task.with_columns(_ahead=pl.col("level") - of_task)
        .group_by("launch", maintain_order=True)
        .agg(
            pl.col("cell", "sweep", "graphs", *CELL, "at").first(),
            pl.col("decode_tok_s").median(),
            pl.col("runs").sum(),
            pl.col("_ahead").mean(),
            pl.when(pl.len() % 2 == 1)
            .then(lower)
            .otherwise((lower + upper) / 4)
            .alias("unit_variance"),
        )
        .join(typical, on="cell", how="left", maintain_order="left")
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
