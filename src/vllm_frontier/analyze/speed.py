"""How fast launches are: medians over repeats, then over tasks.

What several launches of a cell come to is told by `intervals`.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from vllm_frontier.analyze.latest import CELL

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


def prefill_speeds(runs: pl.LazyFrame, by: Sequence[str] = CELL) -> pl.LazyFrame:
    """The prefill speed of every attempt: what names it, and `prefill_tok_s` (median, tokens/s).

    A prompt that was partly in the prefix cache was not computed, so that its speed says nothing.

    Args:
        runs: the table `runs`.
        by: the columns that name an attempt.
    """
    uncached = pl.col("cached_tokens").fill_null(0) <= 0
    return (
        runs.filter(pl.col("kind") == "prefill", uncached, is_speed("prefill_tok_s"))
        .group_by(by)
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
