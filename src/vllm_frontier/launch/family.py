"""The processes that serve the driver itself, such as those of Ray; launches are not of them."""

from __future__ import annotations

import os

from vllm_frontier.launch import processes


def kill_family() -> None:
    """Send SIGKILL to what descends from this process and shares its session; does not wait.

    A launch has a session of its own, and its supervisor another: they see this process go.
    """
    table = processes.process_table()
    me = table.get(os.getpid())
    for each in processes.descendants(os.getpid(), table):
        if me is not None and each.session == me.session:
            processes.kill_process(each.pid)
