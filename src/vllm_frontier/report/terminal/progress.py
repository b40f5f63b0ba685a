"""How a running sweep looks in the terminal: a live line where there is one, else a log."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome, Purpose, Status
from vllm_frontier.report.again import launched_again
from vllm_frontier.report.wording import several
from vllm_frontier.search import Ask
from vllm_frontier.trial import Progress

_MARKS = {
    Status.MEASURED: ("✓", "green"),
    Status.INFEASIBLE: ("✗", "red"),
    Status.INVALID: ("!", "magenta"),
    Status.FAILED: ("?", "yellow"),
}
_AGAIN = (Purpose.REPLICATE, Purpose.REFERENCE)
_PURPOSES = {
    Purpose.AUDIT: " (spot check)",
    Purpose.SPEED: " (for its speed)",
    Purpose.SPEED_CHECK: " (speed, spot check)",
    Purpose.REPLICATE: " (replicate)",
    Purpose.REFERENCE: " (reference cell, for drift)",
}


class ProgressDisplay:
    """Cells known of planned, the cell running and its phase, launches and time left.

    Args:
        console: where to.
        expected: asked once, where a sweep begins that need not launch every cell: the launches
            that its plan has. A search that has met nothing yet expects too few.
    """

    def __init__(
        self, console: Console, expected: Callable[[], Sequence[Ask]] = lambda: ()
    ) -> None:
        self._console = console
        self._expected = expected
        self._live: Live | None = None
        self._planned = 0
        self._known = 0
        self._launches_left = 0
        self._infers = False  # whether cells and launches are not the same number
        self._walls: list[float] = []
        self._running: dict[Cell, tuple[float, str]] = {}

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the live line while the block runs, where the output is a terminal that can."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            yield
            return
        with Live(self, console=self._console, refresh_per_second=4, transient=True) as live:
            self._live = live
            yield

    def began(self, *, planned: int, done: int, resumed: bool, outside: int, folder: Path) -> None:
        """The sweep starts or goes on."""
        self._planned = planned
        self._notice_inference()
        word = "Resuming" if resumed else "Starting"
        known = f", {max(done, self._known)} of them done already" if resumed else ""
        asks = self._expected() if self._infers and not resumed else ()
        self._launches_left = len(asks) or self._launches_left
        left = several(self._launches_left, "launch", "launches")
        again = launched_again(
            *(sum(ask.purpose is each for ask in asks) for each in _AGAIN),
        )
        expected = f", about {left} expected" if self._infers else ""
        expected += f" ({again} among them)" if again else ""
        self._console.print(
            f"{word} {planned} cells{known}{expected}; results in {folder}",
            soft_wrap=True,
            markup=False,
        )
        if outside:
            self._console.print(
                f"The grid was another one before: {outside} cells of it stay in the tables, and "
                "`resume` goes on with the grid of now.",
                soft_wrap=True,
                markup=False,
            )

    def outlook(self, known: int, launches_left: int) -> None:
        """So many cells have an answer, and so many launches are yet expected."""
        self._known, self._launches_left = known, launches_left
        self._notice_inference()

    def _notice_inference(self) -> None:
        self._infers |= self._planned > 0 and self._launches_left != self._planned - self._known

    def attempt_began(self, cell: Cell, number: int) -> None:
        """A cell is being launched."""
        again = f", attempt {number}" if number > 1 else ""
        self._running[cell] = (time.monotonic(), f"starting{again}")
        if self._live is None:
            self._say(f"[{self._known}/{self._planned}] {cell.label()}{again} ...", "dim")

    def attempt_moved(self, cell: Cell, progress: Progress) -> None:
        """A running attempt came to another phase."""
        if cell in self._running:
            words = f"{progress.phase.value} {progress.detail}".strip()
            self._running[cell] = (self._running[cell][0], words)

    def attempt_ended(self, cell: Cell, outcome: Outcome) -> None:
        """One line for an attempt that ended."""
        began, _ = self._running.pop(cell, (time.monotonic(), ""))
        self._walls.append(time.monotonic() - began)
        mark, style = _MARKS.get(outcome.status, ("·", "dim"))
        line = f"{mark} {cell.label()}  {_result(outcome)}{_PURPOSES.get(outcome.purpose, '')}"
        if self._live is None:  # where there is no live line that says how far it is
            line += f"  [{', '.join(self._how_far())}]"
        self._say(line, style)

    def warn(self, text: str) -> None:
        """Something that a person should know."""
        self._say(text, "yellow")

    def __rich__(self) -> RenderableType:
        """The live block: a bar, and a line for each cell that is running."""
        head = Table.grid(padding=(0, 1))
        head.add_row(
            ProgressBar(total=max(1, self._planned), completed=self._known, width=16),
            ", ".join(self._how_far()),
        )
        lines: list[RenderableType] = [head]
        for cell, (began, words) in self._running.items():
            elapsed = time.monotonic() - began
            lines.append(Spinner("dots", Text(f"{cell.label()}: {words} ({elapsed:.0f} s)")))
        return Group(*lines)

    def _how_far(self) -> list[str]:
        """Cells first; launches, too, where they are not the same."""
        words = [f"{self._known}/{self._planned} cells"]
        if self._infers:
            words[0] += " known"
            made = len(self._walls)
            words.append(f"launch {made} of about {made + self._launches_left}")
        seconds = self._seconds_left()
        if seconds:
            told = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
            words.append(f"{told} left")
        return words

    def _seconds_left(self) -> float:
        if not self._walls:
            return 0.0
        parallel = max(1, len(self._running))
        return statistics.mean(self._walls) * self._launches_left / parallel

    def _say(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def _result(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return f"{outcome.status.value}: {outcome.failure.failure_class.value}"
    if outcome.speed is not None:
        return f"{outcome.speed.decode_tok_s:.1f} tok/s"
    return "works" if outcome.status is Status.MEASURED else outcome.status.value
