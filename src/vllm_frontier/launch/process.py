"""A launch: a server under its supervisor, from its preparation to its end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from vllm_frontier.launch import supervisor as supervision
from vllm_frontier.launch.leftovers import ProcessId, end_leftovers, find_leftovers

__all__ = ["ExitStatus", "Launch", "ProcessId"]

BEGIN_TIMEOUT_S = 60.0  # for a supervisor on a machine that is busy or swaps
KILL_MARGIN_S = 10.0  # what the kernel may need to let killed processes go
EXIT_STOP_TIMEOUT_S = 10.0


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
    """

    def __init__(self, control: IO[bytes], status: IO[bytes]) -> None:
        self._control = control
        self._status = status
        os.set_blocking(self._status.fileno(), False)
        self._input = b""
        self._exit: ExitStatus | None = None
        self._begun = False
        self._closed = False
        self._left: list[ProcessId] = []
        self.supervisor = ProcessId(0, "")
        self.server: ProcessId | None = None
        self.exec_error: str | None = None

    @classmethod
    def prepare(
        cls, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path
    ) -> Launch:
        """Start the supervisor, which executes nothing before `begin`.

        Args:
            argv: the server's command.
            env: its complete environment.
            log: the file that its output is appended to, created if need be.
            cwd: its working folder.

        Raises:
            OSError: not even the supervisor can be started (no memory, no processes left).
        """
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(supervision.__file__), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
        process.wait()  # the supervisor is its child and has left the family
        launch = cls(cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout))
        launch._wait_until(lambda: launch.supervisor.pid != 0, BEGIN_TIMEOUT_S)
        if launch.supervisor.pid == 0:
            raise ChildProcessError(launch.exec_error or "the supervisor did not start")
        order = {
            "argv": list(argv),
            "env": dict(env),
            "log": str(log.absolute()),
            "cwd": str(cwd.absolute()),
        }
        launch._send(json.dumps(order).encode() + b"\n")
        return launch

    def begin(self) -> bool:
        """Let the supervisor execute the server.

        Returns:
            Whether it was executed; if not, `exec_error` says why.
        """
        self._begun = True
        self._send(b"go\n")
        self._wait_until(lambda: self.server is not None, BEGIN_TIMEOUT_S)
        if self.server is None and self.exec_error is None:
            self.exec_error = "the supervisor did not execute the server"
        return self.server is not None

    def poll(self) -> ExitStatus | None:
        """How the server ended, or None while it runs; does not wait.

        The server's end is told when nothing of its tree is left, which takes up to a second
        longer. When the supervisor was killed, the server goes with it, and this ends the rest.
        """
        self._read()
        if self._exit is None and not self.supervisor.alive():
            self._read()  # what it wrote last
            if self._exit is None:
                self._end_unsupervised()
        return self._exit

    def members(self) -> list[int]:
        """Pids of the server's tree that are alive, without the supervisor."""
        if self.supervisor.alive():
            table = supervision.process_table()
            below = supervision.descendants(self.supervisor.pid, table)
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
            self._send(f"stop {timeout_s:.3f}\n".encode())
            self._wait_until(lambda: self._exit is not None, timeout_s + KILL_MARGIN_S)
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
        if not self._wait_gone(1.0 if self._exit is None and self._begun else KILL_MARGIN_S):
            self._end_unsupervised()
        self._read()
        self._status.close()
        self._closed = True

    def _end_unsupervised(self) -> None:
        """End the tree without its supervisor: that one is gone or does not answer."""
        left = self.members()
        identities = [found for pid in left if (found := ProcessId.of(pid)) is not None]
        end_leftovers(self.supervisor, self.server)
        if self.supervisor.alive():
            supervision.kill_process(self.supervisor.pid)
            self._wait_gone(KILL_MARGIN_S)
        self._left = [process for process in identities if process.alive()]
        if self._begun and self._exit is None:
            # The kernel kills the server when its supervisor goes.
            ended_by = int(signal.SIGKILL) if self.server is not None else None
            self._exit = ExitStatus(None, ended_by)

    def _send(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._control.fileno(), data) :]
        except BrokenPipeError:  # the supervisor is gone, which `poll` notices
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
            case "exited":
                self._exit = ExitStatus(event["exit_code"], event["signal"])
