"""One attempt as a Tune trial, in a Ray worker."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from vllm_frontier import telemetry
from vllm_frontier.contention import MemoryState
from vllm_frontier.errors import EngineError
from vllm_frontier.schedule.plan import Record
from vllm_frontier.spec import SweepSpec
from vllm_frontier.trial import AttemptRequest, Progress, Steps, run_attempt


class AttemptTrainable(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """One attempt as a Tune trial; a step is whatever brings its progress forward.

    The actor is reused for the next attempt, because a new worker process costs seconds.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Begin the attempt that `config` describes."""
        self._steps: Steps | None = None
        self._last: Progress | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._baselines: dict[tuple[str, ...], MemoryState] = {}
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
        changes: dict[str, Any] = {"cards": cards}
        if ray.get_runtime_context().get_node_id() != config["driver_node"]:
            # The sweep's folder is the driver's; from here the log travels with the outcome.
            self._scratch = tempfile.TemporaryDirectory(prefix="vllm-frontier-")
            log = Path(self._scratch.name) / request.log.name
            changes |= {"log": log, "environment": dict(os.environ)}
            record = _record_nothing
        request = replace(request, **changes)
        if record is _record_nothing:
            request = replace(request, baseline=self._baseline(request))
        self._log_path = request.log
        self._steps = run_attempt(request, record)

    def _baseline(self, request: AttemptRequest) -> MemoryState:
        """What was in use on another node before this process launched anything there."""
        if request.cards not in self._baselines:
            self._baselines[request.cards] = request.memory_state()
        return self._baselines[request.cards]

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
