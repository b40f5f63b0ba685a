"""Checking what was inferred: where it is least certain, and where launches disagree."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from vllm_frontier.grid import Cell
from vllm_frontier.search.lattice import CONTEXT, DEPTH, GRAPHS, UTILIZATION, Floats, Lattice, Mask
from vllm_frontier.search.proof import Proofs
from vllm_frontier.search.speeds import Speeds


def around(proofs: Proofs, launches: Mapping[Cell, int]) -> list[Cell]:
    """What to launch where launches disagree, or one stands alone.

    A refusal that a harder cell contradicts, and one that is none of vLLM's arithmetic and that no
    other launch confirms, is launched once more: it may have passed. Then the cells one step from
    a contradicted one show how far it reaches; those that are refused in turn are looked around in
    turn.

    Args:
        proofs: what is known.
        launches: how often each cell gave an answer.
    """
    lattice = proofs.lattice
    contradicted = [each.fails for each in proofs.contradictions if each.fails in lattice]
    doubtful = dict.fromkeys([*contradicted, *(c for c in proofs.isolated() if c in lattice)])
    again = [cell for cell in doubtful if launches.get(cell, 0) < 2]
    if again:
        return again
    inferred = (proofs.works | proofs.disputed) & ~proofs.launched
    cells: dict[Cell, None] = {}
    for cell in contradicted:
        cells |= dict.fromkeys(lattice.chosen(lattice.neighbours(cell) & inferred))
    return list(cells)


def least_certain(
    proofs: Proofs, leading: Mask, mean: Floats, sd: Floats, seed: int
) -> Cell | None:
    """The inferred cell that most deserves a launch of its own; None where nothing is inferred.

    Disputed cells come first, then such that are on the frontier, lie close to a boundary, or have
    pairs of values that no launch had.

    Args:
        proofs: what is known.
        leading: cells on the frontier.
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
    doubt = 4.0 * proofs.disputed + 1.0 * leading + 1.0 * close + 0.5 * _unseen(proofs)
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
        others = [
            cell
            for cell in lattice.chosen(alike & works)
            if speeds.may_measure(cell) and not speeds.measured(cell)
        ]
        if others:
            return min(others, key=lambda cell: (cell.context, -cell.utilization))
    return None


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
