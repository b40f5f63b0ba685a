"""From outcomes to rows of the tables, and back."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, get_args, get_type_hints

from vllm_frontier.conditions import Conditions, Sample
from vllm_frontier.grid import Cell
from vllm_frontier.launch.environment import mask_secrets
from vllm_frontier.outcome import (
    Failure,
    FailureClass,
    Outcome,
    Phase,
    Purpose,
    SpecState,
    Speed,
    StartupFacts,
    Status,
)
from vllm_frontier.spec import SweepIdentity, SweepSpec

_FACTS = tuple(
    field.name
    for field in dataclasses.fields(StartupFacts)
    if field.name != "engine_version"  # a column of its own, with the engine's as a default
)
_COUNTS = frozenset(
    name for name, kind in get_type_hints(StartupFacts).items() if int in get_args(kind)
)
# Differences of free memory: below 0 where others took memory meanwhile, or gave it back.
_BELOW_ZERO = frozenset({"kv_available_gib", "graph_gib"})
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
    "cuda",
    "power_limit_w",
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
    "variant",
    "output_logprob",
    "output_logprob_expected",
)
_LISTS = ("accepted_per_position", "output_token_ids")


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
    changed: str | None = None,
    sequence: int | None = None,
) -> dict[str, Any]:
    """The row of `trials` for an attempt.

    `changed` is that of the store, `sequence` the running number of what the sweep learns.
    """
    failure, speed = outcome.failure, outcome.speed
    return {
        **_fixed(spec, identity, cell, attempt),
        "status": outcome.status.value,
        "failure_class": failure.failure_class.value if failure else None,
        "phase": outcome.phase.value,
        "evidence": failure.evidence if failure else None,
        "evidence_line": failure.evidence_line if failure else None,
        "evidence_cell": None,
        **{name: getattr(outcome.facts, name) for name in _FACTS},
        **{name: getattr(outcome, name) for name in _PLAIN},
        "engine_version": outcome.facts.engine_version or engine_version,
        "started_at": moment(outcome.started_at),
        "ended_at": moment(outcome.ended_at),
        "spec_state": outcome.spec_state.value if outcome.spec_state else None,
        "log_tail": outcome.log_tail,
        "changed": changed,
        "purpose": outcome.purpose.value,
        "with_speed": outcome.with_speed,
        "decode_tok_s": speed.decode_tok_s if speed else None,
        "decode_tok_s_low": speed.low if speed else None,
        "decode_tok_s_high": speed.high if speed else None,
        "doubt": None,
        "sequence": sequence,
    }


def inferred_row(
    spec: SweepSpec,
    identity: SweepIdentity,
    cell: Cell,
    *,
    failure_class: FailureClass | None,
    phase: Phase,
    evidence: str,
    evidence_cell: str,
    doubt: str | None,
    engine_version: str | None,
    changed: str | None = None,
) -> dict[str, Any]:
    """The row of `trials` for a cell that was not launched; without `failure_class` it works.

    Args:
        spec: the sweep.
        identity: of the sweep as it is now.
        cell: what was not launched.
        failure_class: why it does not work.
        phase: where it would end.
        evidence: in words, why it is so.
        evidence_cell: cell_id of the launched cell from which it follows.
        doubt: why it may be wrong.
        engine_version: that of the evidence.
        changed: that of the evidence, or how its identity differs from that of the sweep now.
    """
    return {
        **_fixed(spec, identity, cell, 0),
        "status": Status.INFERRED.value,
        "failure_class": None if failure_class is None else failure_class.value,
        "phase": phase.value,
        "evidence": evidence,
        "evidence_cell": evidence_cell,
        "engine_version": engine_version,
        "changed": changed,
        "doubt": doubt,
    }


def _fixed(spec: SweepSpec, identity: SweepIdentity, cell: Cell, attempt: int) -> dict[str, Any]:
    """What a row of `trials` holds whatever became of its cell."""
    return {
        "sweep": spec.name,
        "cell_id": identity.cell_id(cell),
        "attempt": attempt,
        **axes_row(cell),
        "engine": spec.engine.kind,
        "model": mask_secrets([spec.model.id])[0],
        "quantization": spec.model.quantization,
        "card": spec.card.name,
        "card_memory_gib": spec.card.memory_gib,
        "model_name": spec.model.name,
        "workload": identity.workload,
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
    purpose: Purpose = Purpose.PROOF,
    with_speed: bool = True,
    sequence: int | None = None,
) -> dict[str, Any]:
    """The row of `trials` that stands for an attempt until it has an outcome.

    `started_at` is in seconds since the epoch; `changed` and `sequence` as in `trial_row`.
    """
    outcome = Outcome(
        Status.INTERRUPTED,
        Phase.SPAWN,
        purpose=purpose,
        with_speed=with_speed,
        started_at=started_at,
    )
    return trial_row(
        spec,
        identity,
        cell,
        attempt,
        outcome,
        engine_version=engine_version,
        changed=changed,
        sequence=sequence,
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
            **{name: _listed(getattr(run, name)) for name in _LISTS},
            **(_conditions(run.conditions) if run.conditions is not None else {}),
            "started_at": moment(run.started_at),
        }
        for run in outcome.runs
    ]


def telemetry_rows(
    spec: SweepSpec, identity: SweepIdentity, cell: Cell, attempt: int, outcome: Outcome
) -> list[dict[str, Any]]:
    """The rows of `telemetry` for an attempt, oldest first."""
    fixed = {"sweep": spec.name, "cell_id": identity.cell_id(cell), "attempt": attempt}
    return [{**fixed, **_conditions(sample), "at": moment(sample.at)} for sample in outcome.samples]


def _conditions(told: Sample | Conditions) -> dict[str, Any]:
    """A sample, or a summary of some, with lists as lists."""
    found = dataclasses.asdict(told)
    found["throttle_reasons"] = _listed(found["throttle_reasons"])
    return found


def _listed(values: tuple[Any, ...] | None) -> list[Any] | None:
    return None if values is None else list(values)


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """The outcome that a row of `trials` tells of, without its runs.

    A row of an earlier version has no purpose: its launch was made to prove and to measure.

    Raises:
        TypeError, ValueError: it holds a value that no outcome has.
    """
    failure = None
    if row.get("failure_class") is not None:
        failure = Failure(
            FailureClass(row["failure_class"]),
            Phase(row["phase"]),
            row.get("evidence") or "",
            row.get("evidence_line"),
        )
    plain = {name: row.get(name) for name in _PLAIN}
    plain["memory_used_peak_gib"] = _fact("memory_used_peak_gib", row.get("memory_used_peak_gib"))
    plain["started"], plain["filled"] = bool(row.get("started")), bool(row.get("filled"))
    with_speed = row.get("with_speed")
    return Outcome(
        status=Status(row["status"]),
        phase=Phase(row["phase"]),
        failure=failure,
        facts=StartupFacts(
            engine_version=row.get("engine_version"),
            **{name: _fact(name, row.get(name)) for name in _FACTS},
        ),
        spec_state=SpecState(row["spec_state"]) if row.get("spec_state") else None,
        log_tail=row.get("log_tail"),
        purpose=Purpose(row.get("purpose") or Purpose.PROOF),
        with_speed=True if with_speed is None else bool(with_speed),
        speed=_speed(row),
        started_at=_seconds(row.get("started_at")),
        ended_at=_seconds(row.get("ended_at")),
        **plain,  # type: ignore[arg-type]
    )


def _speed(row: Mapping[str, Any]) -> Speed | None:
    if row.get("decode_tok_s") is None:
        return None
    names = ("decode_tok_s", "decode_tok_s_low", "decode_tok_s_high")
    return Speed(*(_number(name, row.get(name)) for name in names))


def _fact(name: str, value: Any) -> Any:
    """A fact as `StartupFacts` has it; searches reckon with it, so that it must be a number."""
    if value is None or name == "graph_mode":
        return value
    number = _number(name, value)
    if number < 0 and name not in _BELOW_ZERO:
        raise ValueError(f"{name} is {value!r}")
    return int(number) if name in _COUNTS else number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}")
    return float(value)


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
