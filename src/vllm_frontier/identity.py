"""What a sweep is recognised by: model, card, engine, fixed arguments, workload."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.grid import digest
from vllm_frontier.measure.task import load_task
from vllm_frontier.spec import ModelSpec, SweepIdentity, SweepSpec, WorkloadSpec

# Enough of a weight file to tell two trainings of one architecture apart, without reading it.
_SAMPLE_BYTES = 1 << 20


def identify(spec: SweepSpec, engine_version: str) -> SweepIdentity:
    """The identity of a sweep that runs on an engine of this version."""
    return SweepIdentity(
        cell_part={
            "model": _model(spec.model),
            "card": {"name": spec.card.name, "memory_gib": spec.card.memory_gib},
            "engine": {"kind": spec.engine.kind, "version": engine_version},
            "arguments": {
                "model": dict(spec.model.args),
                "engine": dict(spec.engine.args),
                "env": dict(spec.engine.env),
                "command": spec.engine.command,
                "described_card": _described_card(spec),
                "tensor_parallel": spec.engine.tensor_parallel,
                "reserved_gib": spec.card.reserved_gib,
            },
        },
        workload=_workload(spec.workload),
    )


def _model(model: ModelSpec) -> dict[str, Any]:
    speculation = model.speculation
    drafter = _source(speculation.model) if speculation.model else None
    return {
        **_source(model.id),
        "revision": model.revision,
        "speculation": {
            "method": speculation.method,
            "drafter": drafter,
            "args": dict(speculation.args),
        },
    }


def _source(model_id: str) -> dict[str, Any]:
    """A hub id as it is; a folder by its name and fingerprint, so that it may be moved."""
    folder = Path(model_id)
    if not folder.is_dir():
        return {"id": model_id, "fingerprint": None}
    return {"id": folder.name, "fingerprint": fingerprint(folder)}


def fingerprint(folder: Path) -> str:
    """A digest of a model folder: config, weight index, and samples of each weight file."""
    found = hashlib.sha256()
    for name in ("config.json", "model.safetensors.index.json"):
        path = folder / name
        found.update(name.encode() + (path.read_bytes() if path.is_file() else b"-"))
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        found.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            found.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            found.update(file.read(_SAMPLE_BYTES))
    return found.hexdigest()[:16]


def _described_card(spec: SweepSpec) -> str | None:
    """A digest of what decides results on a simulated card; faults and waiting times do not."""
    if spec.engine.kind != "simulated":
        return None
    card = dataclasses.asdict(load_card(spec.engine.card_file))
    return digest({name: value for name, value in card.items() if name not in ("faults", "time")})


def _workload(workload: WorkloadSpec) -> str:
    tasks = {name: load_task(name).digest for name in workload.tasks}
    return digest(
        {
            "tasks": tasks,
            "repeats": workload.repeats,
            "max_tokens": workload.max_tokens,
            "temperature": workload.temperature,
            "thinking": workload.thinking,
            "prefill_tokens": workload.prefill_tokens,
        }
    )
