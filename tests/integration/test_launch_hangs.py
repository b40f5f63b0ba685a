"""A launch of which a process stopped is ended; one that a debugger holds is not."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_frontier.launch import launch as launches
from vllm_frontier.launch.launch import ExitStatus, Launch
from vllm_frontier.launch.processes import ProcessId, read_process

LIMIT_S = 0.8
PATIENCE_S = 60.0  # what is waited for comes within moments, or never

PAIR = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""
# The child asks to be traced: a signal then stops it as a debugger would.
TRACED = """
import ctypes, os, signal, time
if os.fork() == 0:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
os.waitpid(-1, os.WUNTRACED)
print("up", flush=True)
time.sleep(600)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "STOPPED_S", LIMIT_S)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def server(tmp_path: Path, code: str) -> Launch:
    log = tmp_path / "server.log"
    launch = Launch.prepare(
        [sys.executable, "-S", "-c", code], env=dict(os.environ), log=log, cwd=tmp_path
    )
    assert launch.begin()
    until(lambda: "up" in log.read_text())
    return launch


@pytest.mark.parametrize("which", ["main", "child"])
def test_a_process_that_stays_stopped_ends_the_launch(tmp_path: Path, which: str) -> None:
    with server(tmp_path, PAIR) as launch:
        assert launch.server is not None
        (child,) = set(launch.members()) - {launch.server.pid}
        stopped = launch.server.pid if which == "main" else child
        name = Path(f"/proc/{stopped}/comm").read_text().strip()
        before = time.monotonic()
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: launch.poll() is not None)
        assert time.monotonic() - before >= LIMIT_S
        assert launch.poll() == ExitStatus(None, signal.SIGKILL)
        assert launch.stopped == f"process {stopped} ({name}) of it was stopped for {LIMIT_S:g} s"
        assert launch.members() == []


def test_a_process_that_goes_on_in_time_is_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stopped for longer in all, but never so long at once, also where this test is held up.
    monkeypatch.setattr(launches, "STOPPED_S", 3.0)
    with server(tmp_path, PAIR) as launch:
        assert launch.server is not None
        for _ in range(4):
            os.kill(launch.server.pid, signal.SIGSTOP)
            time.sleep(0.9)
            os.kill(launch.server.pid, signal.SIGCONT)
            time.sleep(0.9)  # it is looked at more often than that
        assert launch.poll() is None
        assert launch.stopped is None


def test_a_process_that_is_traced_is_let_be(tmp_path: Path) -> None:
    with server(tmp_path, TRACED) as launch:
        assert launch.server is not None
        (child,) = set(launch.members()) - {launch.server.pid}
        process = read_process(child)
        assert process is not None
        assert process.state == "t"
        time.sleep(3 * LIMIT_S)
        assert launch.poll() is None
        assert launch.stopped is None


def test_a_stopped_supervisor_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[ProcessId] = []
    wake = launches._wake

    def waking(process: ProcessId) -> None:
        woken.append(process)
        wake(process)

    monkeypatch.setattr(launches, "_wake", waking)
    with server(tmp_path, PAIR) as launch:
        os.kill(launch.supervisor.pid, signal.SIGSTOP)
        until(lambda: launch.supervisor in woken)
        until(lambda: not launches._is_stopped(launch.supervisor))
        assert launch.poll() is None
        assert launch.stop(PATIENCE_S) == ExitStatus(None, signal.SIGTERM)


@pytest.mark.parametrize(("again", "margin"), [(False, "ANSWER_MARGIN_S"), (True, "KILL_MARGIN_S")])
def test_a_stopped_supervisor_does_not_delay_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool, margin: str
) -> None:
    # What would be waited for in vain takes longer than anybody waits here.
    monkeypatch.setattr(launches, margin, 10 * PATIENCE_S)
    if again:  # what stops it does so every time it is woken
        monkeypatch.setattr(launches, "_wake", lambda _supervisor: None)
    with server(tmp_path, DEAF) as launch:
        os.kill(launch.supervisor.pid, signal.SIGSTOP)
        started = time.monotonic()
        assert launch.stop(0.5) == ExitStatus(None, signal.SIGKILL)
        assert time.monotonic() - started < PATIENCE_S
        assert launch.leftovers() == []
        assert launch.members() == []
        assert not launch.supervisor.alive()


def test_a_supervisor_that_is_stopped_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch.prepare(
        ["/bin/sleep", "600"], env=dict(os.environ), log=tmp_path / "log", cwd=tmp_path
    )
    monkeypatch.setattr(launches, "BEGIN_TIMEOUT_S", 0.5)
    monkeypatch.setattr(launches, "_wake", lambda _supervisor: None)
    monkeypatch.setattr(launches, "KILL_MARGIN_S", 0.5)
    os.kill(launch.supervisor.pid, signal.SIGSTOP)
    assert launch.begin() is False
    assert launch.exec_error == "the supervisor did not execute the server"
    launch.stop(0.2)
    until(lambda: not launch.supervisor.alive())
    assert launch.members() == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_launch_that_nobody_holds_any_more_ends(tmp_path: Path) -> None:
    launch = server(tmp_path, PAIR)
    supervisor, pids = launch.supervisor, launch.members()
    assert len(pids) == 2
    del launch
    until(lambda: not supervisor.alive())
    assert all((found := read_process(pid)) is None or not found.alive for pid in pids)
