"""Launch every cell, in a given order, and failed ones again."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome, Status
from vllm_frontier.search.protocol import Ask, Outlook


class Exhaustive:
    """Every cell once; a cell that ended `failed` again, at most `retries` times.

    An `interrupted` attempt is no attempt at all: its cell keeps its place, and is launched again
    without using up a retry. One whose speed was not to be measured, as another search made it, is
    launched again at the end.

    Args:
        cells: the cells in the order in which they are launched.
        retries: how often a failed cell is tried again.
        max_launches: how many cells may be asked for (None: no limit).
    """

    def __init__(
        self, cells: Sequence[Cell], *, retries: int = 1, max_launches: int | None = None
    ) -> None:
        self._cells = tuple(cells)
        self._retries = retries
        self._left = max_launches
        self._known = frozenset(self._cells)
        # In order; a resumed sweep tells of thousands of cells, each must be found at once.
        self._pending = OrderedDict.fromkeys(self._cells)
        self._places = {cell: place for place, cell in enumerate(self._cells)}
        self._out: set[Cell] = set()
        self._failures: Counter[Cell] = Counter()
        self._ended = self._answered = self._measured = 0

    @property
    def cut_short(self) -> bool:
        """Whether cells are left that the budget does not allow."""
        return self._left == 0 and bool(self._pending)

    @property
    def outlook(self) -> Outlook:
        """Every cell is launched."""
        left = len(self._pending) + len(self._out)
        if self._left is not None:
            left = min(left, self._left + len(self._out))
        known = len(self._known) - len(self._pending) - len(self._out)
        # What is left is taken to work as often as what gave an answer.
        speeds = round(left * self._measured / self._answered) if self._answered else left
        return Outlook(known=known, launches_left=left, speeds_left=speeds)

    @property
    def finished(self) -> bool:
        """Whether every cell has its outcome, or the budget is used up."""
        return not self._out and (not self._pending or self._left == 0)

    def ask(self) -> Ask | None:
        """The next cell, None when none is left or the budget is used up."""
        if not self._pending or self._left == 0:
            return None
        if self._left is not None:
            self._left -= 1
        cell, _ = self._pending.popitem(last=False)
        self._out.add(cell)
        return Ask(cell)

    def tell(self, cell: Cell, outcome: Outcome) -> None:
        """Note how an attempt ended; one that failed goes to the end of the queue."""
        status = outcome.status
        if status is Status.INTERRUPTED:
            self._take_back(cell)
            return
        self._out.discard(cell)
        self._pending.pop(cell, None)
        self._ended += 1
        self._answered += status.is_final
        self._measured += status is Status.MEASURED
        self._failures[cell] += status is Status.FAILED
        unmeasured = status is Status.MEASURED and not outcome.with_speed
        again = unmeasured or (status is Status.FAILED and self._failures[cell] <= self._retries)
        if again and cell in self._known:
            self._pending[cell] = None
            self._places[cell] = len(self._cells) + self._ended

    def _take_back(self, cell: Cell) -> None:
        """Put a cell that was asked for back where it was; nobody else's turn changes."""
        if cell in self._out:
            self._out.discard(cell)
            places = self._places
            self._pending = OrderedDict.fromkeys(
                sorted([*self._pending, cell], key=places.__getitem__)
            )
