"""How every cell that has a speed stands: which lead, which are beaten, which are as fast."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.frontier import ALL, candidates
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.analyze.verdicts import Verdict, verdicts


def standing(trials: pl.LazyFrame, runs: pl.LazyFrame, frontier: pl.LazyFrame) -> pl.LazyFrame:
    """Every cell that works and has a speed, and what it is against the others.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        frontier: the table `frontier`.

    Returns:
        The columns of `candidates`, `leads` (whether it is on the frontier for the median over
        tasks), `choices` (list of those that it is, null where it is none) and `against_fastest`
        (see there; null where it does not lead). Longest window first.
    """
    figures = cell_figures(trials, runs)
    cells = candidates(trials, runs, figures=figures)
    leading = frontier.filter(pl.col("on_frontier_for").list.contains(ALL))
    named = choices(frontier).select("cell_id", "choices")
    told = against_fastest(frontier, figures)
    leads = leading.select("cell_id", leads=pl.lit(True))
    return (
        cells.join(leads, on="cell_id", how="left")
        .with_columns(pl.col("leads").fill_null(False))
        .join(named, on="cell_id", how="left")
        .join(told, on="cell_id", how="left")
        .sort(
            ["context", "decode_tok_s", "utilization", "cell_id"],
            descending=[True, True, False, False],
        )
    )


def against_fastest(frontier: pl.LazyFrame, figures: pl.DataFrame) -> pl.LazyFrame:
    """What every cell that leads for the median over tasks is against the fastest of them.

    Args:
        frontier: the table `frontier`.
        figures: of `cell_figures`.

    Returns:
        `cell_id` and `against_fastest`: a verdict, null for that cell itself. Whatever has its
        speed from the same launches is as fast.
    """
    leading = frontier.filter(pl.col("on_frontier_for").list.contains(ALL))
    is_fastest = pl.col("choices").list.contains("fastest")
    fastest = choices(frontier).filter(is_fastest).select(_fastest="cell_id", _its="speed_cell")
    against = leading.select("cell_id", "speed_cell").join(fastest, how="cross")
    pairs = against.select(
        cell_id="speed_cell", other_cell_id="_its", task=pl.lit(None, dtype=pl.String)
    )
    told = verdicts(figures, pairs.filter(pl.col("cell_id") != pl.col("other_cell_id")).unique())
    told = told.select(speed_cell="cell_id", verdict="verdict")
    same = pl.col("speed_cell") == pl.col("_its")
    return against.join(told, on="speed_cell", how="left").select(
        "cell_id",
        against_fastest=pl.when(pl.col("cell_id") == pl.col("_fastest"))
        .then(None)
        .when(same)
        .then(pl.lit(Verdict.NO_CLEAR_DIFFERENCE.value))
        .otherwise("verdict"),
    )
