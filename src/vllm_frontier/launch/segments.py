"""Shared memory in `/dev/shm`: which segments are a launch's, and their removal.

Processes that are killed leave theirs behind, tens of megabytes each. A segment is a launch's
only when a process of its tree was seen to hold it and it was not there before the launch. It
is never removed while any process holds it.

The supervisor uses this, too, and has the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from vllm_frontier.launch import processes

SHM = Path("/dev/shm")
NOTES = ".segments"

_CREATED = 0x100 | 0x80  # IN_CREATE, IN_MOVED_TO
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

# Looks into the tree are this far apart, further while what appears is somebody else's.
_APART_S = 0.004
_NEW_APART_S = 0.1  # but no further than this when something new appears
_AGAIN_S = 1.0
_DECIDED_S = 1.0  # what nobody of the tree held for so long is somebody else's


class Segment(NamedTuple):
    """One file of `/dev/shm`, told apart from a later one with its name by its inode."""

    name: str
    inode: int


class Notes(NamedTuple):
    """What a supervisor wrote down: segments of its launch, and inodes that were there before.

    `before` is None where nothing is known.
    """

    segments: frozenset[Segment] = frozenset()
    before: frozenset[int] | None = None


def segments_there() -> list[Segment]:
    """The files of `/dev/shm`, whoever made them."""
    try:
        with os.scandir(SHM) as entries:
            return [
                Segment(entry.name, entry.inode())
                for entry in entries
                if entry.is_file(follow_symlinks=False)
            ]
    except OSError:  # a system without it
        return []


def segments_of(pids: Collection[int], among: Iterable[Segment]) -> set[Segment]:
    """Those that one of these processes has mapped or open."""
    among = list(among)
    if not among:
        return set()
    inodes = _held(pids)
    return {each for each in among if each.inode in inodes}


def remove_segments(segments: Iterable[Segment]) -> list[str]:
    """Unlink those that are still there, our own, and held by nobody; returns their names."""
    there = [each for each in segments if _is_ours(each)]
    if not there:
        return []
    table = processes.process_table()
    alive = {pid for pid, process in table.items() if process.alive}
    in_use = segments_of(alive, there)
    removed = []
    for each in there:
        if each not in in_use:
            with contextlib.suppress(OSError):
                (SHM / each.name).unlink()
                removed.append(each.name)
    return removed


def created_since(segment: Segment, when: float) -> bool:
    """Whether a segment is not older than that, in seconds since the epoch."""
    try:
        return (SHM / segment.name).lstat().st_ctime >= when
    except OSError:
        return False


def read_notes(folder: Path) -> Notes:
    """What a supervisor noted in a launch's folder; nothing of it counts after a reboot."""
    try:
        lines = (folder / NOTES).read_bytes().splitlines()
        first = json.loads(lines[0])
        if (first["boot"], first["device"]) != (processes.boot_id(), _device()):
            return Notes()
        before = frozenset(map(int, first["before"]))
    except (OSError, LookupError, TypeError, ValueError):
        return Notes()
    found = set()
    for line in lines[1:]:
        with contextlib.suppress(LookupError, TypeError, ValueError):  # the last may be cut off
            entry = json.loads(line)
            found.add(Segment(str(entry["name"]), int(entry["inode"])))
    ours = frozenset(each for each in found if "/" not in each.name)
    return Notes(ours, before)


class SegmentWatch:
    """Notes the segments of one tree as they appear.

    The kernel tells when a file appears in `/dev/shm`; only then, and as long as one is
    undecided, are the processes of the tree looked at.

    Attributes:
        due: when to look next, monotonic seconds; None: when the kernel tells.
    """

    def __init__(self) -> None:
        """Begin; everything that is there now is somebody else's."""
        self._fd = _watch_folder()
        self._before = frozenset(each.inode for each in segments_there())
        self._own: set[Segment] = set()
        self._undecided: dict[Segment, float] = {}
        self._foreign: set[Segment] = set()
        self._notes: Path | None = None
        self._looked_at = 0.0
        self._apart_s = _APART_S
        self.due: float | None = None if self._fd is not None else 0.0

    def fileno(self) -> int | None:
        """A descriptor that is readable when something appeared, where the kernel tells."""
        return self._fd

    def keep_notes(self, folder: Path) -> None:
        """Write down in `folder` what is noted, for whoever outlives this process."""
        self._notes = folder / NOTES
        header = {"boot": processes.boot_id(), "device": _device(), "before": [*self._before]}
        self._write(json.dumps(header))

    def on_event(self) -> None:
        """Take in what the kernel told."""
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 65536)
            apart_s = min(self._apart_s, _NEW_APART_S)
            self._look_within(max(0.0, self._looked_at + apart_s - time.monotonic()))

    def look(self, pids: Collection[int], *, last: bool = False) -> None:
        """Decide about what appeared since; `last` before the tree is ended."""
        now = self._looked_at = time.monotonic()
        known = self._own if last else self._own | self._foreign
        new = [e for e in segments_there() if e.inode not in self._before and e not in known]
        ours = segments_of(pids, new)
        for each in ours:
            self._own.add(each)
            self._write(json.dumps(each._asdict()))
        # The kernel tells of a file before its maker has it open: once is not enough.
        self._apart_s = _APART_S if ours else min(4 * self._apart_s, _AGAIN_S)
        self._undecided = {e: self._undecided.get(e, now) for e in new if e not in self._own}
        self._foreign |= {e for e, since in self._undecided.items() if now - since > _DECIDED_S}
        self.due = None
        if self._undecided.keys() - self._foreign:
            self._look_within(self._apart_s)
        elif self._fd is None:
            self._look_within(_AGAIN_S)

    def remove(self) -> None:
        """Unlink what the tree left; nothing of it is alive any more."""
        remove_segments(self._own)

    def _look_within(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        self.due = at if self.due is None else min(at, self.due)

    def _write(self, line: str) -> None:
        if self._notes is None:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):  # a full disk; this process still knows
            fd = os.open(self._notes, flags, 0o600)
            try:
                os.write(fd, line.encode() + b"\n")
            finally:
                os.close(fd)


def _watch_folder() -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(_FLAGS)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(SHM), _CREATED) < 0:
        os.close(fd)
        return None
    return fd


def _device() -> int:
    try:
        return SHM.stat().st_dev
    except OSError:
        return 0


def _is_ours(segment: Segment) -> bool:
    try:
        there = (SHM / segment.name).lstat()
    except OSError:
        return False
    return there.st_ino == segment.inode and there.st_uid == os.geteuid()


def _held(pids: Iterable[int]) -> set[int]:
    """Inodes of `/dev/shm` that processes have mapped or open."""
    device = _device()
    number = f"{os.major(device):02x}:{os.minor(device):02x}"
    # The path tells less: a semaphore was linked to its name after it was mapped.
    mapping = re.compile(rb" " + number.encode() + rb" (\d+) ")
    found: set[int] = set()
    for pid in pids:
        maps = processes.read_proc(f"/proc/{pid}/maps") or b""
        found.update(map(int, mapping.findall(maps)))
        found |= _open_in(f"/proc/{pid}/fd", device)
    return found


def _open_in(folder: str, device: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # Only what is there is asked for its inode: a file of a dead network would hang.
            with contextlib.suppress(OSError):
                if Path(entry.path).readlink().is_relative_to(SHM):
                    status = Path(entry.path).stat()
                    # A container may have another file system of that name.
                    if status.st_dev == device:
                        found.add(status.st_ino)
    return found
