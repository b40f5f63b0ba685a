"""Questions that cost more than they are worth at every sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Paced(Generic[T]):
    """A question of which the last answer stands until asking again is cheap enough.

    Args:
        ask: the question.
        share: of a core that asking may take, over time.
    """

    def __init__(self, ask: Callable[[], T], share: float) -> None:
        self._ask = ask
        self._share = share
        self._next_at = 0.0
        self._last: tuple[T] | None = None

    @property
    def due(self) -> bool:
        """Whether asking is cheap enough by now."""
        return time.monotonic() >= self._next_at

    def __call__(self) -> T:
        """The answer, the last one where that is not due."""
        return self.fresh() if self._last is None or self.due else self._last[0]

    def fresh(self) -> T:
        """The answer of this moment, whatever it costs."""
        before = time.thread_time()
        answer = self._ask()
        self._last = (answer,)
        self._next_at = time.monotonic() + (time.thread_time() - before) / self._share
        return answer
