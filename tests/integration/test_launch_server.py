"""What a server is given, what is kept of it, and how its end is told."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from vllm_frontier.launch.launch import ExitStatus, Launch
from vllm_frontier.launch.processes import ProcessId

LOG = "server.log"


def prepare(tmp_path: Path, argv: list[str], env: dict[str, str] | None = None) -> Launch:
    return Launch.prepare(
        argv,
        env=dict(os.environ) if env is None else env,
        log=tmp_path / LOG,
        cwd=tmp_path,
    )


def run_to_end(launch: Launch, timeout_s: float = 60) -> ExitStatus:
    assert launch.begin(), launch.exec_error
    deadline = time.monotonic() + timeout_s
    while (status := launch.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return status


def test_nothing_is_executed_before_begin(tmp_path: Path) -> None:
    with prepare(tmp_path, ["/bin/sh", "-c", "echo ran"]) as launch:
        assert launch.supervisor.alive()
        assert launch.supervisor == ProcessId.of(launch.supervisor.pid)
        assert os.getsid(launch.supervisor.pid) == launch.supervisor.pid
        time.sleep(0.2)
        assert launch.server is None
        assert launch.poll() is None
        assert not (tmp_path / LOG).exists()
    assert launch.stop(1) is None
    assert not launch.supervisor.alive()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 3", ExitStatus(3, None)),
        ("exit 0", ExitStatus(0, None)),
        ("kill -SEGV $$", ExitStatus(None, signal.SIGSEGV)),
        ("kill -KILL $$", ExitStatus(None, signal.SIGKILL)),
    ],
)
def test_the_way_a_server_ends_is_told(tmp_path: Path, command: str, status: ExitStatus) -> None:
    with prepare(tmp_path, ["/bin/sh", "-c", command]) as launch:
        assert run_to_end(launch) == status
        assert launch.poll() == status
        assert launch.stop(5) == status
        assert launch.exec_error is None


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: None, "cannot execute {}: No such file or directory"),
        (lambda path: path.write_text("text"), "cannot execute {}: Permission denied"),
        (lambda path: path.mkdir(), "cannot execute {}: Permission denied"),
    ],
)
def test_what_cannot_be_executed_is_told(tmp_path: Path, make: object, error: str) -> None:
    program = tmp_path / "program"
    make(program)  # type: ignore[operator]
    with prepare(tmp_path, [str(program)]) as launch:
        assert launch.begin() is False
        assert launch.exec_error == error.format(program)
        assert launch.server is None
        assert launch.members() == []
    assert launch.stop(1) == ExitStatus(None, None)


def test_a_missing_folder_and_an_unwritable_log_are_told(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    env = dict(os.environ)
    with Launch.prepare(["/bin/true"], env=env, log=tmp_path / LOG, cwd=nowhere) as launch:
        assert not launch.begin()
        assert launch.exec_error == f"cannot execute {nowhere}: No such file or directory"
    with Launch.prepare(["/bin/true"], env=env, log=nowhere / LOG, cwd=tmp_path) as launch:
        assert not launch.begin()
        assert launch.exec_error == f"cannot write {nowhere / LOG}: No such file or directory"
    with prepare(tmp_path, ["/bin/echo", "a\0b"]) as launch:
        assert not launch.begin()
        assert launch.exec_error == "cannot execute /bin/echo: embedded null byte"


def test_the_server_gets_its_environment_folder_and_group_and_nothing_else(
    tmp_path: Path,
) -> None:
    kept_open = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(kept_open, True)
    value = "päth \udcff"  # not valid UTF-8, as a file name may be
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    quit_before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as in a shell's background
    try:
        launch = prepare(tmp_path, ["/bin/sleep", "600"], {"ONLY": value, "PATH": "/nowhere"})
    finally:
        signal.signal(signal.SIGQUIT, quit_before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(kept_open)
    with launch:
        assert launch.begin()
        assert launch.server is not None
        proc = Path(f"/proc/{launch.server.pid}")
        entries = (proc / "environ").read_bytes().rstrip(b"\0").split(b"\0")
        mark = f"FRONTIER_LAUNCH={launch.supervisor.pid}@{launch.supervisor.start_time}"
        assert sorted(entries) == sorted(
            [
                f"ONLY={value}".encode(errors="surrogateescape"),
                b"PATH=/nowhere",
                b"SPT_NOENV=1",
                mark.encode(),
            ]
        )
        fds = {int(entry.name): str(entry.readlink()) for entry in (proc / "fd").iterdir()}
        log = str(tmp_path / LOG)
        assert fds == {0: "/dev/null", 1: log, 2: log}
        assert (proc / "cwd").readlink() == tmp_path
        assert os.getsid(launch.server.pid) == os.getpgid(launch.server.pid) == launch.server.pid
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
        assert int(status["SigBlk"], 16) == 0
        ignored = {number + 1 for number in range(64) if int(status["SigIgn"], 16) >> number & 1}
        assert not ignored & set(signal.valid_signals())  # others belong to the C library
        # The supervisor itself holds nothing of the caller but its two pipes.
        supervisor = Path(f"/proc/{launch.supervisor.pid}/fd")
        assert {str(entry.readlink()).split(":")[0] for entry in supervisor.iterdir()} == {
            "pipe",
            "/dev/null",
            "anon_inode",
        }


def test_the_log_holds_all_output_and_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("before\n")
    code = (
        "import os,sys\n"
        "for i in range(50_000): print('out', i)\n"
        "sys.stdout.flush()\n"
        "os.system('i=0; while [ $i -lt 2000 ]; do echo child $i >&2; i=$((i+1)); done')\n"
        "print('last', end='')\n"
    )
    with prepare(tmp_path, [sys.executable, "-c", code]) as launch:
        assert run_to_end(launch, 120) == ExitStatus(0, None)
    expected = ["before", *(f"out {i}" for i in range(50_000))]
    expected += [*(f"child {i}" for i in range(2000)), "last"]
    assert (tmp_path / LOG).read_text().split("\n") == expected


def test_large_environments_and_commands_arrive_whole(tmp_path: Path) -> None:
    # More than a pipe holds at once.
    env = {f"VARIABLE_{number}": "x" * 1000 for number in range(400)}
    code = "import os,sys; print(len(os.environ), len(sys.argv[1]))"
    with prepare(tmp_path, [sys.executable, "-c", code, "y" * 100_000], env) as launch:
        assert run_to_end(launch) == ExitStatus(0, None)
    count, length = map(int, (tmp_path / LOG).read_text().split())
    assert count >= 401
    assert length == 100_000


def test_twenty_launches_leave_no_process_and_no_descriptor(tmp_path: Path) -> None:
    gc.collect()  # else what earlier tests left goes meanwhile
    me = psutil.Process()
    children = {child.pid for child in me.children(recursive=True)}
    descriptors = me.num_fds()
    for number in range(20):
        with prepare(tmp_path, ["/bin/sh", "-c", "sleep 600 & sleep 600"]) as launch:
            if number % 4:
                assert launch.begin()
            if number % 4 == 2:
                launch.stop(5)
            if number % 4 == 3:
                os.kill(launch.supervisor.pid, signal.SIGKILL)
        assert launch.leftovers() == []
    assert me.num_fds() <= descriptors
    assert {child.pid for child in me.children(recursive=True)} <= children


def test_a_launch_costs_no_noticeable_time(tmp_path: Path) -> None:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        with prepare(tmp_path, ["/bin/sleep", "600"]) as launch:
            assert launch.begin()
            times.append(time.perf_counter() - started)
            launch.stop(5)
    # A tenth of that, but for a busy machine; whoever waits for a limit waits for seconds.
    assert min(times) < 1.5


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["/bin/true"])
    identity = ProcessId.of(process.pid)
    assert identity is not None
    deadline = time.monotonic() + 60
    while identity.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ProcessId.of(process.pid) == identity  # still in the table
    process.wait()
    assert ProcessId.of(process.pid) is None


def test_the_start_time_tells_a_reused_pid_apart() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    assert me.alive()
    boot, _, ticks = me.start_time.rpartition("/")
    started = psutil.Process().create_time()
    assert int(ticks) / os.sysconf("SC_CLK_TCK") == pytest.approx(
        started - psutil.boot_time(), abs=2
    )
    assert not ProcessId(me.pid, f"{boot}/{int(ticks) + 1}").alive()
    assert not ProcessId(me.pid, f"another-boot/{ticks}").alive()
