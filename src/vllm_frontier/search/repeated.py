"""A search, and launches of measured cells again: replicates, and one cell that shows drift."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome, Purpose, Status
from vllm_frontier.search.protocol import Ask, Outlook, Search
from vllm_frontier.search.reference import Reference
from vllm_frontier.search.replicates import Replicates
from vllm_frontier.spec import WorkloadSpec


class Repeated:
    """Launches what another search asks for, and measured cells again.

    Replicates come when the search has finished, so that an early end leaves its whole map. The
    first cell that was measured is the reference cell; it is launched again in the middle and at
    the end. What these launches tell of a cell the search is told as well; that one of them failed
    says nothing, and is kept from it.

    Only what was told decides, so that a sweep that goes on after a crash goes on as it would have.

    Args:
        search: what asks first, without a budget.
        cells: the grid; only its cells are launched again.
        workload: how often cells are launched, and whether there is a reference cell.
        seed: draws the order of replicates.
        retries: how often a failed launch is tried again.
        max_launches: how many launches may be asked for in all (None: no limit).
    """

    def __init__(
        self,
        search: Search,
        cells: Iterable[Cell],
        workload: WorkloadSpec,
        *,
        seed: int = 0,
        retries: int = 1,
        max_launches: int | None = None,
    ) -> None:
        self._search = search
        self._cells = frozenset(cells)
        self._wanted = workload.replicates
        self._replicates = Replicates(workload.replicates, seed=seed, retries=retries)
        self._reference: Reference | None = None
        if workload.reference:
            self._reference = Reference(always=workload.replicates > 1, retries=retries)
        self._left = max_launches
        self._out: set[Cell] = set()
        # Asked for by the search while the same cell is out for its speed.
        self._held: Ask | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing is left to ask for and nothing asked for is still out."""
        if self._out or self._held is not None:
            return False
        return self._left == 0 or not self._wants_more()

    @property
    def cut_short(self) -> bool:
        """Whether it would launch more, had its budget of launches not been used up."""
        return self._left == 0 and self._wants_more()

    @property
    def outlook(self) -> Outlook:
        """How far it is, and what it expects, launches of measured cells again included."""
        inner = self._search.outlook
        left, speeds_left = self._expected(inner)
        if self._reference is not None:
            left += self._reference.expected(self._replicates.first(), left, speeds_left)
        if self._left is not None:
            left = min(left, self._left + len(self._out))
        return Outlook(known=inner.known, launches_left=left, speeds_left=min(speeds_left, left))

    def ask(self) -> Ask | None:
        """The next launch; None while others have to end first, and at the end."""
        wanted = None if self._left == 0 else self._next()
        if wanted is None:
            return None
        if self._left is not None:
            self._left -= 1
        self._out.add(wanted.cell)
        return wanted

    def tell(self, cell: Cell, outcome: Outcome) -> None:
        """Learn from an attempt that has ended."""
        self._out.discard(cell)
        if concerns_search(outcome):
            if self._held is not None and self._held.cell == cell:
                self._held = None  # it asks once more, where it still wants to
            self._search.tell(cell, outcome)
        if outcome.status is Status.INTERRUPTED:
            return
        if cell in self._cells:
            self._note(cell, outcome)
        if self._reference is not None:
            self._reference.ended()

    # What has been measured

    def _note(self, cell: Cell, outcome: Outcome) -> None:
        status = outcome.status
        if status is Status.MEASURED:
            self._note_working(cell, outcome)
        elif status in (Status.INFEASIBLE, Status.INVALID):
            self._replicates.refused(cell)
            if self._reference is not None and outcome.purpose is Purpose.REFERENCE:
                self._reference.refused()
        elif outcome.purpose is Purpose.REPLICATE:
            self._replicates.failed(cell)
        elif outcome.purpose is Purpose.REFERENCE and self._reference is not None:
            self._reference.failed()

    def _note_working(self, cell: Cell, outcome: Outcome) -> None:
        # A launch whose speed nobody could tell counts, or it would be made over and over.
        if outcome.speed is not None or (outcome.with_speed and cell in self._replicates):
            self._replicates.add(cell)
            if self._reference is not None:
                self._reference.measured(cell)
        else:
            self._replicates.works(cell)
        if self._reference is not None and outcome.purpose is Purpose.REFERENCE:
            self._reference.launched()

    # What is wanted next

    def _next(self) -> Ask | None:
        if self._held is not None:
            return self._take_held()
        middle = self._middle()
        if middle is not None and middle not in self._out:
            return _again(middle, Purpose.REFERENCE)
        wanted = self._search.ask()
        if wanted is None:
            return self._own() if self._search.finished else None
        if wanted.cell in self._out:
            self._held = wanted
            return None
        return wanted

    def _take_held(self) -> Ask | None:
        held = self._held
        if held is None or held.cell in self._out:
            return None
        self._held = None
        return held

    def _own(self) -> Ask | None:
        """What is left when the search has finished."""
        cell = self._replicates.next(self._out)
        if cell is not None:
            return _again(cell, Purpose.REPLICATE)
        cell = self._end()
        return None if cell is None or self._out else _again(cell, Purpose.REFERENCE)

    def _wants_more(self) -> bool:
        return not self._search.finished or bool(self._replicates.lacking) or bool(self._end())

    def _middle(self) -> Cell | None:
        """The reference cell, where it is due in the middle."""
        reference = self._reference
        if reference is None or reference.had_middle:
            return None
        cell, enough = self._replicates.first(), reference.cells_wanted
        if cell is None or self._replicates.count(enough) < enough:
            return None
        left, speeds_left = self._expected(self._search.outlook)
        return cell if reference.middle_is_due(cell, left, speeds_left) else None

    def _end(self) -> Cell | None:
        """The reference cell, where it is due once nothing else is left."""
        cell = self._replicates.first()
        due = self._reference is not None and cell is not None and self._reference.end_is_due(cell)
        return cell if due else None

    def _expected(self, inner: Outlook) -> tuple[int, int]:
        """Launches that are left but for those of the reference cell, and how many with a speed."""
        if self._search.finished:  # it may have hoped for launches that turned out impossible
            return self._replicates.lacking, self._replicates.lacking
        further = self._replicates.lacking + (self._wanted - 1) * inner.speeds_left
        return inner.launches_left + further, inner.speeds_left + further


def concerns_search(outcome: Outcome) -> bool:
    """Whether the search is told: not of a launch of a measured cell that broke down.

    Such a cell has its answer all the same.
    """
    broke = outcome.status in (Status.FAILED, Status.INTERRUPTED)
    return not (outcome.purpose.repeats and broke)


def _again(cell: Cell, purpose: Purpose) -> Ask:
    return Ask(cell, purpose, with_speed=True)
