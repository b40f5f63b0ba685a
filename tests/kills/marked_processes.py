"""The processes of a sweep, Ray's own and detached ones too, and what each of them is.

A sweep under test is started with an environment variable that every process it starts inherits.
Whoever carries it in `/proc/PID/environ`, descends from one that does, or was seen to do so
before, belongs to the sweep.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARK = "KILLED_SWEEP"
LAUNCH_MARK = b"FRONTIER_LAUNCH="  # what the supervisor puts into the environment of a server
_SEGMENT = re.compile(r"/dev/shm/(\S+)")


@dataclass(frozen=True, slots=True)
class Process:
    """A process as `/proc` shows it; pid and `start` (clock ticks) name it for good."""

    pid: int
    start: int
    parent: int
    session: int
    name: str
    command: tuple[str, ...]
    launched: bool  # carries the mark of a launch

    def __str__(self) -> str:
        return f"{self.pid} {self.name} ({' '.join(self.command)[:120]})"


class MarkedProcesses:
    """Finds the processes of one sweep.

    Args:
        value: what `MARK` is set to in the environment of the sweep.
    """

    def __init__(self, value: str) -> None:
        self._mark = f"{MARK}={value}".encode()
        # By pid and start: whether it carries the sweep's mark, and that of a launch.
        self._known: dict[tuple[int, int], tuple[bool, bool]] = {}
        self.segments: set[str] = set()
        self._there_before = _segments_there()

    def alive(self) -> list[Process]:
        """All that run now, zombies left out."""
        table = {process.pid: process for process in _table()}
        found: dict[int, Process] = {}
        for pid, process in table.items():
            ours, launched = self._marks(process)
            if ours:
                found[pid] = _with(process, launched)
        grown = True
        while grown:  # a process that wrote its title over its environment is known by its parent
            grown = False
            for pid, process in table.items():
                above = found.get(process.parent)
                if pid not in found and above is not None:
                    found[pid] = _with(process, above.launched)
                    self._known[pid, process.start] = (True, above.launched)
                    grown = True
        found.pop(os.getpid(), None)
        return sorted(found.values(), key=lambda each: each.pid)

    def note_segments(self) -> None:
        """Remember the shared memory that the processes of the sweep use now."""
        for process in self.alive():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                self.segments |= {
                    name for name in _SEGMENT.findall(maps) if Path("/dev/shm", name).exists()
                }

    def segments_left(self, *, all_new: bool) -> list[str]:
        """Shared memory of the sweep that is still there.

        Args:
            all_new: count everything that appeared since the beginning and that nobody uses now.
                Segments that a process made within milliseconds of being killed by somebody else
                than its supervisor are not known to be anybody's.
        """
        found = {name for name in self.segments if Path("/dev/shm", name).exists()}
        if all_new:
            in_use = _segments_in_use()
            new = _segments_there() - self._there_before
            found |= {name for name, _ in new if name not in in_use}
        return sorted(found)

    def _marks(self, process: Process) -> tuple[bool, bool]:
        key = (process.pid, process.start)
        if not all(self._known.get(key, (False,))):
            # Asked again until both are there: a fork has its parent's until it executes.
            before = self._known.get(key, (False, False))
            environment = _read(f"/proc/{process.pid}/environ").split(b"\0")
            ours = self._mark in environment
            launched = any(each.startswith(LAUNCH_MARK) for each in environment)
            self._known[key] = (before[0] or ours, before[1] or launched)
        return self._known[key]


def _segments_in_use() -> set[str]:
    """Of anybody's processes: other servers may run on this machine."""
    found: set[str] = set()
    for process in _table():
        with contextlib.suppress(OSError):
            found |= set(_SEGMENT.findall(Path(f"/proc/{process.pid}/maps").read_text()))
    return found


def _segments_there() -> set[tuple[str, int]]:
    """Names and inodes of what Python's shared memory left or uses."""
    found = set()
    for path in Path("/dev/shm").glob("psm_*"):
        with contextlib.suppress(OSError):
            found.add((path.name, path.stat().st_ino))
    return found


def roles(found: Iterable[Process], driver: int) -> dict[str, list[Process]]:
    """What the processes of a sweep are: one that is nothing special is left out."""
    named: dict[str, list[Process]] = {}
    for process in found:
        named.setdefault(_role(process, driver), []).append(process)
    named.pop("", None)
    return named


def _role(process: Process, driver: int) -> str:
    first = process.command[0] if process.command else ""
    title = first if first.startswith("VLLM::") else process.name
    leads = process.session == process.pid
    tests = {
        "driver": process.pid == driver,
        "raylet": first.endswith("/raylet"),
        "gcs_server": first.endswith("/gcs_server"),
        "ray worker": first.startswith("ray::") and "Trainable" in first,
        "engine core": title.startswith("VLLM::EngineCor"),
        "worker": title.startswith("VLLM::Worker"),
        "api server": process.launched and leads,
        # It leaves its parent by a fork; the half that stays behind ends at once.
        "supervisor": "launch/supervisor.py" in " ".join(process.command) and leads,
    }
    return next((role for role, holds in tests.items() if holds), "")


def kill(processes: Iterable[Process], number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to exactly these processes, whatever of them is left."""
    for process in processes:
        if _start(process.pid) == process.start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _table() -> Iterable[Process]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        stat = _read(f"/proc/{entry.name}/stat")
        if not stat:
            continue
        head, _, tail = stat.rpartition(b")")
        fields = tail.split()
        if fields[0] in b"ZXx":
            continue
        command = _read(f"/proc/{entry.name}/cmdline").decode(errors="replace")
        yield Process(
            pid=int(entry.name),
            start=int(fields[19]),
            parent=int(fields[1]),
            session=int(fields[3]),
            name=head.partition(b"(")[2].decode(errors="replace"),
            command=tuple(command.rstrip("\0").split("\0")),
            launched=False,
        )


def _with(process: Process, launched: bool) -> Process:
    return Process(
        process.pid,
        process.start,
        process.parent,
        process.session,
        process.name,
        process.command,
        launched,
    )


def _start(pid: int) -> int | None:
    stat = _read(f"/proc/{pid}/stat")
    return int(stat.rpartition(b")")[2].split()[19]) if stat else None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
