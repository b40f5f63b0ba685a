"""A process beside this one that draws, while this one goes on with words and tables."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process, resource_tracker
from threading import Thread
from typing import Any, Self, TypeVar

from vllm_frontier.report.plots import vega

T = TypeVar("T")


class Beside:
    """Draws in another process. Use it in a `with` block.

    Drawing takes about as long as all else that a report does, and the library that does it lets
    nothing else of its process run meanwhile.
    """

    def __enter__(self) -> Self:
        # Not forked: libraries that are loaded have threads.
        self._pool = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_end_with_parent
        )
        # Ctrl-C reaches every process of a terminal; the other one ends when this one does. What
        # is blocked stays so in a new process; the tracker of multiprocessing would unblock it.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._begun: list[Future[Any]] = [self._pool.submit(vega.ready)]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

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
            What waits for its result. Should the other process have ended, such as for want of
            memory, that does the work itself.
        """
        here = partial(work, *arguments)
        try:
            begun = self._pool.submit(work, *arguments)
        except BrokenProcessPool:
            return here

        self._begun.append(begun)

        def result() -> T:
            if here_too and begun.cancel():
                return here()
            try:
                return begun.result()
            except BrokenProcessPool:
                return here()

        return result


def _end_with_parent() -> None:
    """In the other process: end when this one does, however that ends."""
    Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
