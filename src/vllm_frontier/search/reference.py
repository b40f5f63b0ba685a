"""When the reference cell is launched again: its speeds show whether the machine drifts."""

from __future__ import annotations

from vllm_frontier.grid import Cell

# Of fewer launches that are measured, drift is not worth launches of its own.
_LAUNCHES_MIN = 6
# In the middle, so many cells must have a speed: of fewer it is too early to tell.
_CELLS_MIN, _CELLS_MIN_REPEATED = 3, 2


class Reference:
    """The launches of the reference cell: the first one is the search's, two more come here.

    Args:
        always: whether it is launched again however short the sweep is.
        retries: how often a failed launch is tried again before it is given up.
    """

    def __init__(self, *, always: bool, retries: int) -> None:
        self._always = always
        self._retries = retries
        self._measured = 0  # launches with a speed, of any cell
        self._last: Cell | None = None  # the cell of the last one
        self._ended = 0
        self._failures = 0
        self._had_middle = False
        self._gave_up_at: int | None = None

    @property
    def cells_wanted(self) -> int:
        """How many cells must have a speed before the middle comes."""
        return _CELLS_MIN_REPEATED if self._always else _CELLS_MIN

    @property
    def had_middle(self) -> bool:
        """Whether the launch in the middle is behind, with or without success."""
        return self._had_middle

    def ended(self) -> None:
        """A launch of any kind has ended."""
        self._ended += 1

    def measured(self, cell: Cell) -> None:
        """A launch has a speed."""
        self._measured += 1
        self._last = cell

    def launched(self) -> None:
        """A launch that was made for this has a speed."""
        self._had_middle, self._failures = True, 0

    def refused(self) -> None:
        """A launch that was made for this shows that the cell does not work: the next has a go."""
        self._failures = 0

    def failed(self) -> None:
        """A launch that was made for this failed, for a reason of its own."""
        self._failures += 1
        if self._failures > self._retries:
            self._had_middle, self._failures = True, 0
            self._gave_up_at = self._measured

    def middle_is_due(self, cell: Cell, left: int, speeds_left: int) -> bool:
        """Whether as many launches are behind as are left.

        Args:
            cell: the reference cell.
            left: launches that are expected, without those of the reference cell.
            speeds_left: of these, launches that are expected to be measured.
        """
        if self._had_middle or self._last == cell or not 0 < left <= self._ended:
            return False
        # A little less than expected: of a short sweep, little is known in its middle.
        return self._is_worth(round(speeds_left * self._ended / (self._ended + 1)))

    def end_is_due(self, cell: Cell) -> bool:
        """Whether it is launched at the end, where nothing else is left."""
        return self._last != cell and self._gave_up_at != self._measured and self._is_worth(0)

    def expected(self, cell: Cell | None, left: int, speeds_left: int) -> int:
        """How many launches of the reference cell are still to come."""
        if left == 0:
            return int(cell is not None and self.end_is_due(cell))
        if (cell is None and speeds_left == 0) or not self._is_worth(speeds_left):
            return 0
        # After its own launch, what measures nothing asks for no other one.
        end = speeds_left > 0 or not self._had_middle or self._last != cell
        return int(end) + (not self._had_middle)

    def _is_worth(self, speeds_left: int) -> bool:
        return self._always or self._measured + speeds_left >= _LAUNCHES_MIN
