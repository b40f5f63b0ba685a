"""What to launch where expectations about memory do not help: after other kinds of refusals."""

from __future__ import annotations

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Status
from vllm_frontier.search.lattice import Mask
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
        elif _refused_by_rule(evidence) and not any(each.works for each in proofs.evidence):
            probe = _easiest(proofs, evidence)
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


def _refused_by_rule(evidence: Evidence) -> bool:
    why = evidence.failure_class
    return (
        why is not None
        and why.status is Status.INVALID
        and why is not FailureClass.CONTEXT_EXCEEDS_MODEL
    )


def _easiest(proofs: Proofs, evidence: Evidence) -> Cell | None:
    """What vLLM refuses whatever the card, it refuses in the cell that asks least, too.

    Without speculation it may be another matter.
    """
    lattice, cell = proofs.lattice, evidence.cell
    points = lattice.points
    alike: Mask = points.has_extra(cell.extra) & ((points.depth > 0) == (cell.depth > 0))
    cells = list(lattice.chosen(alike & proofs.open))
    if not cells:
        return None
    return min(cells, key=lambda each: (each.depth, each.context, each.graphs, -each.utilization))
