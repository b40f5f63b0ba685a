"""Killed at any moment: no process, no shared memory, no folder of a launch is left."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vllm_frontier.launch.folders import remove_abandoned, remove_tmp
from vllm_frontier.launch.leftovers import end_leftovers
from vllm_frontier.launch.processes import ProcessId, process_table, read_proc
from vllm_frontier.launch.segments import read_notes

SHM = Path("/dev/shm")
MARK = "VF_TEST_OF_KILLS"
# What is to go goes at once or never: servers sleep for ten minutes. How long it takes is a matter
# of how much else this machine has to do.
PATIENCE_S = 60.0

# Four processes in three sessions, deaf to SIGTERM; each has shared memory that no tracker
# knows.
SERVER = """
import mmap, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
book = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
mark = os.environ["VF_TEST_OF_KILLS"]
def stay(role):
    fd = os.open(f"/dev/shm/psm_{mark}_{role}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, 4096)
    kept = mmap.mmap(fd, 4096)
    if role != "main":
        os.close(fd)
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
stay("main")
"""
ROLES = 4

# It tells where it is, and then sits in a read that nothing ends.
DRIVER = """
import os, socket, sys
from pathlib import Path
from vllm_frontier.launch.folders import private_tmp
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.launch.launch import Launch
def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
folder, server, stop_s = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
watch = [ProcessId(int(pid), start) for pid, start in (each.split("@") for each in sys.argv[4:])]
tmp = private_tmp()
tell("folder", tmp)
launch = Launch.prepare([sys.executable, "-S", "-c", server, str(folder / "book")],
                        env=dict(os.environ), log=folder / "server.log", cwd=tmp,
                        watch=watch, tmp=tmp)
tell("prepared", launch.supervisor.pid, launch.supervisor.start_time)
sys.stdin.readline()
launch.begin()
tell("begun", launch.server and launch.server.pid)
if stop_s != "-":
    sys.stdin.readline()
    tell("stopping")
    tell("stopped", launch.stop(float(stop_s)))
one, other = socket.socketpair()
one.recv(1)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@dataclass
class Driver:
    """A process that holds a launch, and how far it is."""

    folder: Path
    mark: str
    process: subprocess.Popen[str]
    told: dict[str, list[str]] = field(default_factory=dict)

    def reach(self, point: str) -> list[str]:
        """Let it go on to a point; what it told there."""
        assert self.process.stdout is not None
        while point not in self.told:
            words = self.process.stdout.readline().split()
            assert words, "the driver ended"
            self.told[words[0]] = words[1:]
            if words[0] == "prepared" and point != "prepared":
                self.go_on()
        return self.told[point]

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def reach_serving(self) -> None:
        self.reach("begun")
        book = self.folder / "book"
        until(lambda: book.exists() and len(book.read_text().splitlines()) == ROLES)
        # And the supervisor has seen what was made last.
        until(lambda: len(read_notes(self.tmp).segments) == ROLES)

    @property
    def supervisor(self) -> ProcessId:
        pid, start_time = self.told["prepared"]
        return ProcessId(int(pid), start_time)

    @property
    def tmp(self) -> Path:
        return Path(self.told["folder"][0])

    def pid(self, role: str) -> int:
        lines = (self.folder / "book").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[0] == role)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def processes(self) -> set[int]:
        """All that live, supervisor and driver included: whatever inherited its mark."""
        word = f"\0{MARK}={self.mark}\0".encode()
        return {
            pid
            for pid, process in process_table().items()
            if process.alive and word in b"\0" + (read_proc(f"/proc/{pid}/environ") or b"")
        }

    def of_launch(self) -> set[int]:
        return self.processes() - {self.process.pid}

    def segments(self) -> list[str]:
        return sorted(path.name for path in SHM.glob(f"psm_{self.mark}_*"))

    def assert_nothing_left(self, *, segments: bool = True) -> None:
        until(lambda: not self.of_launch() and not self.tmp.exists())
        if segments:
            until(lambda: self.segments() == [])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def start_driver(*, stop_s: str = "-", watch: tuple[ProcessId, ...] = ()) -> Driver:
        folder = tmp_path / str(len(drivers))
        folder.mkdir()
        mark = secrets.token_hex(4)
        watched = [f"{each.pid}@{each.start_time}" for each in watch]
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder), SERVER, stop_s, *watched],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {MARK: mark},
            start_new_session=True,
        )
        drivers.append(Driver(folder, mark, process))
        return drivers[-1]

    yield start_driver
    for driver in drivers:
        driver.kill()
        left = driver.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for name in driver.segments():
            (SHM / name).unlink()
        for pipe in (driver.process.stdin, driver.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        if "folder" in driver.told:
            remove_tmp(driver.tmp)


# Right away, while Python starts, while the server forks, when all is settled.
DELAYS = (0.0, 0.005, 0.02, 0.04, 0.06, 0.08, 0.12, 0.2, 0.5)


def strike_at(driver: Driver, point: str, delay: float | None = None) -> None:
    if point == "serving":
        driver.reach_serving()
    else:
        driver.reach(point)
    if point == "prepared" and delay is not None:
        driver.go_on()
    time.sleep(delay or 0.0)


POINTS = [
    ("prepared", None),
    *(("prepared", delay) for delay in DELAYS),
    ("begun", None),
    ("serving", None),
]


@pytest.mark.parametrize(("point", "delay"), POINTS)
def test_a_killed_driver(start: Callable[..., Driver], point: str, delay: float | None) -> None:
    driver = start()
    strike_at(driver, point, delay)
    driver.kill()
    driver.assert_nothing_left()


def test_a_driver_killed_before_there_is_a_supervisor(start: Callable[..., Driver]) -> None:
    for delay in (0.0, 0.005, 0.01, 0.02, 0.03, 0.05):
        driver = start()
        driver.reach("folder")
        time.sleep(delay)
        driver.kill()
        until(lambda driver=driver: not driver.of_launch())
        if driver.tmp.exists():  # the supervisor did not know of it yet
            remove_abandoned()
        driver.assert_nothing_left()


@pytest.mark.parametrize(("point", "delay"), POINTS)
def test_a_killed_supervisor(start: Callable[..., Driver], point: str, delay: float | None) -> None:
    driver = start()
    strike_at(driver, point, delay)
    os.kill(driver.supervisor.pid, signal.SIGKILL)
    # Whatever its holder does: it sits in a read, or is about to begin.
    until(lambda: not driver.of_launch())
    driver.go_on()
    driver.reach("begun")
    until(lambda: not driver.of_launch())
    assert driver.process.poll() is None
    if point != "prepared" or delay is not None:
        driver.assert_nothing_left(segments=point == "serving")
    driver.kill()
    remove_abandoned()
    # What the server made within milliseconds before it was killed, nobody has seen.
    driver.assert_nothing_left(segments=point == "serving")


@pytest.mark.parametrize(("point", "delay"), POINTS)
def test_driver_and_supervisor_killed_together(
    start: Callable[..., Driver], point: str, delay: float | None
) -> None:
    driver = start()
    strike_at(driver, point, delay)
    os.kill(driver.supervisor.pid, signal.SIGSTOP)  # it must not see the driver go
    driver.process.kill()
    os.kill(driver.supervisor.pid, signal.SIGKILL)
    driver.process.wait()
    until(lambda: not driver.supervisor.alive())
    if point == "serving":
        rest = {driver.pid(role) for role in ("child", "session", "orphan")}
        until(lambda: driver.of_launch() == rest)
        assert len(driver.segments()) == ROLES
        assert driver.tmp not in remove_abandoned()  # somebody works in it
    end_leftovers(driver.supervisor, None, tmp=driver.tmp)  # as the next start does

    def removed() -> bool:
        remove_abandoned()
        return not driver.tmp.exists()

    # A child that was just forked to be the server goes by itself, but works there until then.
    until(removed)
    driver.assert_nothing_left(segments=point == "serving")


@pytest.mark.parametrize("role", ["main", "child", "session", "orphan", "all"])
def test_a_killed_process_of_the_server(start: Callable[..., Driver], role: str) -> None:
    driver = start(stop_s="0.1")
    driver.reach_serving()
    for each in ("main", "child", "session", "orphan"):
        if role in (each, "all"):
            os.kill(driver.pid(each), signal.SIGKILL)
    if role not in ("main", "all"):  # nobody minds: it is for vLLM to notice
        driver.go_on()
        driver.reach("stopped")
    driver.assert_nothing_left()


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.05])
def test_a_supervisor_killed_while_it_ends_the_tree(
    start: Callable[..., Driver], delay: float
) -> None:
    driver = start(stop_s="0.0")
    driver.reach_serving()
    driver.go_on()
    driver.reach("stopping")
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.kill(driver.supervisor.pid, signal.SIGKILL)
    driver.assert_nothing_left()
    assert driver.reach("stopped")[0] == "ExitStatus(exit_code=None,"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_to_the_supervisor_and_then_its_death(
    start: Callable[..., Driver], number: signal.Signals
) -> None:
    driver = start()
    driver.reach_serving()
    os.kill(driver.supervisor.pid, number)
    time.sleep(0.1)
    os.kill(driver.supervisor.pid, number if number == signal.SIGINT else signal.SIGKILL)
    driver.assert_nothing_left()


def test_a_stopped_driver_keeps_its_launch_until_it_is_killed(start: Callable[..., Driver]) -> None:
    driver = start()
    driver.reach_serving()
    os.kill(driver.process.pid, signal.SIGSTOP)
    time.sleep(0.5)
    assert len(driver.of_launch()) == ROLES + 1
    driver.kill()
    driver.assert_nothing_left()


def test_a_watched_process_ends_the_tree(start: Callable[..., Driver]) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as watched:
        identity = ProcessId.of(watched.pid)
        assert identity is not None
        driver = start(watch=(identity,))
        driver.reach_serving()
        time.sleep(0.2)
        assert len(driver.of_launch()) == ROLES + 1
        watched.kill()
        driver.assert_nothing_left()
        assert driver.process.poll() is None
        # It is a zombie now, and another process may come to have its pid: both are its end.
        boot, _, ticks = identity.start_time.rpartition("/")
        me = ProcessId.of(os.getpid())
        assert me is not None
        reused = ProcessId(me.pid, f"{boot}/{int(ticks) - 1}")
        for gone in (identity, reused, ProcessId(2**22 - 1, identity.start_time)):
            late = start(watch=(gone,))
            assert late.reach("begun") == ["None"]
            late.assert_nothing_left()


def test_a_watched_process_that_ends_before_the_server_begins(start: Callable[..., Driver]) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as watched:
        identity = ProcessId.of(watched.pid)
        assert identity is not None
        driver = start(watch=(identity,))
        driver.reach("prepared")
        watched.kill()
        driver.assert_nothing_left()
        driver.go_on()
        assert driver.reach("begun") == ["None"]


def test_the_supervisor_costs_next_to_nothing(start: Callable[..., Driver]) -> None:
    driver = start()
    driver.reach_serving()
    time.sleep(1.0)

    def spent_s() -> float:
        stat = read_proc(f"/proc/{driver.supervisor.pid}/stat") or b""
        fields = stat[stat.rindex(b")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = spent_s()
    time.sleep(4.0)
    # One that polls takes what it gets: a fifth of a core even where others want much of it.
    assert spent_s() - before < 0.4
    driver.kill()
    driver.assert_nothing_left()
    until(lambda: not driver.supervisor.alive())
