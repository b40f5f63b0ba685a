"""What is known of every cell of the grid, in one word and with the figures that decided."""

from __future__ import annotations

from enum import StrEnum

import polars as pl

from vllm_frontier.analyze.latest import AXES, counted, is_final, is_inferred
from vllm_frontier.outcome import FailureClass, Status


class CellState(StrEnum):
    """What a cell is, for whoever looks at the whole grid."""

    WORKS = "works"
    INFERRED_WORKS = "works, inferred"
    REFUSED = "refused"
    INFERRED_REFUSED = "refused, inferred"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    NOT_TRIED = "not tried"


class Reason(StrEnum):
    """Why a cell has no result, as families of failure classes."""

    CACHE = "too little memory for the KV cache"
    OUT_OF_MEMORY = "out of memory"
    SHARE = "that share of the card is not free"
    INVALID = "vLLM refuses the settings"
    BROKE = "something else broke"


_FAMILIES = {
    FailureClass.KV_TOO_SMALL: Reason.CACHE,
    FailureClass.KV_NONE: Reason.CACHE,
    FailureClass.STATE_SLOTS_TOO_FEW: Reason.CACHE,
    FailureClass.UTILIZATION_ABOVE_FREE: Reason.SHARE,
}
_BY_STATUS = {
    Status.INFEASIBLE: Reason.OUT_OF_MEMORY,
    Status.INVALID: Reason.INVALID,
    Status.FAILED: Reason.BROKE,
}
_STATES = {
    Status.MEASURED.value: CellState.WORKS.value,
    Status.INFEASIBLE.value: CellState.REFUSED.value,
    Status.INVALID.value: CellState.REFUSED.value,
    Status.FAILED.value: CellState.FAILED.value,
    Status.INTERRUPTED.value: CellState.INTERRUPTED.value,
}
_FACTS = ("kv_needed_gib", "kv_available_gib", "max_context_estimate")
_TOLD = ("status", "failure_class", "evidence", "evidence_cell", "doubt", "spec_state", *_FACTS)


def reason_of(failure_class: FailureClass) -> Reason:
    """The family of a failure class."""
    return _FAMILIES.get(failure_class, _BY_STATUS[failure_class.status])


def cell_states(
    trials: pl.LazyFrame,
    *,
    planned: pl.LazyFrame | None = None,
    running: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Every cell, tried or not.

    Args:
        trials: the table `trials`.
        planned: all cells of the grid, as the axis columns of `trials`; None: those of `trials`.
        running: rows like those of `trials` of attempts that run now; None: none does.

    Returns:
        One row per cell, in the order of the axes: `cell_id` (null where it was not tried), the
        axes, `state` (of `CellState`), `reason` (of `Reason`; null where it works or nothing is
        known), `status`, `failure_class`, `evidence`, `evidence_cell`, `doubt`, `spec_state`,
        `kv_needed_gib`, `kv_available_gib`, `max_context_estimate`, and, of an inferred cell,
        `from_depth` and so on: the axes and figures of the launch from which it follows. A cell
        that runs once more keeps the state that a launch with an answer gave it.
    """
    known = counted(trials)
    if running is not None:
        now = running.join(known.filter(is_final()), on=AXES, how="anti").unique(AXES, keep="last")
        now = now.with_columns(status=pl.lit(CellState.RUNNING.value), failure_class=None)
        known = pl.concat([known.join(now, on=AXES, how="anti"), now], how="diagonal_relaxed")
    cells = known.select("cell_id", *AXES, *_TOLD)
    if planned is not None:
        untried = planned.select(AXES).join(cells, on=AXES, how="anti")
        cells = pl.concat([cells, untried], how="diagonal")
    launches = (
        trials.filter(~is_inferred())
        .sort("attempt")
        .unique("cell_id", keep="last", maintain_order=True)
        .select(
            pl.col("cell_id").alias("evidence_cell"),
            *(pl.col(name).alias(f"from_{name}") for name in (*AXES, *_FACTS)),
        )
    )
    refused = pl.col("failure_class").is_not_null()
    inferred = (
        pl.when(refused)
        .then(pl.lit(CellState.INFERRED_REFUSED.value))
        .otherwise(pl.lit(CellState.INFERRED_WORKS.value))
    )
    state = (
        pl.when(is_inferred())
        .then(inferred)
        .when(pl.col("status").is_null())
        .then(pl.lit(CellState.NOT_TRIED.value))
        .otherwise(pl.col("status").replace(_STATES))
    )
    families = {each.value: reason_of(each).value for each in FailureClass}
    reason = pl.col("failure_class").replace_strict(families, default=None, return_dtype=pl.String)
    columns = ("cell_id", *AXES, "state", "reason", *_TOLD)
    return (
        cells.with_columns(state=state, reason=reason)
        .select(columns)
        .join(launches, on="evidence_cell", how="left", maintain_order="left")
        .sort("extra", "graphs", "utilization", "depth", "context")
    )
