"""How launches of one cell differ, and whether they drift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.special import stdtrit

from vllm_frontier.analyze.checks.evidence import LAUNCHES_DIFFER, Evidence
from vllm_frontier.analyze.checks.judgement import (
    Judgement,
    Verdict,
    counted,
    percent,
    rows,
    when,
)
from vllm_frontier.analyze.checks.telemetry import correlate
from vllm_frontier.dominance import TIE
from vllm_frontier.outcome import Purpose

_SURE = 0.975
_EVEN = 1e-9
_KNOWN_FROM = 2  # degrees of freedom from which a spread is one
_TREND_FROM = 6  # and a trend


def series_gap(evidence: Evidence) -> Judgement:
    """Launches of a cell against the one before: the same runs of both, pair by pair."""
    pairs = _pairs(evidence)
    if pairs.is_empty():
        return "no cell was launched twice with at least two runs that can be compared"
    freedom = (pairs["n"] - 1).to_numpy()
    pairs = pairs.with_columns(_t=pl.Series(np.asarray(stdtrit(freedom, _SURE), dtype=float)))
    half = pl.col("_t") * pl.col("spread").fill_null(0.0) / pl.col("n").sqrt()
    ratio, off = pl.col("mean").exp(), pl.col("mean").abs()
    gap = (off > half) & ((ratio - 1).abs() >= TIE - _EVEN)
    found = pairs.with_columns(
        verdict=when(gap, Verdict.WARN, Verdict.PASS),
        value=ratio,
        expected=1.0,
        detail=pl.format(
            "{} {} than attempt {} of the same cell ({}, give or take {}): {}",
            percent(ratio - 1),
            pl.when(ratio < 1).then(pl.lit("slower")).otherwise(pl.lit("faster")),
            pl.col("_earlier"),
            counted(pl.col("n"), "run compared", "runs compared"),
            percent(half.exp() - 1),
            pl.when(gap)
            .then(pl.lit("more than its runs differ"))
            .otherwise(pl.lit("no more than its runs differ, or than counts")),
        ),
    )
    return rows(found, "x", nothing="")


def _pairs(evidence: Evidence) -> pl.DataFrame:
    """Of each launch and the one before at the same cell: mean and spread of log ratios."""
    order = evidence.launches.sort("launch").with_columns(
        _before=pl.col("launch").shift(1).over("cell_id"),
        _earlier=pl.col("attempt").shift(1).over("cell_id"),
    )
    later = order.filter(pl.col("_before").is_not_null())
    several = pl.concat([later["launch"], later["_before"]]).unique()
    request = ("launch", "task", "repeat")
    speeds = (
        evidence.decode.lazy()
        .filter(pl.col("launch").is_in(several.implode()))
        .group_by(request)
        .agg(pl.col("log_speed").median())
    )
    return (
        later.lazy()
        .select("launch", "cell_id", "attempt", "_before", "_earlier")
        .join(speeds, on="launch", how="inner")
        .join(
            speeds,
            left_on=("_before", "task", "repeat"),
            right_on=request,
            how="inner",
            suffix="_then",
        )
        .with_columns(_ratio=pl.col("log_speed") - pl.col("log_speed_then"))
        .group_by("launch", "cell_id", "attempt", "_earlier")
        .agg(
            pl.col("_ratio").mean().alias("mean"),
            pl.col("_ratio").std().alias("spread"),
            pl.len().cast(pl.Int64).alias("n"),
        )
        .filter(pl.col("n") > 1)
        .sort("launch")
        .collect()
    )


@dataclass(frozen=True, slots=True)
class _Trend:
    """What launches of the same cells show over time.

    `slope` (of the log speed, per unit of time) and its standard `error`, `spread` of launches
    about it; None where there are too few launches.
    """

    slope: float | None = None
    error: float | None = None
    spread: float | None = None
    freedom: int = 0

    def sure(self) -> float:
        """How many standard errors make a difference sure."""
        return float(stdtrit(self.freedom, _SURE))


def drift(evidence: Evidence) -> Judgement:
    """How far the reference cell moved from its first launch to its last.

    Held against how launches of a cell differ otherwise, as far as launches of several cells tell
    it; their common trend counts, too. What moves along is named, which does not make it the cause.
    """
    levels = _levels(evidence)
    reference = _reference(evidence, levels)
    if reference is None:
        return "no cell was launched again to watch its speed"
    trend = _trend(levels)
    own = levels.filter(pl.col("cell_id") == reference)
    steps = own["level"].to_numpy()
    moved, range_ = float(steps[-1] - steps[0]), float(steps.max() - steps.min())
    if trend.spread is None:
        # Two launches differ by more than their runs do; by how much, nothing here tells.
        runs = 2 * 1.57**0.5 * (evidence.noise or 0.0)
        limit, against = (
            max(float(np.log1p(LAUNCHES_DIFFER)), runs),
            "too few launches tell how much they differ",
        )
    else:
        limit = max(float(np.log1p(TIE)), trend.sure() * trend.spread * 2**0.5)
        against = f"launches of a cell differ by {_share(trend.spread)} (standard deviation)"
    times = own["time"].to_numpy()
    along = (trend.slope or 0.0) * float(times[-1] - times[0])
    tends = _tends(trend, along)
    told = f"{_moved(moved)} from its first launch to its last ({len(steps)}"
    told += f" launches, range {_share(range_)}); {against}"
    if tends:
        told += f"; all cells that were launched again {_moved(along)} in that time"
    drifted = abs(moved) > limit - _EVEN or tends
    if drifted:
        told += correlate(evidence)
    found = pl.DataFrame(
        {
            "cell_id": [reference],
            "verdict": [(Verdict.WARN if drifted else Verdict.PASS).value],
            "value": [float(np.exp(moved))],
            "expected": [1.0],
            "detail": [f"the reference cell {told}"],
        }
    )
    return rows(found, "x", nothing="")


def _tends(trend: _Trend, along: float) -> bool:
    if trend.slope is None or trend.error is None:
        return False
    return abs(trend.slope) > trend.sure() * trend.error and abs(along) > np.log1p(TIE)


def _levels(evidence: Evidence) -> pl.DataFrame:
    """Of every launch with speeds its mean log speed over tasks, and when it was, in order."""
    levels = evidence.by_launch.group_by("launch").agg(pl.col("log_speed").mean().alias("level"))
    began = evidence.launches["started_at"]
    moment = pl.col("started_at").dt.epoch("us") if began.null_count() == 0 else pl.col("launch")
    times = evidence.launches.select(
        "launch", "cell_id", "purpose", moment.cast(pl.Float64).alias("time")
    )
    return levels.join(times, on="launch", how="inner").sort("launch")


def _reference(evidence: Evidence, levels: pl.DataFrame) -> str | None:
    """The cell that was launched as the reference, with at least two launches that have a speed."""
    named = levels.filter(pl.col("purpose") == Purpose.REFERENCE.value)["cell_id"].unique()
    again = levels.filter(pl.col("cell_id").is_in(named.implode())).group_by("cell_id").len()
    again = again.filter(pl.col("len") > 1).sort("len", "cell_id", descending=[True, False])
    return None if again.is_empty() else str(again["cell_id"].item(0))


def _trend(levels: pl.DataFrame) -> _Trend:
    """A common slope over time, and what launches differ by beside it."""
    within = levels.filter(pl.len().over("cell_id") > 1).with_columns(
        pl.col(name) - pl.col(name).mean().over("cell_id") for name in ("level", "time")
    )
    cells = levels.filter(pl.len().over("cell_id") > 1)["cell_id"].n_unique()
    freedom = within.height - cells - 1
    y, x = within["level"].to_numpy(), within["time"].to_numpy()
    spread_x = float((x**2).sum())
    if freedom < _KNOWN_FROM or cells < 2 or spread_x <= 0:
        return _Trend()
    slope = float((x * y).sum() / spread_x)
    spread = float((((y - slope * x) ** 2).sum() / freedom) ** 0.5)
    if freedom < _TREND_FROM:
        return _Trend(spread=spread, freedom=freedom)
    return _Trend(slope, spread / spread_x**0.5, spread, freedom)


def _share(log: float) -> str:
    return f"{100 * abs(np.expm1(log)):.1f} %"


def _moved(log: float) -> str:
    if abs(np.expm1(log)) < 0.0005:
        return "stayed where it was"
    return f"became {_share(log)} {'faster' if log > 0 else 'slower'}"
