"""What the speeds of cells are held against: depth 0, prompt by prompt."""

from __future__ import annotations

import math

import polars as pl

from vllm_frontier.analyze.digest import SETTING, Digest, medians
from vllm_frontier.analyze.packed import paired

MEDIAN = math.pi / 2
"""The variance of a median over that of the mean of the same many values."""

_AT_ONCE = 30_000  # pairs, so that what they were asked needs little memory
_PLACE = ("context", "utilization")
_KEY = (SETTING, "graphs", "task")


def baselines(by_cell: pl.DataFrame, cell_requests: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """Of each cell and task with speculation what it is held against.

    The baseline has the same graphs and setting, and the same window and share where that was
    measured; else it is the median over those that were.

    Args:
        by_cell: of `Evidence`.
        cell_requests: of `Evidence`.
        digest: of the sweep.

    Returns:
        `pair` (the number of the row of `by_cell`); `_base`, `_base_variance` and
        `_base_launches` of the baseline's medians; `_paired` (median log ratio over the `_pairs`
        prompts that both were asked), and `_squares` and `_freedom` of these ratios about their
        mean; `_own_noise` and `_own_freedom`, the variance of both medians by runs of these cells.
    """
    base = by_cell.filter(pl.col("depth") == 0)
    figures = [
        pl.col("log_speed").median().alias("_base"),
        pl.col("variance").mean().alias("_base_variance"),
        pl.col("launches").max().alias("_base_launches"),
        pl.col("cell").alias("_bases"),
    ]
    exact = base.group_by(*_KEY, *_PLACE).agg(figures)
    wide = base.group_by(_KEY).agg(figures)
    names = ("_base", "_base_variance", "_base_launches", "_bases")
    found = (
        by_cell.filter(pl.col("depth") > 0)
        .select("pair", "cell", *_KEY, *_PLACE)
        .join(exact, on=[*_KEY, *_PLACE], how="left", maintain_order="left")
        .join(wide, on=_KEY, how="left", suffix="_wide", maintain_order="left")
        .with_columns(
            pl.when(pl.col("_base").is_null()).then(f"{name}_wide").otherwise(name).alias(name)
            for name in names
        )
    )
    held = _held(found)
    parts = [_held(some) for some in found.iter_slices(_AT_ONCE)] or [held]
    ratios = [_ratios(part, cell_requests, digest) for part in parts]
    return (
        found.join(pl.concat(ratios), on="pair", how="left")
        .join(_own_noise(found, held, digest), on="pair", how="left")
        .select(
            *("pair", *names[:3], "_paired", "_pairs", "_squares", "_freedom"),
            *("_own_noise", "_own_freedom"),
        )
    )


def _held(found: pl.DataFrame) -> pl.DataFrame:
    """Each `pair` with its `cell`, the task, and each `base` that it is held against."""
    held = found.select("pair", "cell", "task", base="_bases").explode("base", empty_as_null=True)
    return held.drop_nulls(["base", "task"])


def _ratios(held: pl.DataFrame, cell_requests: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """By `pair` what the log ratios over the same prompts come to."""
    tasks = digest.requests.lazy().select("request", pl.col("task").cast(pl.String))
    speeds = cell_requests.lazy().select(paired("cell", "request").alias("asked"), "log_speed")
    base = (
        held.lazy()
        .join(tasks, on="task", how="inner")
        .select("pair", "request", paired("base", "request").alias("asked"))
        .join(speeds, on="asked", how="inner")
        .select("pair", "request", "log_speed")
        .collect()
    )
    cells = held.lazy().select("pair", "cell").unique("pair")
    ratio = pl.col("log_speed_right") - pl.col("log_speed")
    spare = pl.len() - 1
    return (
        medians(base, "pair", "request")
        .lazy()
        .join(cells, on="pair", how="inner")
        .with_columns(paired("cell", "request").alias("asked"))
        .join(speeds, on="asked", how="inner")
        .select("pair", "request", ratio=ratio)
        .sort(paired("pair", "request"))
        .group_by("pair")
        .agg(
            pl.col("ratio").median().alias("_paired"),
            pl.len().cast(pl.Int64).alias("_pairs"),
            _squares=pl.col("ratio").var().fill_null(0.0) * spare,
            _freedom=spare.cast(pl.Int64),
        )
        .collect()
    )


def _own_noise(found: pl.DataFrame, held: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """By `pair` the variance of both medians by runs of the two cells."""
    cells = digest.launches.select("launch", "cell")
    noise = (
        digest.by_launch.sort("launch", "task")
        .join(cells, on="launch", how="inner", maintain_order="left")
        .group_by("cell", "task")
        .agg(pl.col("squares", "freedom", "runs").sum())
        .filter(pl.col("freedom") > 0)
        .select(
            *("cell", "task", "freedom"),
            noise=MEDIAN * pl.col("squares") / pl.col("freedom") / pl.col("runs"),
        )
    )
    own = found.select("pair", "cell", "task").join(noise, on=["cell", "task"], how="inner")
    of_base = (
        held.join(noise, left_on=["base", "task"], right_on=["cell", "task"], how="inner")
        .group_by("pair")
        .agg(pl.col("noise").mean(), pl.col("freedom").sum())
    )
    both = pl.concat([own.select(of_base.columns), of_base])
    return both.group_by("pair").agg(
        pl.col("noise").sum().alias("_own_noise"), pl.col("freedom").sum().alias("_own_freedom")
    )
