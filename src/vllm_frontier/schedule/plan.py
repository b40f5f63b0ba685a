"""What a schedule is given, and whom it tells what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vllm_frontier.contention import MemoryState
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.trial import Progress

# Puts the description of a launch on disk, in the process that launches.
Record = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that has a folder; `record` can be sent to a worker of this machine."""

    number: int
    folder: Path
    record: Record


class Listener(Protocol):
    """Who is told what happens; every call is made in the driver's main thread."""

    def open_attempt(self, cell: Cell) -> OpenAttempt:
        """A cell is about to be launched: number and folder of the attempt."""
        ...

    def progress(self, cell: Cell, progress: Progress) -> None:
        """A running attempt moved on."""
        ...

    def ended(self, cell: Cell, attempt: int, outcome: Outcome, log: bytes | None) -> None:
        """An attempt ended; `log` is the server's log when it ran on another node."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What the schedule needs to know beside the search.

    Attributes:
        environment: what launches on this machine start from (never a Ray worker's own).
        cards: UUIDs of the cards of this machine that are used, empty on a CPU.
        baseline: what was in use on this machine before the sweep launched anything.
        out_of_time: asked before every launch; True ends the sweep.
    """

    spec: SweepSpec
    identity: SweepIdentity
    environment: Mapping[str, str]
    cards: tuple[str, ...]
    baseline: MemoryState
    out_of_time: Callable[[], bool]
