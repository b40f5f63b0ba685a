"""A process beside this one that draws, while this one goes on with words and tables."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Any, Self, TypeVar

from vllm_frontier.report.plots import vega

T = TypeVar("T")

_PATIENCE_S = 30.0  # for one result; the largest picture takes a few seconds
_ENDING_S = 5.0  # a process that was killed is gone at once, unless the kernel holds it
_PR_SET_PDEATHSIG = 1
_GONE = (OSError, EOFError, pickle.UnpicklingError)  # what asking a process that ended raises


class Beside:
    """Draws in another process. Use it in a `with` block.

    Drawing takes about as long as all else that a report does, and the library that does it lets
    nothing else of its process run meanwhile. Whatever befalls the other process, such as that it
    is stopped or has no memory, this one does its work in the end.
    """

    def __enter__(self) -> Self:
        self._process = _started()
        self._asking = ThreadPoolExecutor(1)
        self._begun: list[Future[Any]] = [self._asking.submit(self._ask, vega.ready)]
        return self

    def __exit__(self, *error: object) -> None:
        self._kill()
        self._asking.shutdown(cancel_futures=True)
        if self._process is not None:
            with suppress(TimeoutExpired):
                self._process.wait(_ENDING_S)
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(BrokenPipeError):  # of what was not sent
                    _open(pipe).close()

    @property
    def busy(self) -> bool:
        """Whether something that was begun is not done yet."""
        return not all(each.done() for each in self._begun)

    def begin(
        self, work: Callable[..., T], *arguments: object, here_too: bool = False
    ) -> Callable[[], T]:
        """Have something done there, after what was begun before.

        Args:
            work: a function of `vega`.
            arguments: what it takes.
            here_too: whether this process may do it, when its result is wanted before the other
                one came to it.

        Returns:
            What waits for its result. Should the other process have ended, or not come to an
            end, that does the work itself.
        """
        begun = self._asking.submit(self._ask, work, *arguments)
        self._begun.append(begun)
        here = partial(work, *arguments)

        def result() -> T:
            if here_too and begun.cancel():
                return here()
            try:
                done: T = begun.result(_PATIENCE_S)
            except TimeoutError:
                self._kill()
            except _GONE:
                pass
            else:
                return done
            return here()

        return result

    def _ask(self, work: Callable[..., Any], *arguments: object) -> Any:
        """What the other process makes of something; raises one of `_GONE` where it ended."""
        if self._process is None:
            raise EOFError
        pickle.dump((work, arguments), questions := _open(self._process.stdin))
        questions.flush()
        return pickle.load(_open(self._process.stdout))

    def _kill(self) -> None:
        """End the other process, also when it is stopped: whoever waits for it, goes on."""
        if self._process is not None:
            self._process.kill()


def _started() -> Popen[bytes] | None:
    """The other process; None where the machine has none to spare."""
    # Not forked: libraries that are loaded have threads.
    code = f"import sys; sys.path[:] = {sys.path!a}; import {__name__} as it; it.answer()"
    # Ctrl-C reaches every process of a terminal; the other one ends when this one does. What
    # is blocked stays so in a new process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE)
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answer() -> None:
    """In the other process: do what is asked on stdin, until nobody asks any more."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    # Without memory it ends, and the other process does the work.
    with suppress(EOFError, MemoryError):
        while True:
            work, arguments = pickle.load(questions)
            pickle.dump(work(*arguments), answers)
            answers.flush()


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
