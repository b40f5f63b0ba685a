"""Files of an attempt that are not as they were written, and how they are put out of the way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_frontier.store import atomic
from vllm_frontier.store.paths import ASIDE, AttemptPaths


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of an attempt that is not as it was written.

    Attributes:
        path: the file.
        problem: what is wrong with it, to be read after its name.
        kept: where its content is now; None where there is none, or nothing was moved.
    """

    path: Path
    problem: str
    kept: Path | None = None

    def __str__(self) -> str:
        told = f"{self.path} {self.problem}"
        if self.kept is not None:
            told += f"; it is kept as {self.kept.name}"
        return f"{told}; the attempt counts as interrupted"


def set_aside(paths: AttemptPaths, found: Sequence[Damage]) -> list[Damage]:
    """Rename the damaged files of an attempt; it has no outcome any more.

    The mark of an attempt that is done goes last: a crash before it leaves the damage to be
    found again.

    Raises:
        OSError: the folder cannot be written.
    """
    told = [replace(each, kept=_renamed(each.path)) for each in found]
    if all(each.path != paths.outcome_json for each in found):
        _renamed(paths.outcome_json)
    atomic.sync_folder(paths.root)
    return told


def make_room(misplaced: Sequence[Path]) -> list[Damage]:
    """Rename what stands where the folder of a cell or an attempt should, such as a link to itself.

    Raises:
        OSError: the folder above it cannot be written.
    """
    return [Damage(each, "is no folder", _renamed(each)) for each in misplaced]


def names(paths: AttemptPaths) -> list[str]:
    """The files of an attempt that were ever set aside, by the names that they had."""
    try:
        entries = [each.name for each in paths.root.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted({name.partition(ASIDE)[0] for name in entries if ASIDE in name})


def kept(path: Path) -> Path:
    """Where a file is kept that was set aside once."""
    return path.with_name(path.name + ASIDE)


def _renamed(path: Path) -> Path | None:
    """Move a file out of the way; None when it is not there."""
    target, number = kept(path), 2
    while os.path.lexists(target):
        target, number = path.with_name(f"{path.name}{ASIDE}.{number}"), number + 1
    try:
        path.rename(target)
    except FileNotFoundError:
        return None
    return target
