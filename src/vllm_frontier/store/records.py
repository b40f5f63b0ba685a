"""What is on disk of one attempt: written step by step, read back as one value."""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from vllm_frontier.errors import StoreError
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Status
from vllm_frontier.store import atomic, rows
from vllm_frontier.store import damage as damaged
from vllm_frontier.store.damage import Damage
from vllm_frontier.store.paths import AttemptPaths
from vllm_frontier.store.schema import SCHEMA_VERSION, to_parquet

# What a disk says of content that it has lost, or of what never was a file.
_UNREADABLE = (errno.EIO, errno.EISDIR, errno.EUCLEAN, errno.ELOOP)


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

    @property
    def sequence(self) -> int:
        """Its place among what the sweep has learned, from 1; 0: not known."""
        return self.row.get("sequence") or 0

    def outcome(self) -> Outcome:
        """The outcome without its runs, which are in the table `runs`."""
        return rows.outcome_of(self.row)


def in_order(found: Iterable[RecordedOutcome]) -> list[RecordedOutcome]:
    """Attempts in the order in which the sweep learned how they ended.

    Those of an earlier version, which did not write that down, come first, as they ended; where
    that is not known either, began.
    """

    def place(record: RecordedOutcome) -> tuple[int, float]:
        told = record.row.get("ended_at") or record.row.get("started_at")
        return record.sequence, told.timestamp() if isinstance(told, datetime) else 0.0

    return sorted(found, key=place)


def write_attempt(paths: AttemptPaths, row: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Write `attempt.json`: the row that stands until there is an outcome, and the launch."""
    document = {
        "schema_version": SCHEMA_VERSION,
        **record,
        "trial": rows.row_to_json(row),
    }
    atomic.write_json(paths.attempt_json, document)


def write_outcome(
    paths: AttemptPaths,
    trial: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    telemetry: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the tables of an attempt, and then the mark that it is done.

    Writing it again replaces it.
    """
    # While the tables are replaced, an earlier mark would vouch for what is half new.
    paths.outcome_json.unlink(missing_ok=True)
    files = {
        "trial.parquet": _write_table(paths.trial_parquet, "trials", [trial]),
        "runs.parquet": _write_table(paths.runs_parquet, "runs", runs),
        "telemetry.parquet": _write_table(paths.telemetry_parquet, "telemetry", telemetry),
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


def examine(paths: AttemptPaths) -> tuple[RecordedOutcome | None, list[Damage]]:
    """Read an attempt, and check every one of its files by its content; changes nothing.

    Returns:
        The attempt, `interrupted` where any file is damaged (None when nothing was ever
        launched, or nothing readable says what), and what is damaged.

    Raises:
        StoreError: a later version of this program wrote it, or it may not be read.
    """
    damage: list[Damage] = []
    launch = _json(paths.attempt_json, damage)
    document = _json(paths.outcome_json, damage)
    finished = None
    if document is not None:
        if launch is None and not damage:
            damage.append(Damage(paths.attempt_json, "is missing"))
        files = document.pop("files", None)
        finished = _parsed(paths.outcome_json, document, {}, damage)
        damage += _damaged_tables(paths, files)
    if finished is not None and not damage:
        return finished, damage
    opened = None if launch is None else _opened(paths, launch, damage)
    problem = _problem(paths, damage)
    if opened is not None and problem is None:
        return opened, damage
    known = opened or finished or _set_aside_before(paths)
    return (None if known is None else _as_interrupted(known, problem)), damage


def has_telemetry(paths: AttemptPaths) -> bool:
    """Whether the telemetry of an attempt that is done is there, as its outcome says."""
    document = _json(paths.outcome_json, []) or {}
    files, content = document.get("files"), _content(paths.telemetry_parquet)
    said = files.get(paths.telemetry_parquet.name) if isinstance(files, dict) else None
    return content is not None and isinstance(said, dict) and said.get("sha256") == _sha256(content)


def read_launch(paths: AttemptPaths) -> Mapping[str, Any]:
    """What `attempt.json` says of the launch; empty when there is none, or it is damaged."""
    document = _json(paths.attempt_json, [])
    return {} if document is None else document


def _opened(
    paths: AttemptPaths, launch: dict[str, Any], damage: list[Damage]
) -> RecordedOutcome | None:
    """The row that stands until there is an outcome."""
    trial = launch.pop("trial", None)
    if not isinstance(trial, dict):
        damage.append(Damage(paths.attempt_json, "lacks 'trial'"))
        return None
    return _parsed(paths.attempt_json, trial, launch, damage)


def _parsed(
    path: Path, document: dict[str, Any], launch: Mapping[str, Any], damage: list[Damage]
) -> RecordedOutcome | None:
    try:
        found = _recorded(document, launch)
        if [found.cell_id, str(found.attempt)] == [path.parent.parent.name, path.parent.name]:
            return found
        damage.append(Damage(path, "is that of another attempt"))
    except KeyError as error:
        damage.append(Damage(path, f"lacks {error}"))
    except (AttributeError, TypeError, ValueError) as error:
        damage.append(Damage(path, f"holds a value that cannot be right ({error})"))
    return None


def _recorded(document: Mapping[str, Any], launch: Mapping[str, Any]) -> RecordedOutcome:
    row = rows.row_from_json(document)
    failure_class = row.get("failure_class")
    cell = rows.cell_of(row)
    hash(cell)  # what is no axis value is found here, and not by a search
    rows.outcome_of(row)  # nor is anything else of it a search's to find
    if not isinstance(row.get("sequence"), int | None):
        raise ValueError(f"sequence is {row['sequence']!r}")
    return RecordedOutcome(
        cell=cell,
        cell_id=row["cell_id"],
        attempt=row["attempt"],
        status=Status(row["status"]),
        failure_class=None if failure_class is None else FailureClass(failure_class),
        phase=Phase(row["phase"]),
        evidence=row.get("evidence"),
        row=row,
        launch=launch,
    )


def _damaged_tables(paths: AttemptPaths, files: Any) -> list[Damage]:
    """What of an attempt's tables is not as its outcome says.

    Its telemetry is none of them: what was measured stands without.
    """
    if not isinstance(files, dict):
        return [Damage(paths.outcome_json, "lacks 'files'")]
    found = []
    for path in (paths.trial_parquet, paths.runs_parquet):
        said = files.get(path.name)
        content = _content(path)
        if content is None:
            found.append(Damage(path, "is missing"))
        elif not isinstance(said, dict) or said.get("sha256") != _sha256(content):
            differs = f"is not as {paths.outcome_json.name} says"
            found.append(Damage(path, differs if content else _without_content(path, differs)))
    return found


def _problem(paths: AttemptPaths, damage: Sequence[Damage]) -> str | None:
    """Why an attempt counts as interrupted, where it did not just end so."""
    if damage:
        return "; ".join(f"{each.path.name} {each.problem}" for each in damage)
    names = damaged.names(paths)
    return f"{', '.join(names)} damaged and set aside" if names else None


def _set_aside_before(paths: AttemptPaths) -> RecordedOutcome | None:
    """What an outcome that was set aside says, where `attempt.json` says nothing."""
    document = _json(damaged.kept(paths.outcome_json), [])
    if document is None:
        return None
    document.pop("files", None)
    return _parsed(paths.outcome_json, document, {}, [])


def _as_interrupted(record: RecordedOutcome, problem: str | None) -> RecordedOutcome:
    """The same attempt, counted as interrupted because of a problem with its files."""
    row = {**record.row, "status": Status.INTERRUPTED.value, "evidence": problem}
    row.update(failure_class=None, evidence_line=None)
    return _recorded(row, record.launch)


def _write_table(path: Path, table: str, content: Sequence[Mapping[str, Any]]) -> FileDigest:
    data = to_parquet(table, content)
    atomic.write_bytes(path, data)
    return FileDigest(len(content), len(data), _sha256(data))


def _json(path: Path, damage: list[Damage]) -> dict[str, Any] | None:
    """The object that a file holds; None when it is not there or damaged, which is noted.

    Raises:
        StoreError: a later version of this program wrote it, or it may not be read.
    """
    content = _content(path)
    if content is None:
        return None
    try:
        document = json.loads(content)
    except ValueError:
        problem = "is no JSON" if content else _without_content(path, "is empty")
        damage.append(Damage(path, problem))
        return None
    if not isinstance(document, dict):
        damage.append(Damage(path, "is no JSON object"))
        return None
    version = document.pop("schema_version", None)
    if not isinstance(version, int):
        damage.append(Damage(path, "lacks 'schema_version'"))
        return None
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, and this program reads up to {SCHEMA_VERSION}; "
            "use the version that wrote it, or a later one"
        )
    return document


def _without_content(path: Path, otherwise: str) -> str:
    """Why there is nothing to read: it is no file, or what else is told."""
    return otherwise if path.is_file() else "is no file"


def _content(path: Path) -> bytes | None:
    """A file as it is; None when there is none, nothing where the disk does not give it back.

    Nor is there anything in what is no file, which is not opened.

    Raises:
        StoreError: it may not be read, or not now; that says nothing about what is in it.
    """
    try:
        # A pipe would wait for somebody who writes into it.
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb", buffering=0) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in _UNREADABLE:
            return b""
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
