"""Run a search to its end under Ray Tune."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import ray
from ray import tune
from ray.exceptions import RayError
from ray.tune.search import ConcurrencyLimiter

from vllm_frontier.errors import Interrupted
from vllm_frontier.schedule import cluster
from vllm_frontier.schedule.adapter import LastFault, SearchAdapter, Stopped
from vllm_frontier.schedule.callbacks import (
    HandOverCallback,
    InterruptCallback,
    ParkingStopper,
    WorkerCallback,
)
from vllm_frontier.schedule.trainable import AttemptTrainable, Common
from vllm_frontier.search import Search
from vllm_frontier.signals import Signals
from vllm_frontier.trial.plan import Listener, Plan

HANDLERS_BACK_S = 0.002


def run(search: Search, plan: Plan, listener: Listener) -> None:
    """Run the search to its end.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP arrived; nothing of any launch is left.
        EngineError: the Ray cluster cannot be reached or has no card for this sweep.
        StoreError: the sweep's folder cannot be written any more.
    """
    with plan.signals.held(), cluster.scratch_folder() as scratch, _quiet_stdout():
        try:
            cluster.start_ray(plan, scratch)
        except SystemExit:  # the handler for SIGTERM that Ray puts in place while it starts
            raise Interrupted("SIGTERM") from None
        try:
            plan.signals.listen()  # Ray has put a handler of its own in place
            _tune(search, plan, listener, scratch)
        finally:
            _shut_down(plan.signals)


def _shut_down(signals: Signals) -> None:
    """Shut Ray down, which takes a second or two and takes our handler for SIGTERM away."""
    shutting = threading.Thread(target=ray.shutdown)
    shutting.start()
    while shutting.is_alive():
        shutting.join(HANDLERS_BACK_S)
        signals.listen()


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Ray prints what becomes of its workers; outcomes tell that, and stdout may be a document."""
    with open(os.devnull, "w") as null, redirect_stdout(null):  # noqa: PTH123
        yield


def _tune(search: Search, plan: Plan, listener: Listener, scratch: Path) -> None:
    own = cluster.OwnCluster()
    faults = LastFault()
    adapter = SearchAdapter(search, plan, listener, faults)
    common = Common(
        spec=plan.spec,
        environment=plan.environment,
        baseline=plan.baseline,
        driver=plan.driver,
        driver_node=ray.get_runtime_context().get_node_id(),
    )
    bundle = {"CPU": 0.0, **cluster.resources(plan.spec)}
    tuner = tune.Tuner(
        tune.with_resources(
            tune.with_parameters(AttemptTrainable, common=common),
            tune.PlacementGroupFactory([bundle]),
        ),
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(adapter, max_concurrent=cluster.slots(plan.spec)),
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(scratch / "tune"),
            verbose=0,
            stop=ParkingStopper(adapter),
            callbacks=[
                InterruptCallback(plan.signals, own),
                WorkerCallback(adapter, own),
                HandOverCallback(adapter),
            ],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    try:
        with faults.heard():
            tuner.fit()
    except Stopped:
        if adapter.problem is not None:
            raise adapter.problem from None
        raise
    except (RayError, tune.TuneError):
        own.check()  # it was no more than the first to notice
        raise
