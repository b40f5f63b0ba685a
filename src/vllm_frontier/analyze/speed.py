"""How fast cells are: medians over repeats, then over tasks."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.latest import CELL

SPEEDS = (
    "decode_tok_s",
    "decode_tok_s_low",
    "decode_tok_s_high",
    "task_decode_tok_s",
    "prefill_tok_s",
)
"""The columns of `cell_speeds` that tell a speed."""


def task_speeds(runs: pl.LazyFrame) -> pl.LazyFrame:
    """The decode speed of every attempt at every task.

    Returns:
        One row per cell_id, attempt and task: `decode_tok_s` (median over repeats, tokens/s),
        `decode_tok_s_low` and `decode_tok_s_high` (range of repeats), `repeats`.
    """
    speed = pl.col("decode_tok_s")
    return (
        _decode_runs(runs)
        .group_by(*CELL, "task")
        .agg(
            speed.median(),
            speed.min().alias("decode_tok_s_low"),
            speed.max().alias("decode_tok_s_high"),
            pl.len().cast(pl.Int64).alias("repeats"),
        )
        .sort(*CELL, "task")
    )


def cell_speeds(runs: pl.LazyFrame) -> pl.LazyFrame:
    """The speed of every attempt that has one.

    Returns:
        One row per cell_id and attempt: `decode_tok_s` (median over tasks of their medians,
        tokens/s), `decode_tok_s_low` and `decode_tok_s_high`, `task_decode_tok_s` (list of
        task and median) and `prefill_tok_s` (median).

        Low and high are the *range of repeats*: for every repeat the median over its tasks,
        and of these the smallest and the largest. It is what was seen, not a confidence
        interval.
    """
    by_task = task_speeds(runs)
    over_tasks = by_task.group_by(*CELL, maintain_order=True).agg(
        pl.struct("task", "decode_tok_s").alias("task_decode_tok_s"),
        pl.col("decode_tok_s").median(),
    )
    by_repeat = _decode_runs(runs).group_by(*CELL, "repeat").agg(pl.col("decode_tok_s").median())
    ranges = by_repeat.group_by(*CELL).agg(
        pl.col("decode_tok_s").min().alias("decode_tok_s_low"),
        pl.col("decode_tok_s").max().alias("decode_tok_s_high"),
    )
    prefill = (
        runs.filter(pl.col("kind") == "prefill")
        .group_by(*CELL)
        .agg(pl.col("prefill_tok_s").median())
    )
    return (
        over_tasks.join(ranges, on=CELL, how="left")
        .join(prefill, on=CELL, how="full", coalesce=True)
        .with_columns(
            # Medians do not commute, so that the figure itself may lie a hair outside.
            pl.min_horizontal("decode_tok_s_low", "decode_tok_s"),
            pl.max_horizontal("decode_tok_s_high", "decode_tok_s"),
        )
        .select(*CELL, *SPEEDS)
        .sort(*CELL)
    )


def with_speeds(cells: pl.LazyFrame, runs: pl.LazyFrame) -> pl.LazyFrame:
    """Those of some rows of `trials` whose own runs tell a decode speed, with `cell_speeds`.

    The speed that `trials` itself keeps of an attempt, without that of its tasks, gives way.
    """
    return (
        cells.drop(SPEEDS, strict=False)
        .join(cell_speeds(runs), on=CELL, how="inner")
        .filter(pl.col("decode_tok_s").is_not_null())
    )


def _decode_runs(runs: pl.LazyFrame) -> pl.LazyFrame:
    """Runs of one request at a time that have a decode speed."""
    return runs.filter(
        pl.col("kind") == "decode", pl.col("concurrency") == 1, pl.col("decode_tok_s").is_not_null()
    )
