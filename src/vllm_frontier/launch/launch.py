"""A launch: a server under its supervisor, from its preparation to its end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from vllm_frontier.launch import processes, supervisor
from vllm_frontier.launch.folders import remove_tmp
from vllm_frontier.launch.leftovers import end_leftovers, find_leftovers
from vllm_frontier.launch.processes import ProcessId

BEGIN_TIMEOUT_S = 60.0  # for a supervisor on a machine that is busy or swaps
KILL_MARGIN_S = 10.0  # what the kernel may need to let killed processes go
ANSWER_MARGIN_S = 2.0  # for a supervisor that does nothing at all
EXIT_STOP_TIMEOUT_S = 10.0
# Nothing of a launch stops itself, and a server of which a process stopped hangs for ever.
STOPPED_S = 10.0
OLD_KERNEL_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a server ended: an exit code, or the signal that ended it, or neither is known."""

    exit_code: int | None
    signal: int | None


class Launch:
    """One server and its whole process tree.

    Used as a context manager it is always stopped at the end. `stop` never raises for what
    a process does; what could not be ended is told by `leftovers`.

    Attributes:
        supervisor: the process that watches over the tree.
        server: the server's main process, once it was executed.
        exec_error: why the server could not be executed, in one line.
        stopped: which process of it was stopped, and for how long, when that ended it.
    """

    def __init__(self, control: IO[bytes], status: IO[bytes], tmp: Path | None) -> None:
        self._control = control
        self._status = status
        self._tmp = tmp
        for pipe in (control, status):
            os.set_blocking(pipe.fileno(), False)
        self._input = b""
        self._lock = threading.RLock()
        self._guard: threading.Thread | None = None
        self._ended: ExitStatus | None = None  # its main process
        self._exit: ExitStatus | None = None  # all of it
        self._begun = False
        self._closed = False
        self._left: list[ProcessId] = []
        self.supervisor = ProcessId(0, "")
        self.server: ProcessId | None = None
        self.exec_error: str | None = None
        self.stopped: str | None = None

    @classmethod
    def prepare(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path,
        watch: Sequence[ProcessId] = (),
        tmp: Path | None = None,
        grace_s: float = 0.0,
    ) -> Launch:
        """Start the supervisor, which executes nothing before `begin`.

        Args:
            argv: the server's command.
            env: its complete environment.
            log: the file that its output is appended to, created if need be.
            cwd: its working folder.
            watch: processes of this machine whose end ends the launch, as that of this
                process does; one that is gone already ends it at once.
            tmp: a folder that `private_tmp` made; it is removed when nothing of the launch
                is left, also when this process is gone by then.
            grace_s: what the server gets between SIGTERM and SIGKILL when this process or a
                watched one ends, seconds.

        Raises:
            OSError: not even the supervisor can be started (no memory, no processes left).
        """
        me = ProcessId.of(os.getpid())
        start_time = "" if me is None else me.start_time
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), start_time],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
        process.wait()  # the supervisor is its child and has left the family
        launch = cls(cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout), tmp)
        launch._wait_until(lambda: launch.supervisor.pid != 0, BEGIN_TIMEOUT_S)
        if launch.supervisor.pid == 0:
            launch._control.close()
            launch._status.close()
            raise ChildProcessError(launch.exec_error or "the supervisor did not start")
        launch._guard = threading.Thread(
            target=_guard, args=(weakref.ref(launch), launch.supervisor), daemon=True
        )
        launch._guard.start()
        order = {
            "argv": list(argv),
            "env": dict(env),
            "log": str(log.absolute()),
            "cwd": str(cwd.absolute()),
            "watch": [[each.pid, each.start_time] for each in watch],
            "tmp": None if tmp is None else str(tmp.absolute()),
            "stopped_s": STOPPED_S,
            "grace_s": grace_s,
        }
        launch._send(json.dumps(order).encode() + b"\n", BEGIN_TIMEOUT_S)
        return launch

    def begin(self) -> bool:
        """Let the supervisor execute the server.

        Returns:
            Whether it was executed; if not, `exec_error` says why.
        """
        self._begun = True
        self._send(b"go\n", BEGIN_TIMEOUT_S)
        self._wait_until(lambda: self.server is not None, BEGIN_TIMEOUT_S)
        if self.server is None and self.exec_error is None:
            self.exec_error = "the supervisor did not execute the server"
        return self.server is not None

    def poll(self) -> ExitStatus | None:
        """How the server ended, or None while it runs; does not wait.

        The server's end is told when nothing of its tree is left, which takes up to a second
        longer. When the supervisor was killed, the server goes with it, and the rest is ended.
        """
        with self._lock:
            self._read()
            if self._exit is None and not self.supervisor.alive():
                self._read()  # what it wrote last
                if self._exit is None:
                    self._end_unsupervised()
            return self._exit

    def members(self) -> list[int]:
        """Pids of the server's tree that are alive, without the supervisor."""
        if self.supervisor.alive():
            table = processes.process_table()
            below = processes.descendants(self.supervisor.pid, table)
            return sorted(process.pid for process in below if process.alive)
        return [] if self._closed else find_leftovers(self.supervisor, self.server)

    def stop(self, timeout_s: float) -> ExitStatus | None:
        """End the whole tree and verify that nothing of it is left. Idempotent.

        Args:
            timeout_s: what the server gets between SIGTERM and SIGKILL, seconds.

        Returns:
            How the server ended; None when it never began.
        """
        if self._closed:
            return self._exit
        if self._begun and self.poll() is None:
            self._send(f"stop {timeout_s:.3f}\n".encode(), ANSWER_MARGIN_S)
            _wake(self.supervisor)
            self._wait_until(lambda: self._exit is not None, timeout_s + ANSWER_MARGIN_S)
            if not _is_stopped(self.supervisor):
                self._wait_until(
                    lambda: self._exit is not None, max(0.0, KILL_MARGIN_S - ANSWER_MARGIN_S)
                )
        self._close()
        return self._exit

    def leftovers(self) -> list[int]:
        """Pids of the tree that survived `stop`; empty is what everybody wants."""
        return [process.pid for process in self._left if process.alive()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(EXIT_STOP_TIMEOUT_S)

    def _close(self) -> None:
        self._control.close()  # the end of this pipe ends whatever is left
        _wake(self.supervisor)
        if not self._wait_gone(1.0 if self._exit is None and self._begun else KILL_MARGIN_S):
            self._end_unsupervised()
        if self._guard is not None:
            self._guard.join(KILL_MARGIN_S)
        with self._lock:
            self._read()
            self._status.close()
            self._closed = True
        if self._tmp is not None and not self.leftovers():
            remove_tmp(self._tmp)

    def _end_unsupervised(self) -> None:
        """End the tree without its supervisor: that one is gone or does not answer."""
        with self._lock:
            left = self.members()
            identities = [found for pid in left if (found := ProcessId.of(pid)) is not None]
            end_leftovers(self.supervisor, self.server, tmp=self._tmp)
            if self.supervisor.alive():
                processes.kill_process(self.supervisor.pid)
                self._wait_gone(KILL_MARGIN_S)
            self._left = [process for process in identities if process.alive()]
            if self._tmp is not None and not self._left:
                remove_tmp(self._tmp)
            if self._begun and self._exit is None:
                # The kernel kills the server when its supervisor goes.
                ended_by = int(signal.SIGKILL) if self.server is not None else None
                self._exit = self._ended or ExitStatus(None, ended_by)

    def _send(self, data: bytes, timeout_s: float) -> None:
        """Write to the supervisor, as far as it reads; one that is gone `poll` notices."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLOUT)
        while data and (left_s := deadline - time.monotonic()) > 0:
            poll.poll(left_s * 1000)
            try:
                data = data[os.write(self._control.fileno(), data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return

    def _wait_until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a report; ends early when the supervisor ends or the launch failed."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._status.fileno(), select.POLLIN)
        while not reached() and self._exit is None and self.exec_error is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            for _, event in poll.poll(left_s * 1000):
                if event & select.POLLIN:
                    self._read()
                else:  # hung up: whatever was to be read has been read
                    self._wait_gone(KILL_MARGIN_S)
                    self.poll()
                    return

    def _wait_gone(self, timeout_s: float) -> bool:
        """Wait for the supervisor to end; whether it did."""
        deadline = time.monotonic() + timeout_s
        while self.supervisor.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def _read(self) -> None:
        """Take in what the supervisor reported; does not wait."""
        with self._lock:
            while not self._status.closed and (data := self._status.read(65536)):
                *lines, self._input = (self._input + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "ready":
                self.supervisor = ProcessId(event["pid"], event["start_time"])
            case "started":
                self.server = ProcessId(event["pid"], event["start_time"])
            case "failed":
                self.exec_error = event["error"]
                if self.server is None:
                    self._exit = ExitStatus(None, None)
            case "stopped":
                self.stopped = (
                    f"process {event['pid']} ({event['name']}) of it was stopped "
                    f"for {STOPPED_S:g} s"
                )
            case "ended":
                self._ended = ExitStatus(event["exit_code"], event["signal"])
            case "exited":
                self._exit = ExitStatus(event["exit_code"], event["signal"])


def _guard(launch: weakref.ref[Launch], supervisor: ProcessId) -> None:
    """In a thread: end the tree as soon as its supervisor is gone, whatever the holder does.

    A supervisor that is stopped protects from nothing, so it is let go on. The launch is not
    kept alive by this: one that nobody holds any more ends, as its pipe closes.
    """
    try:
        gone = os.pidfd_open(supervisor.pid)
    except OSError:  # it is gone, or an old kernel
        while supervisor.alive():
            time.sleep(OLD_KERNEL_POLL_S)
    else:
        poll = select.poll()
        poll.register(gone, select.POLLIN)
        was_stopped = False
        while supervisor.alive() and not poll.poll(STOPPED_S * 500):
            is_stopped = _is_stopped(supervisor)
            if was_stopped and is_stopped:
                _wake(supervisor)
            was_stopped = is_stopped
        os.close(gone)
    held = launch()
    if held is not None:
        held.poll()


def _wake(process: ProcessId) -> None:
    if _is_stopped(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGCONT)


def _is_stopped(process: ProcessId) -> bool:
    found = processes.read_process(process.pid)
    # Also one that a debugger holds does nothing.
    return found is not None and found.state in "Tt" and process.alive()
