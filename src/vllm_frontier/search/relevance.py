"""Which cells can be on the frontier, and which of them first."""

from __future__ import annotations

import numpy as np

from vllm_frontier.dominance import TIE, Point, leaders
from vllm_frontier.grid import Cell
from vllm_frontier.search.lattice import CONTEXT, Floats, Lattice, Mask
from vllm_frontier.search.speeds import Speeds, assumed_speed, group_of


def relevant(lattice: Lattice, works: Mask, speeds: Speeds) -> Mask:
    """The cells that would change the frontier if they worked.

    A cell that a leading one beats stays off the frontier whether it works or not. One whose
    speed is not known yet may be anything.

    Args:
        lattice: the grid.
        works: the cells that are known to work.
        speeds: what was measured.
    """
    speed = lattice.of([speeds.of(group_of(cell)) or np.inf for cell in lattice.cells])
    points = lattice.points
    beaten = lattice.nothing()
    for cell in _leading(lattice, works & np.isfinite(speed), speed):
        fastest = float(speed.flat[lattice.at(cell)])
        beaten |= (
            (points.context <= cell.context)
            & (points.utilization >= cell.utilization)
            & ((1 - TIE) * speed <= fastest)
            # Of equals in one place the shallowest leads.
            & ~(
                (points.context == cell.context)
                & (points.utilization == cell.utilization)
                & (points.depth < cell.depth)
                & (speed >= (1 - TIE) * fastest)
            )
        )
    return lattice.exists & ~beaten


def promising(lattice: Lattice, likely: Mask, speeds: Speeds) -> Floats:
    """What to look at first, so that an early end leaves the most: a rank for every point.

    Cells expected on the frontier come first, then the windows right above them, then the
    others; of these the largest product of window and speed.

    Args:
        lattice: the grid.
        likely: the cells that work or are expected to.
        speeds: what was measured; what was not is put in order by depth and graphs.
    """
    speed = lattice.of(_expected_speeds(lattice, speeds))
    product = lattice.points.context * speed
    rank = product / max(float(product.max()), 1e-9)
    leading = leading_cells(lattice, likely, speeds)
    above = np.roll(leading, 1, axis=CONTEXT)
    above[:, :, 0] = False
    return np.asarray(rank + 2.0 * leading + 1.0 * (above & ~leading))


def leading_cells(lattice: Lattice, works: Mask, speeds: Speeds) -> Mask:
    """The cells on the frontier if these are the ones that work; see `promising` for speeds."""
    leading = lattice.nothing()
    for cell in _leading(lattice, works, lattice.of(_expected_speeds(lattice, speeds))):
        leading.flat[lattice.at(cell)] = True
    return leading


def _leading(lattice: Lattice, works: Mask, speed: Floats) -> list[Cell]:
    points = [
        Point(cell, cell.context, cell.utilization, float(speed.flat[lattice.at(cell)]), cell.depth)
        for cell in lattice.chosen(works)
    ]
    return list(leaders(points))


def _expected_speeds(lattice: Lattice, speeds: Speeds) -> list[float]:
    """Measured speeds, and for other groups assumed ones on the same scale."""
    assumed = [assumed_speed(cell.depth, cell.graphs) for cell in lattice.cells]
    known = [speeds.of(group_of(cell)) for cell in lattice.cells]
    ratios = [real / guess for real, guess in zip(known, assumed, strict=True) if real is not None]
    scale = float(np.median(ratios)) if ratios else 1.0
    return [
        scale * guess if real is None else real for real, guess in zip(known, assumed, strict=True)
    ]
