"""What an engine is to the rest of the program.

An engine knows how its server is called, what its log means and why it failed. Everything
that differs between vLLM on a GPU, vLLM on a CPU and the simulated card stays behind this
protocol; nothing outside `engine` asks which one it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Failure, Phase, StartupFacts


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything a launch is, before it happens.

    Attributes:
        argv: the command, `argv[0]` an executable.
        env: variables to set on top of the inherited environment; None removes one.
        port: the loopback port the server is told to listen on.
        served_name: a model name that only this launch knows.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str | None]
    port: int
    served_name: str


@dataclass(frozen=True, slots=True)
class LogReading:
    """What a complete or growing server log says.

    Attributes:
        phase: the last phase that the log shows, `ready` once the server listens.
        started: whether the server came up.
        facts: memory facts, whether or not it came up.
        failure: why it did not (or no longer does) serve; None for a healthy log.
        ready_line: the line that shows that it came up, with its number; None where it did not.
        stop_line: the line that shows that a server that was well was told to stop.
        last_line: the last line that says something, while nothing is decided.
    """

    phase: Phase
    started: bool
    facts: StartupFacts
    failure: Failure | None
    ready_line: tuple[int, str] | None = None
    stop_line: tuple[int, str] | None = None
    last_line: tuple[int, str] | None = None


class Engine(Protocol):
    """One kind of server that can be launched, read and measured."""

    @property
    def kind(self) -> str:
        """The word of the `engine` column: vllm, vllm-cpu or simulated."""
        ...

    @property
    def time_scale(self) -> float:
        """Seconds that pass per second the server reports: 1, unless the card is simulated."""
        ...

    def version(self) -> str:
        """The engine's version, without starting it (under a second).

        Raises:
            EngineError: the interpreter or the package is not there.
        """
        ...

    def plan_launch(
        self, cell: Cell, *, port: int, served_name: str, cards: tuple[str, ...]
    ) -> LaunchPlan:
        """The command and environment for a cell; `cards` are UUIDs, empty on a CPU."""
        ...

    def serve_arguments(self, cell: Cell) -> tuple[str, ...]:
        """The arguments for a cell as a person would give them to `vllm serve`."""
        ...

    def read_log(
        self, log: Path, *, exit_code: int | None = None, signal: int | None = None
    ) -> LogReading:
        """Read a server log; with an exit code or signal, also say why the server ended."""
        ...
