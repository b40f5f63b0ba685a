"""Tune's view of a search: what to run next, and what became of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from vllm_frontier.engine.log import last_lines
from vllm_frontier.errors import FrontierError
from vllm_frontier.grid import Cell
from vllm_frontier.launch.secrets import conceal, secret_values
from vllm_frontier.outcome import Failure, FailureClass, Outcome, Phase, Status
from vllm_frontier.schedule.plan import Listener, Plan
from vllm_frontier.search import Search
from vllm_frontier.trial import AttemptRequest


class LastFault(logging.Handler):
    """Keeps what Tune logs about a trial that broke, for the evidence of its outcome."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = "its Ray worker was lost"

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
            self.text = lines[-1].strip() if lines else type(record.exc_info[1]).__name__


class SearchAdapter(Searcher):  # type: ignore[misc]  # Ray has no types
    """Tune's view of a search. Lives in the driver."""

    def __init__(
        self,
        search: Search,
        plan: Plan,
        listener: Listener,
        driver_node: str,
        faults: LastFault,
    ) -> None:
        super().__init__(metric="done", mode="max")
        self._search = search
        self._plan = plan
        self._listener = listener
        self._driver_node = driver_node
        self._faults = faults
        self._running: dict[str, _Running] = {}
        # What kept an outcome from being recorded; Tune would wrap it beyond recognition.
        self.problem: FrontierError | None = None

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next attempt; FINISHED rather than None whenever nothing is running."""
        over = self.problem is not None or self._plan.out_of_time()
        cell = None if over else self._search.ask()
        if cell is None:
            return None if self._running else str(Searcher.FINISHED)
        try:
            opened = self._listener.open_attempt(cell)
        except FrontierError as problem:
            self.problem = problem
            return None if self._running else str(Searcher.FINISHED)
        self._running[trial_id] = _Running(cell, opened.number, opened.folder, time.time())
        request = AttemptRequest(
            spec=self._plan.spec,
            cell=cell,
            cell_id=self._plan.identity.cell_id(cell),
            attempt=opened.number,
            log=opened.folder / "server.log",
            environment=self._plan.environment,
            baseline=self._plan.baseline,
        )
        return {
            "request": request,
            "record": opened.record,
            "driver_node": self._driver_node,
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass on how far an attempt has come."""
        progress = result.get("progress")
        if progress is not None and trial_id in self._running:
            self._listener.progress(self._running[trial_id].cell, progress)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record an outcome; without one, the worker was lost or our own code failed."""
        running = self._running.pop(trial_id)
        outcome = (result or {}).get("outcome")
        if outcome is None or error:
            secrets = secret_values(self._plan.environment, ())
            outcome = _worker_lost(self._faults.text, running, secrets)
        log = (result or {}).get("log")
        try:
            self._listener.ended(running.cell, running.number, outcome, log)
        except FrontierError as problem:
            self.problem = problem
        self._search.tell(running.cell, outcome.status)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles its searcher to restore it, and a sweep is never restored so."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a sweep resumes from its outcome files."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a sweep resumes from its outcome files."""


@dataclass(frozen=True, slots=True)
class _Running:
    """An attempt under way; `started_at` is in seconds since the epoch."""

    cell: Cell
    number: int
    folder: Path
    started_at: float


def _worker_lost(reason: str, running: _Running, secrets: tuple[str, ...]) -> Outcome:
    evidence = f"the process that ran this attempt broke: {reason}"
    return Outcome(
        status=Status.FAILED,
        phase=Phase.SPAWN,
        failure=Failure(FailureClass.UNKNOWN, Phase.SPAWN, evidence),
        log_tail=conceal(last_lines(running.folder / "server.log"), secrets),
        wall_s=time.time() - running.started_at,
        started_at=running.started_at,
        ended_at=time.time(),
    )
