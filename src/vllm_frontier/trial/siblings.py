"""The processes of a sweep on this machine: its driver, Ray's own, and what else it launched."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_frontier.launch import supervisor
from vllm_frontier.launch.processes import (
    Process,
    descendants,
    process_table,
    read_proc,
    start_time,
)

# Of a supervisor: the process that started it, and when that began.
_Parent = tuple[int, str]


class SweepProcesses:
    """Finds them again and again; a command line is read once.

    They are the given processes and all below them, and every launch that one of those started: its
    supervisor leaves the family at once, but names its parent. In a Ray cluster that other programs
    share, their workers on this machine are taken for the sweep's own.

    Args:
        roots: pids of driver, raylet and worker.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = tuple(roots)
        self._parents: dict[tuple[int, int], _Parent | None] = {}

    def pids(self) -> frozenset[int]:
        """Those that there are now.

        Raises:
            OSError: the process table cannot be read.
        """
        table = {pid: process for pid, process in process_table().items() if process.alive}
        family = {pid for pid in self._roots if pid in table}
        for root in self._roots:
            family |= _below(root, table)
        found = set(family)
        for process in self._supervisors(table):
            parent = self._parents[process.pid, process.start]
            known = table[parent[0]] if parent is not None and parent[0] in family else None
            if parent is not None and known is not None and start_time(known) == parent[1]:
                found |= {process.pid} | _below(process.pid, table)
        return frozenset(found)

    def _supervisors(self, table: dict[int, Process]) -> list[Process]:
        """All that there are, of any sweep; each leads a session of its own."""
        leaders = {
            (each.pid, each.start): each for each in table.values() if each.session == each.pid
        }
        self._parents = {
            key: self._parents[key] if key in self._parents else _parent(each.pid)
            for key, each in leaders.items()
        }
        return [each for key, each in leaders.items() if self._parents[key] is not None]


def _below(root: int, table: dict[int, Process]) -> set[int]:
    return {each.pid for each in descendants(root, table)}


def _parent(pid: int) -> _Parent | None:
    """Who started a supervisor; None for any other process."""
    words = (read_proc(f"/proc/{pid}/cmdline") or b"").decode(errors="replace").split("\0")
    match words:
        case [_, "-I", "-S", supervisor.__file__, number, began, ""] if number.isdecimal():
            return int(number), began
    return None
