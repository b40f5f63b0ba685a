"""Where launches disagree with the order in which cells ask for more.

A cell asks for at least as much as another with the same further axes when its depth and window
are no smaller, it has graphs where the other has them, and its share of the card is no larger.
What works so proves every cell that asks for no more, and what is refused every cell that asks
for no less; a share that exceeds what is free is refused with whatever other axes.
"""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.latest import AXES, counted, does_not_work, is_inferred, works
from vllm_frontier.outcome import FailureClass, Purpose

_ABOVE_FREE = FailureClass.UTILIZATION_ABOVE_FREE.value
_TOLD = ("cell_id", *AXES)
_KEPT = (*_TOLD, "failure_class", "started_at")
_LINE = ("depth", "graphs", "utilization", "extra")


def contradictions(trials: pl.LazyFrame) -> pl.LazyFrame:
    """Launches that disagree: one works and asks for at least as much as one that is refused.

    Returns:
        One row per refused cell that disagrees with a working one: `fails_*` and `works_*`,
        each with `cell_id` and the axes. Of several working cells the nearest is told.
    """
    cells = counted(trials).filter(~is_inferred())
    working, refused = cells.filter(works()), cells.filter(does_not_work())
    # Whether any disagrees is seen from the ends of the lines; few refused cells are left.
    wrong = _pairs(_longest(working), refused).select("fails_cell_id").unique()
    doubted = refused.join(wrong, left_on="cell_id", right_on="fails_cell_id", how="semi")
    nearest = [f"works_{name}" for name in ("context", "depth", "graphs", "utilization", "cell_id")]
    return (
        _pairs(working, doubted)
        .sort(nearest, descending=[False, False, False, True, False])
        .unique("fails_cell_id", keep="first", maintain_order=True)
        .sort([f"fails_{name}" for name in (*_LINE, "context")])
        .select([f"{side}_{name}" for side in ("works", "fails") for name in _TOLD])
    )


def contested(trials: pl.LazyFrame) -> pl.LazyFrame:
    """Inferred cells of which launches say both, or whose evidence another launch contradicts.

    Returns:
        The column `cell_id`, sorted.
    """
    cells = counted(trials)
    launched, inferred = cells.filter(~is_inferred()), cells.filter(is_inferred())
    should_fail = _pairs(inferred.filter(works()), _shortest(launched.filter(does_not_work())))
    should_work = _pairs(_longest(launched.filter(works())), inferred.filter(does_not_work()))
    unsound = inferred.filter(does_not_work()).join(
        contradictions(trials), left_on="evidence_cell", right_on="fails_cell_id", how="semi"
    )
    found = [
        should_fail.select(cell_id="works_cell_id"),
        should_work.select(cell_id="fails_cell_id"),
        unsound.select("cell_id"),
    ]
    return pl.concat(found).unique().sort("cell_id")


def audits(trials: pl.LazyFrame) -> pl.LazyFrame:
    """The inferred cells that were launched as a spot check.

    Returns:
        One row per cell that was launched for that and has a final status: `cell_id` and
        `wrong`, whether launches made before had said otherwise.
    """
    cells = counted(trials).filter(~is_inferred(), works() | does_not_work())
    audited = cells.filter(pl.col("purpose") == Purpose.AUDIT.value)
    worked, refused = pl.col("works_started_at"), pl.col("fails_started_at")
    said_works = _pairs(cells.filter(works()), audited.filter(does_not_work()))
    said_fails = _pairs(audited.filter(works()), cells.filter(does_not_work()))
    wrong = pl.concat(
        [
            said_works.filter(worked < refused).select(cell_id="fails_cell_id"),
            said_fails.filter(refused < worked).select(cell_id="works_cell_id"),
        ]
    ).unique()
    return (
        audited.select("cell_id")
        .join(wrong.with_columns(wrong=True), on="cell_id", how="left")
        .with_columns(pl.col("wrong").fill_null(False))
        .sort("cell_id")
    )


def _pairs(working: pl.LazyFrame, refused: pl.LazyFrame) -> pl.LazyFrame:
    """Every two cells of which the first, if it works, says that the second must work, too."""
    above_free = (pl.col("fails_failure_class") == _ABOVE_FREE).fill_null(False)
    asks_as_much = (
        (pl.col("works_depth") >= pl.col("fails_depth"))
        & (pl.col("works_context") >= pl.col("fails_context"))
        & (pl.col("works_graphs") | ~pl.col("fails_graphs"))
        & (pl.col("works_utilization") <= pl.col("fails_utilization"))
    )
    no_smaller_share = pl.col("works_utilization") >= pl.col("fails_utilization")
    return (
        working.select(pl.col(_KEPT).name.prefix("works_"))
        .join(
            refused.select(pl.col(_KEPT).name.prefix("fails_")),
            left_on="works_extra",
            right_on="fails_extra",
            how="inner",
            coalesce=False,
        )
        .filter(pl.when(above_free).then(no_smaller_share).otherwise(asks_as_much))
    )


def _longest(working: pl.LazyFrame) -> pl.LazyFrame:
    """Of every line of windows the one that proves most."""
    return working.sort("context", "cell_id").unique(_LINE, keep="last", maintain_order=True)


def _shortest(refused: pl.LazyFrame) -> pl.LazyFrame:
    """Of every line of windows, and each kind of refusal, the one that proves most."""
    return (
        refused.with_columns(_kind=pl.col("failure_class") == _ABOVE_FREE)
        .sort("context", "cell_id")
        .unique([*_LINE, "_kind"], keep="first", maintain_order=True)
        .drop("_kind")
    )
