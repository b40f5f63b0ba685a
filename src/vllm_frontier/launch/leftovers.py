"""What an earlier launch left behind: found by pid, start time and mark, and ended.

Nothing is ever looked for by name. A process belongs to a launch when it descends from the
launch's supervisor, carries the mark that the supervisor put into the server's environment,
is in the server's group or session, or descends from one that does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from vllm_frontier.launch import supervisor as processes

END_TIMEOUT_S = 10.0
TMP_PREFIX = "vf-"

# The path of a socket has at most 107 characters, the server's own names for it included.
_TMP_LONGEST = 40
_POLL_S = 0.01


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
        process = processes.read_process(pid)
        return None if process is None else cls(pid, processes.start_time(process))

    def alive(self) -> bool:
        """Whether this very process runs; a zombie does not."""
        process = processes.read_process(self.pid)
        return (
            process is not None
            and process.alive
            and processes.start_time(process) == self.start_time
        )


def find_leftovers(supervisor: ProcessId, server: ProcessId | None) -> list[int]:
    """Pids of a launch that still run, its supervisor included, zombies left out."""
    table = processes.process_table()
    found: set[int] = set()
    if _is_same(supervisor, table):
        found.add(supervisor.pid)
    if server is not None:
        found |= _group_of(server, table)
    found |= _marked(supervisor, table)
    for pid in tuple(found):
        found |= {process.pid for process in processes.descendants(pid, table)}
    found.discard(os.getpid())
    return sorted(pid for pid in found if table[pid].alive)


def end_leftovers(
    supervisor: ProcessId, server: ProcessId | None, *, timeout_s: float = END_TIMEOUT_S
) -> int:
    """End what is left of an earlier launch with SIGKILL.

    Args:
        supervisor: the supervisor of that launch, as it was written down.
        server: its server, when it got as far.
        timeout_s: how long to wait for processes that the kernel does not let go.

    Returns:
        How many processes were ended, the supervisor included.
    """
    deadline = time.monotonic() + timeout_s
    killer = processes.Killer()
    seen: set[int] = set()
    while left := find_leftovers(supervisor, server):
        seen.update(left)
        if time.monotonic() > deadline:
            break
        # The supervisor goes last: without it there is one sign less of who belongs to it.
        killer.kill([pid for pid in left if pid != supervisor.pid] or left)
        time.sleep(_POLL_S)
    return len(seen - set(left))


def _boot() -> str:
    boot = processes.read_proc("/proc/sys/kernel/random/boot_id") or b""
    return boot.decode().strip() + "/"


def _is_same(identity: ProcessId, table: dict[int, processes.Process]) -> bool:
    process = table.get(identity.pid)
    return process is not None and processes.start_time(process) == identity.start_time


def private_tmp() -> Path:
    """A new folder for one launch's temporary files, with a short path and mode 0700.

    Raises:
        OSError: it cannot be made, for want of space or permission.
    """
    parent = Path(tempfile.gettempdir())
    short = Path("/tmp")
    if len(str(parent)) > _TMP_LONGEST and os.access(short, os.W_OK | os.X_OK):
        parent = short
    return Path(tempfile.mkdtemp(prefix=TMP_PREFIX, dir=parent))


def remove_tmp(folder: Path) -> bool:
    """Remove a folder that `private_tmp` made, and all in it.

    Returns:
        Whether it is gone; False also for a folder that is not such a one.
    """
    if not folder.name.startswith(TMP_PREFIX) or folder.is_symlink():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _marked(supervisor: ProcessId, table: dict[int, processes.Process]) -> set[int]:
    """Processes that carry the launch's mark, whatever group and session they moved to."""
    boot, _, ticks = supervisor.start_time.rpartition("/")
    if f"{boot}/" != _boot() or not ticks.isdecimal():
        return set()
    mark = f"{processes.TAG}={supervisor.pid}@{supervisor.start_time}\0".encode()
    # A process older than the supervisor cannot be its work, and need not be opened.
    return {
        pid
        for pid, process in table.items()
        if process.start >= int(ticks) and mark in _environment(pid)
    }


def _group_of(server: ProcessId, table: dict[int, processes.Process]) -> set[int]:
    """The server's group and session, as long as their number cannot mean another's."""
    if not server.start_time.startswith(_boot()):
        return set()
    if server.pid in table and not _is_same(server, table):
        return set()  # the kernel gives a number away only when its group is empty
    members = {
        pid for pid, process in table.items() if server.pid in (process.pgid, process.session)
    }
    if server.pid in table:
        return members
    # Its leader is gone, and the number may have been another leader's since.
    return {pid for pid in members if not _is_foreign(_environment(pid))}


def _is_foreign(environment: bytes) -> bool:
    """Whether an environment is readable, intact and without any launch's mark.

    A process that sets its own title overwrites its environment in part.
    """
    return b"\0PATH=" in b"\0" + environment and f"{processes.TAG}=".encode() not in environment


def _environment(pid: int) -> bytes:
    return processes.read_proc(f"/proc/{pid}/environ") or b""
