"""Whatever ends, the server's whole tree ends: real processes, real signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vllm_frontier.launch import supervisor
from vllm_frontier.launch.launch import ExitStatus, Launch
from vllm_frontier.launch.leftovers import end_leftovers, find_leftovers
from vllm_frontier.launch.processes import ProcessId, process_table

# A server that does everything to outlive its supervisor: it ignores SIGTERM, and has a child,
# a child in a session of its own, and an orphan in a session of its own.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
book = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def stay(role):
    os.write(book, f"{role} {os.getpid()}\\n".encode())
    time.sleep(600)
if os.fork() == 0:
    stay("child")
if os.fork() == 0:
    os.setsid()
    stay("session")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        stay("orphan")
    os._exit(0)
os.wait()
stay("main")
"""
ROLES = {"main", "child", "session", "orphan"}

# All that is waited for comes at once, or never: a server sleeps for ten minutes. How long it
# takes is a matter of how much else this machine has to do.
PATIENCE_S = 60.0

DRIVER = """
import os, sys, time
from pathlib import Path
from vllm_frontier.launch.launch import Launch
folder, server, forks = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "forks"
launch = Launch.prepare([sys.executable, "-c", server, str(folder / "book")],
                        env=dict(os.environ), log=folder / "server.log", cwd=folder)
assert launch.begin()
if forks and os.fork() == 0:  # holds a copy of the control pipe
    os.write(1, f"{os.getpid()}\\n".encode())  # at once: another process writes here, too
    time.sleep(600)
for process in (launch.supervisor, launch.server):
    os.write(1, f"{process.pid} {process.start_time}\\n".encode())
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    """End what a failing test would leave; a good one leaves nothing."""
    yield
    book = tmp_path / "book"
    if book.exists():
        for pid in booked(book).values():
            assert not is_alive(pid), f"{pid} outlived the test"


def booked(book: Path) -> dict[str, int]:
    lines = book.read_text().splitlines() if book.exists() else []
    return {role: int(pid) for role, pid in (line.split() for line in lines)}


def is_alive(pid: int) -> bool:
    identity = ProcessId.of(pid)
    return identity is not None and identity.alive()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def python(tmp_path: Path, code: str, *arguments: str) -> Launch:
    return Launch.prepare(
        [sys.executable, "-c", code, *arguments],
        env=dict(os.environ),
        log=tmp_path / "server.log",
        cwd=tmp_path,
    )


def stubborn(tmp_path: Path) -> Launch:
    launch = python(tmp_path, STUBBORN, str(tmp_path / "book"))
    assert launch.begin()
    until(lambda: booked(tmp_path / "book").keys() == ROLES)
    return launch


def start_driver(
    tmp_path: Path, *, forks: bool = False
) -> tuple[subprocess.Popen[str], ProcessId, ProcessId, int | None]:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), STUBBORN, "forks" if forks else "-"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    lines = [driver.stdout.readline().split() for _ in range(3 if forks else 2)]
    copy = next((int(line[0]) for line in lines if len(line) == 1), None)
    supervisor, server = (ProcessId(int(line[0]), line[1]) for line in lines if len(line) == 2)
    until(lambda: booked(tmp_path / "book").keys() == ROLES)
    return driver, supervisor, server, copy


@pytest.mark.parametrize("forks", [False, True])
def test_nothing_outlives_a_killed_driver(tmp_path: Path, forks: bool) -> None:
    driver, supervisor, server, copy = start_driver(tmp_path, forks=forks)
    pids = [*booked(tmp_path / "book").values(), supervisor.pid]
    assert server.pid in pids
    assert all(is_alive(pid) for pid in pids)
    driver.kill()
    driver.communicate() if not forks else driver.wait()
    until(lambda: not any(is_alive(pid) for pid in pids))
    if copy is not None:
        assert is_alive(copy), "the copy of the pipe should still be held"
        os.kill(copy, signal.SIGKILL)
        driver.communicate()
    assert end_leftovers(supervisor, server) == 0


def test_a_killed_supervisor_is_noticed_and_its_tree_ended(tmp_path: Path) -> None:
    with stubborn(tmp_path) as launch:
        pids = booked(tmp_path / "book")
        assert set(launch.members()) == set(pids.values())
        assert launch.poll() is None
        os.kill(launch.supervisor.pid, signal.SIGKILL)
        until(lambda: not launch.supervisor.alive())
        # The kernel ends the server's main process, a thread of this one the rest.
        until(lambda: not any(is_alive(pid) for pid in pids.values()))
        until(lambda: launch.poll() is not None)
        status = launch.poll()
        assert status == ExitStatus(None, signal.SIGKILL)
        assert not any(is_alive(pid) for pid in pids.values())
        assert launch.stop(1) == status
        assert launch.leftovers() == []


def test_driver_and_supervisor_killed_together_leave_what_can_be_found(tmp_path: Path) -> None:
    driver, supervisor, server, _ = start_driver(tmp_path)
    pids = booked(tmp_path / "book")
    os.kill(supervisor.pid, signal.SIGSTOP)  # it must not see the driver go
    driver.kill()
    driver.communicate()
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not is_alive(pids["main"]))
    rest = {pids["child"], pids["session"], pids["orphan"]}
    assert set(find_leftovers(supervisor, server)) == rest
    # The same pid at another time, or before another boot, is another process.
    boot, _, ticks = supervisor.start_time.rpartition("/")
    for other in (f"{boot}/{int(ticks) + 1}", f"other/{ticks}", "", "nonsense"):
        assert end_leftovers(ProcessId(supervisor.pid, other), None) == 0
    assert all(is_alive(pid) for pid in rest)
    assert end_leftovers(supervisor, None) == 3  # the server was not written down yet
    assert not any(is_alive(pid) for pid in rest)


def test_leftovers_with_a_supervisor_that_still_runs(tmp_path: Path) -> None:
    launch = stubborn(tmp_path)
    assert launch.server is not None
    assert end_leftovers(launch.supervisor, launch.server) == 5
    assert launch.poll() == ExitStatus(None, signal.SIGKILL)
    launch.stop(1)


def test_a_group_without_its_leader_is_nobody_s(tmp_path: Path) -> None:
    """Its number may have been given to another since: a clean environment proves nothing."""
    nobody = ProcessId(2**22 - 1, "none/0")
    code = "import os,time;print(os.getpid(), flush=True);os.fork() or time.sleep(600)"
    leader = subprocess.Popen(
        [sys.executable, "-c", code], env={}, start_new_session=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    identity = ProcessId.of(leader.pid)
    assert identity is not None
    leader.wait()
    leader.stdout.close()  # type: ignore[union-attr]
    member = next(
        process.pid
        for process in process_table().values()
        if process.pgid == leader.pid and process.alive
    )
    try:
        assert end_leftovers(nobody, identity) == 0
        assert is_alive(member)
    finally:
        os.kill(member, signal.SIGKILL)


GENTLE = """
import os, signal, sys, time
def end(*_):
    open(sys.argv[1], "a").write("told\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1], "a").write(f"main {os.getpid()}\\n")
time.sleep(600)
"""


def test_a_client_of_a_container_is_told_before_it_is_killed(tmp_path: Path) -> None:
    program = DRIVER.replace("cwd=folder)", "cwd=folder, grace_s=60.0)")
    assert program != DRIVER
    driver = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), GENTLE, "-"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    book = tmp_path / "book"
    until(lambda: book.exists() and "main" in book.read_text())
    driver.kill()
    driver.communicate()
    until(lambda: "told" in book.read_text())
    book.unlink()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_supervisor_ends_the_tree(tmp_path: Path, number: signal.Signals) -> None:
    with stubborn(tmp_path) as launch:
        before = time.monotonic()
        os.kill(launch.supervisor.pid, number)
        until(lambda: launch.poll() is not None)
        assert time.monotonic() - before >= 3.0  # what the server gets
        assert launch.poll() == ExitStatus(None, signal.SIGKILL)
        assert not any(is_alive(pid) for pid in booked(tmp_path / "book").values())


def test_further_signals_to_the_supervisor_end_the_tree_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that gives the server longer than anybody waits here.
    script, limit = Path(supervisor.__file__).read_text(), "SIGNAL_STOP_S = 3.0"
    source = str(Path(supervisor.__file__).parents[2])
    assert limit in script
    patient = tmp_path / "supervisor.py"
    patient.write_text(
        script.replace(limit, "SIGNAL_STOP_S = 600.0").replace(
            "str(Path(__file__).parents[2])", repr(source)
        )
    )
    monkeypatch.setattr(supervisor, "__file__", str(patient))
    with stubborn(tmp_path) as launch:

        def ended() -> bool:  # an impatient user: two at one moment may count as one
            if launch.poll() is None and launch.supervisor.alive():
                os.kill(launch.supervisor.pid, signal.SIGINT)
            time.sleep(0.1)
            return launch.poll() is not None

        until(ended)
        assert launch.poll() == ExitStatus(None, signal.SIGKILL)
        assert not any(is_alive(pid) for pid in booked(tmp_path / "book").values())


def test_stop_ends_a_server_that_ignores_sigterm(tmp_path: Path) -> None:
    with stubborn(tmp_path) as launch:
        started = time.monotonic()
        assert launch.stop(0.6) == ExitStatus(None, signal.SIGKILL)
        assert time.monotonic() - started >= 0.6
        assert launch.members() == []
        assert launch.leftovers() == []
        assert not launch.supervisor.alive()
        started = time.monotonic()
        assert launch.stop(600) == ExitStatus(None, signal.SIGKILL)  # again, at no cost
        assert time.monotonic() - started < PATIENCE_S


def test_a_stopped_server_and_a_stopped_child_are_ended(tmp_path: Path) -> None:
    with stubborn(tmp_path) as launch:
        for pid in booked(tmp_path / "book").values():
            os.kill(pid, signal.SIGSTOP)
        assert launch.stop(0.3) == ExitStatus(None, signal.SIGKILL)
        assert launch.leftovers() == []


def test_a_paused_server_that_minds_sigterm_ends_by_itself(tmp_path: Path) -> None:
    with python(tmp_path, "import time; time.sleep(600)") as launch:
        assert launch.begin()
        assert launch.server is not None
        os.kill(launch.server.pid, signal.SIGSTOP)
        assert launch.stop(PATIENCE_S) == ExitStatus(None, signal.SIGTERM)


def test_a_stopped_supervisor_does_not_keep_the_tree_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_frontier.launch.launch.KILL_MARGIN_S", 0.3)
    with stubborn(tmp_path) as launch:
        os.kill(launch.supervisor.pid, signal.SIGSTOP)
        assert launch.stop(0.2) == ExitStatus(None, signal.SIGKILL)
        assert launch.leftovers() == []
        assert not launch.supervisor.alive()


def test_a_swallowed_sigterm_is_sent_again(tmp_path: Path) -> None:
    code = """
import signal, sys, time
seen = []
def on_term(*_):
    seen.append(time.monotonic())
    if len(seen) == 2:
        print(f"apart {seen[1] - seen[0]:.2f}", flush=True)
        sys.exit(7)
signal.signal(signal.SIGTERM, on_term)
print("loading", flush=True)
while True:
    time.sleep(0.05)
"""
    with python(tmp_path, code) as launch:
        assert launch.begin()
        until(lambda: "loading" in (tmp_path / "server.log").read_text())
        assert launch.stop(9) == ExitStatus(7, None)  # before it would be killed
        apart = float((tmp_path / "server.log").read_text().split("apart ")[1])
        assert apart > 1  # a third of the time, but for how late the first one was seen


def test_what_outlives_the_server_goes_after_a_second(tmp_path: Path) -> None:
    code = STUBBORN.replace('stay("main")', 'os.write(book, b"main %d\\n" % os.getpid())\nexit(3)')
    with python(tmp_path, code, str(tmp_path / "book")) as launch:
        assert launch.begin()
        until(lambda: launch.poll() is not None)
        assert launch.poll() == ExitStatus(3, None)
        pids = booked(tmp_path / "book")
        assert not any(is_alive(pid) for pid in pids.values())


def test_shared_memory_of_a_killed_server_is_removed(tmp_path: Path) -> None:
    code = """
import os, signal, time
from multiprocessing import shared_memory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
block = shared_memory.SharedMemory(create=True, size=4096)
print(block.name, flush=True)
time.sleep(600)
"""
    with python(tmp_path, code) as launch:
        assert launch.begin()
        log = tmp_path / "server.log"
        until(lambda: log.read_text().endswith("\n"))
        block = Path("/dev/shm") / log.read_text().split()[0]
        assert block.exists()
        assert len(launch.members()) == 2  # the server and Python's resource tracker
        launch.stop(0.1)
        assert not block.exists()
        assert launch.leftovers() == []
