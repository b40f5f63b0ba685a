"""What a search is: asked for the next launch, told how each attempt ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome, Purpose


@dataclass(frozen=True, slots=True)
class Ask:
    """A launch that a search wants.

    Attributes:
        cell: what to launch.
        purpose: what for.
        with_speed: whether to measure speed, too, where the window can be filled.
    """

    cell: Cell
    purpose: Purpose = Purpose.PROOF
    with_speed: bool = True


@dataclass(frozen=True, slots=True)
class Outlook:
    """How far a search is.

    Attributes:
        known: cells whose answer is known, by a launch or by inference.
        launches_left: launches that it still expects to need.
        speeds_left: of these, about how many are expected to be measured.
    """

    known: int
    launches_left: int
    speeds_left: int = 0


class Search(Protocol):
    """Decides which cell is launched next. Pure: no clock, no files, no Ray.

    A search is told about earlier attempts first (when a sweep is resumed), and may be asked
    again while other attempts are still running.
    """

    @property
    def finished(self) -> bool:
        """Whether nothing is left to ask for and nothing asked for is still out."""
        ...

    @property
    def cut_short(self) -> bool:
        """Whether it would launch more, had its budget of launches not been used up."""
        ...

    @property
    def outlook(self) -> Outlook:
        """How far it is, and what it expects."""
        ...

    def ask(self) -> Ask | None:
        """The next launch; None when there is none now (or none at all)."""
        ...

    def tell(self, cell: Cell, outcome: Outcome) -> None:
        """An attempt at the cell has ended."""
        ...
