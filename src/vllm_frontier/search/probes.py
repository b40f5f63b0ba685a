"""What to launch where expectations about memory do not help: after other kinds of refusals."""

from __future__ import annotations

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Status
from vllm_frontier.search.limits import Limits
from vllm_frontier.search.proof import BESIDE_THE_SHARE, Evidence, Proofs


def next_probe(proofs: Proofs, limits: Limits) -> Cell | None:
    """The cell that tells best how far a refusal of another kind reaches; None without need.

    Args:
        proofs: what is known.
        limits: what vLLM said of the card and the model.
    """
    probe = _above_limits(proofs, limits)
    if probe is not None:
        return probe
    for evidence in reversed(proofs.evidence):
        if evidence.failure_class in BESIDE_THE_SHARE and proofs.confirmed(evidence):
            probe = _in_column(proofs, evidence) or _with_share(proofs, evidence)
        elif evidence.failure_class is not None and _begins_somewhere(evidence.failure_class):
            probe = _beginning(proofs, evidence)
        if probe is not None:
            return probe
    return None


def _above_limits(proofs: Proofs, limits: Limits) -> Cell | None:
    """The first share of the card, and the first window, that are above what vLLM named."""
    lattice, points = proofs.lattice, proofs.lattice.points
    for mask, key in (
        (limits.above_free(points), lambda cell: cell.utilization),
        (limits.above_model(points), lambda cell: cell.context),
    ):
        cells = list(lattice.chosen((mask | lattice.nothing()) & proofs.open))
        if cells:
            return min(cells, key=key)
    return None


def _in_column(proofs: Proofs, evidence: Evidence) -> Cell | None:
    """Memory that runs out beside the share does so for any window, most of the time.

    So the shortest window comes first, and what lies between is halved.
    """
    lattice = proofs.lattice
    column = lattice.column(evidence.cell)
    shorter = column & (lattice.points.context < evidence.cell.context)
    cells = list(lattice.chosen(shorter & proofs.open))
    if not cells:
        return None
    return cells[len(cells) // 2] if bool((shorter & proofs.works).any()) else cells[0]


def _with_share(proofs: Proofs, evidence: Evidence) -> Cell | None:
    """With this share of the card: does anything work at all, and how deep a head?"""
    lattice, cell = proofs.lattice, evidence.cell
    points = lattice.points
    row = points.has_extra(cell.extra) & (points.utilization == cell.utilization)
    row = row & (points.context == cell.context) & (points.depth <= cell.depth)
    row = (row & (points.graphs <= cell.graphs) & proofs.open) | lattice.nothing()
    easier = list(lattice.chosen(row))
    if not easier:
        return None
    least = min(easier, key=lambda each: (each.graphs, each.depth))
    served = row.any() and bool((proofs.works & (points.utilization >= cell.utilization)).any())
    if not served:
        return least
    alike = [each for each in easier if each.graphs == cell.graphs]
    return alike[len(alike) // 2] if alike else None


def _begins_somewhere(why: FailureClass) -> bool:
    """Refusals of which nothing tells on what they depend: by a rule, or before any arithmetic."""
    by_rule = why.status is Status.INVALID and why is not FailureClass.CONTEXT_EXCEEDS_MODEL
    return by_rule or why in (FailureClass.OOM_LOAD, FailureClass.OOM_PROFILE)


def _beginning(proofs: Proofs, evidence: Evidence) -> Cell | None:
    """Where a refusal begins: with the cell that asks least, or along one of the axes.

    First what asks least: is everything refused? If not, one setting at a time is made that of
    the refused cell, and where that alone is refused, what lies between is halved.
    """
    lattice, cell = proofs.lattice, evidence.cell
    alike = [each for each in lattice.cells if each.extra == cell.extra]
    easiest = min(
        (each for each in alike if each.utilization == cell.utilization),
        key=lambda each: (each.depth, each.context, each.graphs),
        default=None,
    )
    if easiest is None or _open(proofs, easiest):
        return easiest
    if not _works(proofs, easiest):
        return None
    for axis in ("graphs", "depth", "context"):
        line = [each for each in alike if _differs_only(each, easiest, axis)]
        reach = sorted(
            (each for each in line if _value(each, axis) <= _value(cell, axis)),
            key=lambda each: _value(each, axis),
        )
        if not reach:
            continue
        if _open(proofs, reach[-1]):
            return reach[-1]
        if not _works(proofs, reach[-1]):
            between = [each for each in reach if _open(proofs, each)]
            return between[len(between) // 2] if between else None
    return None


def _value(cell: Cell, axis: str) -> float:
    return float(cell.axes()[axis])


def _differs_only(one: Cell, other: Cell, axis: str) -> bool:
    return {**one.axes(), axis: None} == {**other.axes(), axis: None}


def _open(proofs: Proofs, cell: Cell) -> bool:
    return bool(proofs.open.flat[proofs.lattice.at(cell)])


def _works(proofs: Proofs, cell: Cell) -> bool:
    return bool(proofs.works.flat[proofs.lattice.at(cell)])
