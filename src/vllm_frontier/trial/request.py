"""What an attempt is given, and what it tells while it runs."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_frontier import contention
from vllm_frontier.contention import MemoryState
from vllm_frontier.grid import Cell
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.outcome import Outcome, Phase, Purpose
from vllm_frontier.spec import SweepSpec


@dataclass(frozen=True, slots=True)
class AttemptRequest:
    """Everything one attempt needs; can be sent to another node.

    Attributes:
        log: where the server's output goes.
        environment: the complete environment that the launch starts from.
        cards: UUIDs of the cards it may use, empty on a CPU.
        baseline: what was in use before the sweep, on those cards or (kind `cpu`) on the host;
            None if not known.
        watch: further processes on this machine whose end ends the launch, such as the driver.
        purpose: what the launch is for; goes into the outcome.
        with_speed: whether to measure once the window is filled; else the attempt is done then.
    """

    spec: SweepSpec
    cell: Cell
    cell_id: str
    attempt: int
    log: Path
    environment: Mapping[str, str]
    cards: tuple[str, ...] = ()
    baseline: MemoryState | None = None
    watch: tuple[ProcessId, ...] = ()
    purpose: Purpose = Purpose.PROOF
    with_speed: bool = True

    @property
    def on_host(self) -> bool:
        """Whether the memory that a launch draws on is the machine's own."""
        return self.spec.card.kind == "cpu"

    def memory_state(self) -> MemoryState:
        """What is in use now, where `baseline` was read."""
        return contention.read_state(self.cards, host=self.on_host)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an attempt is: its phase, and a word more while it measures.

    `launch` comes once, when the supervisor runs and the server does not yet: the content of
    `attempt.json`, without secrets. Whoever asks for the next step has put it on disk before.
    """

    phase: Phase
    detail: str = ""
    launch: Mapping[str, Any] | None = None


Steps = Generator[Progress, None, Outcome]
"""An attempt under way: yields its progress, returns its outcome."""
