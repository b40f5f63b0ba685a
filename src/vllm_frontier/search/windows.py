"""The longest windows that work, and which of them still want a speed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from vllm_frontier.grid import Cell
from vllm_frontier.search.lattice import CONTEXT, Lattice, Mask
from vllm_frontier.search.protocol import Ask
from vllm_frontier.search.speeds import Speeds, group_of, lenders

FRONTIER, BOUNDARIES, ALL = "frontier", "boundaries", "all"


def longest_windows(lattice: Lattice, works: Mask, measure: str) -> list[Cell]:
    """The cells in which speed is measured, if these are the cells that work.

    Args:
        lattice: the grid.
        works: the cells that work, or are expected to.
        measure: `frontier` for one cell of each depth and graphs, the one with the longest window
            and of these with the smallest share; `boundaries` for one of each share as well;
            `all` for every cell.
    """
    if measure == ALL:
        return list(lattice.chosen(works))
    order = np.arange(works.shape[CONTEXT]).reshape(1, 1, -1, 1, 1)
    longest = np.where(works, order, -1).max(axis=CONTEXT, keepdims=True)
    ends = works & (order == longest)
    cells = list(lattice.chosen(ends))
    if measure == BOUNDARIES:
        return cells
    return list(lenders(cells).values())


def without_speed(
    targets: Iterable[Cell], measure: str, speeds: Speeds, out: Mapping[Cell, Ask]
) -> list[Cell]:
    """Of the cells in which speed is measured, those that are to be launched for it.

    A launch that is out and will measure a cell that does as well counts as if it were done.
    """
    longest: dict[Hashable, int] = {}
    done = [each.cell for _, known in speeds.groups() for each in known]
    for cell in [*done, *(ask.cell for ask in out.values() if ask.with_speed)]:
        key = _same_speed(cell, measure)
        longest[key] = max(longest.get(key, 0), cell.context)
    return [cell for cell in targets if cell.context > longest.get(_same_speed(cell, measure), 0)]


def _same_speed(cell: Cell, measure: str) -> Hashable:
    """What cells have in common one of which is measured for all."""
    if measure == ALL:
        return cell
    return group_of(cell) if measure == FRONTIER else (*group_of(cell), cell.utilization)
