"""How sure the ratio of two cells is by runs alone, where both were asked the same prompts."""

from __future__ import annotations

import math

import polars as pl

from vllm_frontier.analyze.speed import decode_runs

# Of a median over so many values as of their mean; of few it is less.
_MEDIAN = math.pi / 2
_PAIR = ("speed_cell", "speed_cell_other")


def paired_noise(pairs: pl.DataFrame, runs: pl.LazyFrame) -> pl.DataFrame:
    """The variance of the logarithm of a ratio of two speeds, by the runs of both.

    Prompts differ in speed, and both cells were asked the same ones: what a prompt adds to both
    is no noise. So the difference of logarithms is taken prompt by prompt, and what these differ
    by within a task is the noise. With one prompt of each task it is what tasks differ by, which
    is too much rather than too little.

    Args:
        pairs: rows of `speed_cell`, `speed_cell_other` and `task` (null: all tasks).
        runs: the table `runs` of both sweeps.

    Returns:
        A row for each pair of which anything is known: its columns, `variance` and `df`.
    """
    told = _differences(pairs.select(_PAIR).unique(), runs)
    alone = pl.col("_prompts") - 1
    tasks = told.group_by(*_PAIR, "task").agg(
        pl.len().cast(pl.Int64).alias("_prompts"),
        pl.col("_gap").mean().alias("_mean"),
        (pl.col("_gap").var().fill_null(0.0) * (pl.len() - 1)).alias("_squares"),
    )
    tasks = tasks.with_columns(unit=_MEDIAN / pl.col("_prompts"))
    of_task = tasks.filter(alone > 0).select(
        *_PAIR, "task", variance=pl.col("unit") * pl.col("_squares") / alone, df=alone
    )
    overall = tasks.group_by(_PAIR).agg(
        pl.col("_squares").sum(),
        alone.sum().alias("_df"),
        pl.col("_mean").var().alias("_between"),
        pl.len().cast(pl.Int64).alias("_tasks"),
        # The median over tasks is about as sure as the middle one.
        pl.col("unit").median().alias("unit"),
    )
    within = pl.col("_df") > 0
    overall = overall.select(
        *_PAIR,
        pl.lit(None, dtype=pl.String).alias("task"),
        variance=pl.when(within)
        .then(pl.col("unit") * pl.col("_squares") / pl.col("_df"))
        .otherwise(pl.col("_between")),
        df=pl.when(within).then("_df").otherwise(pl.col("_tasks") - 1),
    )
    both = pl.concat([of_task, overall.filter(pl.col("df") > 0)])
    return pairs.join(both, on=[*_PAIR, "task"], how="inner", nulls_equal=True)


def _differences(pairs: pl.DataFrame, runs: pl.LazyFrame) -> pl.DataFrame:
    """Of the logarithms of both cells' speeds: a row per pair, task and prompt, `_gap`."""
    cells = pl.concat([pairs.select(cell_id=name) for name in _PAIR]).unique()
    speeds = (
        decode_runs(runs)
        .join(cells.lazy(), on="cell_id", how="semi")
        .group_by("cell_id", "task", pl.coalesce("variant", "repeat").alias("prompt"))
        .agg(pl.col("decode_tok_s").log().mean().alias("_log"))
        .sort("cell_id", "task", "prompt")
        .collect()
    )
    own = pairs.join(speeds, left_on="speed_cell", right_on="cell_id", how="inner")
    others = speeds.rename({"cell_id": "speed_cell_other"})
    both = own.join(others, on=["speed_cell_other", "task", "prompt"], how="inner", suffix="_other")
    return both.with_columns(_gap=pl.col("_log_other") - pl.col("_log"))
