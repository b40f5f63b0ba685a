"""Run a search to its end under Ray Tune."""

from __future__ import annotations

from pathlib import Path

import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter

from vllm_frontier.errors import Interrupted
from vllm_frontier.schedule import cluster
from vllm_frontier.schedule.adapter import LastFault, SearchAdapter
from vllm_frontier.schedule.plan import Listener, Plan
from vllm_frontier.schedule.signals import InterruptCallback, Signals
from vllm_frontier.schedule.trainable import AttemptTrainable
from vllm_frontier.search import Search


def run(search: Search, plan: Plan, listener: Listener) -> None:
    """Run the search to its end.

    Raises:
        Interrupted: SIGINT or SIGTERM arrived; nothing of any launch is left.
        EngineError: the Ray cluster cannot be reached or has no card for this sweep.
    """
    with Signals() as signals, cluster.scratch_folder() as scratch:
        try:
            cluster.start_ray(plan, Path(scratch))
        except SystemExit:  # the handler for SIGTERM that Ray puts in place while it starts
            raise Interrupted("SIGTERM") from None
        try:
            signals.listen()  # Ray has put a handler of its own in place
            _tune(search, plan, listener, Path(scratch), signals)
        finally:
            ray.shutdown()


def _tune(search: Search, plan: Plan, listener: Listener, scratch: Path, signals: Signals) -> None:
    faults = LastFault()
    adapter = SearchAdapter(search, plan, listener, ray.get_runtime_context().get_node_id(), faults)
    bundle = {"CPU": 0.0, **cluster.resources(plan.spec)}
    tuner = tune.Tuner(
        tune.with_resources(AttemptTrainable, tune.PlacementGroupFactory([bundle])),
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(adapter, max_concurrent=cluster.slots(plan.spec)),
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="sweep",
            storage_path=str(scratch / "tune"),
            verbose=0,
            callbacks=[InterruptCallback(signals)],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    with faults.heard():
        tuner.fit()
    if adapter.problem is not None:
        raise adapter.problem
