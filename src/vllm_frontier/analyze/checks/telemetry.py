"""What the samples of card and machine say of the runs."""

from __future__ import annotations

import numpy as np
import polars as pl
from scipy.special import stdtr

from vllm_frontier.analyze.checks.evidence import Evidence
from vllm_frontier.analyze.checks.judgement import (
    Judgement,
    Verdict,
    counted,
    figure,
    percent,
    rows,
    when,
)

SERIOUS = ("hardware_slowdown", "power_brake", "thermal_hardware", "thermal_software")
"""Why clocks are held down where something is wrong: heat, or the power supply. A card that only
keeps to its own limits does as it should."""

BUSY_CORES = 0.5
"""Cores that others may keep busy."""

GROWN_GIB = 0.5
"""Memory of others on the card that may come and go, as a desktop's does."""

RESIDENT_GIB = 4.0
"""Memory of others that is no longer a desktop's, even if it stays as it is."""

_MOVING = {
    "sm_clock_mhz": "the card's clock",
    "memory_clock_mhz": "the clock of its memory",
    "temperature_c": "its temperature",
    "power_w": "its power",
    "throttled_share": "clocks that are held down",
    "gpu_utilization": "its utilization",
    "foreign_gib": "memory of other processes",
    "foreign_processes": "other processes",
    "foreign_cores": "cores that others keep busy",
    "cpu_cores": "cores that the launch keeps busy",
    "cpu_mhz": "the clock of the cores",
}
_AT_MOST = 50_000  # runs that tell a correlation as well as more would
_FEWEST = 10
_WEAK = 0.3
_CHANCE = 0.001


def correlate(evidence: Evidence) -> str:
    """With what the speed of runs goes along most, in words; empty where nothing stands out.

    Speed and telemetry are both taken relative to the runs of the same cell and prompt, so that
    differences between cells do not pass for a connection. Spearman's coefficient.
    """
    columns = list(_MOVING)
    place = ("cell_id", "task", "variant")
    cells = evidence.launches.select("launch", "cell_id")
    runs = evidence.decode.select("row", "launch", "task", "variant", "log_speed")
    runs = runs.gather_every(max(1, runs.height // _AT_MOST))
    relative = (
        runs.join(evidence.digest.more(runs["row"], *columns), on="row", maintain_order="left")
        .join(cells, on="launch", maintain_order="left")
        .filter(pl.len().over(place) > 1)
        .with_columns(
            pl.col(name) - pl.col(name).median().over(place) for name in ("log_speed", *columns)
        )
    )
    found: list[tuple[float, str]] = []
    for name in columns:
        both = relative.select("log_speed", name).drop_nulls()
        n = both.height
        if n < _FEWEST or both[name].n_unique() < 2 or both["log_speed"].n_unique() < 2:
            continue
        rank = float(both.select(pl.corr("log_speed", name, method="spearman")).item())
        if _is_chance(rank, n, len(columns)):
            continue
        found.append((rank, name))
    if not found:
        return ""
    rank, name = max(found, key=lambda each: abs(each[0]))
    told = f"; what goes along most is {_MOVING[name]}"
    return f"{told} ({name}, rank correlation {rank:+.2f}), which need not be the cause"


def _is_chance(rank: float, n: int, tried: int) -> bool:
    """Whether such a coefficient may come about by chance among so many that were tried."""
    if not np.isfinite(rank) or abs(rank) < _WEAK:
        return True
    if abs(rank) >= 1:
        return False
    t = abs(rank) * ((n - 2) / (1 - rank**2)) ** 0.5
    return bool(2 * stdtr(n - 2, -t) * tried > _CHANCE)


def throttled(evidence: Evidence) -> Judgement:
    """Whether clocks were held down while a launch was measured, and why."""
    reasons, share = pl.col("throttle_reasons"), pl.col("throttled_share")
    told = _measured(evidence, "throttle_reasons", "throttled_share").filter(
        reasons.is_not_null() | share.is_not_null()
    )
    silent = reasons.is_null() & (share > 0)
    by_launch = told.group_by("launch").agg(
        pl.len().cast(pl.Int64).alias("n"),
        silent.fill_null(False).sum().cast(pl.Int64).alias("_silent"),
        share.mean().alias("_share"),
    )
    by_launch = by_launch.join(_reasons(told), on="launch", how="left").with_columns(
        pl.col("_reasons").fill_null(pl.lit([], dtype=pl.List(pl.String))),
        _serious=pl.col("_silent") + pl.col("_named").fill_null(0),
    )
    found = _named(by_launch, evidence).with_columns(
        value=pl.col("_serious") / pl.col("n"),
        expected=0.0,
        verdict=when(pl.col("_serious") > 0, Verdict.WARN, Verdict.PASS),
    )
    why = pl.col("_reasons").list.join(", ")
    some = pl.when(why == "").then(pl.lit("a reason that is not told")).otherwise(why)
    held = pl.format(
        "clocks were held down by {} ({} of the time while it was measured)",
        *(some, percent(pl.col("_share").fill_null(0.0))),
    )
    free = (pl.col("_reasons").list.len() == 0) & (pl.col("_serious") == 0)
    harmless = pl.format("{}: the card's own limits", held)
    detail = (
        pl.when(free)
        .then(pl.lit("clocks were not held down"))
        .when(pl.col("_serious") == 0)
        .then(harmless)
        .otherwise(pl.format("{}, in {} of {} runs seriously", held, "_serious", "n"))
    )
    return rows(
        found.with_columns(detail=detail),
        "share of runs",
        nothing="no run tells whether clocks were held down",
    )


def _reasons(told: pl.DataFrame) -> pl.DataFrame:
    """By launch all `_reasons`, and in how many of its runs a serious one is `_named`."""
    held = told.select("launch", "throttle_reasons").with_row_index("run")
    each = (
        held.filter(pl.col("throttle_reasons").list.len() > 0)
        .explode("throttle_reasons")
        .rename({"throttle_reasons": "reason"})
        .drop_nulls("reason")
    )
    serious = pl.col("run").filter(pl.col("reason").is_in(SERIOUS))
    return each.group_by("launch").agg(
        pl.col("reason").unique().sort().alias("_reasons"),
        serious.n_unique().cast(pl.Int64).alias("_named"),
    )


def foreign_load(evidence: Evidence) -> Judgement:
    """Whether others were at work on the card or the machine while a launch was measured.

    A desktop is always there, and on one card more than on another. So memory of others counts
    where it changes while the launch is measured, and other processes where one comes. What stays
    as it is counts where it is more than a desktop takes, and another launch on a card of this
    name had less.
    """
    real = evidence.real()
    if real.is_empty():
        return "a simulated card is as fast whatever else the machine does"
    names = ("foreign_gib", "foreign_processes", "foreign_cores")
    runs = _measured(evidence, *names)
    if real.height < evidence.launches.height:
        runs = runs.join(real, on="launch", how="semi")
    told = runs.filter(pl.any_horizontal(pl.col(name).is_not_null() for name in names))
    by_launch = told.group_by("launch").agg(
        pl.col("foreign_gib").max(),
        pl.col("foreign_processes").max(),
        _came=pl.col("foreign_processes").max() - pl.col("foreign_processes").min(),
        _always=pl.col("foreign_gib").min(),
        foreign_cores=pl.col("foreign_cores").mean(),
    )
    by_launch = by_launch.join(real.select("launch", "card"), on="launch", how="left")
    least = pl.col("_always").min().over("card")
    grown = pl.col("foreign_gib") - pl.col("_always") > GROWN_GIB
    grown |= (pl.col("foreign_gib") > RESIDENT_GIB) & (pl.col("_always") - least > GROWN_GIB)
    busy = pl.col("foreign_cores") > BUSY_CORES
    noticed = (
        grown.fill_null(False) | busy.fill_null(False) | (pl.col("_came") > 0).fill_null(False)
    )
    parts = [
        pl.format("others kept {} cores busy", figure(pl.col("foreign_cores"), 2)),
        _on_the_card(),
    ]
    has = [
        pl.col("foreign_cores").is_not_null(),
        pl.col("foreign_processes").is_not_null() | pl.col("foreign_gib").is_not_null(),
    ]
    shown = [pl.when(there).then(part) for there, part in zip(has, parts, strict=True)]
    more = pl.when(pl.col("_came") > 0).then(pl.format("{} more than at first", pl.col("_came")))
    found = _named(by_launch, evidence).with_columns(
        value=pl.col("foreign_cores"),
        expected=BUSY_CORES,
        verdict=when(noticed, Verdict.WARN, Verdict.PASS),
        detail=pl.concat_str(*shown, more, separator=", ", ignore_nulls=True),
    )
    return rows(found, "cores", nothing="no run tells what others did meanwhile")


def _on_the_card() -> pl.Expr:
    """What others have there, as far as the driver tells it."""
    processes, held = pl.col("foreign_processes"), pl.col("foreign_gib")
    named = counted(processes, "other process", "other processes")
    gib = figure(held, 2)
    return (
        pl.when(held.is_null())
        .then(pl.format("{} on the card", named))
        .when(processes.is_null())
        .then(pl.format("others hold {} GiB on the card", gib))
        .otherwise(pl.format("{} with {} GiB on the card", named, gib))
    )


def _measured(evidence: Evidence, *columns: str) -> pl.DataFrame:
    """`launch` and some columns of the runs whose speed counts."""
    counts = pl.col("kind").is_in(["decode", "prefill"])
    return evidence.runs.lazy().filter(counts).select("launch", *columns).collect()


def _named(by_launch: pl.DataFrame, evidence: Evidence) -> pl.DataFrame:
    names = evidence.launches.select("launch", "cell_id", "attempt")
    return by_launch.join(names, on="launch", how="inner").sort("launch")
