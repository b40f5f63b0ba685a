"""Cells against depth 0, and launches against launches: pair by pair over the same prompts."""

from __future__ import annotations

import numpy as np
import polars as pl
from scipy.special import stdtrit

from vllm_frontier.analyze.checks.baseline import MEDIAN
from vllm_frontier.analyze.checks.evidence import Evidence

_SURE = 0.975


def with_baseline(cells: pl.DataFrame, evidence: Evidence, how: str = "inner") -> pl.DataFrame:
    """Rows of `by_cell` with what they gain over depth 0 at the same task; see `baselines`.

    Adds `gain`, the log ratio (median over the prompts that both were asked; where there are none
    such, of the medians), `_base`, the log speed of depth 0 by that, `_base_launches`, and
    `_granted`, what the gain may be off by: told by the pairs of these two cells, and by launches
    of each. Where they have no pairs, by their own runs.
    """
    found = cells.join(evidence.baselines, on="pair", how="left", maintain_order="left")
    known = pl.coalesce("_paired", pl.col("log_speed") - pl.col("_base"))
    squares, freedom = (pl.col(name).sum().over("cell_id") for name in ("_squares", "_freedom"))
    told = pl.col("_pairs").is_not_null() & (freedom > 0)
    found = (
        found.with_columns(
            _pair_freedom=pl.when(told).then(freedom),
            _pair_variance=pl.when(told).then(squares / freedom * MEDIAN / pl.col("_pairs")),
        )
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


def _granted() -> pl.Expr:
    """What a gain may be off by."""
    paired = pl.col("_pair_freedom").fill_null(0) > 0
    noise = pl.when(paired).then("_pair_variance").otherwise("_own_noise").fill_null(0.0)
    freedom = pl.when(paired).then("_pair_freedom").otherwise("_own_freedom").fill_null(0)
    # Two standard errors of what launches show, as always where they are few.
    of_launches = 4 * (pl.col("variance") + pl.col("_base_variance"))
    times = freedom.map_batches(lambda each: pl.Series(sure(each.to_numpy())), pl.Float64)
    return (of_launches + times**2 * noise).sqrt()
