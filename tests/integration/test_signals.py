"""SIGINT, SIGTERM and SIGHUP to a running sweep: real signals, real processes, a real terminal."""

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running_sweep import (
    command,
    environment,
    launched,
    loading,
    marked,
    nothing_left,
    running,
    started,
    until,
    until_serving,
)

IN_A_WHILE_S = 10.0
AT_ONCE_S = 1.5
GONE_S = 2.0


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, started),
        (signal.SIGHUP, loading),
        (signal.SIGTERM, until_serving),
    ],
)
def test_the_first_signal_ends_the_sweep_in_good_order(
    number: signal.Signals, moment: Callable[[Path], None], tmp_path: Path
) -> None:
    with running(tmp_path) as sweep:
        moment(tmp_path)
        sweep.send_signal(number)
        before = time.monotonic()
        output, _ = sweep.communicate(timeout=IN_A_WHILE_S)
        assert time.monotonic() - before < IN_A_WHILE_S
        assert sweep.returncode == 130
        assert f"Interrupted ({number.name}). Go on with: vllm-frontier resume s" in output
        assert "Traceback" not in output
        # A terminal that was closed sees no map, and before a launch there is none.
        mapped = moment is until_serving
        assert ("Grid (simulated)" in output) == mapped
        if mapped:
            assert output.index("Grid (simulated)") < output.index("Interrupted (")
            assert "No cell has a measured speed yet." in output
        assert launched(tmp_path) == []
        nothing_left(tmp_path, 5)
    if moment is not started:
        assert (tmp_path / "s/trials.parquet").is_file()
    assert not (tmp_path / "s/lock.json").exists()


@pytest.mark.parametrize("moment", [started, until_serving])
def test_a_second_signal_leaves_at_once_and_leaves_nothing(
    moment: Callable[[Path], None], tmp_path: Path
) -> None:
    with running(tmp_path) as sweep:
        moment(tmp_path)
        sweep.send_signal(signal.SIGINT)
        time.sleep(0.05)
        sweep.send_signal(signal.SIGINT)
        before = time.monotonic()
        assert sweep.wait(10) == 130
        assert time.monotonic() - before < AT_ONCE_S
        nothing_left(tmp_path, GONE_S)  # of Ray's neither


def test_what_is_ignored_from_the_start_stays_so(tmp_path: Path) -> None:
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with running(tmp_path, **ignoring) as sweep:
        loading(tmp_path)
        sweep.send_signal(signal.SIGHUP)
        assert sweep.communicate(timeout=60) is not None
        assert sweep.returncode == 0


def test_a_terminal_that_is_closed_ends_the_sweep_in_good_order(tmp_path: Path) -> None:
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, command(tmp_path), environment(tmp_path))
    try:
        shown = b""
        while b"load" not in shown:  # the live line names the phase
            assert select.select([master], [], [], 60)[0]
            shown += os.read(master, 65536)
        os.close(master)
        until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, IN_A_WHILE_S)
        nothing_left(tmp_path, 5)
    finally:
        for process in marked(tmp_path):
            process.kill()
    assert (tmp_path / "s/trials.parquet").is_file()
    assert not (tmp_path / "s/lock.json").exists()


def test_a_closed_terminal_that_tells_twice_is_one_signal(tmp_path: Path) -> None:
    """The kernel does, and an interactive shell as well."""
    with running(tmp_path) as sweep:
        loading(tmp_path)
        sweep.send_signal(signal.SIGHUP)
        time.sleep(0.05)
        sweep.send_signal(signal.SIGHUP)
        assert sweep.wait(IN_A_WHILE_S) == 130
        nothing_left(tmp_path, 5)
    assert (tmp_path / "s/trials.parquet").is_file()


def test_a_signal_while_ray_shuts_down_is_heard(tmp_path: Path) -> None:
    """Its C code takes the handler for SIGTERM away."""
    with running(tmp_path, "workload.tasks=[prose]") as sweep:
        assert sweep.stdout is not None
        for line in sweep.stdout:
            if "[2/2" in line:
                break
        time.sleep(0.3)
        sweep.send_signal(signal.SIGTERM)
        output = sweep.stdout.read()
        assert sweep.wait(IN_A_WHILE_S) == 130
        assert "Interrupted (SIGTERM)" in output
        nothing_left(tmp_path, 5)
    assert (tmp_path / "s/trials.parquet").is_file()
