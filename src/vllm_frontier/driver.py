"""The driver of a sweep: the only process that writes its folder.

It turns what the schedule tells into files, ends and removes what lost or earlier attempts
left on this machine, and passes everything on to a display.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from vllm_frontier.contention import MemoryState, read_state
from vllm_frontier.engine.log import last_lines
from vllm_frontier.engine.registry import create_engine
from vllm_frontier.grid import Cell
from vllm_frontier.launch.folders import remove_tmp_of
from vllm_frontier.launch.leftovers import end_leftovers
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.launch.secrets import conceal, conceal_in_file, secret_values
from vllm_frontier.outcome import Outcome, Status
from vllm_frontier.search import Ask, Search
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.store import records, rows
from vllm_frontier.store.paths import AttemptPaths
from vllm_frontier.store.sweep_store import SweepStore
from vllm_frontier.trial import Progress
from vllm_frontier.trial.plan import OpenAttempt


class Display(Protocol):
    """Who shows a person how the sweep goes."""

    def began(self, *, planned: int, done: int, resumed: bool, outside: int, folder: Path) -> None:
        """The sweep starts; of `done` of the `planned` cells all is known already.

        `outside` cells are in the folder, but not in the grid: it was another one before.
        """
        ...

    def outlook(self, known: int, launches_left: int) -> None:
        """How many cells have an answer now, inferred ones included; launches yet expected.

        Told before the sweep begins, and before each attempt that ended.
        """
        ...

    def attempt_began(self, cell: Cell, number: int) -> None:
        """A cell is being launched."""
        ...

    def attempt_moved(self, cell: Cell, progress: Progress) -> None:
        """A running attempt came to another phase."""
        ...

    def attempt_ended(self, cell: Cell, outcome: Outcome) -> None:
        """An attempt ended."""
        ...

    def warn(self, text: str) -> None:
        """Something that a person should know, in one line."""
        ...


class Driver:
    """Turns what the schedule tells into files, and passes it on to the display.

    Attributes:
        environment: the environment as it is before Ray changes it; launches inherit this and
            nothing of Ray's.
        aside: cards (UUIDs) that were set aside and not taken back, and why.
    """

    def __init__(
        self,
        spec: SweepSpec,
        identity: SweepIdentity,
        version: str,
        store: SweepStore,
        display: Display,
    ) -> None:
        self._spec = spec
        self._identity = identity
        self._version = version
        self._store = store
        self._display = display
        self._engine = create_engine(spec)
        self._open: dict[tuple[Cell, int], AttemptPaths] = {}
        self._rows: dict[tuple[Cell, int], Mapping[str, Any]] = {}
        self._statuses: dict[Cell, Status] = {}
        self._search: Search | None = None
        self._sequence = 0
        self.environment = dict(os.environ)
        self.aside: dict[tuple[str, ...], str] = {}

    # Earlier runs of the sweep

    def tell_earlier(self, search: Search) -> None:
        """What earlier runs of this sweep already learned; what they left running is ended.

        Files that are damaged are set aside first, and their cells run again.
        """
        attempts, damaged = self._store.take_stock()
        for damage in damaged:
            self._display.warn(f"{damage}; its cell runs again")
        if self._store.changed is not None:
            self._display.warn(f"Not the sweep that was begun here: {self._store.changed}")
        for record in records.in_order(attempts):
            if record.status is Status.INTERRUPTED:
                self._clean_up(
                    record.cell, self._store.paths.attempt(record.cell_id, record.attempt)
                )
            self._sequence = max(self._sequence, record.sequence)
            self._note(record.cell, record.status)
            search.tell(record.cell, record.outcome())
        self._search = search
        self._show_outlook()

    def baseline(self, cards: tuple[str, ...]) -> MemoryState:
        """What is in use while nothing of this sweep runs; on a card the least of all its runs.

        What an earlier run left behind, and could not be ended, is so never taken for the
        baseline.
        """
        found = read_state(cards, host=self._spec.card.kind == "cpu")
        if cards:
            for paths in self._store.paths.existing_attempts():
                earlier = records.read_launch(paths).get("memory_baseline") or {}
                found = found.lowest(earlier.get("used_gib") or {})
        return found

    def outside(self, cells: tuple[Cell, ...]) -> int:
        """How many cells of earlier runs the grid no longer has."""
        return len(self._statuses.keys() - set(cells))

    def settled(self, cells: tuple[Cell, ...]) -> dict[Cell, Status]:
        """The status of every cell that has one."""
        return {cell: self._statuses[cell] for cell in cells if cell in self._statuses}

    # What the schedule tells

    def open_attempt(self, wanted: Ask) -> OpenAttempt:
        """Make the folder of an attempt and the record that stands until it ends."""
        cell = wanted.cell
        paths = self._store.new_attempt(self._identity.cell_id(cell))
        row = rows.interrupted_row(
            self._spec,
            self._identity,
            cell,
            paths.number,
            started_at=time.time(),
            engine_version=self._version,
            changed=self._store.changed,
            purpose=wanted.purpose,
            with_speed=wanted.with_speed,
            sequence=self._following(),
        )
        self._store.write_attempt(paths, row, {})
        self._open[cell, paths.number] = paths
        self._rows[cell, paths.number] = row
        self._display.attempt_began(cell, paths.number)
        return OpenAttempt(number=paths.number, folder=paths.root)

    def prepared(self, cell: Cell, attempt: int, launch: Mapping[str, Any]) -> None:
        """Write down who holds a launch together, before there is a launch."""
        self._store.write_attempt(self._open[cell, attempt], self._rows[cell, attempt], launch)

    def progress(self, cell: Cell, progress: Progress) -> None:
        """Pass on a phase."""
        self._display.attempt_moved(cell, progress)

    def lost(self, cell: Cell, attempt: int) -> str | None:
        """End and remove what a lost worker left; the end of its log."""
        paths = self._open[cell, attempt]
        secrets = self._clean_up(cell, paths)
        return conceal(last_lines(paths.server_log), secrets)

    def ended(self, cell: Cell, attempt: int, outcome: Outcome, log: bytes | None) -> None:
        """Write what an attempt came to; its outcome file last."""
        paths = self._open[cell, attempt]
        if log is not None:
            self._store.write_log(paths, log)
        trial = rows.trial_row(
            self._spec,
            self._identity,
            cell,
            attempt,
            outcome,
            engine_version=self._version,
            changed=self._store.changed,
            sequence=self._following(),
        )
        made = (self._spec, self._identity, cell, attempt, outcome)
        self._store.write_outcome(paths, trial, rows.run_rows(*made), rows.telemetry_rows(*made))
        del self._open[cell, attempt], self._rows[cell, attempt]
        self._note(cell, outcome.status)
        self._show_outlook()
        self._display.attempt_ended(cell, outcome)

    def set_aside(self, cards: tuple[str, ...], reason: str) -> None:
        """Remember, and say, that cards are not used any more."""
        self.aside[cards] = reason
        self._display.warn(f"{_named(cards)} set aside: {reason}")

    def taken_back(self, cards: tuple[str, ...]) -> None:
        """Cards are used again."""
        if self.aside.pop(cards, None) is not None:
            self._display.warn(f"{_named(cards)} used again: the memory is back")

    def end_open_attempts(self) -> None:
        """After an interruption: whatever a killed worker could not end or remove itself."""
        for (cell, _), paths in self._open.items():
            self._clean_up(cell, paths)

    def _clean_up(self, cell: Cell, paths: AttemptPaths) -> tuple[str, ...]:
        """End what a launch without an outcome left on this machine, by pid and start time.

        Returns:
            The secrets of that launch, as far as this process knows them.
        """
        launch = records.read_launch(paths)
        supervisor, worker = (_process_here(launch.get(who)) for who in ("supervisor", "worker"))
        tmp = Path(launch["tmp"]) if isinstance(launch.get("tmp"), str) else None
        if worker is not None and worker.alive() and worker.pid != os.getpid():
            supervisor = tmp = None  # it runs for a sweep that this folder is a copy of
        if supervisor is not None:
            end_leftovers(supervisor, None, tmp=tmp)
        if worker is not None and tmp is not None:
            remove_tmp_of(worker, tmp)
        plan = self._engine.plan_launch(cell, port=0, served_name="", cards=())
        given = {name: value for name, value in plan.env.items() if value is not None}
        secrets = secret_values({**self.environment, **given}, plan.argv)
        with suppress(OSError):  # a full disk must not keep the rest from being cleaned up
            conceal_in_file(paths.server_log, secrets)
        return secrets

    def _following(self) -> int:
        """The next number: cards have clocks of their own, and attempts end in another order."""
        self._sequence += 1
        return self._sequence

    def _show_outlook(self) -> None:
        if self._search is not None:
            outlook = self._search.outlook
            self._display.outlook(outlook.known, outlook.launches_left)

    def _note(self, cell: Cell, status: Status) -> None:
        """Keep the status that counts: the last final one, else the last."""
        known = self._statuses.get(cell)
        if known is None or not known.is_final or status.is_final:
            self._statuses[cell] = status


def _process_here(told: Any) -> ProcessId | None:
    """A process of this machine as `attempt.json` tells it; None where it does not."""
    match told:
        case {"pid": int(pid), "start_time": str(start_time), "host": str(host)}:
            return ProcessId(pid, start_time) if host == os.uname().nodename else None
    return None


def _named(cards: tuple[str, ...]) -> str:
    return f"Card {cards[0]} is" if len(cards) == 1 else f"Cards {', '.join(cards)} are"
