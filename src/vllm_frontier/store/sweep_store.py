"""A sweep's folder: opened once, written by one process, read by anyone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vllm_frontier.errors import StoreError
from vllm_frontier.identity import without_secrets
from vllm_frontier.outcome import Status
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store import atomic, damage, manifest, opening, records
from vllm_frontier.store.damage import Damage
from vllm_frontier.store.lock import Holder, SweepLock, live_holder
from vllm_frontier.store.manifest import Manifest
from vllm_frontier.store.paths import AttemptPaths, SweepPaths
from vllm_frontier.store.records import RecordedOutcome
from vllm_frontier.store.vanished import VanishedError, read_again

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
        identity: what decides the sweep's results; of a reader's store, as it was begun.
        identities: all under which it ran, first the one with which it was begun.
        changed: how the identity differs from that with which the sweep was begun, such as
            `engine.version 0.31.0 -> 0.32.0`; None when it does not.
    """

    def __init__(
        self,
        paths: SweepPaths,
        content: Manifest,
        lock: SweepLock | None,
        changed: str | None = None,
    ) -> None:
        self.paths = paths
        self.config: Mapping[str, Any] = content.config
        self.identity: SweepIdentity = content.identity
        self.identities = content.identities
        self.changed = changed
        self._lock = lock

    @classmethod
    def create_or_open(
        cls,
        root: Path,
        config: Mapping[str, Any],
        identity: SweepIdentity,
        *,
        allow_changed: bool = False,
    ) -> tuple[Self, bool]:
        """Become the writer of a sweep in a new or empty folder, or of the same sweep again.

        The same sweep may come with other cells or another budget; `sweep.yaml` then keeps the
        new configuration. What decides results (model, card, engine, workload) must be equal.

        Args:
            root: the sweep's folder; made where it does not exist.
            config: the resolved configuration, JSON values; its secrets are not written down.
            identity: what decides the sweep's results, from `identity.identify`.
            allow_changed: go on with another model, card, engine or fixed arguments; `changed`
                then says what differs, now and whenever the sweep runs like this again.

        Returns:
            The store, and whether the folder held this sweep already.

        Raises:
            StoreError: the folder holds another sweep or foreign files, another process writes
                it, or it cannot be written.
        """
        paths = SweepPaths(root)
        given = Manifest(without_secrets(config), identity)
        with _told(root):
            root.mkdir(parents=True, exist_ok=True)
            opening.refuse_foreign_files(paths)
            lock = SweepLock(paths)
            lock.acquire()
        try:
            with _told(root):
                content, resumed = opening.settle(paths, given, allow_changed=allow_changed)
        except BaseException:
            lock.release()
            raise
        changed = opening.change_in_words(manifest.differences(content, given))
        store = cls(paths, content, lock, changed)
        store.identity = content.known(identity)
        return store, resumed

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
            cell = self.paths.attempts / cell_id
            # Not `parents`: a folder that was removed is not to come back with one attempt in it.
            cell.mkdir(exist_ok=True)
            while True:
                number = max(self.paths.numbers(cell_id), default=0) + 1
                attempt = self.paths.attempt(cell_id, number)
                try:
                    attempt.root.mkdir()
                except FileExistsError:
                    continue  # another process took the number
                atomic.sync_folder(cell)
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
        telemetry: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write an attempt's rows and then, last, the mark that it is done.

        Args:
            attempt: from `new_attempt`.
            trial: from `rows.trial_row`.
            runs: from `rows.run_rows`.
            telemetry: from `rows.telemetry_rows`.

        Raises:
            StoreError: the folder cannot be written; the attempt counts as interrupted.
        """
        with _told(self.paths.root):
            records.write_outcome(attempt, trial, runs, telemetry)

    def write_log(self, attempt: AttemptPaths, log: bytes) -> None:
        """Write the log of a server that ran on another node.

        Raises:
            StoreError: the folder cannot be written.
        """
        with _told(self.paths.root):
            atomic.write_bytes(attempt.server_log, log)

    def take_stock(self) -> tuple[list[RecordedOutcome], list[Damage]]:
        """For the writer: `outcomes`, after files that are not as they were written were renamed.

        An attempt with a damaged file counts as interrupted for everybody, and from now on for
        ever, whatever becomes of the file. Nothing is deleted.

        Returns:
            The attempts, and what is damaged, each to be told in a line.

        Raises:
            StoreError: the folder cannot be read or written, or a later version of this program
                wrote an attempt.
        """
        stock: list[RecordedOutcome] = []
        told: list[Damage] = []
        with _told(self.paths.root):
            attempts, misplaced = self.paths.search()
            told += damage.make_room(misplaced)
            for each in attempts:
                record, found = records.examine(each)
                if found:
                    told += damage.set_aside(each, found)
                    record, _ = records.examine(each)
                if record is not None:
                    stock.append(record)
        _refuse_gone(self.paths)
        return stock, told

    def outcomes(self) -> list[RecordedOutcome]:
        """Every attempt that was launched, by cell and number.

        An attempt without an outcome, or of which any file is damaged, is `interrupted`.

        Raises:
            StoreError: the folder cannot be read or went away, or a later version of this
                program wrote an attempt.
        """
        return self.look_through()[0]

    def look_through(self) -> tuple[list[RecordedOutcome], list[str]]:
        """`outcomes`, and what of the attempts is damaged; changes nothing.

        Returns:
            The attempts, and one path for each of them that is damaged, from the sweep's folder
            on: whoever writes the sweep next sets the files aside, and runs their cells again.

        Raises:
            StoreError: as `outcomes`.
        """
        with _read(self.paths):
            attempts, told = self.paths.search()
            found = []
            for paths in attempts:
                record, harm = records.examine(paths)
                if harm and not paths.root.exists():
                    continue  # removed between two of its files
                found += [] if record is None else [record]
                told += [each.path for each in harm[:1]]
        return found, [str(each.relative_to(self.paths.root)) for each in sorted(told)]

    def tables(
        self,
        inferred: Sequence[Mapping[str, Any]] = (),
        known: Sequence[RecordedOutcome] | None = None,
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The tables `trials` and `runs` as the attempts tell them now.

        Args:
            inferred: rows of `trials` with attempt 0.
            known: what `outcomes` gave, where it was asked already.

        Raises:
            StoreError: the folder cannot be read or went away, or a later version of this
                program wrote an attempt.
        """
        from vllm_frontier.store import tables

        found = self.outcomes() if known is None else known
        others = [each.row for each in found if each.status is Status.INTERRUPTED]
        finished = self._finished(found)
        with _read(self.paths):
            return tables.trials(finished, [*inferred, *others]), tables.runs(finished)

    def telemetry(self, known: Sequence[RecordedOutcome] | None = None) -> pl.DataFrame:
        """The table `telemetry` of all attempts that are done, oldest sample first.

        Those of an earlier version have none, nor those whose file is lost or damaged.

        Args:
            known: what `outcomes` gave, where it was asked already.

        Raises:
            StoreError: as `tables`.
        """
        from vllm_frontier.store import tables

        def read() -> pl.DataFrame:
            with _read(self.paths):
                return tables.telemetry([each for each in finished if records.has_telemetry(each)])

        finished = self._finished(self.outcomes() if known is None else known)
        return read_again(read)

    def _finished(self, found: Sequence[RecordedOutcome]) -> list[AttemptPaths]:
        return [
            self.paths.attempt(record.cell_id, record.attempt)
            for record in found
            if record.status is not Status.INTERRUPTED
        ]

    def compact(
        self,
        inferred: Sequence[Mapping[str, Any]] = (),
        derive: Derive | None = None,
        known: Sequence[RecordedOutcome] | None = None,
    ) -> None:
        """Write `trials.parquet`, `runs.parquet` and what is derived from them.

        Args:
            inferred: rows of `trials` with attempt 0.
            derive: gives further tables by name, such as `analyze.derived.derived_tables`.
            known: what `outcomes` gave, where it was asked already.

        Raises:
            StoreError: the folder cannot be written, or a later version wrote an attempt.
        """
        from vllm_frontier.store import tables

        trials, runs = self.tables(inferred, known)
        content = {"trials": trials, "runs": runs}
        if derive is not None:
            further = derive(trials.lazy(), runs.lazy())
            content |= {name: each.collect() for name, each in further.items()}
        with _told(self.paths.root):
            for name, each in content.items():
                atomic.write_bytes(self.paths.table(name), tables.parquet(name, each))


@contextmanager
def _told(root: Path) -> Iterator[None]:
    """Tell a failing disk in one line."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not root.exists():
            raise StoreError(f"{root} is gone: it was removed while it was written") from error
        named = Path(os.fsdecode(error.filename)) if error.filename else root
        # The name of a temporary file says nothing to anybody.
        where = named.parent if atomic.is_temporary(named) else named
        raise StoreError(f"{where} cannot be written: {error.strerror or error}") from error


@contextmanager
def _read(paths: SweepPaths) -> Iterator[None]:
    """Tell a folder that cannot be read, or went away meanwhile, in one line."""
    try:
        yield
    except OSError as error:
        _refuse_gone(paths)
        where = error.filename or paths.root
        told = f"{where} cannot be read: {error.strerror or error}"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise VanishedError(told) from error
        raise StoreError(told) from error
    _refuse_gone(paths)


def _refuse_gone(paths: SweepPaths) -> None:
    if not paths.sweep_yaml.exists():
        raise StoreError(f"{paths.root} is gone: it was removed while it was read")
