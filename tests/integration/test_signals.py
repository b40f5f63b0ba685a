"""SIGINT, SIGTERM and SIGHUP to a running sweep: real signals, real processes, a real terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from vllm_frontier.engine.simulated.card_file import card_folder

# Long enough for a signal in the middle of a phase.
TIME = {"load_s": 20, "profile_s": 4, "capture_s": 4, "scale": 0.1}
IN_A_WHILE_S = 10.0
AT_ONCE_S = 1.5
GONE_S = 2.0


def command(folder: Path) -> list[str]:
    card = yaml.safe_load((card_folder() / "tiny-8gib.yaml").read_text()) | {"time": TIME}
    (folder / "card.yaml").write_text(yaml.safe_dump(card))
    return [
        *(sys.executable, "-m", "vllm_frontier", "run", "rtx5090-qwen3.8-27b-nvfp4"),
        *("engine=simulated", f"engine.card_file={folder / 'card.yaml'}", "--out", "s"),
        *("grid.depth=[0]", "grid.context=[8192]", "grid.utilization=[0.9]", "workload.repeats=1"),
    ]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "FRONTIER_TEST": str(folder)}


@contextmanager
def running(folder: Path, **popen: object) -> Iterator[subprocess.Popen[str]]:
    """A sweep of two cells; whatever is left of it is killed in the end."""
    sweep = subprocess.Popen(
        command(folder), cwd=folder, env=environment(folder), text=True,
        **({"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | popen),
    )  # fmt: skip
    try:
        yield sweep
    finally:
        for process in marked(folder):
            process.kill()
        sweep.wait(30)
        if sweep.stdout is not None:
            sweep.stdout.close()


def marked(folder: Path) -> list[psutil.Process]:
    """Live processes that inherited the test's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("FRONTIER_TEST") == str(folder)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def launched(folder: Path) -> list[psutil.Process]:
    """Those of them that are a supervisor's or a server's."""
    words = ("supervisor.py", "simulated.server")
    found = []
    for process in marked(folder):
        try:
            if any(word in " ".join(process.cmdline()) for word in words):
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(condition: Callable[[], object], timeout_s: float) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - started


def nothing_left(folder: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while (left := marked(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [" ".join(process.cmdline())[:150] for process in left] == []


def until_serving(folder: Path) -> None:
    logs = folder.glob
    until(
        lambda: any("startup complete" in p.read_text() for p in logs("s/attempts/*/*/server.log")),
        60,
    )


def loading(folder: Path) -> None:
    until(lambda: any(p.stat().st_size for p in folder.glob("s/attempts/*/*/server.log")), 60)


def started(folder: Path) -> None:
    until((folder / "s/sweep.yaml").exists, 60)


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, started),
        (signal.SIGTERM, loading),
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
        assert launched(tmp_path) == []
        nothing_left(tmp_path, 5)
    assert (tmp_path / "s/trials.parquet").is_file() == (moment is not started)
    assert not (tmp_path / "s/lock.json").exists()


@pytest.mark.parametrize("moment", [started, loading, until_serving])
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
