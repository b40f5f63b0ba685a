"""Cells against depth 0, and launches against launches: pair by pair over the same prompts."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
from scipy.special import stdtrit

from vllm_frontier.analyze.checks.evidence import REQUEST, SETTING, Evidence

MEDIAN = math.pi / 2
"""The variance of a median over that of the mean of the same many values."""

_PLACE = ("context", "utilization")
_KEY = (SETTING, "graphs", "task")
_SURE = 0.975


def with_baseline(cells: pl.DataFrame, evidence: Evidence, how: str = "inner") -> pl.DataFrame:
    """Rows of `by_cell` with what they gain over depth 0 at the same task.

    The baseline has the same graphs and setting, and the same window and share where that was
    measured; else it is the median over those that were.

    Adds `gain`, the log ratio (median over the prompts that both were asked; where there are none
    such, of the medians), `_base`, the log speed of depth 0 by that, `_base_launches`, and
    `_granted`, what the gain may be off by: told by the pairs of these two cells, and by launches
    of each. Where they have no pairs, by their own runs.
    """
    base = evidence.by_cell.filter(pl.col("depth") == 0)
    figures = [
        pl.col("log_speed").median().alias("_base"),
        pl.col("variance").mean().alias("_base_variance"),
        pl.col("launches").max().alias("_base_launches"),
        pl.col("cell_id").alias("_bases"),
    ]
    exact = base.group_by(*_KEY, *_PLACE).agg(figures)
    wide = base.group_by(_KEY).agg(figures)
    names = ("_base", "_base_variance", "_base_launches", "_bases")
    found = cells.join(exact, on=[*_KEY, *_PLACE], how="left").join(
        wide, on=_KEY, how="left", suffix="_wide"
    )
    found = found.with_columns(
        pl.when(pl.col("_base").is_null()).then(f"{name}_wide").otherwise(name).alias(name)
        for name in names
    )
    pairs = _pairs(found.select("cell_id", "task", "_bases"), evidence)
    known = pl.coalesce("_paired", pl.col("log_speed") - pl.col("_base"))
    found = (
        found.join(pairs, on=["cell_id", "task"], how="left")
        .join(_own_noise(found, evidence), on=["cell_id", "task"], how="left")
        .with_columns(gain=known)
        .with_columns(_base=pl.col("log_speed") - pl.col("gain"), _granted=_granted())
    )
    return found.filter(pl.col("gain").is_not_null()) if how == "inner" else found


def pooled(ratios: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """The variance of log ratios about the mean of their task: `variance` and `freedom` by key.

    Args:
        ratios: with `ratio`, `task` and the keys.
        keys: of the two that are compared.
    """
    spare = pl.len() - 1
    return (
        ratios.group_by(*keys, "task")
        .agg(squares=pl.col("ratio").var().fill_null(0.0) * spare, freedom=spare.cast(pl.Int64))
        .group_by(keys)
        .agg(pl.col("squares", "freedom").sum())
        .filter(pl.col("freedom") > 0)
        .select(*keys, "freedom", variance=pl.col("squares") / pl.col("freedom"))
    )


def sure(freedom: np.ndarray | int) -> np.ndarray:
    """How many standard errors make a difference sure; 0 where nothing tells the error."""
    known = np.asarray(freedom, dtype=float)
    found = np.asarray(stdtrit(np.where(known > 0, known, np.nan), _SURE), dtype=float)
    return np.asarray(np.nan_to_num(found))


def _requests(evidence: Evidence) -> pl.DataFrame:
    """Of each cell and what was asked the median over launches."""
    cells = evidence.launches.select("launch", "cell_id")
    return (
        evidence.by_request.join(cells, on="launch", how="inner")
        .group_by("cell_id", *REQUEST)
        .agg(pl.col("log_speed").median())
    )


def _pairs(found: pl.DataFrame, evidence: Evidence) -> pl.DataFrame:
    """Of each cell and task `_paired` (median log ratio), its variance and degrees of freedom."""
    requests = _requests(evidence)
    base = (
        found.explode("_bases", empty_as_null=True)
        .join(requests, left_on=["_bases", "task"], right_on=["cell_id", "task"], how="inner")
        .group_by("cell_id", *REQUEST)
        .agg(pl.col("log_speed").median().alias("_base"))
    )
    ratios = (
        requests.join(base, on=["cell_id", *REQUEST], how="inner", nulls_equal=True)
        .with_columns(ratio=pl.col("log_speed") - pl.col("_base"))
        .sort("cell_id", *REQUEST)
    )
    n = pl.len().cast(pl.Int64).alias("_pairs")
    return (
        ratios.group_by("cell_id", "task")
        .agg(pl.col("ratio").median().alias("_paired"), n)
        .join(pooled(ratios, ("cell_id",)), on="cell_id", how="left")
        .rename({"variance": "_pair_variance", "freedom": "_pair_freedom"})
        .with_columns(pl.col("_pair_variance") * MEDIAN / pl.col("_pairs"))
    )


def _own_noise(found: pl.DataFrame, evidence: Evidence) -> pl.DataFrame:
    """Of each cell and task the variance of both figures by runs of these two cells."""
    cells = evidence.launches.select("launch", "cell_id")
    spare = pl.len() - 1
    runs = (
        evidence.decode.join(cells, on="launch", how="inner")
        .group_by("cell_id", "task", "launch")
        .agg(
            squares=pl.col("log_speed").var().fill_null(0.0) * spare,
            freedom=spare.cast(pl.Int64),
            n=pl.len(),
        )
        .group_by("cell_id", "task")
        .agg(pl.col("squares", "freedom", "n").sum())
        .filter(pl.col("freedom") > 0)
        .select(
            *("cell_id", "task", "freedom"),
            noise=MEDIAN * pl.col("squares") / pl.col("freedom") / pl.col("n"),
        )
    )
    of_base = (
        found.select("cell_id", "task", "_bases")
        .explode("_bases", empty_as_null=True)
        .join(runs, left_on=["_bases", "task"], right_on=["cell_id", "task"], how="inner")
        .group_by("cell_id", "task")
        .agg(pl.col("noise").mean(), pl.col("freedom").sum())
    )
    both = pl.concat([runs, of_base.select(runs.columns)])
    return both.group_by("cell_id", "task").agg(
        pl.col("noise").sum().alias("_own_noise"), pl.col("freedom").sum().alias("_own_freedom")
    )


def _granted() -> pl.Expr:
    """What a gain may be off by."""
    paired = pl.col("_pair_freedom").fill_null(0) > 0
    noise = pl.when(paired).then("_pair_variance").otherwise("_own_noise").fill_null(0.0)
    freedom = pl.when(paired).then("_pair_freedom").otherwise("_own_freedom").fill_null(0)
    # Two standard errors of what launches show, as always where they are few.
    of_launches = 4 * (pl.col("variance") + pl.col("_base_variance"))
    times = freedom.map_batches(lambda each: pl.Series(sure(each.to_numpy())), pl.Float64)
    return (of_launches + times**2 * noise).sqrt()
