"""The launches of a sweep in order, so that a drift can be seen."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.latest import AXES, CELL
from vllm_frontier.analyze.speed import decode_runs
from vllm_frontier.analyze.speed_groups import GROUP
from vllm_frontier.outcome import Purpose, Status

CONDITIONS = (
    "sm_clock_mhz",
    "cpu_mhz",
    "temperature_c",
    "power_w",
    "foreign_cores",
    "throttled_share",
)
"""What is told of a launch's conditions: medians over its decode runs, units as in `runs`."""


def launch_order(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.DataFrame:
    """Every launch, in the order in which they began.

    Args:
        trials: the table `trials`; inferred rows are no launches.
        runs: the table `runs`.

    Returns:
        A row for each launch: `launch` (from 1), cell_id, attempt, the axes, `changed` (how the
        identity differs from the sweep's first, empty where it does not), `status`,
        `failure_class`, `purpose`, `started_at`, `minutes` (since the first began);
        `decode_tok_s` (null: no speed was measured), `relative` (that over the median of all
        launches that are the same in depth, graphs, further axes and identity), `alike` (how many
        these are);
        `reference` (whether it is one of the cell that watches over drift); and `CONDITIONS`.
    """
    decode = decode_runs(runs)
    by_task = decode.group_by(*CELL, "task").agg(pl.col("decode_tok_s").median())
    speeds = by_task.group_by(CELL).agg(pl.col("decode_tok_s").median().alias("_speed"))
    conditions = decode.group_by(CELL).agg(pl.col(CONDITIONS).median())
    measured = pl.col("status") == Status.MEASURED.value
    order = (
        trials.filter(pl.col("attempt") > 0)
        .with_columns(pl.col("changed").fill_null(""))
        .select(
            *CELL, *AXES, "changed", "status", "failure_class", "purpose", "started_at", "sequence"
        )
        .sort("started_at", "sequence", *CELL, nulls_last=True)
        .with_columns(launch=pl.int_range(1, pl.len() + 1).cast(pl.Int64))
        .join(speeds, on=CELL, how="left")
        .with_columns(decode_tok_s=pl.when(measured).then("_speed"))
        .join(conditions, on=CELL, how="left")
        .sort("launch")
    )
    speed, moment = pl.col("decode_tok_s"), pl.col("started_at")
    return order.select(
        "launch",
        *CELL,
        *AXES,
        "changed",
        "status",
        "failure_class",
        "purpose",
        "started_at",
        ((moment - moment.min()).dt.total_microseconds() / 60e6).alias("minutes"),
        "decode_tok_s",
        (speed / speed.median().over(GROUP)).alias("relative"),
        pl.when(speed.is_not_null()).then(speed.count().over(GROUP)).cast(pl.Int64).alias("alike"),
        _is_reference().alias("reference"),
        *CONDITIONS,
    ).collect()


def _is_reference() -> pl.Expr:
    """Of the cell that was launched for reference, the one with most speeds where it is several."""
    named = (pl.col("purpose") == Purpose.REFERENCE.value).fill_null(False).any().over("cell_id")
    speeds = pl.col("decode_tok_s").count().over("cell_id")
    most = pl.when(named).then(speeds).max()
    first = pl.when(named & (speeds == most)).then("cell_id").min()
    return (pl.col("cell_id") == first).fill_null(False)
