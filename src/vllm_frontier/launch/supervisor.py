"""A small process between the sweep and a server: it ends the server's whole tree.

It is run as a script, `python -I -S supervisor.py PARENT_PID`, needs the standard library
only and imports nothing of this package. The package imports it for its view of `/proc`.

Its standard input is the control pipe. First comes one line of JSON with `argv`, `env`,
`cwd` and `log`; then lines of words:

    go              execute the server
    stop SECONDS    SIGTERM, once more after a third of the time, SIGKILL at its end

It leaves its parent's family at once (a fork, a session of its own): a framework that kills
the children of a process which it ends, as Ray does with its workers, would otherwise kill the
one process that can end the server's tree.

The end of the input, or of the parent, means: end the whole tree now. SIGTERM, SIGINT and
SIGHUP stop within seconds, and a second such signal ends the tree now.

Its standard output is the status pipe, one JSON object a line:

    {"event": "ready", "pid": 1, "start_time": "..."}
    {"event": "started", "pid": 1, "start_time": "...", "pgid": 1}
    {"event": "failed", "error": "cannot execute ..."}
    {"event": "exited", "exit_code": 0, "signal": null}

`exited` comes when nothing of the tree is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import TracebackType

TAG = "FRONTIER_LAUNCH"
"""The variable that marks every process of a launch, whatever session it moved to."""

# A process that sets its title would write it over its environment, mark included.
KEEP_MARK = {"SPT_NOENV": "1"}

SIGNAL_STOP_S = 3.0  # what a signal to the supervisor leaves the server
REST_GRACE_S = 1.0  # for what outlives the server's main process

# A resource tracker unlinks the shared memory of killed processes as soon as they are gone,
# which takes the kernel a while when they hold gigabytes.
TRACKER_GRACE_S = 0.5
TRACKER_LONGEST_S = 5.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Process(NamedTuple):
    """One line of the process table; `start` is in clock ticks since boot."""

    pid: int
    state: str
    ppid: int
    pgid: int
    session: int
    start: int

    @property
    def alive(self) -> bool:
        """False for a zombie: it holds nothing but its exit status."""
        return self.state not in "ZXx"


def read_proc(path: str) -> bytes | None:
    """The content of a file of `/proc`; None when it is gone or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    parts = []
    try:
        while part := os.read(fd, 65536):
            parts.append(part)
    except OSError:  # the process ended between the two calls
        return None
    finally:
        os.close(fd)
    return b"".join(parts)


def read_process(pid: int) -> Process | None:
    """What the kernel says about a process; None when there is none."""
    text = read_proc(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    state, (ppid, pgid, session) = fields[0].decode(), map(int, fields[1:4])
    return Process(pid, state, ppid, pgid, session, int(fields[19]))


def process_table() -> dict[int, Process]:
    """Every process that this one can see, zombies included."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return {pid: process for pid in pids if (process := read_process(pid)) is not None}


def descendants(root: int, table: dict[int, Process]) -> list[Process]:
    """Children of `root`, their children and so on, zombies included, without `root`."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    todo = [root]
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += [process.pid for process in below]
    return found


def start_time(process: Process) -> str:
    """When a process started, as text that no other process with its pid ever has."""
    boot = (read_proc("/proc/sys/kernel/random/boot_id") or b"").decode().strip()
    return f"{boot}/{process.start}"


def kill_process(pid: int) -> None:
    """SIGKILL; a process that is gone or not ours is the caller's to notice."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def is_resource_tracker(pid: int) -> bool:
    """Whether a process is Python's tracker of shared memory.

    It ends by itself once its users are gone, and removes what they left in `/dev/shm`.
    """
    return b"multiprocessing.resource_tracker" in (read_proc(f"/proc/{pid}/cmdline") or b"")


class Killer:
    """Kills what is left, again and again, and resource trackers last."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._alone_since: float | None = None

    def kill(self, pids: list[int]) -> None:
        """SIGKILL to all of these; to resource trackers only when they had their time."""
        now = time.monotonic()
        trackers = {pid for pid in pids if is_resource_tracker(pid)}
        if self._alone_since is None and len(trackers) == len(pids):
            self._alone_since = now
        sparing = now - self._started < TRACKER_LONGEST_S and (
            self._alone_since is None or now - self._alone_since < TRACKER_GRACE_S
        )
        for pid in pids:
            if not (sparing and pid in trackers):
                kill_process(pid)


class Supervisor:
    """One server, from the order that describes it to the end of its tree."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._input = b""
        self._order: dict[str, Any] | None = None
        self._going = False
        self._main: subprocess.Popen[bytes] | None = None
        self._wait_status: int | None = None
        self._signals = 0
        self._mark = ""
        self._kill_at: float | None = None
        self._terminate_again_at: float | None = None
        self._wakeup = self._watch_signals()
        self._parent_fd = self._watch_parent()
        self._poll = select.poll()
        for fd in (0, self._wakeup, self._parent_fd):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """Wait for `go`, run the server, end what is left, report."""
        me = read_process(os.getpid())
        self._mark = f"{os.getpid()}@{start_time(me)}" if me else ""
        self._report(event="ready", pid=os.getpid(), start_time=start_time(me) if me else "")
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        while not self._going:
            if self._kill_at is not None:  # told to stop before anything was started
                return
            self._wait(None)
        if not self._start():
            return
        while self._wait_status is None:
            self._wait(self._next_deadline())
            self._reap()
            self._act()
        self._end_rest()
        code = os.waitstatus_to_exitcode(self._wait_status)
        self._report(
            event="exited",
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
        )

    def _watch_signals(self) -> int:
        # Whatever the parent blocked or ignored must not reach the server.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in signal.valid_signals():
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        # What Python itself ignores: a parent that is gone must not end this process.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        return readable

    def _watch_parent(self) -> int | None:
        """A descriptor that becomes readable when the parent ends.

        The control pipe alone would not do: a child that the parent forked may hold a copy
        of its other end.
        """
        try:
            fd = os.pidfd_open(self._parent)
        except ProcessLookupError:
            self._kill_at = 0.0
            return None
        except OSError:  # an old kernel: the pipe has to do
            return None
        return fd

    def _next_deadline(self) -> float | None:
        deadlines = [at for at in (self._kill_at, self._terminate_again_at) if at is not None]
        return min(deadlines) if deadlines else None

    def _wait(self, deadline: float | None) -> None:
        """Sleep until something happens, or until `deadline` (monotonic seconds)."""
        pause = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        for fd, _ in self._poll.poll(pause):
            if fd == 0:
                self._read_control()
            elif fd == self._wakeup:
                self._read_signals()
            else:
                self._poll.unregister(fd)
                self._kill_at = 0.0

    def _read_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._wakeup, 4096):
                if number in _STOP_SIGNALS:
                    self._signals += 1
                    self._stop(SIGNAL_STOP_S if self._signals == 1 else 0.0)

    def _read_control(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self._poll.unregister(0)
            self._kill_at = 0.0
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            if self._order is None:
                self._order = json.loads(line)
            elif line == b"go":
                self._going = True
            elif line.startswith(b"stop "):
                self._stop(float(line[5:]))

    def _stop(self, timeout: float) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            self._kill_at = now + timeout
            self._terminate_again_at = now + timeout / 3
            self._terminate()
        self._kill_at = min(self._kill_at, now + timeout)

    def _terminate(self) -> None:
        if self._main is None or self._wait_status is not None:
            return
        # A stopped process acts on a signal only when it goes on.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._main.pid, signal.SIGTERM)
            os.killpg(self._main.pid, signal.SIGCONT)

    def _act(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_all()
        elif self._terminate_again_at is not None and now >= self._terminate_again_at:
            # vLLM swallows a SIGTERM that arrives while it loads.
            self._terminate_again_at = None
            self._terminate()

    def _start(self) -> bool:
        order = self._order or {}
        try:
            log = os.open(
                order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            self._report(event="failed", error=f"cannot write {order['log']}: {error.strerror}")
            return False
        try:
            main = subprocess.Popen(
                order["argv"],
                env={**order["env"], **KEEP_MARK, TAG: self._mark},
                cwd=order["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self._tie_to_supervisor(os.getpid()),  # noqa: PLW1509 - no threads
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            what = getattr(error, "filename", None) or order["argv"][0]
            self._report(event="failed", error=f"cannot execute {what}: {reason}")
            return False
        finally:
            os.close(log)
        self._main = main
        started = read_process(main.pid)  # at least a zombie: it is not reaped yet
        self._report(
            event="started",
            pid=main.pid,
            start_time=start_time(started) if started else "",
            pgid=main.pid,
        )
        return True

    def _tie_to_supervisor(self, supervisor: int) -> Any:
        libc = self._libc

        def tie() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != supervisor:  # it went before the line above
                os._exit(1)

        return tie

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._main is not None and pid == self._main.pid:
                self._wait_status = status
                self._main.returncode = os.waitstatus_to_exitcode(status)

    def _end_rest(self) -> None:
        """End what outlives the server's main process, after a short grace."""
        deadline = time.monotonic() + REST_GRACE_S
        while descendants(os.getpid(), process_table()):
            now = time.monotonic()
            if now >= min(deadline, self._kill_at if self._kill_at is not None else deadline):
                self._kill_all()
                return
            self._wait(now + 0.02)
            self._reap()

    def _kill_all(self) -> None:
        """SIGKILL until nothing is left, whichever group or session it moved to."""
        killer = Killer()
        pause = 0.002
        while True:
            self._reap()
            left = descendants(os.getpid(), process_table())
            if not left:
                return
            killer.kill([process.pid for process in left if process.alive])
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def _report(self, **event: object) -> None:
        report(event)


def report(event: dict[str, object]) -> None:
    """Write one event to the status pipe; nobody may be left to read it."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(event).encode() + b"\n")


def report_defect(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Tell the parent about an error that should not be; it ends what is left."""
    line = trace.tb_lineno if trace else 0
    while trace is not None:
        line, trace = trace.tb_lineno, trace.tb_next
    report({"event": "failed", "error": f"supervisor: {kind.__name__}: {error} (line {line})"})


if __name__ == "__main__":
    sys.excepthook = report_defect
    if os.getppid() != int(sys.argv[1]):  # it went already
        sys.exit()
    if os.fork():
        os._exit(0)
    os.setsid()
    Supervisor(parent=int(sys.argv[1])).run()
