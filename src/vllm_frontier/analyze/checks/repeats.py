"""Whether launches that repeat a cell end as its others did."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.checks.judgement import Judgement, Verdict, rows, together
from vllm_frontier.analyze.latest import CELL
from vllm_frontier.outcome import Purpose, Status

_MEASURED = Status.MEASURED.value
_FAILED = Status.FAILED.value
_REFUSED = (Status.INFEASIBLE.value, Status.INVALID.value)
_ENDED = (_MEASURED, _FAILED, *_REFUSED)
_AGAIN = (Purpose.REPLICATE.value, Purpose.REFERENCE.value)
_UNIT = "share of launches"


def repeat_launches(trials: pl.LazyFrame) -> Judgement:
    """Cells of which one launch was measured and another refused, and repeats that failed.

    A failed repeat is no speed: an interval rests on fewer launches than were asked for. One row
    for each cell whose launches disagree, and one for the sweep.

    Args:
        trials: the table `trials`.
    """
    launches = (
        trials.filter(
            pl.col("attempt") > 0, pl.col("cell_id").is_not_null(), pl.col("status").is_in(_ENDED)
        )
        .unique(CELL, keep="last", maintain_order=True)
        .select(*CELL, "status", "purpose", pl.col("failure_class").fill_null("no reason told"))
        .collect()
    )
    again = launches.filter(pl.col("purpose").is_in(_AGAIN))
    return together(
        rows(_disagreeing(launches), _UNIT, nothing=""),
        rows(_failed(again), _UNIT, nothing=""),
        nothing="no cell was launched again",
    )


def _disagreeing(launches: pl.DataFrame) -> pl.DataFrame:
    """A row for each cell that was measured in one launch and refused in another."""
    told = []
    measured = pl.col("status") == _MEASURED
    answered = launches.filter(pl.col("status") != _FAILED).filter(
        measured.any().over("cell_id"), (~measured).any().over("cell_id")
    )
    for (cell_id,), group in answered.group_by("cell_id", maintain_order=True):
        refused = group.filter(pl.col("status").is_in(_REFUSED))
        words = [f"{group.height - refused.height} measured"]
        counts = refused.group_by("status", "failure_class").len().sort("status", "failure_class")
        words += [f"{count} {status} ({why})" for status, why, count in counts.iter_rows()]
        detail = f"launches of this cell disagree: {', '.join(words)}"
        told.append((Verdict.WARN.value, cell_id, refused.height / group.height, 0.0, detail))
    return _frame(told)


def _failed(again: pl.DataFrame) -> pl.DataFrame:
    """The row for the sweep: how many of the launches that repeat a cell failed, and why."""
    if again.is_empty():
        return _frame([])
    failed = again.filter(status=_FAILED)
    whole = f"{again.height} {'launch' if again.height == 1 else 'launches'} that repeat"
    whole += f"{'s' if again.height == 1 else ''} a cell"
    if failed.is_empty():
        return _frame([(Verdict.PASS.value, None, 0.0, 0.0, f"none of {whole} failed")])
    counts = failed["failure_class"].value_counts().sort(["count", "failure_class"])
    why = ", ".join(f"{name}: {count}" for name, count in reversed(counts.rows()))
    detail = f"{failed.height} of {whole} failed ({why})"
    return _frame([(Verdict.WARN.value, None, failed.height / again.height, 0.0, detail)])


def _frame(told: list[tuple[str, str | None, float, float, str]]) -> pl.DataFrame:
    kinds = {"verdict": pl.String, "cell_id": pl.String, "value": pl.Float64}
    return pl.DataFrame(
        told, schema={**kinds, "expected": pl.Float64, "detail": pl.String}, orient="row"
    )
