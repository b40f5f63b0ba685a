"""Ray Tune runs the attempts that a search asks for (the only Ray import).

One Tune trial is one attempt. The search sits behind a `Searcher`; the outcome comes back as
a result of the trial, the phases before it as earlier results, so that progress works the
same on this machine and on another node. A raised exception or a lost worker is a fault of
this program or of the cluster and recorded as `failed`, never as an answer about the cell.

Import this module only after `ray_settings.apply`.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self

import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher

from vllm_frontier import telemetry
from vllm_frontier.errors import EngineError, FrontierError, Interrupted
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Failure, FailureClass, Outcome, Phase, Status
from vllm_frontier.search import Search
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.trial import AttemptRequest, Progress, Steps, run_attempt

# What stands for a card on a node without GPUs; a cluster's CPU nodes declare it themselves:
# ray start --resources='{"frontier_card": 1}'
CPU_CARD = "frontier_card"
LONGEST_TMP = 16  # characters; a socket's path has at most 107


# Puts the description of a launch on disk, in the process that launches.
Record = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that has a folder; `record` can be sent to a worker of this machine."""

    number: int
    folder: Path
    record: Record


class Listener(Protocol):
    """Who is told what happens; every call is made in the driver's main thread."""

    def open_attempt(self, cell: Cell) -> OpenAttempt:
        """A cell is about to be launched: number and folder of the attempt."""
        ...

    def progress(self, cell: Cell, progress: Progress) -> None:
        """A running attempt moved on."""
        ...

    def ended(self, cell: Cell, attempt: int, outcome: Outcome, log: bytes | None) -> None:
        """An attempt ended; `log` is the server's log when it ran on another node."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What the schedule needs to know beside the search.

    Attributes:
        environment: what launches on this machine start from (never a Ray worker's own).
        cards: UUIDs of the cards of this machine that are used, empty on a CPU.
        out_of_time: asked before every launch; True ends the sweep.
    """

    spec: SweepSpec
    identity: SweepIdentity
    environment: Mapping[str, str]
    cards: tuple[str, ...]
    out_of_time: Callable[[], bool]


def run(search: Search, plan: Plan, listener: Listener) -> None:
    """Run the search to its end.

    Raises:
        Interrupted: SIGINT or SIGTERM arrived; nothing of any launch is left.
        EngineError: the Ray cluster cannot be reached or has no card for this sweep.
    """
    with _Signals() as signals, _scratch_folder() as scratch:
        _start_ray(plan, Path(scratch))
        try:
            signals.listen()  # Ray has put a handler of its own in place
            _tune(search, plan, listener, Path(scratch), signals)
        finally:
            ray.shutdown()


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for Ray's own files; the paths of its sockets must stay short."""
    parent = tempfile.gettempdir()
    if len(parent) > LONGEST_TMP and os.access("/tmp", os.W_OK | os.X_OK):
        parent = "/tmp"
    return tempfile.TemporaryDirectory(prefix="vf-ray-", dir=parent)


def _start_ray(plan: Plan, scratch: Path) -> None:
    address = plan.spec.schedule.address
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise EngineError(f"no Ray cluster answers at {address}: {reason}") from None
        _check_cluster(plan)
        return
    if plan.cards:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(plan.cards)
    try:
        _start_own_cluster(plan, scratch, quiet)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise EngineError(f"Ray does not start on this machine: {reason}") from None


def _start_own_cluster(plan: Plan, scratch: Path, quiet: dict[str, Any]) -> None:
    ray.init(
        address="local",  # whatever RAY_ADDRESS says
        num_cpus=max(2, len(plan.cards) + 1),
        num_gpus=len(plan.cards),
        resources={CPU_CARD: 1},
        include_dashboard=False,
        object_store_memory=100 * 1024 * 1024,
        _temp_dir=str(scratch / "r"),
        _node_ip_address="127.0.0.1",
        **quiet,
    )


def _check_cluster(plan: Plan) -> None:
    wanted = _resources(plan.spec)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(_fits(wanted, have) for have in nodes):
        ray.shutdown()
        raise EngineError(
            "the Ray cluster has no node for this sweep: one node must have "
            + ", ".join(f"{name}: {amount:g}" for name, amount in wanted.items())
        )


def _fits(wanted: Mapping[str, float], have: Mapping[str, float]) -> bool:
    return all(have.get(name, 0) >= amount for name, amount in wanted.items())


def _resources(spec: SweepSpec) -> dict[str, float]:
    if spec.card.kind == "nvidia":
        return {"GPU": float(spec.engine.tensor_parallel)}
    return {CPU_CARD: 1.0}


def _slots(spec: SweepSpec) -> int:
    """How many attempts fit the cluster at once."""
    wanted = _resources(spec).items()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    slots = sum(min(int(have.get(name, 0) // need) for name, need in wanted) for have in nodes)
    return max(1, slots)


def _tune(search: Search, plan: Plan, listener: Listener, scratch: Path, signals: _Signals) -> None:
    faults = _LastFault()
    adapter = SearchAdapter(search, plan, listener, ray.get_runtime_context().get_node_id(), faults)
    bundle = {"CPU": 0.0, **_resources(plan.spec)}
    tuner = tune.Tuner(
        tune.with_resources(AttemptTrainable, tune.PlacementGroupFactory([bundle])),
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(adapter, max_concurrent=_slots(plan.spec)),
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(scratch / "tune"),
            verbose=0,
            callbacks=[_InterruptCallback(signals)],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    with faults.heard():
        tuner.fit()
    if adapter.problem is not None:
        raise adapter.problem


class _LastFault(logging.Handler):
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
        faults: _LastFault,
    ) -> None:
        super().__init__(metric="done", mode="max")
        self._search = search
        self._plan = plan
        self._listener = listener
        self._driver_node = driver_node
        self._faults = faults
        self._running: dict[str, tuple[Cell, int, float]] = {}
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
        self._running[trial_id] = (cell, opened.number, time.time())
        request = AttemptRequest(
            spec=self._plan.spec,
            cell=cell,
            cell_id=self._plan.identity.cell_id(cell),
            attempt=opened.number,
            log=opened.folder / "server.log",
            environment=self._plan.environment,
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
            self._listener.progress(self._running[trial_id][0], progress)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record an outcome; without one, the worker was lost or our own code failed."""
        cell, number, started_at = self._running.pop(trial_id)
        outcome = (result or {}).get("outcome")
        if outcome is None or error:
            outcome = _worker_lost(self._faults.text, started_at)
        log = (result or {}).get("log")
        try:
            self._listener.ended(cell, number, outcome, log)
        except FrontierError as problem:
            self.problem = problem
        self._search.tell(cell, outcome.status)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles its searcher to restore it, and a sweep is never restored so."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a sweep resumes from its outcome files."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a sweep resumes from its outcome files."""


def _worker_lost(reason: str, started_at: float) -> Outcome:
    evidence = f"the process that ran this attempt broke: {reason}"
    return Outcome(
        status=Status.FAILED,
        phase=Phase.SPAWN,
        failure=Failure(FailureClass.UNKNOWN, Phase.SPAWN, evidence),
        wall_s=time.time() - started_at,
        started_at=started_at,
        ended_at=time.time(),
    )


class AttemptTrainable(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """One attempt as a Tune trial; a step is whatever brings its progress forward.

    The actor is reused for the next attempt, because a new worker process costs seconds.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Begin the attempt that `config` describes."""
        self._steps: Steps | None = None
        self._last: Progress | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._baselines: dict[tuple[str, ...], float | None] = {}
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another attempt in the same process."""
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Go on until the attempt has something new to tell, or ends."""
        if self._steps is None:
            raise RuntimeError("the attempt has ended already")
        last = self._last
        try:
            while (progress := next(self._steps)) == last:
                pass
        except StopIteration as ended:
            self._steps = None
            return {"outcome": ended.value, "log": self._remote_log(), "done": True}
        self._last = progress
        return {"progress": progress, "done": False}

    def cleanup(self) -> None:
        """End a running attempt and everything it launched."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _begin(self, config: dict[str, Any]) -> None:
        self.cleanup()
        self._last = None
        request: AttemptRequest = config["request"]
        record: Record = config["record"]
        self._scratch = None
        cards = _assigned_cards(request.spec)
        changes: dict[str, Any] = {"cards": cards, "baseline_gib": self._baseline(cards)}
        if ray.get_runtime_context().get_node_id() != config["driver_node"]:
            # The sweep's folder is the driver's; from here the log travels with the outcome.
            self._scratch = tempfile.TemporaryDirectory(prefix="vllm-frontier-")
            log = Path(self._scratch.name) / request.log.name
            changes |= {"log": log, "environment": dict(os.environ)}
            record = _record_nothing
        request = replace(request, **changes)
        self._log_path = request.log
        self._steps = run_attempt(request, record)

    def _baseline(self, cards: tuple[str, ...]) -> float | None:
        """Memory in use on the cards before this process launched anything."""
        if cards not in self._baselines:
            used = [telemetry.memory_used_gib(uuid) for uuid in cards]
            known = [reading for reading in used if reading is not None]
            self._baselines[cards] = sum(known) if known else None
        return self._baselines[cards]

    def _remote_log(self) -> bytes | None:
        if self._scratch is None:
            return None
        log = self._log_path.read_bytes() if self._log_path.is_file() else b""
        self._scratch.cleanup()
        return log


def _record_nothing(document: dict[str, Any]) -> None:
    """On another node: the driver has already written what it knows of the attempt."""


def _assigned_cards(spec: SweepSpec) -> tuple[str, ...]:
    """UUIDs of the cards that Ray gave this worker.

    Raises:
        EngineError: it is another card than the sweep's, as in a cluster of mixed cards.
    """
    given = [str(card) for card in ray.get_gpu_ids()]
    if not given:
        return ()
    found = telemetry.cards()
    uuids = tuple({str(card.index): card.uuid for card in found}.get(each, each) for each in given)
    others = {card.name for card in found if card.uuid in uuids} - {spec.card.name}
    if others:
        raise EngineError(
            f"Ray gave this attempt a node with {', '.join(sorted(others))}, "
            f"but the sweep is for {spec.card.name}"
        )
    return uuids


class _Signals:
    """SIGINT and SIGTERM end the sweep at the next turn of Tune's loop; a second one at once.

    A handler that raised would raise inside Ray's own C code, which does not survive that.
    """

    WATCHED = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._before = {each: signal.getsignal(each) for each in self.WATCHED}
        self.listen()
        return self

    def __exit__(self, *exception: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def listen(self) -> None:
        """Put the handlers in place."""
        for each in self.WATCHED:
            signal.signal(each, self._note)

    def check(self) -> None:
        """Raise Interrupted once a signal has arrived."""
        if self.received is not None:
            raise Interrupted(self.received.name)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            # The supervisors of running launches see this process go and end them.
            os._exit(130)
        self.received = signal.Signals(number)


class _InterruptCallback(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Looks for a signal at every turn of Tune's loop, ten times a second."""

    def __init__(self, signals: _Signals) -> None:
        self._signals = signals

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Leave the loop when a signal has arrived."""
        self._signals.check()
