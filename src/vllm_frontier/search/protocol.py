"""What a search is: asked for the next cell, told how each attempt ended."""

from __future__ import annotations

from typing import Protocol

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Status


class Search(Protocol):
    """Decides which cell is launched next. Pure: no clock, no files, no Ray.

    A search is told about earlier attempts first (when a sweep is resumed), and may be asked
    again while other attempts are still running.
    """

    @property
    def planned(self) -> tuple[Cell, ...]:
        """The cells it means to launch, in order, finished ones included."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing is left to ask for and nothing asked for is still out."""
        ...

    def ask(self) -> Cell | None:
        """The next cell to launch; None when there is none now (or none at all)."""
        ...

    def tell(self, cell: Cell, status: Status) -> None:
        """An attempt at the cell has ended."""
        ...
