"""Tune's view of a search: what to run next, and what became of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ray.tune.search import Searcher

from vllm_frontier.errors import FrontierError
from vllm_frontier.grid import Cell
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.outcome import Failure, FailureClass, Outcome, Phase, Status
from vllm_frontier.search import Ask, Search
from vllm_frontier.trial import Progress
from vllm_frontier.trial.plan import Listener, Plan

# A card that was set aside is looked at once a second; another one may just be between two
# attempts.
IDLE_LOOKS = 2


class Stopped(BaseException):
    """Leaves Tune's loop at once; why is in `SearchAdapter.problem`.

    Derives from BaseException so that Tune does not wrap it.
    """


class LastFault(logging.Handler):
    """Keeps what Tune logs about a trial that broke, for the evidence of its outcome."""

    UNKNOWN = "its Ray worker was lost"

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._text: str | None = None

    def take(self) -> str:
        """What was heard since the last time."""
        text, self._text = self._text or self.UNKNOWN, None
        return text

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen to Tune's log, and keep it out of the terminal."""
        logger = logging.getLogger("ray.tune")
        before = (logger.handlers, logger.propagate)
        logger.handlers, logger.propagate = [self], False
        try:
            yield
        finally:
            logger.handlers, logger.propagate = before

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the last line of the exception, which says what happened."""
        if record.exc_info is not None and record.exc_info[1] is not None:
            lines = [line for line in str(record.exc_info[1]).splitlines() if line.strip()]
            self._text = lines[-1].strip() if lines else type(record.exc_info[1]).__name__


@dataclass(slots=True)
class _Running:
    """An attempt under way; `started_at` is in seconds since the epoch.

    `worker` is its process where that is on this machine, `fault` what is known to have
    befallen it, `ended` its outcome, and its log where it ran on another node.
    """

    wanted: Ask
    number: int
    started_at: float
    worker: ProcessId | None = None
    fault: str | None = None
    ended: tuple[Outcome, bytes | None] | None = None

    @property
    def cell(self) -> Cell:
        """The cell that is tried."""
        return self.wanted.cell


class SearchAdapter(Searcher):  # type: ignore[misc]  # Ray has no types
    """Tune's view of a search. Lives in the driver."""

    def __init__(self, search: Search, plan: Plan, listener: Listener, faults: LastFault) -> None:
        super().__init__(metric="done", mode="max")
        self._search = search
        self._plan = plan
        self._listener = listener
        self._faults = faults
        self._running: dict[str, _Running] = {}
        self._parked: dict[str, tuple[str, ...]] = {}
        self._idle_looks = 0
        self._given_up = False
        # What kept results from being written; Tune would wrap it beyond recognition.
        self.problem: FrontierError | None = None

    # Tune asks and tells

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next attempt; FINISHED rather than None whenever nothing is running."""
        over = self._given_up or self._plan.out_of_time()
        wanted = None if over else self._search.ask()
        if wanted is None:
            return None if self._running else str(Searcher.FINISHED)
        with self._noted():
            opened = self._listener.open_attempt(wanted)
        self._running[trial_id] = _Running(wanted, opened.number, time.time())
        return {
            "cell": wanted.cell,
            "cell_id": self._plan.identity.cell_id(wanted.cell),
            "attempt": opened.number,
            "log": opened.folder / "server.log",
            "purpose": wanted.purpose,
            "with_speed": wanted.with_speed,
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Take in how far an attempt has come; Tune asks for the next step only afterwards."""
        running = self._running.get(trial_id)
        if running is None:
            return
        running.worker = result.get("worker")
        if "outcome" in result:
            self._park(trial_id, result)
            return
        progress: Progress = result["progress"]
        with self._noted():
            if progress.launch is not None:
                self._listener.prepared(running.cell, running.number, progress.launch)
            else:
                self._listener.progress(running.cell, progress)

    def hand_over(self, trial_id: str, outcome: Outcome, log: bytes | None) -> None:
        """Take what an attempt came to; recorded once Tune says that its trial is complete."""
        running = self._running.get(trial_id)
        if running is not None:
            running.ended = outcome, log

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record an outcome; without one, the worker was lost or our own code failed."""
        result = result or {}
        if trial_id in self._parked:
            cards = self._parked.pop(trial_id)
            if result.get("taken_back"):
                self._listener.taken_back(cards)
            return
        running = self._running.pop(trial_id)
        outcome, log = (None, None) if error or running.ended is None else running.ended
        self._record(running, outcome, log)

    def _record(self, running: _Running, outcome: Outcome | None, log: bytes | None) -> None:
        with self._noted():
            if outcome is None:
                tail = self._listener.lost(running.cell, running.number)
                outcome = _worker_lost(running.fault or self._faults.take(), running, tail)
            self._search.tell(running.cell, outcome)
            self._listener.ended(running.cell, running.number, outcome, log)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Leave the loop over a problem with the sweep's folder: nothing more can be recorded."""
        try:
            yield
        except FrontierError as problem:
            self.problem = problem
            raise Stopped from problem

    # Cards that are set aside

    def _park(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """The attempt is over, but its trial goes on: it holds the card that is not free."""
        running = self._running.pop(trial_id)
        self._parked[trial_id] = result["cards"]
        outcome: Outcome = result["outcome"]
        self._record(running, outcome, result.get("log"))
        reason = outcome.failure.evidence if outcome.failure is not None else ""
        self._listener.set_aside(result["cards"], reason)

    def gives_up(self, trial_id: str) -> bool:
        """Whether a trial holds a card that was set aside, and no other card is at work."""
        if trial_id not in self._parked:
            return False
        self._idle_looks = 0 if self._running else self._idle_looks + 1
        self._given_up = self._idle_looks >= IDLE_LOOKS * len(self._parked)
        return self._given_up

    # Workers that are stopped

    def workers(self) -> list[int]:
        """Pids of the workers on this machine that run an attempt and have told of it."""
        found = [each.worker for each in self._running.values() if each.worker is not None]
        return [worker.pid for worker in found if worker.alive()]

    @property
    def awaits_worker(self) -> bool:
        """Whether an attempt has not told yet which process runs it."""
        return any(each.worker is None for each in self._running.values())

    def say_of_worker(self, pid: int, fault: str) -> None:
        """Keep what befell a worker, for the evidence."""
        for running in self._running.values():
            if running.worker is None or running.worker.pid == pid:
                running.fault = fault

    # What Tune would do for experiments that it restores itself

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles its searcher to restore it, and a sweep is never restored so."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a sweep resumes from its outcome files."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a sweep resumes from its outcome files."""


def _worker_lost(reason: str, running: _Running, log_tail: str | None) -> Outcome:
    evidence = f"the process that ran this attempt broke: {reason}"
    return Outcome(
        status=Status.FAILED,
        phase=Phase.SPAWN,
        failure=Failure(FailureClass.UNKNOWN, Phase.SPAWN, evidence),
        log_tail=log_tail,
        purpose=running.wanted.purpose,
        with_speed=running.wanted.with_speed,
        wall_s=time.time() - running.started_at,
        started_at=running.started_at,
        ended_at=time.time(),
    )
