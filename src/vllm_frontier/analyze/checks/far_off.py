"""Runs that are far off: how many there are, and where."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.checks.evidence import Evidence
from vllm_frontier.analyze.checks.judgement import (
    Judgement,
    Verdict,
    counted,
    figure,
    percent,
    rows,
    together,
    when,
)
from vllm_frontier.analyze.latest import CELL
from vllm_frontier.analyze.outliers import is_timed, outliers

MANY = 0.05
"""Share of the runs of a launch of which more than one may be far off."""


def far_off(evidence: Evidence) -> Judgement:
    """Launches some of whose decode and prefill runs are far from those that were asked the same.

    They count like all others, since medians bear them. A row for the sweep tells how many there
    are; one for each launch that has some tells of these.
    """
    named = evidence.launches.select(*CELL, "launch")
    timed = evidence.runs.lazy().filter(is_timed()).select("launch").collect()
    if timed.is_empty():
        return "no run tells a speed"
    far = outliers(evidence.digest.runs.lazy()).collect().join(named, on=CELL, how="inner")
    worst = pl.col("ratio").get(pl.col("ratio").log().abs().arg_max()).alias("_worst")
    all_runs = timed.group_by("launch").agg(pl.len().cast(pl.Int64).alias("n"))
    found = (
        far.group_by("launch", *CELL)
        .agg(pl.len().cast(pl.Int64).alias("_far"), worst)
        .join(all_runs, on="launch", how="inner")
        .sort("launch")
        .with_columns(value=pl.col("_far") / pl.col("n"), expected=MANY)
    )
    many = (pl.col("value") > MANY) & (pl.col("_far") > 1)
    found = found.with_columns(
        verdict=when(many, Verdict.WARN, Verdict.PASS),
        detail=pl.format(
            "far off: {} of {}, at worst at {} times the speed of those that were asked the same",
            *("_far", counted(pl.col("n"), "run", "runs"), figure(pl.col("_worst"), 2)),
        ),
    )
    whole = rows(_whole(far, timed.height), "share of runs", nothing="")
    return together(whole, rows(found, "share of runs", nothing=""), nothing="")


def _whole(far: pl.DataFrame, count: int) -> pl.DataFrame:
    """The row for the sweep."""
    n, share = pl.lit(count), pl.lit(far.height / count)
    all_runs = counted(n, "run", "runs")
    if far.is_empty():
        detail = pl.format("none of {} is far off", all_runs)
    else:
        worst = far.sort(pl.col("ratio").log().abs(), descending=True).row(0, named=True)
        detail = pl.format(
            "far off, and counted all the same: {} of {} ({}), at worst {} ({}) at {} times the "
            "speed of those that were asked the same",
            *(pl.lit(far.height), all_runs, percent(share), pl.lit(worst["kind"])),
            *(pl.lit(worst["task"]), figure(pl.lit(worst["ratio"]), 2)),
        )
    return pl.select(verdict=pl.lit(Verdict.PASS.value), value=share, expected=MANY, detail=detail)
