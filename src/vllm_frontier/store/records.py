"""What is on disk of one attempt: written step by step, read back as one value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_frontier.errors import StoreError
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Status
from vllm_frontier.store import atomic, rows
from vllm_frontier.store.paths import AttemptPaths
from vllm_frontier.store.schema import SCHEMA_VERSION, to_parquet


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What `outcome.json` says of a file that was written before it."""

    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """An attempt as the folder tells it.

    Attributes:
        cell: the cell that was tried.
        cell_id: its identity.
        attempt: the number of the attempt.
        status: `interrupted` when no outcome was written, or when what was written is damaged.
        failure_class: why there is no result.
        phase: where the attempt ended.
        evidence: the line that decided, or what is damaged.
        row: the row of `trials`.
        launch: what `attempt.json` holds for an attempt that is interrupted (the supervisor,
            for one), else empty.
    """

    cell: Cell
    cell_id: str
    attempt: int
    status: Status
    failure_class: FailureClass | None
    phase: Phase
    evidence: str | None
    row: Mapping[str, Any]
    launch: Mapping[str, Any] = field(default_factory=dict)

    @property
    def workload(self) -> str | None:
        """Digest of the workload that was measured."""
        value = self.row.get("workload")
        return None if value is None else str(value)

    def outcome(self) -> Outcome:
        """The outcome without its runs, which are in the table `runs`."""
        return rows.outcome_of(self.row)


def write_attempt(paths: AttemptPaths, row: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Write `attempt.json`: the row that stands until there is an outcome, and the launch."""
    document = {
        "schema_version": SCHEMA_VERSION,
        **record,
        "trial": rows.row_to_json(row),
    }
    atomic.write_json(paths.attempt_json, document)


def write_outcome(
    paths: AttemptPaths, trial: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]
) -> None:
    """Write the tables of an attempt, and then the mark that it is done.

    Writing it again replaces it.
    """
    # While the tables are replaced, an earlier mark would vouch for what is half new.
    paths.outcome_json.unlink(missing_ok=True)
    files = {
        "trial.parquet": _write_table(paths.trial_parquet, "trials", [trial]),
        "runs.parquet": _write_table(paths.runs_parquet, "runs", runs),
    }
    document = {
        "schema_version": SCHEMA_VERSION,
        **rows.row_to_json(trial),
        "files": {
            name: {"rows": each.rows, "bytes": each.bytes, "sha256": each.sha256}
            for name, each in files.items()
        },
    }
    atomic.write_json(paths.outcome_json, document)


def read_attempt(paths: AttemptPaths) -> RecordedOutcome | None:
    """Read an attempt; None when nothing was ever launched (there is no `attempt.json`).

    Sizes of the tables are compared with what the outcome says, not their content: that is
    what `damage` is for.

    Raises:
        StoreError: a later version of this program wrote it.
    """
    document = _load(paths.outcome_json)
    if document is None:
        problem = "outcome.json cannot be read" if paths.outcome_json.exists() else None
        return _interrupted(paths, problem)
    _check_version(paths.outcome_json, document)
    files = document.pop("files", {})
    for path in (paths.trial_parquet, paths.runs_parquet):
        if _size(path) != files.get(path.name, {}).get("bytes"):
            return _interrupted(paths, f"{path.name} is not as outcome.json says")
    return _recorded(document, {})


def read_launch(paths: AttemptPaths) -> Mapping[str, Any]:
    """What `attempt.json` says of the launch; empty when there is none."""
    return _load(paths.attempt_json) or {}


def damage(paths: AttemptPaths) -> str | None:
    """What of a finished attempt's tables is not as its outcome says, by their content."""
    document = _load(paths.outcome_json) or {}
    for path in (paths.trial_parquet, paths.runs_parquet):
        expected = document.get("files", {}).get(path.name, {}).get("sha256")
        if not path.is_file() or _sha256(path.read_bytes()) != expected:
            return f"{path.name} is not as outcome.json says"
    return None


def as_interrupted(record: RecordedOutcome, problem: str) -> RecordedOutcome:
    """The same attempt, counted as interrupted because of a problem with its files."""
    row = {**record.row, "status": Status.INTERRUPTED.value, "evidence": problem}
    row.update(failure_class=None, evidence_line=None)
    return _recorded(row, {})


def _interrupted(paths: AttemptPaths, problem: str | None) -> RecordedOutcome | None:
    document = _load(paths.attempt_json)
    if document is None:
        return None
    _check_version(paths.attempt_json, document)
    trial = document.pop("trial", None)
    if not isinstance(trial, dict):
        return None
    if problem is not None:
        trial["evidence"] = problem
    return _recorded(trial, document)


def _recorded(document: dict[str, Any], launch: Mapping[str, Any]) -> RecordedOutcome:
    document.pop("schema_version", None)
    row = rows.row_from_json(document)
    failure_class = row.get("failure_class")
    return RecordedOutcome(
        cell=rows.cell_of(row),
        cell_id=row["cell_id"],
        attempt=row["attempt"],
        status=Status(row["status"]),
        failure_class=None if failure_class is None else FailureClass(failure_class),
        phase=Phase(row["phase"]),
        evidence=row.get("evidence"),
        row=row,
        launch=launch,
    )


def _write_table(path: Path, table: str, content: Sequence[Mapping[str, Any]]) -> FileDigest:
    data = to_parquet(table, content)
    atomic.write_bytes(path, data)
    return FileDigest(len(content), len(data), _sha256(data))


def _load(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _check_version(path: Path, document: Mapping[str, Any]) -> None:
    version = document.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, and this program reads up to {SCHEMA_VERSION}; "
            "use the version that wrote it, or a later one"
        )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
