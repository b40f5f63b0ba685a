"""What whoever runs the attempts of a sweep is given, and whom it tells what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vllm_frontier.contention import MemoryState
from vllm_frontier.grid import Cell
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.outcome import Outcome
from vllm_frontier.search import Ask, Search
from vllm_frontier.signals import Signals
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.trial.request import Progress


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that has a folder."""

    number: int
    folder: Path


class Listener(Protocol):
    """Who is told what happens; every call is made in the driver's main thread.

    Each call may raise a FrontierError: the sweep's folder cannot be written. Nothing more is
    launched then, and what runs is ended.
    """

    def open_attempt(self, wanted: Ask) -> OpenAttempt:
        """A cell is about to be launched: number and folder of the attempt."""
        ...

    def prepared(self, cell: Cell, attempt: int, launch: Mapping[str, Any]) -> None:
        """Put the description of a launch on disk; its server is executed afterwards."""
        ...

    def progress(self, cell: Cell, progress: Progress) -> None:
        """A running attempt moved on."""
        ...

    def lost(self, cell: Cell, attempt: int) -> str | None:
        """The process that ran an attempt is gone: end and remove what it left.

        Returns:
            The last lines of the server's log, without secrets.
        """
        ...

    def ended(self, cell: Cell, attempt: int, outcome: Outcome, log: bytes | None) -> None:
        """An attempt ended; `log` is the server's log when it ran on another node."""
        ...

    def set_aside(self, cards: tuple[str, ...], reason: str) -> None:
        """Cards (UUIDs) are not used any more: their memory did not come back."""
        ...

    def taken_back(self, cards: tuple[str, ...]) -> None:
        """Cards that were set aside are used again: their memory came back."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be known beside the search.

    Attributes:
        environment: what launches on this machine start from (never a Ray worker's own).
        cards: UUIDs of the cards of this machine that are used, empty on a CPU.
        baseline: what was in use on this machine before the sweep launched anything.
        driver: this process, whose end ends every launch on this machine.
        signals: looked at between two steps.
        out_of_time: asked before every launch; True ends the sweep.
    """

    spec: SweepSpec
    identity: SweepIdentity
    environment: Mapping[str, str]
    cards: tuple[str, ...]
    baseline: MemoryState
    driver: ProcessId | None
    signals: Signals
    out_of_time: Callable[[], bool]


Schedule = Callable[[Search, Plan, Listener], None]
"""Runs a search to its end.

Raises Interrupted when a signal arrived, FrontierError when it cannot begin or go on; nothing of
any launch on this machine is then left running for longer than its supervisor needs.
"""
