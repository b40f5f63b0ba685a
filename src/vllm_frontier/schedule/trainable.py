"""One attempt as a Tune trial, in a Ray worker."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune

from vllm_frontier import contention, telemetry
from vllm_frontier.contention import MemoryState
from vllm_frontier.errors import EngineError
from vllm_frontier.launch.processes import ProcessId, name_of
from vllm_frontier.outcome import FailureClass, Outcome, Phase
from vllm_frontier.spec import SweepSpec
from vllm_frontier.trial import AttemptRequest, Progress, Steps, run_attempt

PARKED_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Common:
    """What all attempts of a sweep share.

    It holds secrets: it travels through Ray's memory and never through the configuration of a
    trial, which Tune writes to its files.
    """

    spec: SweepSpec
    environment: Mapping[str, str]
    baseline: MemoryState
    driver: ProcessId | None
    driver_node: str


class AttemptTrainable(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """One attempt as a Tune trial; a step is whatever brings its progress forward.

    The actor is reused for the next attempt, because a new worker process costs seconds. Where
    a card's memory did not come back, or the card was lost, the trial goes on after its attempt and
    so keeps the card from the others, until it can be used again.
    """

    def setup(self, config: dict[str, Any], common: Common) -> None:
        """Begin the attempt that `config` describes."""
        self._common = common
        self._here = ray.get_runtime_context().get_node_id() == common.driver_node
        self._worker = ProcessId.of(os.getpid()) if self._here else None
        self._steps: Steps | None = None
        self._last: Progress | None = None
        self._request: AttemptRequest | None = None
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
            return self._park()
        try:
            while (progress := next(self._steps)) == self._last:
                pass
        except StopIteration as ended:
            self._steps = None
            return self._result(ended.value)
        self._last = progress
        return {"progress": progress, "worker": self._worker, "done": False}

    def cleanup(self) -> None:
        """End a running attempt and everything it launched."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _begin(self, config: dict[str, Any]) -> None:
        self.cleanup()
        self._last = None
        self._scratch = None
        log: Path = config["log"]
        if not self._here:
            # The sweep's folder is the driver's; from here the log travels with the outcome.
            self._scratch = tempfile.TemporaryDirectory(prefix="vllm-frontier-")
            log = Path(self._scratch.name) / log.name
        cards = _assigned_cards(self._common.spec)
        self._request = AttemptRequest(
            spec=self._common.spec,
            cell=config["cell"],
            cell_id=config["cell_id"],
            attempt=config["attempt"],
            log=log,
            environment=self._common.environment if self._here else dict(os.environ),
            cards=cards,
            baseline=self._common.baseline if self._here else self._own_baseline(cards),
            watch=self._watched(),
            purpose=config["purpose"],
            with_speed=config["with_speed"],
        )
        self._steps = run_attempt(self._request)

    def _watched(self) -> tuple[ProcessId, ...]:
        """Without the driver or Ray's raylet this worker has no future.

        It takes Ray's worker some ten seconds to notice; a launch is to end before. Where
        something else than the raylet started the worker (a container's runtime), that may go.
        """
        driver = self._common.driver if self._here else None
        parent = os.getppid()
        raylet = ProcessId.of(parent) if name_of(parent) == "raylet" else None
        return tuple(process for process in (driver, raylet) if process is not None)

    def _own_baseline(self, cards: tuple[str, ...]) -> MemoryState:
        """What was in use on another node before this process launched anything there."""
        if cards not in self._baselines:
            on_host = self._common.spec.card.kind == "cpu"
            self._baselines[cards] = contention.read_state(cards, host=on_host)
        return self._baselines[cards]

    def _result(self, outcome: Outcome) -> dict[str, Any]:
        failure = outcome.failure
        cards = self._request.cards if self._request is not None else ()
        held_back = failure is not None and (
            telemetry.lost_card(cards) is not None
            if failure.failure_class is FailureClass.GPU_LOST
            else failure.failure_class is FailureClass.MEMORY_CONTENDED
            and failure.phase is Phase.SPAWN
        )
        return {
            "outcome": outcome,
            "log": self._remote_log(),
            "worker": self._worker,
            "cards": cards,
            "done": not held_back,
        }

    def _park(self) -> dict[str, Any]:
        """Hold the card until it can be used again; the driver may end this before."""
        request = self._request
        if request is None:
            raise RuntimeError("no attempt has begun")
        time.sleep(PARKED_LOOK_S)
        above = contention.excess_gib(request.baseline, request.memory_state())
        free = above is None or above <= request.spec.card.baseline_tolerance_gib
        back = free and telemetry.lost_card(request.cards) is None
        return {"taken_back": back, "done": back}

    def _remote_log(self) -> bytes | None:
        if self._scratch is None or self._request is None:
            return None
        log = self._request.log
        content = log.read_bytes() if log.is_file() else b""
        self._scratch.cleanup()
        return content


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
