"""From outcomes to rows of the tables, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from vllm_frontier.grid import Cell
from vllm_frontier.launch.environment import mask_secrets
from vllm_frontier.outcome import (
    Failure,
    FailureClass,
    Outcome,
    Phase,
    SpecState,
    StartupFacts,
    Status,
)
from vllm_frontier.spec import SweepIdentity, SweepSpec

_FACTS = tuple(
    field.name
    for field in dataclasses.fields(StartupFacts)
    if field.name != "engine_version"  # a column of its own, with the engine's as a default
)
_PLAIN = (
    "started",
    "filled",
    "spawn_s",
    "ready_s",
    "measure_s",
    "wall_s",
    "exit_code",
    "signal",
    "memory_used_peak_gib",
    "driver",
)
_RUN_PLAIN = (
    "task",
    "repeat",
    "kind",
    "concurrency",
    "temperature",
    "thinking",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "ttft_s",
    "decode_s",
    "decode_tok_s",
    "decode_tok_s_server",
    "decode_tok_s_client",
    "prefill_tok_s",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "output_sha256",
    "output",
)


AXIS_COLUMNS = ("depth", "context", "graphs", "utilization", "extra")


def axes_row(cell: Cell) -> dict[str, Any]:
    """The axis columns of a cell; further axes become one JSON object in `extra`."""
    return {
        "depth": cell.depth,
        "context": cell.context,
        "graphs": cell.graphs,
        "utilization": cell.utilization,
        "extra": json.dumps(dict(cell.extra), sort_keys=True, ensure_ascii=False),
    }


def cell_of(row: Mapping[str, Any]) -> Cell:
    """The cell that the axis columns of a row name."""
    return Cell(
        depth=row["depth"],
        context=row["context"],
        graphs=row["graphs"],
        utilization=row["utilization"],
        extra=tuple(sorted(json.loads(row["extra"] or "{}").items())),
    )


def trial_row(
    spec: SweepSpec,
    identity: SweepIdentity,
    cell: Cell,
    attempt: int,
    outcome: Outcome,
    *,
    engine_version: str | None,
    evidence_cell: str | None = None,
    changed: str | None = None,
) -> dict[str, Any]:
    """The row of `trials` for an attempt, or (attempt 0, `evidence_cell`) for an inference.

    An inferred cell without a failure is one that works. `changed` is that of the store.
    """
    failure = outcome.failure
    return {
        "sweep": spec.name,
        "cell_id": identity.cell_id(cell),
        "attempt": attempt,
        **axes_row(cell),
        "status": outcome.status.value,
        "failure_class": failure.failure_class.value if failure else None,
        "phase": outcome.phase.value,
        "evidence": failure.evidence if failure else None,
        "evidence_line": failure.evidence_line if failure else None,
        "evidence_cell": evidence_cell,
        **{name: getattr(outcome.facts, name) for name in _FACTS},
        **{name: getattr(outcome, name) for name in _PLAIN},
        "engine": spec.engine.kind,
        "engine_version": outcome.facts.engine_version or engine_version,
        "model": mask_secrets([spec.model.id])[0],
        "quantization": spec.model.quantization,
        "card": spec.card.name,
        "card_memory_gib": spec.card.memory_gib,
        "started_at": moment(outcome.started_at),
        "ended_at": moment(outcome.ended_at),
        "model_name": spec.model.name,
        "workload": identity.workload,
        "spec_state": outcome.spec_state.value if outcome.spec_state else None,
        "log_tail": outcome.log_tail,
        "changed": changed,
    }


def interrupted_row(
    spec: SweepSpec,
    identity: SweepIdentity,
    cell: Cell,
    attempt: int,
    *,
    started_at: float,
    engine_version: str | None,
    changed: str | None = None,
) -> dict[str, Any]:
    """The row of `trials` that stands for an attempt until it has an outcome.

    `started_at` is in seconds since the epoch, `changed` is that of the store.
    """
    outcome = Outcome(Status.INTERRUPTED, Phase.SPAWN, started_at=started_at)
    return trial_row(
        spec, identity, cell, attempt, outcome, engine_version=engine_version, changed=changed
    )


def run_rows(
    spec: SweepSpec, identity: SweepIdentity, cell: Cell, attempt: int, outcome: Outcome
) -> list[dict[str, Any]]:
    """The rows of `runs` for an attempt, in the order in which the runs were made."""
    fixed = {"sweep": spec.name, "cell_id": identity.cell_id(cell), "attempt": attempt}
    return [
        {
            **fixed,
            **{name: getattr(run, name) for name in _RUN_PLAIN},
            "accepted_per_position": (
                None if run.accepted_per_position is None else list(run.accepted_per_position)
            ),
            "started_at": moment(run.started_at),
        }
        for run in outcome.runs
    ]


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """The outcome that a row of `trials` tells of, without its runs."""
    failure = None
    if row.get("failure_class") is not None:
        failure = Failure(
            FailureClass(row["failure_class"]),
            Phase(row["phase"]),
            row.get("evidence") or "",
            row.get("evidence_line"),
        )
    plain = {name: row.get(name) for name in _PLAIN}
    plain["started"], plain["filled"] = bool(row.get("started")), bool(row.get("filled"))
    return Outcome(
        status=Status(row["status"]),
        phase=Phase(row["phase"]),
        failure=failure,
        facts=StartupFacts(
            engine_version=row.get("engine_version"),
            **{name: row.get(name) for name in _FACTS},
        ),
        spec_state=SpecState(row["spec_state"]) if row.get("spec_state") else None,
        log_tail=row.get("log_tail"),
        started_at=_seconds(row.get("started_at")),
        ended_at=_seconds(row.get("ended_at")),
        **plain,  # type: ignore[arg-type]
    )


def row_to_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its moments as ISO 8601 text."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def row_from_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `row_to_json`."""
    return {
        name: datetime.fromisoformat(value)
        if name.endswith("_at") and isinstance(value, str)
        else value
        for name, value in row.items()
    }


def moment(seconds: float) -> datetime | None:
    """Seconds since the epoch as a moment in UTC; 0 is unknown."""
    return datetime.fromtimestamp(seconds, tz=UTC) if seconds else None


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, datetime) else 0.0
