"""What an earlier launch left behind: found by pid, start time and mark, and ended.

Nothing is ever looked for by name. A process belongs to a launch when it descends from the
launch's supervisor, carries the mark that the supervisor put into the server's environment, is
in the group or session that the running server leads, or descends from one that does.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from vllm_frontier.launch import processes, segments
from vllm_frontier.launch.processes import ProcessId

END_TIMEOUT_S = 10.0

_POLL_S = 0.01
_CLOCK_SLACK_S = 1.0  # the kernel tells in whole seconds when it was started


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
    supervisor: ProcessId,
    server: ProcessId | None,
    *,
    timeout_s: float = END_TIMEOUT_S,
    tmp: Path | None = None,
) -> int:
    """End what is left of an earlier launch with SIGKILL, and remove its shared memory.

    Args:
        supervisor: the supervisor of that launch, as it was written down.
        server: its server, when it got as far.
        timeout_s: how long to wait for processes that the kernel does not let go.
        tmp: its folder; what its supervisor noted there is removed, too, the folder is not.

    Returns:
        How many processes were ended, the supervisor included.
    """
    deadline = time.monotonic() + timeout_s
    killer = processes.Killer()
    seen: set[int] = set()
    shared = set(segments.read_notes(tmp).segments) if tmp is not None else set()
    while left := _surely_left(supervisor, server, again=bool(seen)):
        new = set(left) - seen
        seen |= new
        if time.monotonic() > deadline:
            break
        if new:
            processes.freeze(lambda: _but(supervisor, find_leftovers(supervisor, server)))
            shared |= segments.segments_of(new, _created_for(supervisor, tmp))
        # The supervisor goes last: without it there is one sign less of who belongs to it.
        killer.kill([pid for pid in left if pid != supervisor.pid] or left)
        time.sleep(_POLL_S)
    segments.remove_segments(shared)
    return len(seen - set(left))


def _but(supervisor: ProcessId, pids: list[int]) -> list[int]:
    return [pid for pid in pids if pid != supervisor.pid]


def _surely_left(supervisor: ProcessId, server: ProcessId | None, *, again: bool) -> list[int]:
    """What is left; looked for twice, as a process that is being executed shows no mark."""
    left = find_leftovers(supervisor, server)
    if not left and again:
        time.sleep(_POLL_S)
        left = find_leftovers(supervisor, server)
    return left


def _boot() -> str:
    return processes.boot_id() + "/"


def _is_same(identity: ProcessId, table: dict[int, processes.Process]) -> bool:
    process = table.get(identity.pid)
    return process is not None and processes.start_time(process) == identity.start_time


def _created_for(supervisor: ProcessId, tmp: Path | None) -> list[segments.Segment]:
    """Segments that are not older than a launch; none where that cannot be told for sure."""
    before = segments.read_notes(tmp).before if tmp is not None else None
    ticks = supervisor.start_time.rpartition("/")[2]
    ours = supervisor.start_time.startswith(_boot()) and ticks.isdecimal()
    if before is None or not ours:
        return []
    started = processes.boot_time() + int(ticks) / os.sysconf("SC_CLK_TCK") - _CLOCK_SLACK_S
    return [
        each
        for each in segments.segments_there()
        if each.inode not in before and segments.created_since(each, started)
    ]


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
    """The group and session that the server leads; without it the number may mean another's."""
    if not _is_same(server, table):
        return set()
    return {pid for pid, process in table.items() if server.pid in (process.pgid, process.session)}


def _environment(pid: int) -> bytes:
    return processes.read_proc(f"/proc/{pid}/environ") or b""
