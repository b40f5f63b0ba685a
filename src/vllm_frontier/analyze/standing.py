"""How every cell that has a speed stands: which lead, which are beaten, which are as fast."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.frontier import ALL, candidates
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.analyze.verdicts import verdicts


def standing(trials: pl.LazyFrame, runs: pl.LazyFrame, frontier: pl.LazyFrame) -> pl.LazyFrame:
    """Every cell that works and has a speed, and what it is against the others.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        frontier: the table `frontier`.

    Returns:
        The columns of `candidates`, `leads` (whether it is on the frontier for the median over
        tasks), `choices` (list of those that it is, null where it is none) and `against_fastest`:
        the verdict against the fastest cell that leads, null for that itself and where it does
        not lead. Longest window first.
    """
    figures = cell_figures(trials, runs)
    cells = candidates(trials, runs, figures=figures)
    leading = frontier.filter(pl.col("on_frontier_for").list.contains(ALL))
    named = choices(frontier).select("cell_id", "choices")
    fastest = leading.sort("decode_tok_s", "cell_id", descending=[True, False]).head(1)
    pairs = (
        leading.select("speed_cell")
        .unique()
        .join(fastest.select(other_cell_id="speed_cell"), how="cross")
        .filter(pl.col("speed_cell") != pl.col("other_cell_id"))
        .select(pl.col("speed_cell").alias("cell_id"), "other_cell_id")
        .with_columns(task=pl.lit(None, dtype=pl.String))
    )
    told = verdicts(figures, pairs).select(
        pl.col("cell_id").alias("speed_cell"), pl.col("verdict").alias("against_fastest")
    )
    leads = leading.select("cell_id", leads=pl.lit(True))
    return (
        cells.join(leads, on="cell_id", how="left")
        .with_columns(pl.col("leads").fill_null(False))
        .join(named, on="cell_id", how="left")
        .join(told, on="speed_cell", how="left")
        .with_columns(pl.when("leads").then("against_fastest"))
        .sort(
            ["context", "decode_tok_s", "utilization", "cell_id"],
            descending=[True, True, False, False],
        )
    )
