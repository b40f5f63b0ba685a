"""What looks after a running sweep at every turn of Tune's loop, ten times a second."""

from __future__ import annotations

import time
from typing import Any

from ray import tune

from vllm_frontier.launch.processes import kill_process, read_process
from vllm_frontier.schedule.adapter import SearchAdapter
from vllm_frontier.schedule.cluster import OwnCluster
from vllm_frontier.signals import Signals

# A Ray worker that somebody stopped (SIGSTOP) says nothing, and Ray does not mind.
STOPPED_LOOKS = 10
LOOK_EVERY_S = 1.0


class InterruptCallback(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Leaves the loop when a signal has arrived, or when Ray itself was killed."""

    def __init__(self, signals: Signals, cluster: OwnCluster) -> None:
        self._signals = signals
        self._cluster = cluster

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise Interrupted."""
        self._signals.check()
        self._cluster.check()


class HandOverCallback(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Takes outcomes and logs out of results before Tune keeps those.

    Tune would hold the last result of every trial to the end, and write all of them, samples
    included, into its state again and again while others are being measured.
    """

    def __init__(self, adapter: SearchAdapter) -> None:
        self._adapter = adapter

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Hand them over; what is changed here is what Tune keeps."""
        outcome, log = result.pop("outcome", None), result.pop("log", None)
        if outcome is not None:
            self._adapter.hand_over(trial.trial_id, outcome, log)


class WorkerCallback(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Ends workers of this machine that stay stopped, so that their attempts get an outcome.

    Looks are counted, not seconds: where this process was stopped itself (Ctrl-Z) no time passed.
    """

    def __init__(self, adapter: SearchAdapter, cluster: OwnCluster) -> None:
        self._adapter = adapter
        self._cluster = cluster
        self._looked_at = 0.0
        self._looks: dict[int, int] = {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Look at the workers once a second."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        workers = self._adapter.workers()
        if self._adapter.awaits_worker:
            workers += self._cluster.workers()
        stopped = {pid for pid in workers if _is_stopped(pid)}
        self._looks = {pid: self._looks.get(pid, 0) + 1 for pid in stopped}
        for pid, looks in self._looks.items():
            if looks == STOPPED_LOOKS:
                self._adapter.say_of_worker(pid, f"it was stopped for {STOPPED_LOOKS} s")
                kill_process(pid)


class ParkingStopper(tune.Stopper):  # type: ignore[misc]  # Ray has no types
    """Ends the trials that hold a card that was set aside, once no other card is at work."""

    def __init__(self, adapter: SearchAdapter) -> None:
        self._adapter = adapter

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether the trial is to end."""
        return self._adapter.gives_up(trial_id)

    def stop_all(self) -> bool:
        """Never: the search ends the sweep."""
        return False


def _is_stopped(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state == "T"
