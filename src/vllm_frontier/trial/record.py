"""What is on disk about a launch before the server is executed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_frontier.contention import MemoryState
from vllm_frontier.engine.protocol import LaunchPlan
from vllm_frontier.launch.environment import mask_secrets
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.trial.request import AttemptRequest

# Of the inherited environment, what can change what a server does.
DECISIVE = ("CUDA", "HF_", "NCCL", "OMP_", "PYTORCH", "TORCH", "TRITON", "VLLM", "LD_PRELOAD")


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A launch that is about to happen.

    Attributes:
        supervisor: who will hold the launch together.
        environment: what the server will see, complete.
        tmp: its temporary folder.
        before: what was in use when the launch before was gone.
        began_at: seconds since the epoch, UTC.
    """

    request: AttemptRequest
    plan: LaunchPlan
    supervisor: ProcessId
    environment: Mapping[str, str]
    tmp: Path
    before: MemoryState | None
    began_at: float

    def document(self) -> dict[str, Any]:
        """The content of `attempt.json`, without secrets."""
        request, baseline, before = self.request, self.request.baseline, self.before
        return {
            "cell_id": request.cell_id,
            "attempt": request.attempt,
            "axes": request.cell.axes(),
            "supervisor": _process(self.supervisor),
            "worker": _process(ProcessId.of(os.getpid())),
            "argv": mask_secrets(list(self.plan.argv)),
            "environment": mask_secrets(_decisive(self.environment, self.plan)),
            "tmp": str(self.tmp),
            "port": self.plan.port,
            "served_name": self.plan.served_name,
            "memory_baseline": _state(baseline),
            "memory_before": _state(before),
            "started_at": self.began_at,
        }


def _process(process: ProcessId | None) -> dict[str, Any] | None:
    return None if process is None else {**asdict(process), "host": os.uname().nodename}


def _state(state: MemoryState | None) -> dict[str, Any] | None:
    return None if state is None else asdict(state)


def _decisive(environment: Mapping[str, str], plan: LaunchPlan) -> dict[str, str]:
    """What the launch set, and what it inherited that can change what the server does."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in plan.env or name.startswith(DECISIVE)
    }
