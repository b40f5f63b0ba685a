"""What became of the cells: counts and reasons."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.latest import AXES, counted
from vllm_frontier.outcome import Purpose, Status

_HARMLESS = [Status.MEASURED.value, Status.INFERRED.value]


def status_counts(trials: pl.LazyFrame) -> pl.LazyFrame:
    """How many cells have each status: columns `status` and `cells`."""
    return (
        counted(trials)
        .group_by("status")
        .agg(pl.len().cast(pl.Int64).alias("cells"))
        .sort("status")
    )


def launch_counts(trials: pl.LazyFrame) -> pl.LazyFrame:
    """How many launches were made, interrupted ones included: columns `purpose`, `launches`."""
    purpose = pl.col("purpose").fill_null(Purpose.PROOF.value)
    return (
        trials.filter(pl.col("attempt") > 0)
        .group_by(purpose)
        .agg(pl.len().cast(pl.Int64).alias("launches"))
        .sort("purpose")
    )


def failures(trials: pl.LazyFrame) -> pl.LazyFrame:
    """Why cells have no result, most frequent reason first.

    Returns:
        One row per status and failure class: `cells`, and of one example (the shortest window)
        its axes, `cell_id`, `attempt`, `phase`, `evidence` and `evidence_line`.
    """
    example = [*AXES, "cell_id", "attempt", "phase", "evidence", "evidence_line"]
    return (
        counted(trials)
        .filter(~pl.col("status").is_in(_HARMLESS))
        .sort("context", "depth", "graphs", "utilization", "extra")
        .group_by("status", "failure_class", maintain_order=True)
        .agg(pl.len().cast(pl.Int64).alias("cells"), pl.col(example).first())
        .sort("cells", "status", "failure_class", descending=[True, False, False])
    )
