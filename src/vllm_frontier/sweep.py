"""Run a sweep: bring configuration, store, search and schedule together.

Whatever ends a sweep, its tables are made from the outcomes that it has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_frontier import ray_settings
from vllm_frontier.cards import own_cards
from vllm_frontier.checkpoint import prior_for
from vllm_frontier.doctor import looks_like_path
from vllm_frontier.driver import Display, Driver
from vllm_frontier.engine.registry import create_engine
from vllm_frontier.errors import ConfigError, StoreError
from vllm_frontier.grid import Cell
from vllm_frontier.identity import identify
from vllm_frontier.launch.folders import remove_abandoned
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.outcome import Status
from vllm_frontier.search import Search, create_search
from vllm_frontier.signals import Signals
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.store.sweep_store import SweepStore

if TYPE_CHECKING:
    from vllm_frontier.trial.plan import Listener, Plan, Schedule


@dataclass(frozen=True, slots=True)
class Finished:
    """How a sweep ended.

    Attributes:
        cells: those that were launched, by the status of the attempt that counts.
        inferred: those that were not, and whose answer follows from others.
        planned: how many the grid has.
        out_of_budget: whether it would go on, had not the budget of the search, or the want of a
            card, ended it.
        aside: cards (UUIDs) that were set aside, and why.
    """

    cells: Mapping[Cell, Status]
    inferred: frozenset[Cell]
    planned: int
    out_of_budget: bool
    aside: Mapping[tuple[str, ...], str]

    @property
    def failed(self) -> int:
        """Cells that ended `failed`, retries included."""
        return sum(status is Status.FAILED for status in self.cells.values())

    @property
    def left(self) -> int:
        """Cells about which nothing is known: neither launched to an end nor inferred."""
        ended = {cell for cell, status in self.cells.items() if status is not Status.INTERRUPTED}
        return self.planned - len(ended | self.inferred)


def with_ray(search: Search, plan: Plan, listener: Listener) -> None:
    """Run a search under Ray Tune; see `trial.plan.Schedule`."""
    ray_settings.apply(own_cluster=plan.spec.schedule.address is None)
    from vllm_frontier import schedule

    schedule.run(search, plan, listener)


def run_sweep(
    spec: SweepSpec,
    document: Mapping[str, Any],
    folder: Path,
    display: Display,
    *,
    signals: Signals,
    allow_changed: bool = False,
    schedule: Schedule = with_ray,
) -> Finished:
    """Launch what is left of a sweep, and make its tables.

    Args:
        spec: the sweep.
        document: its configuration as sweep.yaml keeps it.
        folder: where it is (to be) kept.
        display: told about everything that happens.
        signals: in place; the first one ends the sweep.
        allow_changed: go on also where the engine's version, the card, the model or fixed
            arguments are others than before; the rows say so.
        schedule: runs the attempts.

    Raises:
        ConfigError, EngineError: the sweep cannot run on this machine.
        StoreError: the folder holds something else, or is being written, or cannot be.
        Interrupted: a signal arrived; the tables are made all the same.
    """
    check_model(spec)
    check_paths(folder)
    version = create_engine(spec).version()
    cards = own_cards(spec)
    identity = identify(spec, version)
    cells = spec.grid.cells()
    search = create_search(spec, prior_for(spec))
    with ExitStack() as closing:
        with signals.held():  # it is closed also where a signal comes while it is opened
            store, resumed = SweepStore.create_or_open(
                folder, document, identity, allow_changed=allow_changed
            )
            closing.enter_context(store)
        signals.check()
        identity = store.identity
        driver = Driver(spec, identity, version, store, display)
        driver.tell_earlier(search)
        remove_abandoned()
        display.began(
            planned=len(cells),
            done=search.outlook.known,
            resumed=resumed,
            outside=driver.outside(cells),
            folder=folder,
        )
        with signals.held():
            try:
                if not search.finished:
                    schedule(search, _plan(spec, identity, cards, driver, signals), driver)
            except StoreError:  # the tables would only say the same once more
                driver.end_open_attempts()
                raise
            except BaseException:
                driver.end_open_attempts()
                make_tables(store, spec)
                raise
            inferred = make_tables(store, spec)
        signals.check()
    return Finished(
        cells=driver.settled(cells),
        inferred=inferred,
        planned=len(cells),
        out_of_budget=search.cut_short or not search.finished,
        aside=driver.aside,
    )


def _plan(
    spec: SweepSpec,
    identity: SweepIdentity,
    cards: tuple[str, ...],
    driver: Driver,
    signals: Signals,
) -> Plan:
    from vllm_frontier.trial.plan import Plan

    began = time.monotonic()
    limit_h = spec.search.max_hours

    def out_of_time() -> bool:
        return limit_h is not None and time.monotonic() - began > limit_h * 3600

    return Plan(
        spec=spec,
        identity=identity,
        environment=driver.environment,
        cards=cards,
        baseline=driver.baseline(cards),
        driver=ProcessId.of(os.getpid()),
        signals=signals,
        out_of_time=out_of_time,
    )


def make_tables(store: SweepStore, spec: SweepSpec) -> frozenset[Cell]:
    """Write trials, runs, frontier, boundaries and checks from the attempts of a sweep.

    Returns:
        The cells of the grid that were inferred.
    """
    from vllm_frontier.analyze.derived import derived_tables
    from vllm_frontier.inferred import inferred_rows
    from vllm_frontier.store import rows, tables

    planned = tables.planned(spec.grid.cells()).lazy()
    known = store.outcomes()
    inferred = inferred_rows(spec, store.identities, known, now=store.identity)
    derive = partial(
        derived_tables,
        planned=planned,
        method=spec.model.speculation.method,
        precision=spec.workload.precision,
    )
    store.compact(inferred, derive, known)
    return frozenset(rows.cell_of(row) for row in inferred)


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


def check_paths(folder: Path) -> None:
    """Refuse paths that Ray and JSON cannot hold, before anything is made.

    Where the locale is not UTF-8, these are all with other letters than those of ASCII.
    """
    places = {
        "the folder": folder.absolute(),
        "the current folder": Path.cwd(),
        # Not by `tempfile`, which would write there to see whether it can.
        "the folder for temporary files": Path(os.environ.get("TMPDIR") or "."),
    }
    for what, path in places.items():
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{what} {path} has letters that are not read as UTF-8, which Ray needs: set a "
                "locale that is, such as LC_ALL=C.UTF-8, or choose a folder with plain letters"
            ) from None
