"""Where launches disagree with what others of them say.

What works says that whatever asks for no more works, too; what a refusal says depends on its
reason, and the search knows that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from vllm_frontier.analyze.latest import AXES, counted, does_not_work, is_inferred, works
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Phase, Purpose
from vllm_frontier.search.lattice import Lattice, Points, apart
from vllm_frontier.search.proof import DISAGREEMENT, Evidence, speaks_for
from vllm_frontier.store.rows import cell_of

_TOLD = ("cell_id", *AXES)
_LINE = ("depth", "graphs", "utilization", "extra")


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch that gave an answer, with its row."""

    cell: Cell
    row: dict[str, Any]

    @property
    def began(self) -> datetime | None:
        began: datetime | None = self.row["started_at"]
        return began

    def evidence(self) -> Evidence:
        phase = Phase(self.row["phase"])
        return Evidence(self.cell, FailureClass(self.row["failure_class"]), phase)


def contradictions(trials: pl.LazyFrame) -> pl.LazyFrame:
    """Launches that disagree: a refused cell says of one that works that it cannot.

    Returns:
        One row per refused cell that disagrees with a working one: `works_*` and `fails_*`,
        each with `cell_id` and the axes. Of several working cells the nearest is told.
    """
    cells = counted(trials).filter(~is_inferred())
    working = cells.filter(works()).sort("context")
    # Whether any disagrees is seen from the ends of the lines; few refused cells are left.
    ends = _launches(working.unique(_LINE, keep="last", maintain_order=True))
    refused = _launches(cells.filter(does_not_work()).sort(*_LINE, "context"))
    wrong = [each for each in refused if _denied(each, ends)]
    everything = _launches(working) if wrong else []
    pairs = [
        {
            f"{side}_{name}": each.row[name]
            for side, each in (("works", _nearest(one, _denied(one, everything))), ("fails", one))
            for name in _TOLD
        }
        for one in wrong
    ]
    kinds = trials.select(_TOLD).collect_schema()
    schema = {f"{side}_{name}": kinds[name] for side in ("works", "fails") for name in _TOLD}
    return pl.LazyFrame(pairs, schema=schema)


def unexplored(
    cells: Sequence[Cell], presumed: Collection[Cell], contradicted: Iterable[Cell]
) -> int:
    """How many contradicted refusals were not looked around: it is not known how far they reach.

    Args:
        cells: the grid, or what is known of it.
        presumed: cells that are inferred to work.
        contradicted: cells that are refused although one that asks for more works.
    """
    refused = list(contradicted)
    if not refused:
        return 0
    lattice = Lattice(cells)
    beside = lattice.mask(presumed.__contains__)
    return sum(
        bool((lattice.neighbours(cell) & beside).any()) for cell in refused if cell in lattice
    )


def unexplored_in(trials: pl.LazyFrame) -> int:
    """`unexplored` of the rows of a sweep."""
    refused = contradictions(trials).select(pl.col(f"fails_{name}").alias(name) for name in AXES)
    cells = counted(trials)
    presumed = cells.filter(is_inferred(), works())
    return unexplored(_cells(cells), set(_cells(presumed)), _cells(refused))


def contested(trials: pl.LazyFrame) -> pl.LazyFrame:
    """The inferred cells of which launches say both: the column `cell_id`, sorted."""
    cells = counted(trials).filter(is_inferred(), pl.col("doubt") == DISAGREEMENT)
    return cells.select("cell_id").sort("cell_id")


def audits(trials: pl.LazyFrame) -> pl.LazyFrame:
    """The inferred cells that were launched as a spot check.

    Returns:
        One row per cell that was launched for that and has an answer: `cell_id` and `wrong`,
        whether the launches before it had said otherwise, and none of them the same.
    """
    rows = counted(trials).filter(~is_inferred(), works() | does_not_work()).sort("cell_id")
    launches = _launches(rows)
    found = []
    for one in launches:
        if one.row["purpose"] == Purpose.AUDIT:
            here, earlier = Points.of(one.cell), [each for each in launches if _before(each, one)]
            says_works = any(here.no_harder_than(each.cell).all() for each in _works(earlier))
            says_fails = any(_denied(each, [one]) for each in _refused(earlier))
            expected = says_fails if one.row["failure_class"] is None else says_works
            agrees = says_works if one.row["failure_class"] is None else says_fails
            found.append({"cell_id": one.row["cell_id"], "wrong": expected and not agrees})
    return pl.LazyFrame(found, schema={"cell_id": pl.String, "wrong": pl.Boolean})


def _cells(rows: pl.LazyFrame) -> list[Cell]:
    return [cell_of(row) for row in rows.select(AXES).collect().iter_rows(named=True)]


def _launches(rows: pl.LazyFrame) -> list[_Launch]:
    columns = (*_TOLD, "failure_class", "phase", "started_at", "purpose")
    table = rows.select(columns).collect()
    return [_Launch(cell_of(row), row) for row in table.iter_rows(named=True)]


def _denied(refusal: _Launch, others: Sequence[_Launch]) -> list[_Launch]:
    """Those of some launches of which a refusal says that they are refused, too."""
    if not others or refusal.row["failure_class"] is None:
        return []
    points = Points.of(*(each.cell for each in others))
    denied = speaks_for(refusal.evidence(), points)
    return [each for each, said in zip(others, denied, strict=True) if said]


def _nearest(one: _Launch, others: Sequence[_Launch]) -> _Launch:
    return min(others, key=lambda other: apart(one.cell, other.cell))


def _before(one: _Launch, other: _Launch) -> bool:
    if one is other or one.began is None or other.began is None:
        return False
    return one.began < other.began


def _works(launches: Iterable[_Launch]) -> list[_Launch]:
    return [each for each in launches if each.row["failure_class"] is None]


def _refused(launches: Iterable[_Launch]) -> list[_Launch]:
    return [each for each in launches if each.row["failure_class"] is not None]
