"""Shared memory: what is the launch's is removed, what may be another's stays."""

import json
import mmap
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from vllm_frontier.launch import segments
from vllm_frontier.launch.folders import private_tmp, remove_tmp
from vllm_frontier.launch.launch import Launch
from vllm_frontier.launch.leftovers import end_leftovers
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.launch.segments import Notes, Segment, SegmentWatch, read_notes

SHM = Path("/dev/shm")
PATIENCE_S = 60.0  # what is waited for comes within moments, or never

# Maps every file that is named, makes those that are not there, and a semaphore.
HOLDER = """
import mmap, multiprocessing, os, signal, sys, time
kept = []
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 4096)
    kept.append(mmap.mmap(fd, 4096))
    os.close(fd)
print("up", flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def name() -> Iterator[Callable[[], Path]]:
    made: list[Path] = []

    def new() -> Path:
        made.append(SHM / f"psm_{secrets.token_hex(6)}")
        return made[-1]

    yield new
    for path in made:
        path.unlink(missing_ok=True)


def launch_holder(tmp_path: Path, tmp: Path | None, *paths: Path) -> Launch:
    log = tmp_path / "server.log"
    launch = Launch.prepare(
        [sys.executable, "-S", "-c", HOLDER, *map(str, paths)],
        env=dict(os.environ),
        log=log,
        cwd=tmp_path,
        tmp=tmp,
    )
    assert launch.begin()
    until(lambda: "up" in log.read_text())
    return launch


def outsider(*paths: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, *map(str, paths)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def noted(tmp: Path) -> set[str]:
    return {each.name for each in read_notes(tmp).segments}


@pytest.mark.parametrize("killed", ["server", "supervisor"])
def test_only_what_is_certainly_the_launchs_is_removed(
    tmp_path: Path, name: Callable[[], Path], killed: str
) -> None:
    before, shared, apart, own, idle = (name() for _ in range(5))
    before.write_bytes(bytes(4096))
    time.sleep(1.1)  # a file's time and the kernel's start are told in different clocks
    tmp = private_tmp()
    launch = launch_holder(tmp_path, tmp, before, own)
    with launch, outsider(apart) as stranger:
        idle.write_bytes(b"x")  # nobody holds it
        more = outsider(shared)
        until(lambda: noted(tmp) != set())
        time.sleep(0.3)  # for what is not to be noted
        assert launch.server is not None
        assert noted(tmp) == {own.name}
        assert before.stat().st_ino in read_notes(tmp).before
        pid = launch.server.pid if killed == "server" else launch.supervisor.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: launch.poll() is not None)
        assert not own.exists()
        assert not tmp.exists()
        assert all(path.exists() for path in (before, shared, apart, idle))
        for process in (stranger, more):
            process.kill()
            process.communicate()


def test_what_an_outsider_holds_stays_though_the_launch_made_it(
    tmp_path: Path, name: Callable[[], Path]
) -> None:
    own = name()
    with launch_holder(tmp_path, None, own) as launch, outsider(own) as stranger:
        time.sleep(0.1)
        launch.stop(2)
        assert own.exists()
        stranger.kill()
        stranger.communicate()


def test_another_file_of_the_same_name_stays(tmp_path: Path, name: Callable[[], Path]) -> None:
    own = name()
    with launch_holder(tmp_path, None, own) as launch:
        time.sleep(0.1)
        own.unlink()
        own.write_bytes(b"another's")
        launch.stop(2)
        assert own.read_bytes() == b"another's"


def test_a_semaphore_of_a_killed_server_is_removed(tmp_path: Path) -> None:
    code = """
import multiprocessing, os, signal, time
lock = multiprocessing.get_context("spawn").Lock()
tracker = multiprocessing.resource_tracker._resource_tracker._pid
os.kill(tracker, signal.SIGKILL)
print(lock._semlock.name, "up", flush=True)
time.sleep(600)
"""
    log, tmp = tmp_path / "server.log", private_tmp()
    with Launch.prepare(
        [sys.executable, "-c", code], env=dict(os.environ), log=log, cwd=tmp_path, tmp=tmp
    ) as launch:
        assert launch.begin()
        until(lambda: log.exists() and "up" in log.read_text())
        semaphore = SHM / f"sem.{log.read_text().split()[0].lstrip('/')}"
        assert semaphore.exists()
        until(lambda: semaphore.name in noted(tmp))
        assert launch.server is not None
        os.kill(launch.server.pid, signal.SIGKILL)
        until(lambda: launch.poll() is not None)
        assert not semaphore.exists()


def test_the_next_start_removes_what_was_noted_and_what_is_held(
    tmp_path: Path, name: Callable[[], Path]
) -> None:
    tmp = private_tmp()
    own = name()
    program = """
import os, sys
from pathlib import Path
from vllm_frontier.launch.launch import Launch
log, tmp, code, *paths = sys.argv[1:]
launch = Launch.prepare([sys.executable, "-S", "-c", code, *paths], env=dict(os.environ),
                        log=Path(log), cwd=Path(tmp), tmp=Path(tmp))
launch.begin()
print(launch.supervisor.pid, launch.supervisor.start_time, launch.server.pid, flush=True)
input()
"""
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(log), str(tmp), HOLDER, str(own)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        pid, start_time, server = driver.stdout.readline().split()
        until(lambda: log.exists() and "up" in log.read_text())
        until(lambda: noted(tmp) == {own.name})
        os.kill(int(pid), signal.SIGSTOP)
        driver.kill()
        os.kill(int(pid), signal.SIGKILL)
    supervisor = launch_id(int(pid), start_time)
    until(lambda: not supervisor.alive() and not Path(f"/proc/{server}/maps").exists())
    assert own.exists()
    assert end_leftovers(supervisor, None, tmp=tmp) == 0
    assert not own.exists()
    assert remove_tmp(tmp)


def launch_id(pid: int, start_time: str) -> ProcessId:
    return ProcessId(pid, start_time)


def test_notes_that_are_damaged_or_of_another_boot_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = SegmentWatch()
    watch.keep_notes(tmp_path)
    notes = tmp_path / segments.NOTES
    first = notes.read_text()
    with notes.open("a") as file:
        file.write('{"name": "psm_1", "inode": 7}\n{"name": "../x", "inode": 8}\n')
        file.write('[]\n{"pids": 3}\nnonsense\n{"name": "cut')
    found = read_notes(tmp_path)
    assert found.segments == {Segment("psm_1", 7)}
    assert found.before is not None
    for changed in (
        json.dumps(json.loads(first) | {"boot": "another"}),
        json.dumps(json.loads(first) | {"device": 1}),
        "[]",
        "",
        "{}",
        "\0",
    ):
        notes.write_text(changed + '\n{"name": "psm_1", "inode": 7}\n')
        assert read_notes(tmp_path) == Notes()
    assert read_notes(tmp_path / "nowhere") == Notes()


def test_a_watch_is_told_at_once_and_forgets_what_nobody_holds(
    name: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0  # and it stays so: this test is about how long is to be waited
    monkeypatch.setattr(segments, "time", SimpleNamespace(monotonic=lambda: now))
    watch = SegmentWatch()
    assert watch.due is None  # nothing to do
    own, other = name(), name()
    other.write_bytes(b"x")
    with own.open("w+b") as file:
        file.write(bytes(4096))
        file.flush()
        memory = mmap.mmap(file.fileno(), 4096)
    watch.on_event()
    assert watch.due is not None
    assert watch.due - now <= 0.02
    watch.look({os.getpid()})
    assert watch.due is not None  # the other one is undecided, and looked for again and again
    waits = []
    for _ in range(8):
        watch.look({os.getpid()})
        waits.append(watch.due - now)
    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[-1] == pytest.approx(1.0)
    assert watch.due is not None
    watch.on_event()  # something else appeared
    assert watch.due - now <= 0.1
    monkeypatch.setattr(segments, "_DECIDED_S", -1.0)
    watch.look({os.getpid()})
    assert watch.due is None
    watch.remove()
    assert own.exists()  # we still hold it
    memory.close()
    watch.remove()
    assert not own.exists()
    assert other.exists()
    os.close(watch.fileno() or -1)
