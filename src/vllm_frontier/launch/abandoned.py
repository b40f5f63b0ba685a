"""What a driver that was killed left running beside its launches: the processes of Ray.

Some of them notice only after a minute that nobody needs them. A driver marks them through
their environment, so that a later one can tell whose they are.
"""

from __future__ import annotations

import os
import time

from vllm_frontier.launch import processes
from vllm_frontier.launch.leftovers import END_TIMEOUT_S, ProcessId

DRIVER_MARK = "VLLM_FRONTIER_DRIVER"
_POLL_S = 0.02


def mark_children() -> None:
    """Give this process's mark to every process that it starts from now on."""
    me = ProcessId.of(os.getpid())
    if me is not None:
        os.environ[DRIVER_MARK] = f"{me.pid}@{me.start_time}"


def kill_children() -> None:
    """Send SIGKILL to what carries this process's own mark; does not wait."""
    me = ProcessId.of(os.getpid())
    for pid in processes.process_table():
        if pid != os.getpid() and me is not None and _owner(pid) == me:
            processes.kill_process(pid)


def end_abandoned() -> int:
    """End, with SIGKILL, what carries the mark of a driver that is gone.

    Returns:
        How many processes were ended.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    ended: set[int] = set()
    while (left := _abandoned()) and time.monotonic() < deadline:
        for pid in left:
            processes.kill_process(pid)
        ended.update(left)
        time.sleep(_POLL_S)
    return len(ended)


def _abandoned() -> list[int]:
    here = f"{processes.boot_id()}/"
    found = []
    for pid, process in processes.process_table().items():
        owner = _owner(pid) if process.alive and pid != os.getpid() else None
        # A number of another boot or machine says nothing here.
        if owner is not None and owner.start_time.startswith(here) and not owner.alive():
            found.append(pid)
    return found


def _owner(pid: int) -> ProcessId | None:
    environment = processes.read_proc(f"/proc/{pid}/environ") or b""
    mark = f"{DRIVER_MARK}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(mark):
            number, _, start_time = (
                variable.removeprefix(mark).decode("ascii", "replace").partition("@")
            )
            return ProcessId(int(number), start_time) if number.isdecimal() else None
    return None
