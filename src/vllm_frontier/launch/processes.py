"""Processes as `/proc` shows them, and how to end them.

The supervisor uses this, too, and has the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

TAG = "FRONTIER_LAUNCH"
"""The variable that marks every process of a launch, whatever session it moved to."""

# A resource tracker unlinks the shared memory of killed processes as soon as they are gone,
# which takes the kernel a while when they hold gigabytes.
TRACKER_GRACE_S = 0.5
TRACKER_LONGEST_S = 5.0

FREEZE_LONGEST_S = 0.1


class Process(NamedTuple):
    """One line of the process table; `start` is in clock ticks since boot."""

    pid: int
    state: str
    ppid: int
    pgid: int
    session: int
    start: int

    @property
    def alive(self) -> bool:
        """False for a zombie: it holds nothing but its exit status."""
        return self.state not in "ZXx"

    @property
    def stopped(self) -> bool:
        """Whether a signal stopped it; a debugger that holds it is another matter."""
        return self.state == "T"


def read_proc(path: str) -> bytes | None:
    """The content of a file of `/proc`; None when it is gone or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    parts = []
    try:
        while part := os.read(fd, 65536):
            parts.append(part)
    except OSError:  # the process ended between the two calls
        return None
    finally:
        os.close(fd)
    return b"".join(parts)


def read_process(pid: int) -> Process | None:
    """What the kernel says about a process; None when there is none."""
    text = read_proc(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    state, (ppid, pgid, session) = fields[0].decode(), map(int, fields[1:4])
    return Process(pid, state, ppid, pgid, session, int(fields[19]))


def process_table() -> dict[int, Process]:
    """Every process that this one can see, zombies included."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return {pid: process for pid in pids if (process := read_process(pid)) is not None}


def descendants(root: int, table: dict[int, Process]) -> list[Process]:
    """Children of `root`, their children and so on, zombies included, without `root`."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    todo = [root]
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += [process.pid for process in below]
    return found


def boot_id() -> str:
    """What tells this boot of this machine from all others."""
    return (read_proc("/proc/sys/kernel/random/boot_id") or b"").decode().strip()


def boot_time() -> float:
    """When this machine was started, in whole seconds since the epoch."""
    for line in (read_proc("/proc/stat") or b"").splitlines():
        if line.startswith(b"btime "):
            return float(line.split()[1])
    return 0.0


def start_time(process: Process) -> str:
    """When a process started, as text that no other process with its pid ever has."""
    return f"{boot_id()}/{process.start}"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that no other process is ever mistaken for, on this machine.

    `start_time` is the boot id and the start in clock ticks since boot, as `<boot>/<ticks>`.
    """

    pid: int
    start_time: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a running process (or zombie); None when there is none."""
        process = read_process(pid)
        return None if process is None else cls(pid, start_time(process))

    def alive(self) -> bool:
        """Whether this very process runs; a zombie does not."""
        return is_alive(self.pid, self.start_time)


def name_of(pid: int) -> str:
    """The name that a process gave itself, at most 15 characters; empty when it is gone."""
    return (read_proc(f"/proc/{pid}/comm") or b"").decode(errors="replace").strip()


def is_alive(pid: int, start: str) -> bool:
    """Whether this very process runs; a zombie does not."""
    process = read_process(pid)
    return process is not None and process.alive and start_time(process) == start


def kill_process(pid: int) -> None:
    """SIGKILL; a process that is gone or not ours is the caller's to notice."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def is_resource_tracker(pid: int) -> bool:
    """Whether a process is Python's tracker of shared memory.

    It ends by itself once its users are gone, and removes what they left in `/dev/shm`.
    """
    return b"multiprocessing.resource_tracker" in (read_proc(f"/proc/{pid}/cmdline") or b"")


def freeze(find: Callable[[], Iterable[int]]) -> None:
    """Stop processes, so that none makes anything between the last look at it and its end.

    Resource trackers go on. What does not stop soon, in the middle of a call, is left at that.

    Args:
        find: the pids, asked for until all of them are stopped: some may just have been forked.
    """
    deadline = time.monotonic() + FREEZE_LONGEST_S
    while time.monotonic() < deadline:
        found = [read_process(pid) for pid in find()]
        moving = [
            each.pid
            for each in found
            if each is not None
            and each.alive
            and each.state not in "Tt"
            and not is_resource_tracker(each.pid)
        ]
        if not moving:
            return
        for pid in moving:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(0.001)


class Killer:
    """Kills what is left, again and again, and resource trackers last."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._alone_since: float | None = None

    def kill(self, pids: list[int]) -> None:
        """SIGKILL to all of these; to resource trackers only when they had their time."""
        now = time.monotonic()
        trackers = {pid for pid in pids if is_resource_tracker(pid)}
        if self._alone_since is None and len(trackers) == len(pids):
            self._alone_since = now
        sparing = now - self._started < TRACKER_LONGEST_S and (
            self._alone_since is None or now - self._alone_since < TRACKER_GRACE_S
        )
        for pid in pids:
            if not (sparing and pid in trackers):
                kill_process(pid)


class StoppedWatch:
    """Finds the process of a tree that a signal stopped and that nobody lets go on."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[tuple[int, int], float] = {}
        self._every_s = limit_s / 4
        self.due = time.monotonic() + self._every_s

    def look(self, tree: list[Process]) -> Process | None:
        """The one that was stopped for as long as the limit."""
        now = time.monotonic()
        self.due = now + self._every_s
        stopped = {(each.pid, each.start): each for each in tree if each.stopped}
        self._since = {key: self._since.get(key, now) for key in stopped}
        return next(
            (stopped[key] for key, since in self._since.items() if now - since >= self._limit_s),
            None,
        )
