"""A process beside this one that draws, while this one goes on with words and tables."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Self, TypeVar

from vllm_frontier.report.plots import vega

T = TypeVar("T")


class Beside:
    """Draws in another process. Use it in a `with` block.

    Drawing takes about as long as all else that a report does, and the library that does it lets
    nothing else of its process run meanwhile.
    """

    def __enter__(self) -> Self:
        # Not forked: libraries that are loaded have threads.
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._pool.submit(vega.ready)
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, work: Callable[..., T], *arguments: object) -> Callable[[], T]:
        """Have something done there, after what was begun before.

        Args:
            work: a function of `vega`.
            arguments: what it takes.

        Returns:
            What waits for its result. Should the other process have ended, such as for want of
            memory, that does the work itself.
        """
        here = partial(work, *arguments)
        try:
            begun = self._pool.submit(work, *arguments)
        except BrokenProcessPool:
            return here

        def result() -> T:
            try:
                return begun.result()
            except BrokenProcessPool:
                return here()

        return result
