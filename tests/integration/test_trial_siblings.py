"""What of this machine's processes belongs to a sweep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from vllm_frontier.launch.launch import Launch
from vllm_frontier.trial.siblings import SweepProcesses

# Forks a process of its own, as a server does.
SERVER = "import os, time; os.fork(); time.sleep(60)"


def test_launches_of_a_sweep_are_found_though_they_leave_the_family(tmp_path: Path) -> None:
    me, other = os.getpid(), subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    here, elsewhere = SweepProcesses([me]), SweepProcesses([other.pid])
    argv = [sys.executable, "-c", SERVER]
    with Launch.prepare(argv, env=dict(os.environ), log=tmp_path / "log", cwd=tmp_path) as launch:
        launch.begin()
        assert launch.server is not None
        server = psutil.Process(launch.server.pid)
        while not (workers := server.children()):
            pass
        launched = {launch.supervisor.pid, server.pid, *(each.pid for each in workers)}
        assert launched.isdisjoint(each.pid for each in psutil.Process().children(recursive=True))
        found = here.pids()
        assert launched | {me, other.pid} <= found
        assert os.getppid() not in found
        assert found == here.pids()
        # Nothing of it belongs to a sweep of somebody else.
        assert elsewhere.pids() == {other.pid}
        launch.stop(0.1)
    assert launched.isdisjoint(here.pids())
    other.communicate()
    other.wait()
    assert elsewhere.pids() == set()
