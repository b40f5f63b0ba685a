"""A sweep's folder: opened once, written by one process, read by anyone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vllm_frontier.errors import StoreError
from vllm_frontier.outcome import Status
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store import atomic, manifest, records
from vllm_frontier.store.lock import Holder, SweepLock, live_holder
from vllm_frontier.store.manifest import Manifest
from vllm_frontier.store.paths import AttemptPaths, SweepPaths
from vllm_frontier.store.records import RecordedOutcome

if TYPE_CHECKING:
    import polars as pl

    from vllm_frontier.store.tables import Derive


class SweepStore:
    """The results of one sweep.

    Made by `create_or_open` it holds the sweep's lock until `close`; made by `open` it is for
    readers, who need no lock, because every file is replaced all at once.

    Attributes:
        paths: the names of the sweep's files.
        config: the resolved configuration as recorded in `sweep.yaml`.
        identity: what decides the sweep's results.
    """

    def __init__(self, paths: SweepPaths, content: Manifest, lock: SweepLock | None) -> None:
        self.paths = paths
        self.config: Mapping[str, Any] = content.config
        self.identity: SweepIdentity = content.identity
        self._lock = lock

    @classmethod
    def create_or_open(
        cls, root: Path, config: Mapping[str, Any], identity: SweepIdentity
    ) -> tuple[Self, bool]:
        """Become the writer of a sweep in a new or empty folder, or of the same sweep again.

        The same sweep may come with other cells or another budget; `sweep.yaml` then keeps the
        new configuration. What decides results (model, card, engine, workload) must be equal.

        Args:
            root: the sweep's folder; made where it does not exist.
            config: the resolved configuration, JSON values.
            identity: what decides the sweep's results.

        Returns:
            The store, and whether the folder held this sweep already.

        Raises:
            StoreError: the folder holds another sweep or foreign files, another process writes
                it, or it cannot be written.
        """
        paths = SweepPaths(root)
        with _told(root):
            root.mkdir(parents=True, exist_ok=True)
            _refuse_foreign_files(paths)
            lock = SweepLock(paths)
            lock.acquire()
        try:
            with _told(root):
                given = Manifest(config, identity)
                content, resumed = _settle(paths, given)
        except BaseException:
            lock.release()
            raise
        return cls(paths, content, lock), resumed

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open a sweep for reading.

        Raises:
            StoreError: the folder is no sweep, or cannot be read.
        """
        paths = SweepPaths(root)
        return cls(paths, manifest.read(paths), None)

    @classmethod
    def open_for_writing(cls, root: Path) -> Self:
        """Become the writer of a sweep that exists.

        Raises:
            StoreError: the folder is no sweep, cannot be written, or another process writes it.
        """
        paths = SweepPaths(root)
        content = manifest.read(paths)
        with _told(root):
            lock = SweepLock(paths)
            lock.acquire()
        return cls(paths, content, lock)

    def close(self) -> None:
        """Let another process write; what is written stays readable through this object."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def writer(self) -> Holder | None:
        """The process that writes the sweep now, if any does."""
        return live_holder(self.paths)

    def new_attempt(self, cell_id: str) -> AttemptPaths:
        """Make the folder of the next attempt at a cell.

        Raises:
            StoreError: the folder cannot be written.
        """
        with _told(self.paths.root):
            while True:
                number = max(self.paths.numbers(cell_id), default=0) + 1
                attempt = self.paths.attempt(cell_id, number)
                attempt.root.parent.mkdir(parents=True, exist_ok=True)
                try:
                    attempt.root.mkdir()
                except FileExistsError:
                    continue  # another process took the number
                atomic.sync_folder(attempt.root.parent)
                return attempt

    def write_attempt(
        self, attempt: AttemptPaths, row: Mapping[str, Any], record: Mapping[str, Any]
    ) -> None:
        """Write `attempt.json`, before the engine is executed.

        Args:
            attempt: from `new_attempt`.
            row: from `rows.interrupted_row`; it stands in `trials` until there is an outcome.
            record: JSON values: supervisor, argv, environment with secrets masked.

        Raises:
            StoreError: the folder cannot be written.
        """
        with _told(self.paths.root):
            records.write_attempt(attempt, row, record)

    def write_outcome(
        self,
        attempt: AttemptPaths,
        trial: Mapping[str, Any],
        runs: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write an attempt's rows and then, last, the mark that it is done.

        Raises:
            StoreError: the folder cannot be written; the attempt counts as interrupted.
        """
        with _told(self.paths.root):
            records.write_outcome(attempt, trial, runs)

    def write_log(self, attempt: AttemptPaths, log: bytes) -> None:
        """Write the log of a server that ran on another node.

        Raises:
            StoreError: the folder cannot be written.
        """
        with _told(self.paths.root):
            atomic.write_bytes(attempt.server_log, log)

    def outcomes(self) -> list[RecordedOutcome]:
        """Every attempt that was launched, by cell and number.

        An attempt without an outcome, or whose tables have not the recorded size, is
        `interrupted`.

        Raises:
            StoreError: a later version of this program wrote an attempt.
        """
        found = (records.read_attempt(each) for each in self.paths.existing_attempts())
        return [record for record in found if record is not None]

    def tables(
        self, inferred: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The tables `trials` and `runs` as the attempts tell them now.

        Args:
            inferred: rows of `trials` with attempt 0.

        Raises:
            StoreError: a later version of this program wrote an attempt.
        """
        from vllm_frontier.store import tables

        finished: list[AttemptPaths] = []
        others = list(inferred)
        for record in self.outcomes():
            attempt = self.paths.attempt(record.cell_id, record.attempt)
            if record.status is Status.INTERRUPTED:
                others.append(record.row)
            elif (problem := records.damage(attempt)) is None:
                finished.append(attempt)
            else:
                others.append(records.as_interrupted(record, problem).row)
        return tables.trials(finished, others), tables.runs(finished)

    def compact(
        self, inferred: Sequence[Mapping[str, Any]] = (), derive: Derive | None = None
    ) -> None:
        """Write `trials.parquet`, `runs.parquet` and what is derived from them.

        Args:
            inferred: rows of `trials` with attempt 0.
            derive: gives further tables by name, such as `analyze.derived.derived_tables`.

        Raises:
            StoreError: the folder cannot be written, or a later version wrote an attempt.
        """
        from vllm_frontier.store import tables

        trials, runs = self.tables(inferred)
        content = {"trials": trials, "runs": runs}
        if derive is not None:
            further = derive(trials.lazy(), runs.lazy())
            content |= {name: each.collect() for name, each in further.items()}
        with _told(self.paths.root):
            for name, each in content.items():
                atomic.write_bytes(self.paths.table(name), tables.parquet(name, each))


def _settle(paths: SweepPaths, given: Manifest) -> tuple[Manifest, bool]:
    """Find or write `sweep.yaml`, as the writer."""
    if not paths.sweep_yaml.exists():
        _remove_temporaries(paths.root)
        paths.attempts.mkdir(exist_ok=True)
        manifest.write(paths, given)
        return manifest.read(paths), False
    stored = manifest.read(paths)
    told = manifest.difference(stored, given)
    if told is not None:
        raise StoreError(
            f"{paths.root} holds another sweep's results: {told}; choose another folder"
        )
    _remove_temporaries(paths.root)
    if manifest.plain(stored.config) != manifest.plain(given.config):
        # The same sweep with another grid or budget: what a later `resume` goes on with.
        manifest.write(paths, given)
        return manifest.read(paths), True
    return stored, True


def _refuse_foreign_files(paths: SweepPaths) -> None:
    """Refuse a folder that is in use for something else, before a file is put into it."""
    if paths.sweep_yaml.exists():
        return
    own = {paths.lock.name, paths.lock_holder.name, paths.attempts.name}
    for each in sorted(paths.root.iterdir()):
        is_own = each.name in own or atomic.is_temporary(each)
        if not is_own or (each == paths.attempts and any(each.iterdir())):
            raise StoreError(
                f"{paths.root} holds {each.name} but no {paths.sweep_yaml.name}; "
                "choose an empty or new folder"
            )


def _remove_temporaries(folder: Path) -> None:
    for each in folder.iterdir():
        if atomic.is_temporary(each):
            each.unlink(missing_ok=True)


@contextmanager
def _told(root: Path) -> Iterator[None]:
    """Tell a failing disk in one line."""
    try:
        yield
    except OSError as error:
        where = error.filename or root
        raise StoreError(f"{where} cannot be written: {error.strerror or error}") from error
