"""A small process between the sweep and a server: it ends the server's whole tree.

It is run as a script, `python -I -S supervisor.py PARENT_PID PARENT_START_TIME`, and needs the
standard library only, as do the modules of this package that it imports.

Its standard input is the control pipe. First comes one line of JSON with `argv`, `env`, `cwd`,
`log`, `stopped_s`, `grace_s` (between SIGTERM and SIGKILL when nobody is left; a client of a
container daemon passes on the first only), `watch` (processes, as pid and start time, whose end
means the same as the parent's) and `tmp` (a folder to remove at the end, or null); then lines of
words:

    go              execute the server
    stop SECONDS    SIGTERM, once more after a third of the time, SIGKILL at its end

It leaves its parent's family at once (a fork, a session of its own): a framework that kills
the children of a process which it ends, as Ray does with its workers, would otherwise kill the
one process that can end the server's tree.

The end of the input, of the parent or of a watched process means: end the whole tree now.
SIGTERM, SIGINT and SIGHUP stop within seconds, and a second such signal ends the tree now. So
does a process of the tree that was stopped for `stopped_s`: the launch would never move on.

Its standard output is the status pipe, one JSON object a line:

    {"event": "ready", "pid": 1, "start_time": "..."}
    {"event": "started", "pid": 1, "start_time": "...", "pgid": 1}
    {"event": "failed", "error": "cannot execute ..."}
    {"event": "stopped", "pid": 1, "name": "VLLM::Worker"}
    {"event": "ended", "exit_code": 0, "signal": null}
    {"event": "exited", "exit_code": 0, "signal": null}

`ended` comes when the server's main process ended, `exited` when nothing of the tree is left,
nor of its shared memory, nor of its temporary folder.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # last, so that nothing there hides the standard library
    sys.path.append(str(Path(__file__).parents[2]))

from vllm_frontier.launch.folders import remove_tmp
from vllm_frontier.launch.processes import (
    TAG,
    Killer,
    StoppedWatch,
    descendants,
    freeze,
    is_alive,
    name_of,
    process_table,
    read_process,
    start_time,
)
from vllm_frontier.launch.secrets import conceal_in_file, secret_values
from vllm_frontier.launch.segments import SegmentWatch

if TYPE_CHECKING:
    from types import TracebackType

# A process that sets its title would write it over its environment, mark included.
KEEP_MARK = {"SPT_NOENV": "1"}

SIGNAL_STOP_S = 3.0  # what a signal to the supervisor leaves the server
REST_GRACE_S = 1.0  # for what outlives the server's main process
ALIVE_POLL_S = 0.5  # where the kernel does not tell the end of a process

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """One server, from the order that describes it to the end of its tree."""

    def __init__(self, parent: int, parent_start: str) -> None:
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
        self._untold: list[tuple[int, str]] = []
        self._wakeup = self._watch_signals()
        self._segments = SegmentWatch()
        self._stopped: StoppedWatch | None = None
        self._poll = select.poll()
        for fd in (0, self._wakeup, self._segments.fileno()):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)
        self._watch_process(parent, parent_start)

    def run(self) -> None:
        """Wait for `go`, run the server, end what is left, report."""
        try:
            self._run()
        finally:
            self._kill_all()  # nothing is left, unless something went wrong here
            self._segments.remove()
            self._conceal()
            tmp = (self._order or {}).get("tmp")
            if tmp is not None:
                remove_tmp(Path(tmp))
        self._report_end("exited")

    def _conceal(self) -> None:
        """Take secrets out of the log, which nobody writes any more."""
        order = self._order
        if order is not None and self._main is not None:
            with contextlib.suppress(OSError):  # a full disk must not keep the rest from its end
                conceal_in_file(Path(order["log"]), secret_values(order["env"], order["argv"]))

    def _run(self) -> None:
        me = read_process(os.getpid())
        self._mark = f"{os.getpid()}@{start_time(me)}" if me else ""
        self._report(event="ready", pid=os.getpid(), start_time=start_time(me) if me else "")
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        while not self._going:
            if self._kill_at is not None:  # told to stop before anything was started
                return
            self._wait(self._next_deadline())
            self._look_for_untold()
        if self._kill_at is not None or not self._start():
            return
        while self._wait_status is None:
            self._wait(self._next_deadline())
            self._reap()
            self._act()
        self._report_end("ended")
        self._end_rest()

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

    def _watch_process(self, pid: int, start: str) -> None:
        """Let the end of a process be the end of the tree; it may be gone already.

        For the parent the control pipe alone would not do: a child that it forked may hold a
        copy of its other end.
        """
        try:
            self._poll.register(os.pidfd_open(pid), select.POLLIN)
        except ProcessLookupError:
            self._abandoned()
        except OSError:  # an old kernel, or no descriptors
            self._untold.append((pid, start))
        if not is_alive(pid, start):
            self._abandoned()

    def _look_for_untold(self) -> None:
        if not all(is_alive(pid, start) for pid, start in self._untold):
            self._abandoned()

    def _next_deadline(self) -> float | None:
        deadlines = [self._kill_at, self._terminate_again_at]
        if self._main is not None:
            deadlines.append(self._segments.due)
            if self._stopped is not None and self._kill_at is None:
                deadlines.append(self._stopped.due)
        if self._untold:
            deadlines.append(time.monotonic() + ALIVE_POLL_S)
        return min((at for at in deadlines if at is not None), default=None)

    def _wait(self, deadline: float | None) -> None:
        """Sleep until something happens, or until `deadline` (monotonic seconds)."""
        pause = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        for fd, _ in self._poll.poll(pause):
            if fd == 0:
                self._read_control()
            elif fd == self._wakeup:
                self._read_signals()
            elif fd == self._segments.fileno():
                self._segments.on_event()
            else:  # a process that is watched ended
                self._poll.unregister(fd)
                self._abandoned()

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
            self._abandoned()
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            if self._order is None:
                self._take_order(json.loads(line))
            elif line == b"go":
                self._going = True
            elif line.startswith(b"stop "):
                self._stop(float(line[5:]))

    def _take_order(self, order: dict[str, Any]) -> None:
        self._order = order
        self._stopped = StoppedWatch(order["stopped_s"])
        if order["tmp"] is not None:
            self._segments.keep_notes(Path(order["tmp"]))
        for pid, start in order["watch"]:
            self._watch_process(pid, start)

    def _abandoned(self) -> None:
        """End the tree now: nobody is left who could say more."""
        grace_s = (self._order or {}).get("grace_s", 0.0)
        if self._main is not None and grace_s > 0:
            self._stop(grace_s)
        else:
            self._kill_at = 0.0

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
        self._look_for_untold()
        self._look_at_tree(now)

    def _look_at_tree(self, now: float) -> None:
        new = self._segments.due is not None and now >= self._segments.due
        watch = self._stopped if self._kill_at is None else None
        if not new and (watch is None or now < watch.due):
            return
        tree = descendants(os.getpid(), process_table())
        if new:
            self._segments.look({process.pid for process in tree})
        stopped = watch.look(tree) if watch is not None else None
        if stopped is not None:
            self._report(event="stopped", pid=stopped.pid, name=name_of(stopped.pid))
            self._kill_at = 0.0

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
        self._segments.look({main.pid})
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
        """Give what outlives the server's main process a short grace."""
        deadline = time.monotonic() + REST_GRACE_S
        while descendants(os.getpid(), process_table()):
            now = time.monotonic()
            if now >= min(deadline, self._kill_at if self._kill_at is not None else deadline):
                return
            self._wait(now + 0.02)
            self._reap()
            self._look_at_tree(now)

    def _kill_all(self) -> None:
        """SIGKILL until nothing is left, whichever group or session it moved to."""
        killer = Killer()
        pause = 0.002
        looked = False
        while True:
            self._reap()
            left = descendants(os.getpid(), process_table())
            if not left:
                return
            if not looked:
                looked = True
                freeze(self._tree)
                left = descendants(os.getpid(), process_table())
                self._segments.look({process.pid for process in left}, last=True)
            killer.kill([process.pid for process in left if process.alive])
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def _tree(self) -> list[int]:
        return [process.pid for process in descendants(os.getpid(), process_table())]

    def _report_end(self, event: str) -> None:
        if self._wait_status is None:
            return
        code = os.waitstatus_to_exitcode(self._wait_status)
        self._report(
            event=event,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
        )

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
    Supervisor(int(sys.argv[1]), sys.argv[2]).run()
