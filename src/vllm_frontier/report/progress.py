"""How a running sweep looks in the terminal: a live line where there is one, else a log."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome, Status
from vllm_frontier.trial import Progress

_MARKS = {
    Status.MEASURED: ("✓", "green"),
    Status.INFEASIBLE: ("✗", "red"),
    Status.INVALID: ("!", "magenta"),
    Status.FAILED: ("?", "yellow"),
}


class ProgressDisplay:
    """Cells done of planned, the cell running and its phase, time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._planned = 0
        self._done = 0
        self._walls: list[float] = []
        self._running: dict[Cell, tuple[float, str]] = {}

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the live line while the block runs, where the output is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(self, console=self._console, refresh_per_second=4, transient=True) as live:
            self._live = live
            yield

    def began(self, *, planned: int, done: int, resumed: bool, outside: int, folder: Path) -> None:
        """The sweep starts or goes on."""
        self._planned, self._done = planned, done
        word = "Resuming" if resumed else "Starting"
        known = f", {done} of them done already" if resumed else ""
        self._console.print(f"{word} {planned} cells{known}; results in {folder}", soft_wrap=True)
        if outside:
            self._console.print(
                f"The grid was another one before: {outside} cells of it stay in the tables, and "
                "`resume` goes on with the grid of now.",
                soft_wrap=True,
            )

    def attempt_began(self, cell: Cell, number: int) -> None:
        """A cell is being launched."""
        again = f", attempt {number}" if number > 1 else ""
        self._running[cell] = (time.monotonic(), f"starting{again}")
        if self._live is None:
            self._say(f"[{self._done}/{self._planned}] {cell.label()}{again} ...", "dim")

    def attempt_moved(self, cell: Cell, progress: Progress) -> None:
        """A running attempt came to another phase."""
        if cell in self._running:
            words = f"{progress.phase.value} {progress.detail}".strip()
            self._running[cell] = (self._running[cell][0], words)

    def attempt_ended(self, cell: Cell, outcome: Outcome) -> None:
        """One line for an attempt that ended."""
        began, _ = self._running.pop(cell, (time.monotonic(), ""))
        self._walls.append(time.monotonic() - began)
        self._done += outcome.status.is_final
        mark, style = _MARKS.get(outcome.status, ("·", "dim"))
        line = f"{mark} {cell.label()}  {_result(outcome)}"
        if self._live is None:  # where there is no live line that says how far it is
            left = f", {self._left()} left" if self._left() else ""
            line += f"  [{self._done}/{self._planned}{left}]"
        self._say(line, style)

    def warn(self, text: str) -> None:
        """Something that a person should know."""
        self._say(text, "yellow")

    def __rich__(self) -> RenderableType:
        """The live block: a bar, and a line for each cell that is running."""
        head = Table.grid(padding=(0, 1))
        head.add_row(
            ProgressBar(total=max(1, self._planned), completed=self._done, width=24),
            f"{self._done}/{self._planned} cells",
            f"about {self._left()} left" if self._left() else "",
        )
        lines: list[RenderableType] = [head]
        for cell, (began, words) in self._running.items():
            elapsed = time.monotonic() - began
            lines.append(Spinner("dots", Text(f"{cell.label()}: {words} ({elapsed:.0f} s)")))
        return Group(*lines)

    def _left(self) -> str:
        if not self._walls:
            return ""
        parallel = max(1, len(self._running))
        seconds = statistics.mean(self._walls) * (self._planned - self._done) / parallel
        return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"

    def _say(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def _result(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return f"{outcome.status.value}: {outcome.failure.failure_class.value}"
    if outcome.speed is None:
        return outcome.status.value if outcome.with_speed else "works"
    return f"{outcome.speed.decode_tok_s:.1f} tok/s"
