"""The grid as arrays, and which of its cells ask for more than others.

Arrays have the shape (further axes, depth, context, graphs, utilization). Along every axis but
the first, cells ask for more as the index grows: deeper, longer, with graphs, and with a smaller
share of the card, in which the same has to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_frontier.grid import Cell, Value

Extra = tuple[tuple[str, Value], ...]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXTRA, DEPTH, CONTEXT, GRAPHS, UTILIZATION = range(5)
_ORDERED = (DEPTH, CONTEXT, GRAPHS, UTILIZATION)


@dataclass(frozen=True, slots=True)
class Points:
    """Axis values of some points, as arrays that broadcast against each other."""

    extras: NDArray[np.object_]
    depth: NDArray[Any]
    context: NDArray[Any]
    graphs: NDArray[Any]
    utilization: NDArray[Any]

    @classmethod
    def of(cls, *cells: Cell) -> Points:
        """Some points, one after another."""
        extras = np.empty(len(cells), dtype=object)
        for index, cell in enumerate(cells):
            extras[index] = cell.extra
        return cls(
            extras,
            np.array([cell.depth for cell in cells]),
            np.array([cell.context for cell in cells]),
            np.array([cell.graphs for cell in cells]),
            np.array([cell.utilization for cell in cells]),
        )

    def has_extra(self, extra: Extra) -> Mask:
        """Which of them have these further axes."""
        flat = [each == extra for each in self.extras.flat]
        return np.array(flat, dtype=bool).reshape(self.extras.shape)

    def no_harder_than(self, cell: Cell) -> Mask:
        """Which of them ask for no more than a cell on any axis."""
        mask: Mask = (
            self.has_extra(cell.extra)
            & (self.depth <= cell.depth)
            & (self.context <= cell.context)
            & (self.graphs <= cell.graphs)
            & (self.utilization >= cell.utilization)
        )
        return mask


def apart(one: Cell, other: Cell) -> tuple[float, ...]:
    """How far two cells are apart, deeper differences first."""
    return (
        abs(one.depth - other.depth),
        one.graphs != other.graphs,
        abs(one.utilization - other.utilization),
        abs(one.context - other.context),
    )


class Lattice:
    """The cells of a grid and their order.

    Attributes:
        cells: in the order of the grid.
        exists: which points are cells; a grid may leave some out.
        points: the axis values of all points.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = tuple(cells)
        self._extras = sorted({cell.extra for cell in cells}, key=str)
        self._extra_at = {extra: index for index, extra in enumerate(self._extras)}
        self.depths = np.array(sorted({cell.depth for cell in cells}))
        self.contexts = np.array(sorted({cell.context for cell in cells}))
        self.graphs = np.array(sorted({cell.graphs for cell in cells}))
        self.utilizations = np.array(sorted({cell.utilization for cell in cells}, reverse=True))
        self.shape = (
            len(self._extras),
            len(self.depths),
            len(self.contexts),
            len(self.graphs),
            len(self.utilizations),
        )
        places = np.array([self._place(cell) for cell in self.cells], dtype=np.int64)
        self._flat = np.ravel_multi_index(tuple(places.T), self.shape)
        self._number = np.full(self.shape, -1, dtype=np.int64)
        self._number.flat[self._flat] = np.arange(len(self.cells))
        self._known = {cell: int(at) for cell, at in zip(self.cells, self._flat, strict=True)}
        self.exists: Mask = self._number >= 0
        extras = np.empty(len(self._extras), dtype=object)
        for index, extra in enumerate(self._extras):
            extras[index] = extra
        self.points = Points(
            self._along(EXTRA, extras),
            self._along(DEPTH, self.depths),
            self._along(CONTEXT, self.contexts),
            self._along(GRAPHS, self.graphs),
            self._along(UTILIZATION, self.utilizations),
        )

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._known

    def at(self, cell: Cell) -> int:
        """The flat index of a cell of the grid."""
        return self._known[cell]

    def cell(self, flat: int) -> Cell:
        """The cell with a flat index."""
        return self.cells[int(self._number.flat[flat])]

    def chosen(self, mask: Mask) -> Iterator[Cell]:
        """The cells of a mask, in the order of the grid."""
        for number in np.sort(self._number[mask & self.exists]):
            yield self.cells[int(number)]

    def of(self, values: Sequence[float] | Floats) -> Floats:
        """A value for each cell, in the order of the grid, as an array; 0 where there is none."""
        result = np.zeros(self.shape)
        result.flat[self._flat] = np.asarray(values, dtype=float)
        return result

    def mask(self, holds: Callable[[Cell], bool]) -> Mask:
        """The cells for which something holds."""
        result = self.nothing()
        result.flat[self._flat] = [holds(cell) for cell in self.cells]
        return result

    def nothing(self) -> Mask:
        """A mask without any cell."""
        return np.zeros(self.shape, dtype=bool)

    # Sets of points, told by values: an evidence need not be a cell of the grid

    def no_harder_than(self, cell: Cell) -> Mask:
        """Points that ask for no more than a cell in any axis."""
        mask: Mask = self.nothing() | self.points.no_harder_than(cell)
        return mask

    def column(self, cell: Cell) -> Mask:
        """Points that differ from a cell in their window only."""
        points = self.points
        mask: Mask = self.nothing() | (
            points.has_extra(cell.extra)
            & (points.depth == cell.depth)
            & (points.graphs == cell.graphs)
            & (points.utilization == cell.utilization)
        )
        return mask

    def neighbours(self, cell: Cell) -> Mask:
        """Points one step away on one axis."""
        mask = self.nothing()
        place = self._place(cell)
        for axis in _ORDERED:
            for step in (-1, 1):
                index = place[axis] + step
                if 0 <= index < self.shape[axis]:
                    mask[(*place[:axis], index, *place[axis + 1 :])] = True
        return mask

    def distance(self, cell: Cell) -> Ints:
        """Steps from a cell (which may lie between points) to every point, over all axes."""
        steps = np.zeros(self.shape, dtype=np.int64)
        for axis, values, value in (
            (DEPTH, self.depths, cell.depth),
            (CONTEXT, self.contexts, cell.context),
            (GRAPHS, self.graphs, cell.graphs),
            (UTILIZATION, -self.utilizations, -cell.utilization),
        ):
            at = int(np.searchsorted(values, value))
            steps = steps + self._along(axis, np.abs(np.arange(len(values)) - at))
        return steps

    # Extremes over everything that asks for more, or less

    def highest_among_harder(self, values: Floats) -> Floats:
        """For every point the highest value of the points that ask for strictly more."""
        return self._strict(np.maximum, values, -np.inf, harder=True)

    def lowest_among_easier(self, values: Floats) -> Floats:
        """For every point the lowest value of the points that ask for strictly less."""
        return self._strict(np.minimum, values, np.inf, harder=False)

    def count_harder(self, mask: Mask) -> Floats:
        """How many points of a mask ask for at least as much as each point."""
        return self._count(mask, harder=True)

    def count_easier(self, mask: Mask) -> Floats:
        """How many points of a mask ask for no more than each point."""
        return self._count(mask, harder=False)

    def _strict(self, best: np.ufunc, values: Floats, worst: float, *, harder: bool) -> Floats:
        running = values
        for axis in _ORDERED:
            turned = np.flip(running, axis) if harder else running
            turned = best.accumulate(turned, axis=axis)
            running = np.flip(turned, axis) if harder else turned
        result = np.full(self.shape, worst)
        for axis in _ORDERED:
            inner, outer = [slice(None)] * len(self.shape), [slice(None)] * len(self.shape)
            inner[axis], outer[axis] = slice(0, -1), slice(1, None)
            here, there = (inner, outer) if harder else (outer, inner)
            result[tuple(here)] = best(result[tuple(here)], running[tuple(there)])
        return result

    def _count(self, mask: Mask, *, harder: bool) -> Floats:
        running = (mask & self.exists).astype(float)
        for axis in _ORDERED:
            turned = np.flip(running, axis) if harder else running
            turned = np.cumsum(turned, axis=axis)
            running = np.flip(turned, axis) if harder else turned
        return running

    @staticmethod
    def _along(axis: int, values: NDArray[Any]) -> NDArray[Any]:
        """Values of an axis in the shape that broadcasts along it."""
        shape = [1] * 5
        shape[axis] = len(values)
        placed: NDArray[Any] = values.reshape(shape)
        return placed

    def _place(self, cell: Cell) -> tuple[int, int, int, int, int]:
        return (
            self._extra_at[cell.extra],
            int(np.searchsorted(self.depths, cell.depth)),
            int(np.searchsorted(self.contexts, cell.context)),
            int(np.searchsorted(self.graphs, cell.graphs)),
            int(np.searchsorted(-self.utilizations, -cell.utilization)),
        )
