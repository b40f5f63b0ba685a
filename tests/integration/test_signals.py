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
    HELD_LOADING,
    HELD_SERVING,
    PATIENCE_S,
    command,
    environment,
    kill_all,
    launched,
    loading,
    marked,
    nothing_left,
    running,
    started,
    until,
    until_serving,
    write_card,
)

# The program, but for what becomes of `runner` once it is imported.
PATCHED = """
import sys, threading, time
from vllm_frontier import ray_settings
apply = ray_settings.apply
def applied(**how):
    apply(**how)  # nothing may import Ray before
    from vllm_frontier.schedule import runner
    patch(runner)
ray_settings.apply = applied
"""
MAIN = """
from vllm_frontier.cli import main
main()
"""


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
    with running(tmp_path, faults=HELD_SERVING) as sweep:
        moment(tmp_path)
        sweep.send_signal(number)
        output, _ = sweep.communicate(timeout=PATIENCE_S)
        assert sweep.returncode == 130
        assert f"Interrupted ({number.name}). Go on with: vllm-frontier resume s" in output
        assert "Traceback" not in output
        # A terminal that was closed sees no map, and before a launch there is none.
        launches = list(tmp_path.glob("s/attempts/*/*/attempt.json"))
        mapped = number is not signal.SIGHUP and launches != []
        assert ("Grid (simulated)" in output) == mapped
        if mapped:
            assert output.index("Grid (simulated)") < output.index("Interrupted (")
            assert "No cell has a measured speed yet." in output
        assert launched(tmp_path) == []
        nothing_left(tmp_path)
    assert moment is started or len(launches) == 1
    assert moment is started or (tmp_path / "s/trials.parquet").is_file()
    assert not (tmp_path / "s/lock.json").exists()


# Good order takes longer than anybody waits for it.
STAYS = """
def patch(runner):
    runner._shut_down = lambda signals: time.sleep(600)
"""


@pytest.mark.parametrize("moment", [started, until_serving])
def test_a_second_signal_leaves_at_once_and_leaves_nothing(
    moment: Callable[[Path], None], tmp_path: Path
) -> None:
    program = [sys.executable, "-c", PATCHED + STAYS + MAIN]
    with running(tmp_path, faults=HELD_SERVING, program=program) as sweep:
        moment(tmp_path)
        # Two of one kind may become one while a process does not get to run.
        sweep.send_signal(signal.SIGINT)
        sweep.send_signal(signal.SIGTERM)
        assert sweep.wait(PATIENCE_S) == 130
        nothing_left(tmp_path)  # of Ray's neither


def test_what_is_ignored_from_the_start_stays_so(tmp_path: Path) -> None:
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with running(tmp_path, **ignoring) as sweep:
        loading(tmp_path)
        sweep.send_signal(signal.SIGHUP)
        output, _ = sweep.communicate(timeout=240)
        assert sweep.returncode == 0, output


def test_a_terminal_that_is_closed_ends_the_sweep_in_good_order(tmp_path: Path) -> None:
    write_card(tmp_path, HELD_LOADING)
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, command(tmp_path), environment(tmp_path))
    try:
        shown = b""
        while b"load" not in shown:  # the live line names the phase
            assert select.select([master], [], [], PATIENCE_S)[0]
            shown += os.read(master, 65536)
        os.close(master)
        until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)
        nothing_left(tmp_path)
    finally:
        kill_all(marked(tmp_path))
    assert (tmp_path / "s/trials.parquet").is_file()
    assert not (tmp_path / "s/lock.json").exists()


def test_a_closed_terminal_that_tells_twice_is_one_signal(tmp_path: Path) -> None:
    """The kernel does, and an interactive shell as well."""
    with running(tmp_path, faults=HELD_LOADING) as sweep:
        loading(tmp_path)
        sweep.send_signal(signal.SIGHUP)
        time.sleep(0.05)
        sweep.send_signal(signal.SIGHUP)
        assert sweep.wait(PATIENCE_S) == 130
        nothing_left(tmp_path)
    assert (tmp_path / "s/trials.parquet").is_file()


# Ray's C code has taken the handler for SIGTERM away, and the program has looked after that since.
# Then Ray takes its time, as long as nobody has sent the signal.
SHUTTING = """
def patch(runner):
    shutdown, listen, heard = runner.ray.shutdown, runner.Signals.listen, []
    def listening(signals):
        listen(signals)
        heard.append(signals)
    runner.Signals.listen = listening
    def shutting():
        shutdown()
        count = len(heard)
        while len(heard) < count + 2:
            time.sleep(0.001)
        print("Ray is shutting down", file=sys.__stdout__, flush=True)
        while heard[-1].received is None:
            time.sleep(0.01)
    runner.ray.shutdown = shutting
"""


def test_a_signal_while_ray_shuts_down_is_heard(tmp_path: Path) -> None:
    program = [sys.executable, "-c", PATCHED + SHUTTING + MAIN]
    with running(tmp_path, "workload.tasks=[prose]", program=program) as sweep:
        assert sweep.stdout is not None
        lines = []
        for line in sweep.stdout:
            lines.append(line)
            if "Ray is shutting down" in line:
                sweep.send_signal(signal.SIGTERM)
                break
        output = sweep.stdout.read()
        assert sweep.wait(PATIENCE_S) == 130, lines
        assert any("[2/2" in line for line in lines)
        assert "Interrupted (SIGTERM)" in output
        nothing_left(tmp_path)
    assert (tmp_path / "s/trials.parquet").is_file()
