"""What the processes of the simulated server share: the launch, how they talk, how they die.

The API server forks EngineCore, EngineCore forks the worker; neighbours talk in lines over a
socket pair:

    API server -> EngineCore -> worker   load, profile, capture; ping; crash, exit, hang, oom
    worker -> EngineCore -> API server   loaded, profiled, captured; pong; failed

EngineCore lives on when the API server is killed, as vLLM's does; the worker goes with
EngineCore.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from dataclasses import dataclass, field, replace

from vllm_frontier.engine.simulated import log
from vllm_frontier.engine.simulated.card import SimulatedCard, simulate_start
from vllm_frontier.engine.simulated.faults import FaultBook
from vllm_frontier.engine.simulated.options import Options
from vllm_frontier.engine.simulated.segment import SharedSegment
from vllm_frontier.grid import Cell


@dataclass(frozen=True)
class Launch:
    """What all three processes know."""

    options: Options
    card: SimulatedCard
    cell: Cell
    faults: FaultBook
    api_pid: int
    segment: SharedSegment = field(default_factory=SharedSegment)

    def wait(self, seconds: float) -> None:
        """Wait for simulated seconds."""
        time.sleep(seconds * self.card.time.scale)


class Channel:
    """One end of a socket pair that carries lines."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""

    def fileno(self) -> int:
        """The descriptor, for `select`."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this process's copy."""
        self._end.close()

    def send(self, word: str) -> None:
        """Send a line; to an end that is gone it is lost, and the next `receive` says so."""
        with contextlib.suppress(OSError):
            self._end.sendall(word.encode() + b"\n")

    def receive(self) -> str | None:
        """The next line; None when the other end is gone."""
        while b"\n" not in self._rest:
            try:
                data = self._end.recv(4096)
            except ConnectionError:
                return None
            if not data:
                return None
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()


def channel_pair() -> tuple[Channel, Channel]:
    """Two connected ends."""
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


def become_child(name: str) -> None:
    """What a forked process does first: its name, and the default answer to signals."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # noqa: PTH123
        comm.write(name)


def commit_fault(kind: str, launch: Launch) -> None:
    """Go wrong in this process, silently or not; returns only for kinds that others handle."""
    if kind == "crash":
        log.write_segfault()
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
        signal.pause()
    elif kind == "exit":
        os._exit(1)
    elif kind == "hang":
        parent = os.getppid()
        while os.getpid() == launch.api_pid or os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)  # nobody is left to notice that we hang
    elif kind == "kill":
        parent = os.getppid()
        os.kill(launch.api_pid, signal.SIGKILL)
        # Who lives on does so in silence: what the log shows last is the phase of the fault.
        while os.getppid() == parent or parent == launch.api_pid:
            time.sleep(0.1)
        os._exit(1)


def with_context(launch: Launch) -> Launch:
    """The launch with the window that it serves in place of `auto`."""
    context = simulate_start(launch.card, launch.cell).context
    return replace(launch, cell=replace(launch.cell, context=context))
