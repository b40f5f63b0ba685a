"""Checking what was inferred: where it is least certain, and where launches disagree."""

from __future__ import annotations

import random

import numpy as np

from vllm_frontier.grid import Cell
from vllm_frontier.search.lattice import CONTEXT, DEPTH, GRAPHS, UTILIZATION, Floats, Lattice, Mask
from vllm_frontier.search.proof import Proofs
from vllm_frontier.search.speeds import Speeds


def around(proofs: Proofs) -> list[Cell]:
    """Cells one step from a refused launch that a working one contradicts.

    Their own launches show how far the contradiction reaches; those that contradict in turn are
    looked around in turn.
    """
    lattice = proofs.lattice
    inferred = (proofs.works | proofs.disputed) & ~proofs.launched
    cells: dict[Cell, None] = {}
    for contradiction in proofs.contradictions:
        if contradiction.fails in lattice:
            near = lattice.neighbours(contradiction.fails) & inferred
            cells |= dict.fromkeys(lattice.chosen(near))
    return list(cells)


def least_certain(proofs: Proofs, mean: Floats, sd: Floats, seed: int) -> Cell | None:
    """The inferred cell that most deserves a launch of its own; None where nothing is inferred.

    Disputed cells come first, then cells whose share of the card nothing that hard was launched
    with, then such that lie close to a boundary or have values that no launch had.

    Args:
        proofs: what is known.
        mean: expected margins, GiB.
        sd: their standard deviations, GiB.
        seed: decides among equals.
    """
    lattice = proofs.lattice
    inferred = (proofs.works | proofs.refused | proofs.disputed) & ~proofs.launched
    if not inferred.any():
        return None
    sign = np.where(proofs.refused, -1.0, 1.0)
    close = np.exp(-np.maximum(sign * mean / sd, 0.0) / 4)
    doubt = (
        4.0 * proofs.disputed
        + 1.0 * (proofs.works & ~_share_was_used(proofs))
        + 1.0 * close
        + 0.5 * _unseen(proofs)
    )
    draw = random.Random(seed)
    jitter = lattice.of([1e-6 * draw.random() for _ in lattice.cells])
    return lattice.cell(int(np.argmax(np.where(inferred, doubt + jitter, -np.inf))))


def second_speed(lattice: Lattice, works: Mask, speeds: Speeds) -> Cell | None:
    """The cell that shows best whether speed depends on window or share; None where none does.

    The fastest group that was measured, at its shortest window and with the largest share.
    """
    by_speed = sorted(
        (group for group, _ in speeds.groups() if speeds.of(group) is not None),
        key=lambda group: -(speeds.of(group) or 0.0),
    )
    for extra, depth, graphs in by_speed:
        points = lattice.points
        alike = points.has_extra(extra) & (points.depth == depth) & (points.graphs == graphs)
        others = [cell for cell in lattice.chosen(alike & works) if not speeds.measured(cell)]
        if others:
            return min(others, key=lambda cell: (cell.context, -cell.utilization))
    return None


def _share_was_used(proofs: Proofs) -> Mask:
    """Points whose share of the card, or a larger one, served as deep a head and as many graphs.

    More of the card for the KV cache is less for what lies beside it.
    """
    lattice, used = proofs.lattice, proofs.lattice.nothing()
    points = lattice.points
    for each in proofs.evidence:
        if each.works:
            used |= (
                (points.depth <= each.cell.depth)
                & (points.graphs <= each.cell.graphs)
                & (points.utilization <= each.cell.utilization)
            )
    return used


def _unseen(proofs: Proofs) -> Floats:
    """The share of pairs of axis values that no launch had, for every point."""
    own = proofs.launched
    axes = (DEPTH, CONTEXT, GRAPHS, UTILIZATION)
    pairs = [(one, other) for one in axes for other in axes if one < other]
    unseen = np.zeros(own.shape)
    for pair in pairs:
        others = tuple(axis for axis in range(own.ndim) if axis not in pair)
        unseen = unseen + ~own.any(axis=others, keepdims=True)
    return unseen / len(pairs)
