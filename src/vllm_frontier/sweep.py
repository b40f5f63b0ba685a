"""Run a sweep: bring configuration, store, search and schedule together.

This is the driver's side. It is the only writer of the sweep's folder (a launch writes its
own log), it turns outcomes into rows as they arrive, and it makes the tables at the end,
however the sweep ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vllm_frontier import ray_settings
from vllm_frontier.cards import own_cards
from vllm_frontier.contention import MemoryState, read_state
from vllm_frontier.doctor import looks_like_path
from vllm_frontier.engine.registry import create_engine
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import Cell
from vllm_frontier.identity import identify
from vllm_frontier.launch.leftovers import ProcessId, end_leftovers, remove_tmp
from vllm_frontier.outcome import Outcome, Status
from vllm_frontier.search import Search, create_search
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.store import records, rows
from vllm_frontier.store.paths import AttemptPaths
from vllm_frontier.store.sweep_store import SweepStore

if TYPE_CHECKING:
    from vllm_frontier.schedule import OpenAttempt
    from vllm_frontier.trial import Progress


class Display(Protocol):
    """Who shows a person how the sweep goes."""

    def began(self, *, planned: int, done: int, resumed: bool, outside: int, folder: Path) -> None:
        """The sweep starts; `done` of the `planned` cells have their outcome already.

        `outside` cells are in the folder, but not in the grid: it was another one before.
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


@dataclass(frozen=True, slots=True)
class Finished:
    """How a sweep ended: cells by the status of the attempt that counts, and those left."""

    cells: Mapping[Cell, Status]
    planned: int

    @property
    def failed(self) -> int:
        """Cells that ended `failed`, retries included."""
        return sum(status is Status.FAILED for status in self.cells.values())

    @property
    def left(self) -> int:
        """Cells that the budget did not reach."""
        open_ones = sum(status is Status.INTERRUPTED for status in self.cells.values())
        return self.planned - len(self.cells) + open_ones


def run_sweep(
    spec: SweepSpec, document: Mapping[str, Any], folder: Path, display: Display
) -> Finished:
    """Launch what is left of a sweep, and make its tables.

    Args:
        spec: the sweep.
        document: its configuration as sweep.yaml keeps it.
        folder: where it is (to be) kept.
        display: told about everything that happens.

    Raises:
        ConfigError, EngineError: the sweep cannot run on this machine.
        StoreError: the folder holds something else, or is being written.
        Interrupted: a signal arrived; the tables are made all the same.
    """
    check_model(spec)
    version = create_engine(spec).version()
    cards = own_cards(spec)
    identity = identify(spec, version)
    cells = spec.grid.cells()
    search = create_search(cells, spec.search, spec.schedule)
    store, resumed = SweepStore.create_or_open(folder, document, identity)
    with store:
        driver = _Driver(spec, identity, version, store, display)
        driver.tell_earlier(search)
        display.began(
            planned=len(cells),
            done=driver.done(cells),
            resumed=resumed,
            outside=driver.outside(cells),
            folder=folder,
        )
        try:
            if not search.finished:
                _schedule(search, spec, identity, cards, driver)
        finally:
            driver.end_open_attempts()
            make_tables(store, spec)
    return Finished(cells=driver.settled(cells), planned=len(cells))


def make_tables(store: SweepStore, spec: SweepSpec) -> None:
    """Write trials, runs, frontier and boundaries from the attempts of a sweep."""
    from vllm_frontier.analyze.derived import derived_tables
    from vllm_frontier.store import tables

    planned = tables.planned(spec.grid.cells()).lazy()
    store.compact(derive=partial(derived_tables, planned=planned))


def check_model(spec: SweepSpec) -> None:
    """Refuse a model id that can only be a folder and is none, before anything is launched."""
    if spec.engine.kind == "simulated" or spec.engine.command is not None:
        return
    for key, value in (
        ("model.id", spec.model.id),
        ("model.speculation.model", spec.model.speculation.model),
    ):
        if value is not None and looks_like_path(value) and not Path(value).expanduser().is_dir():
            raise ConfigError(f"{key} is {value}, but there is no such folder")


def _schedule(
    search: Search,
    spec: SweepSpec,
    identity: SweepIdentity,
    cards: tuple[str, ...],
    driver: _Driver,
) -> None:
    ray_settings.apply(own_cluster=spec.schedule.address is None)
    from vllm_frontier import schedule

    began = time.monotonic()
    limit_h = spec.search.max_hours

    def out_of_time() -> bool:
        return limit_h is not None and time.monotonic() - began > limit_h * 3600

    plan = schedule.Plan(
        spec=spec,
        identity=identity,
        environment=driver.environment,
        cards=cards,
        baseline=driver.baseline(cards),
        out_of_time=out_of_time,
    )
    schedule.run(search, plan, driver)


class _Driver:
    """Turns what the schedule tells into files, and passes it on to the display."""

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
        self._open: dict[tuple[Cell, int], AttemptPaths] = {}
        self._statuses: dict[Cell, Status] = {}
        # As it is before Ray changes it: launches inherit this and nothing of Ray's.
        self.environment = dict(os.environ)

    def tell_earlier(self, search: Search) -> None:
        """What earlier runs of this sweep already learned; what they left running is ended."""
        for record in self._store.outcomes():
            if record.status is Status.INTERRUPTED:
                _end_leftovers(record.launch)
            self._note(record.cell, record.status)
            search.tell(record.cell, record.status)

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

    def done(self, cells: tuple[Cell, ...]) -> int:
        """How many of the cells need no further launch."""
        return sum(self._statuses[cell].is_final for cell in cells if cell in self._statuses)

    def outside(self, cells: tuple[Cell, ...]) -> int:
        """How many cells of earlier runs the grid no longer has."""
        return len(self._statuses.keys() - set(cells))

    def settled(self, cells: tuple[Cell, ...]) -> dict[Cell, Status]:
        """The status of every cell that has one."""
        return {cell: self._statuses[cell] for cell in cells if cell in self._statuses}

    def open_attempt(self, cell: Cell) -> OpenAttempt:
        """Make the folder of an attempt and the record that stands until it ends."""
        from vllm_frontier.schedule import OpenAttempt

        paths = self._store.new_attempt(self._identity.cell_id(cell))
        row = rows.interrupted_row(
            self._spec,
            self._identity,
            cell,
            paths.number,
            started_at=time.time(),
            engine_version=self._version,
        )
        self._store.write_attempt(paths, row, {})
        self._open[cell, paths.number] = paths
        self._display.attempt_began(cell, paths.number)
        record = partial(records.write_attempt, paths, row)
        return OpenAttempt(number=paths.number, folder=paths.root, record=record)

    def progress(self, cell: Cell, progress: Progress) -> None:
        """Pass on a phase."""
        self._display.attempt_moved(cell, progress)

    def ended(self, cell: Cell, attempt: int, outcome: Outcome, log: bytes | None) -> None:
        """Write what an attempt came to; its outcome file last."""
        paths = self._open.pop((cell, attempt))
        if log is not None:
            self._store.write_log(paths, log)
        trial = rows.trial_row(
            self._spec, self._identity, cell, attempt, outcome, engine_version=self._version
        )
        runs = rows.run_rows(self._spec, self._identity, cell, attempt, outcome)
        self._store.write_outcome(paths, trial, runs)
        self._note(cell, outcome.status)
        self._display.attempt_ended(cell, outcome)

    def end_open_attempts(self) -> None:
        """After an interruption: whatever a killed worker could not end or remove itself."""
        for paths in self._open.values():
            _end_leftovers(records.read_launch(paths))

    def _note(self, cell: Cell, status: Status) -> None:
        """Keep the status that counts: the last final one, else the last."""
        known = self._statuses.get(cell)
        if known is None or not known.is_final or status.is_final:
            self._statuses[cell] = status


def _end_leftovers(launch: Mapping[str, Any]) -> None:
    """End what an interrupted launch left on this machine, by pid and start time."""
    supervisor = launch.get("supervisor") or {}
    if supervisor.get("host") != os.uname().nodename:
        return
    end_leftovers(ProcessId(supervisor["pid"], supervisor["start_time"]), None)
    if launch.get("tmp"):
        remove_tmp(Path(launch["tmp"]))
