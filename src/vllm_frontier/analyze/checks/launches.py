"""How launches of one cell differ, and whether they drift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.special import stdtrit

from vllm_frontier.analyze.checks.baseline import MEDIAN
from vllm_frontier.analyze.checks.evidence import LAUNCHES_DIFFER, Evidence
from vllm_frontier.analyze.checks.judgement import (
    Judgement,
    Verdict,
    counted,
    percent,
    rows,
    together,
    when,
)
from vllm_frontier.analyze.checks.paired import pooled, sure
from vllm_frontier.analyze.checks.telemetry import correlate
from vllm_frontier.analyze.packed import paired
from vllm_frontier.dominance import TIE
from vllm_frontier.outcome import Purpose

FAR = 3.0
"""Standard deviations of the difference of two launches beyond which it is a gap."""

_SURE = 0.975
_EVEN = 1e-9
_SPREAD_FROM = 4  # degrees of freedom that tell what is usual among launches
_KNOWN_FROM = 2  # from which a spread is one
_TREND_FROM = 6  # and a trend


def series_gap(evidence: Evidence) -> Judgement:
    """Launches of a cell against the one before: the same runs of both, pair by pair.

    Launches differ by more than their runs do. Where launches of other cells tell how much is
    usual, only a pair is warned of that is far beyond; a row for the sweep tells how much it is.
    """
    pairs = _pairs(evidence)
    if pairs.is_empty():
        return "no cell was launched twice with at least two runs that can be compared"
    residuals = _residuals(_levels(evidence))
    usual = _usual_of_others(residuals)
    pairs = pairs.join(usual, on="cell_id", how="left", maintain_order="left")
    pairs = pairs.with_columns(_t=pl.Series(sure((pairs["n"] - 1).to_numpy())))
    half = pl.col("_t") * pl.col("spread").fill_null(0.0) / pl.col("n").sqrt()
    ratio, off, usual_off = pl.col("mean").exp(), pl.col("mean").abs(), pl.col("usual")
    differ = (off > half) & ((ratio - 1).abs() >= TIE - _EVEN)
    gap = differ & (off > FAR * 2**0.5 * usual_off.fill_null(0.0) + _EVEN)
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
            pl.when(gap & usual_off.is_not_null())
            .then(pl.lit("far more than launches of this sweep differ by"))
            .when(gap)
            .then(pl.lit("more than its runs differ"))
            .when(differ)
            .then(pl.lit("no more than launches of this sweep commonly differ by"))
            .otherwise(pl.lit("no more than its runs differ, or than counts")),
        ),
    )
    return together(rows(found, "x", nothing=""), _usual(residuals), nothing="")


def _usual(residuals: pl.DataFrame) -> Judgement:
    """The row for the sweep: by how much launches of a cell differ."""
    freedom = _freedom(residuals)
    if freedom < _SPREAD_FROM:
        return ""
    spread = float(np.sqrt(residuals["squares"].to_numpy().sum() / freedom))
    found = pl.DataFrame(
        {
            "verdict": [Verdict.PASS.value],
            "value": [float(np.expm1(spread))],
            "expected": [None],
            "detail": [
                f"launches of one cell differ by {_share(spread)} (standard deviation, "
                f"{freedom} degrees of freedom)"
            ],
        }
    )
    return rows(found, "share", nothing="")


def _usual_of_others(residuals: pl.DataFrame) -> pl.DataFrame:
    """For each cell what launches of all others differ by: `usual`, a standard deviation.

    Null where these tell too little. What a cell does itself would excuse it.
    """
    freedom = _freedom(residuals) - (pl.col("launches") - 1)
    squares = (pl.col("squares").sum() - pl.col("squares")).clip(lower_bound=0.0)
    known = freedom >= _SPREAD_FROM
    return residuals.select("cell_id", usual=pl.when(known).then((squares / freedom).sqrt()))


def _pairs(evidence: Evidence) -> pl.DataFrame:
    """Of each launch and the one before at the same cell: mean and spread of log ratios."""
    order = evidence.launches.sort("launch").with_columns(
        _before=pl.col("launch").shift(1).over("cell_id"),
        _earlier=pl.col("attempt").shift(1).over("cell_id"),
    )
    later = order.filter(pl.col("_before").is_not_null())
    speeds = evidence.by_request.with_columns(_asked=paired("launch", "request")).lazy()
    return (
        later.lazy()
        .select("launch", "cell_id", "attempt", "_before", "_earlier")
        .join(speeds.drop("_asked"), on="launch", how="inner")
        .with_columns(_asked=paired("_before", "request"))
        .join(speeds.select("_asked", "log_speed"), on="_asked", how="inner", suffix="_then")
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
    """How far the reference cell moved from its first launch to its last, prompt by prompt.

    Held against how launches of a cell differ otherwise, as far as launches of several cells tell
    it; their common trend counts, too. What moves along is named, which does not make it the cause.
    """
    levels = _levels(evidence)
    reference = _reference(evidence, levels)
    if reference is None:
        return _unwatched(evidence.unwatched)
    trend = _trend(levels)
    own = _moves(levels.filter(pl.col("cell_id") == reference), evidence)
    steps = own["moved"].to_numpy()
    moved, range_ = float(steps[-1]), float(steps.max() - steps.min())
    unsure = float(sure(own["freedom"].item(-1)) * own["error"].item(-1))
    if trend.spread is None:
        # Two launches differ by more than their runs do; by how much, nothing here tells.
        limit = max(float(np.log1p(LAUNCHES_DIFFER)), unsure)
        against = "too few launches tell how much they differ"
    else:
        limit = max(float(np.log1p(TIE)), trend.sure() * trend.spread * 2**0.5)
        against = f"launches of a cell differ by {_share(trend.spread)} (standard deviation)"
    times = own["time"].to_numpy()
    along = (trend.slope or 0.0) * float(times[-1] - times[0])
    tends = _tends(trend, along)
    told = f"{_moved(moved)}{_give_or_take(unsure)} from its first launch to its last ({len(steps)}"
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


def _unwatched(lost: int) -> str:
    """Why there is no reference cell; `lost` of its launches came to nothing."""
    if not lost:
        return "no cell was launched again to watch its speed"
    launches = "the launch" if lost == 1 else f"all of the {lost} launches"
    return f"{launches} to watch the speed of a cell came to nothing, so that nothing tells"


def _moves(own: pl.DataFrame, evidence: Evidence) -> pl.DataFrame:
    """The launches of one cell, each against the first: `moved`, its `error` and `freedom`.

    Over the same prompts: mean over tasks of the median log ratio. Of a launch that has none of
    them the levels are compared, with an error that nothing tells.
    """
    first = own["launch"].item(0)
    speeds = evidence.by_request.filter(pl.col("launch").is_in(own["launch"].implode()))
    then = speeds.filter(pl.col("launch") == first).drop("launch")
    tasks = evidence.digest.requests.select("request", "task")
    ratios = speeds.join(then, on="request", how="inner", suffix="_then").join(tasks, on="request")
    ratios = ratios.with_columns(ratio=pl.col("log_speed") - pl.col("log_speed_then"))
    by_task = ratios.group_by("launch", "task").agg(pl.col("ratio").median(), n=pl.len())
    # Of the mean over tasks of medians, where a single ratio has the variance 1.
    unit = MEDIAN * (1 / pl.col("n")).sum() / pl.len() ** 2
    moves = by_task.group_by("launch").agg(moved=pl.col("ratio").mean(), _unit=unit)
    moves = moves.join(pooled(ratios, ("launch",)), on="launch", how="left")
    return (
        own.join(moves, on="launch", how="left")
        .with_columns(
            pl.coalesce("moved", pl.col("level") - pl.col("level").first()),
            pl.col("freedom").fill_null(0),
            error=(pl.col("variance") * pl.col("_unit")).sqrt().fill_null(0.0),
        )
        .sort("launch")
    )


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
    residuals = _residuals(levels)
    freedom, spread_x = _freedom(residuals), float(residuals["squared_time"].sum())
    if freedom < _KNOWN_FROM or residuals.height < 2 or spread_x <= 0:
        return _Trend()
    spread = float(np.sqrt(residuals["squares"].to_numpy().sum() / freedom))
    if freedom < _TREND_FROM:
        return _Trend(spread=spread, freedom=freedom)
    return _Trend(float(residuals["slope"].item(0)), spread / spread_x**0.5, spread, freedom)


def _freedom(residuals: pl.DataFrame) -> int:
    """Degrees of freedom of what is left beside the cells and the slope."""
    return int((residuals["launches"] - 1).sum()) - 1


def _residuals(levels: pl.DataFrame) -> pl.DataFrame:
    """Of each cell with several launches what a common slope over time leaves: `squares`.

    Also `launches`, `squared_time` about the mean of the cell, and the `slope`.
    """
    within = levels.filter(pl.len().over("cell_id") > 1).with_columns(
        pl.col(name) - pl.col(name).mean().over("cell_id") for name in ("level", "time")
    )
    y, x = pl.col("level"), pl.col("time")
    slope = (x * y).sum() / x.pow(2).sum()
    return (
        within.with_columns(slope=pl.when(x.pow(2).sum() > 0).then(slope).otherwise(0.0))
        .group_by("cell_id", maintain_order=True)
        .agg(
            squares=(y - pl.col("slope") * x).pow(2).sum(),
            squared_time=x.pow(2).sum(),
            launches=pl.len().cast(pl.Int64),
            slope=pl.col("slope").first(),
        )
    )


def _share(log: float) -> str:
    return f"{100 * abs(np.expm1(log)):.1f} %"


def _give_or_take(log: float) -> str:
    """How sure a move is by the runs of both launches; empty where they do not differ."""
    told = np.isfinite(log) and log >= 0.0005
    return f" (by its runs, give or take {_share(log)})" if told else ""


def _moved(log: float) -> str:
    if abs(np.expm1(log)) < 0.0005:
        return "stayed where it was"
    return f"became {_share(log)} {'faster' if log > 0 else 'slower'}"
