"""Which attempt of a cell counts, and what it says about the cell."""

from __future__ import annotations

import polars as pl

from vllm_frontier.outcome import Status

CELL = ("cell_id", "attempt")
"""What names an attempt in every frame."""

AXES = ("depth", "context", "graphs", "utilization", "extra")
"""The columns that make up a cell."""

_FINAL = [status.value for status in Status if status.is_final]
_REFUSED = [Status.INFEASIBLE.value, Status.INVALID.value]


def counted(trials: pl.LazyFrame) -> pl.LazyFrame:
    """One row per cell: its last attempt with a final status, else its last attempt.

    An inferred row has attempt 0, so that anything measured later overrules it, and an attempt
    that merely failed does not. A cell is its axes: where the engine, the card or the model
    changed in the middle of a sweep, it has attempts under two identities.
    """
    return (
        trials.with_columns(_final=is_final())
        .sort(*AXES, "_final", "started_at", "attempt", maintain_order=True)
        .unique(AXES, keep="last", maintain_order=True)
        .drop("_final")
    )


def is_final() -> pl.Expr:
    """Whether the status answers the question about the cell."""
    return pl.col("status").is_in(_FINAL)


def is_inferred() -> pl.Expr:
    """Whether the row follows from another cell instead of a launch."""
    return pl.col("status") == Status.INFERRED.value


def works() -> pl.Expr:
    """Whether the cell works: measured, or inferred without a reason against it."""
    inferred = is_inferred() & pl.col("failure_class").is_null()
    return (pl.col("status") == Status.MEASURED.value) | inferred


def does_not_work() -> pl.Expr:
    """Whether the cell is known not to work, by this card or by vLLM itself.

    An attempt that failed for another reason says neither.
    """
    inferred = is_inferred() & pl.col("failure_class").is_not_null()
    return pl.col("status").is_in(_REFUSED) | inferred
