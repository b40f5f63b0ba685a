"""Which measured cell is launched again next, so that every cell has as many launches."""

from __future__ import annotations

import heapq
import random
from collections.abc import Container
from dataclasses import dataclass

from vllm_frontier.grid import Cell

# Launches so far, failures of the next one, the place within its block, and a number that is
# nobody else's.
_Place = tuple[int, int, float, int]


@dataclass(slots=True)
class _Standing:
    """How far a measured cell is; `settled` launches were measured or given up."""

    number: int
    settled: int = 0
    failures: int = 0
    works: bool = True
    lacking: int = 0
    place: _Place | None = None


class Replicates:
    """The cells that were measured, and the launches that they still lack.

    Launches come in blocks that hold every cell once. The order of a block is drawn, and every
    second block runs backwards, so that what changes steadily over time hits all cells alike.

    Args:
        wanted: launches of every cell.
        seed: draws the order.
        retries: how often a failed launch is tried again before it is given up.
    """

    def __init__(self, wanted: int, *, seed: int, retries: int) -> None:
        self._wanted = wanted
        self._seed = seed
        self._retries = retries
        self._cells: dict[Cell, _Standing] = {}  # in the order in which they were first measured
        self._waiting: list[tuple[_Place, Cell]] = []  # a heap; places that were left stay in it
        self._lacking = 0

    def __contains__(self, cell: Cell) -> bool:
        """Whether the cell was measured."""
        return cell in self._cells

    @property
    def lacking(self) -> int:
        """How many launches are left, of all cells that were measured."""
        return self._lacking

    def first(self) -> Cell | None:
        """Of the cells that work, the one that was measured first."""
        return next((cell for cell, each in self._cells.items() if each.works), None)

    def count(self, enough: int) -> int:
        """How many cells that work were measured, counted as far as `enough`."""
        found = 0
        for each in self._cells.values():
            found += each.works
            if found == enough:
                break
        return found

    def add(self, cell: Cell) -> None:
        """The cell was launched and measured, for whatever purpose."""
        each = self._cells.setdefault(cell, _Standing(len(self._cells)))
        each.settled += 1
        each.failures, each.works = 0, True
        self._place(cell, each)

    def works(self, cell: Cell) -> None:
        """A launch that measured nothing says that the cell works."""
        self._turn(cell, works=True)

    def refused(self, cell: Cell) -> None:
        """The cell turned out not to work: it is not launched again until it does."""
        self._turn(cell, works=False)

    def failed(self, cell: Cell) -> None:
        """A launch that was made for this failed, for a reason of its own."""
        each = self._cells.get(cell)
        if each is None:
            return
        each.failures += 1
        if each.failures > self._retries:
            each.settled, each.failures = each.settled + 1, 0
        self._place(cell, each)

    def next(self, out: Container[Cell]) -> Cell | None:
        """The cell that is launched next; None when none lacks a launch, or only such as are out.

        Args:
            out: cells that are being launched.
        """
        passed, found = [], None
        while self._waiting and found is None:
            place, cell = self._waiting[0]
            if self._cells[cell].place != place:
                heapq.heappop(self._waiting)
            elif cell in out:
                passed.append(heapq.heappop(self._waiting))
            else:
                found = cell
        for entry in passed:
            heapq.heappush(self._waiting, entry)
        return found

    def _turn(self, cell: Cell, *, works: bool) -> None:
        each = self._cells.get(cell)
        if each is not None and each.works is not works:
            each.works = works
            self._place(cell, each)

    def _place(self, cell: Cell, each: _Standing) -> None:
        lacking = max(0, self._wanted - each.settled) if each.works else 0
        self._lacking += lacking - each.lacking
        each.lacking = lacking
        each.place = None
        if lacking:
            within = self._within_block(cell, each.settled - 1)
            each.place = each.settled, each.failures, within, each.number
            heapq.heappush(self._waiting, (each.place, cell))

    def _within_block(self, cell: Cell, block: int) -> float:
        drawn, backwards = divmod(block, 2)
        place = random.Random(f"block {self._seed} {drawn} {cell.label()}").random()
        return -place if backwards else place
