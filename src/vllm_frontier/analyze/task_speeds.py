"""The speed that counts: that of one task, or the median over tasks."""

from __future__ import annotations

import polars as pl


def of_task(cells: pl.LazyFrame, task: str | None) -> pl.LazyFrame:
    """Those of some cells that have a speed that counts, with that as `decode_tok_s`.

    Args:
        cells: with the columns of `pooled_speeds`, such as those of the frontier.
        task: whose speed counts; None for the median over tasks.

    Returns:
        The same columns; the interval is null where a task is given.
    """
    if task is None:
        return cells.filter(pl.col("decode_tok_s").is_not_null())
    speeds = (
        cells.select("cell_id", "task_decode_tok_s")
        .explode("task_decode_tok_s")
        .unnest("task_decode_tok_s")
        .filter(pl.col("task") == task)
        .select("cell_id", pl.col("decode_tok_s").alias("_task_speed"))
    )
    return (
        cells.join(speeds, on="cell_id", how="inner")
        .with_columns(
            decode_tok_s=pl.col("_task_speed"),
            decode_tok_s_low=pl.lit(None, dtype=pl.Float64),
            decode_tok_s_high=pl.lit(None, dtype=pl.Float64),
        )
        .drop("_task_speed")
    )
