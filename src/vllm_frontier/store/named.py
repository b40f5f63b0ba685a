"""Files that a user names to be written: what may stand there, and how it is written.

A regular file, or nothing, is written all at once. A link is followed. A FIFO or a device of
characters is written into. Files that a sweep consists of are never written over.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vllm_frontier.errors import StoreError
from vllm_frontier.store import atomic
from vllm_frontier.store.paths import SweepPaths

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}


def check(path: Path) -> None:
    """See that a file can be written, before any is.

    Raises:
        StoreError: it is a folder, a part of a sweep, in no folder, or cannot be written.
    """
    if _descriptor(path) is not None:
        return
    try:
        kind = _kind(path)
        if stat.S_ISDIR(kind):
            raise StoreError(f"{path} is a folder: name a file")
        if stat.S_ISBLK(kind) or stat.S_ISSOCK(kind):
            raise StoreError(f"{path} is a block device or a socket: name a file")
        if not _is_stream(kind):
            _check_place(path, path.resolve())
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise cannot(path, error) from None


def write_all(files: Sequence[tuple[Path, bytes]]) -> None:
    """Write files that the user named, in order, the first when all are written beside it.

    So a disk that is full leaves what was there, and no file of an earlier report stands beside
    one of the new.

    Raises:
        StoreError: one cannot be written, or two are one.
    """
    seen: dict[str, Path] = {}
    for path, _ in files:
        check(path)
        place = os.path.realpath(path)
        if place in seen:
            both = f"{path} is" if path == seen[place] else f"{seen[place]} and {path} are"
            raise StoreError(f"{both} one file to hold two: name another for one of them")
        seen[place] = path
    aside: dict[Path, Path] = {}
    try:
        for path, content in files:
            if temporary := _written_aside(path, content):
                aside[path] = temporary
        for path, content in files:
            _put(path, content, aside)
    finally:
        for temporary in aside.values():
            atomic.remove(temporary)


def check_folder(folder: Path) -> None:
    """See that a folder is there or can be made, and that something can be made in it.

    Raises:
        StoreError: it cannot.
    """
    try:
        target = folder.resolve()
        _refuse_part_of_sweep(folder, target / "file")
        place = target
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise StoreError(f"{folder} cannot be written: {place} is no folder")
        _check_access(folder, place)
    except (OSError, RuntimeError) as error:
        raise cannot(folder, error) from None


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder where it is missing, and those above it; a link is followed.

    Those that were made are removed where what is to be written there cannot be.

    Raises:
        StoreError: it cannot be made.
    """
    made: list[Path] = []
    try:
        try:
            target = folder.resolve()
            made += [each for each in (target, *target.parents) if not each.exists()]
            target.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError) as error:
            raise cannot(folder, error) from None
        yield
    except BaseException:
        for each in made:
            with suppress(OSError):  # not made, or something else was put there
                each.rmdir()
        raise


def _written_aside(path: Path, content: bytes) -> Path | None:
    """A file that is to take the place of another; None for what is written into."""
    try:
        if _descriptor(path) is not None or _is_stream(_kind(path)):
            return None
        return atomic.write_aside(path.resolve(), content)
    except OSError as error:
        raise cannot(path, error) from None


def _put(path: Path, content: bytes, aside: dict[Path, Path]) -> None:
    """Put what was written aside into its place, or write into what is none."""
    try:
        number = _descriptor(path)
        if path in aside:
            target = path.resolve()
            aside[path].replace(target)
            del aside[path]
            atomic.sync_folder(target.parent)
        elif number is not None:  # as it is open: opened anew it would be written from its start
            _write_into(os.dup(number), content)
        else:
            _write_into(os.open(path, os.O_WRONLY | os.O_NOCTTY), content)
    except OSError as error:
        raise cannot(path, error) from None


def _write_into(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def cannot(path: Path, error: Exception) -> StoreError:
    """That a file or a folder cannot be written, and why."""
    reason = getattr(error, "strerror", None) or str(error)
    return StoreError(f"{path} cannot be written: {reason}")


def _descriptor(path: Path) -> int | None:
    """The number of a file of this process that is open; None for any other."""
    name = str(path)
    found = _DESCRIPTOR.fullmatch(name)
    return int(found[1]) if found else _STREAMS.get(name)


def _kind(path: Path) -> int:
    """The mode of what stands there, links followed; that of a regular file for nothing."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return stat.S_IFREG


def _is_stream(kind: int) -> bool:
    return stat.S_ISCHR(kind) or stat.S_ISFIFO(kind)


def _check_place(path: Path, target: Path) -> None:
    _refuse_part_of_sweep(path, target)
    folder = target.parent
    if not folder.is_dir():
        there = "is no folder" if folder.exists() else "does not exist"
        raise StoreError(f"{path} cannot be written: the folder {folder} {there}")
    _check_access(path, folder)


def _check_access(path: Path, folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"{path} cannot be written: nothing can be made in {folder}")


def _refuse_part_of_sweep(path: Path, target: Path) -> None:
    """Raise for a file that a sweep consists of: its tables, its lock, what is below attempts/."""
    for folder in target.parents:
        paths = SweepPaths(folder)
        if not paths.sweep_yaml.is_file():
            continue
        below = target.relative_to(folder)
        own = (paths.sweep_yaml.name, paths.lock.name, paths.lock_holder.name)
        is_file = below.name in own or below.suffix == ".parquet"
        if below.parts[0] == paths.attempts.name or (len(below.parts) == 1 and is_file):
            raise StoreError(f"{path} is a part of the sweep in {folder}: name another place")
