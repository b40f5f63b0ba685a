"""The command `vllm-frontier` with attempts that run in its own process, one after another.

Without Ray a sweep starts in a second, and driver and worker are one process. Run as a script.
With KILL_AT_WRITE=N in the environment the process kills itself with SIGKILL right before the
N-th step that changes a file of the sweep or of its folder for temporary files; a content is
then half written. With WRITES_FILE it lists those steps there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from vllm_frontier import sweep
from vllm_frontier.cli import main
from vllm_frontier.outcome import Outcome
from vllm_frontier.search import Search
from vllm_frontier.trial import AttemptRequest, Steps, run_attempt
from vllm_frontier.trial.plan import Listener, Plan

KILL_AT = "KILL_AT_WRITE"
WRITES_FILE = "WRITES_FILE"
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NAMED = ("os.mkdir", "os.rmdir", "os.rename", "os.remove", "os.truncate", "os.link", "os.symlink")


def one_after_another(search: Search, plan: Plan, listener: Listener) -> None:
    """Run a search to its end in this process; a `trial.plan.Schedule`."""
    with plan.signals.held():
        while not plan.out_of_time() and (wanted := search.ask()) is not None:
            plan.signals.check()
            cell = wanted.cell
            opened = listener.open_attempt(wanted)
            request = AttemptRequest(
                spec=plan.spec,
                cell=cell,
                cell_id=plan.identity.cell_id(cell),
                attempt=opened.number,
                log=opened.folder / "server.log",
                environment=plan.environment,
                cards=plan.cards,
                baseline=plan.baseline,
                purpose=wanted.purpose,
                with_speed=wanted.with_speed,
            )
            with _closed(run_attempt(request)) as steps:
                outcome = _follow(steps, request, plan, listener)
            search.tell(cell, outcome)
            listener.ended(cell, opened.number, outcome, None)


@contextmanager
def _closed(steps: Steps) -> Iterator[Steps]:
    try:
        yield steps
    finally:
        steps.close()


def _follow(steps: Steps, request: AttemptRequest, plan: Plan, listener: Listener) -> Outcome:
    while True:
        try:
            progress = next(steps)
        except StopIteration as ended:
            outcome: Outcome = ended.value
            return outcome
        if progress.launch is not None:
            listener.prepared(request.cell, request.attempt, progress.launch)
        else:
            listener.progress(request.cell, progress)
        plan.signals.check()


class Writes:
    """Counts the steps that change files, and ends the process before one of them."""

    def __init__(self, folders: list[Path], last: int, told: Path) -> None:
        self._folders = [f"{folder}/" for folder in folders]
        self._last = last
        self._told = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._count = 0

    def install(self) -> None:
        """From now on; it cannot be taken back."""
        sys.addaudithook(self._heard)
        sync, opened = os.fsync, os.fdopen

        def fsync(descriptor: int) -> None:
            self._step("fsync", _path_of(descriptor))
            sync(descriptor)

        def fdopen(descriptor: int, *args: Any, **named: Any) -> Any:
            stream = opened(descriptor, *args, **named)
            path = _path_of(descriptor)
            write = stream.write

            def write_half_first(content: Any) -> int:
                half = len(content) // 2
                write(content[:half])
                stream.flush()
                self._step("write", path)
                return half + int(write(content[half:]))

            try:
                stream.write = write_half_first
            except AttributeError:  # a buffered binary file takes no attributes
                return _Halves(stream, write_half_first)
            return stream

        os.fsync, os.fdopen = fsync, fdopen  # type: ignore[assignment]

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _NAMED:
            self._step(event.removeprefix("os."), args[0])
        elif event == "open" and isinstance(args[0], (str, bytes, Path)):
            _, mode, flags = args
            if (flags or 0) & _CHANGING or (mode and set(mode) & set("wax+")):
                self._step("open", args[0])

    def _step(self, what: str, path: Any) -> None:
        if isinstance(path, int):
            return
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  (of what may not exist)
        if not any(f"{name}/".startswith(folder) for folder in self._folders):
            return
        self._count += 1
        os.write(self._told, f"{what} {name}\n".encode())
        if self._count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


class _Halves:
    """A binary file of which only `write` differs."""

    def __init__(self, stream: Any, write: Any) -> None:
        self._stream = stream
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Halves:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115


if __name__ == "__main__":
    sweep.run_sweep = partial(sweep.run_sweep, schedule=one_after_another)
    if KILL_AT in os.environ or WRITES_FILE in os.environ:
        Writes(
            [Path.cwd() / "s", Path(os.environ["TMPDIR"])],
            int(os.environ.pop(KILL_AT, "0")),
            Path(os.environ.pop(WRITES_FILE, os.devnull)),
        ).install()
    main()
