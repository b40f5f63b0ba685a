"""Every file name of a sweep's folder, in one place."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CELL = re.compile(r"[0-9a-f]{16}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
ASIDE = ".damaged"
"""Behind the name of what was set aside."""
TABLES = ("trials", "runs", "frontier", "boundaries", "checks")


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    """The folder of one attempt at a cell; `number` counts from 1."""

    root: Path
    cell_id: str
    number: int

    @property
    def attempt_json(self) -> Path:
        """What is about to be launched; on disk before the engine is executed."""
        return self.root / "attempt.json"

    @property
    def server_log(self) -> Path:
        """The engine's output, complete."""
        return self.root / "server.log"

    @property
    def trial_parquet(self) -> Path:
        """The attempt's row of the table `trials`."""
        return self.root / "trial.parquet"

    @property
    def runs_parquet(self) -> Path:
        """The attempt's rows of the table `runs`."""
        return self.root / "runs.parquet"

    @property
    def telemetry_parquet(self) -> Path:
        """The attempt's rows of the table `telemetry`."""
        return self.root / "telemetry.parquet"

    @property
    def outcome_json(self) -> Path:
        """Written last; the only mark that the attempt is done."""
        return self.root / "outcome.json"


@dataclass(frozen=True, slots=True)
class SweepPaths:
    """The folder of a sweep."""

    root: Path

    @property
    def sweep_yaml(self) -> Path:
        """The resolved configuration and the identity; written once."""
        return self.root / "sweep.yaml"

    @property
    def lock(self) -> Path:
        """Locked by the one process that writes."""
        return self.root / "lock"

    @property
    def lock_holder(self) -> Path:
        """Who that is, readable beside the lock (locking may truncate the lock itself)."""
        return self.root / "lock.json"

    @property
    def attempts(self) -> Path:
        """The folder of all attempts."""
        return self.root / "attempts"

    def table(self, name: str) -> Path:
        """The file of a table of the whole sweep; `name` is one of `TABLES`."""
        if name not in TABLES:
            raise ValueError(f"no table {name!r}; there are {', '.join(TABLES)}")
        return self.root / f"{name}.parquet"

    def attempt(self, cell_id: str, number: int) -> AttemptPaths:
        """The paths of one attempt, whether or not it exists."""
        return AttemptPaths(self.attempts / cell_id / str(number), cell_id, number)

    def numbers(self, cell_id: str) -> list[int]:
        """The attempts at a cell that have a folder, in order."""
        return _numbers(_entries(self.attempts / cell_id)[0])

    def existing_attempts(self) -> Iterator[AttemptPaths]:
        """All attempts that have a folder, by cell and number."""
        return iter(self.search()[0])

    def search(self) -> tuple[list[AttemptPaths], list[Path]]:
        """`existing_attempts`, and what has the name of a cell or an attempt but is no folder."""
        found: list[AttemptPaths] = []
        cells, others = _entries(self.attempts)
        misplaced = [self.attempts / name for name in others if _CELL.fullmatch(name)]
        for cell_id in sorted(cells):
            if ASIDE in cell_id:  # a link, perhaps to what stands in its place now
                continue
            cell = self.attempts / cell_id
            folders, others = _entries(cell)
            found += [
                AttemptPaths(cell / str(number), cell_id, number) for number in _numbers(folders)
            ]
            misplaced += [cell / str(number) for number in _numbers(others)]
        return found, misplaced


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """Where a report lies: the sweep's folder, or another one."""

    root: Path

    @property
    def html(self) -> Path:
        """The page."""
        return self.root / "report.html"

    @property
    def markdown(self) -> Path:
        """The same in short."""
        return self.root / "report.md"

    @property
    def plots(self) -> Path:
        """The folder of the pictures."""
        return self.root / "plots"


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """The names in a folder of folders and of all else; none where it is none, or went away."""
    folders: list[str] = []
    others: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for each in entries:
                (folders if _is_folder(each) else others).append(each.name)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    return folders, others


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False
