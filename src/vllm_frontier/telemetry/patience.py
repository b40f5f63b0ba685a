"""Questions to a driver that may never answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Patience:
    """Asks in a thread of its own, and waits for an answer only so long.

    A call into a driver that hangs ends when the driver goes on and not before, so its thread is
    left behind. Until then nothing else is asked: threads do not pile up.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._asking: threading.Thread | None = None

    def ask(self, question: Callable[[], T], limit_s: float) -> tuple[T] | None:
        """The answer alone in a tuple; None where there is none in time.

        Args:
            question: must not raise.
            limit_s: how long to wait, seconds; a question before that still hangs included.

        Raises:
            RuntimeError: the question raised; its thread has told what.
        """
        deadline = time.monotonic() + limit_s
        if not self._turn.acquire(timeout=limit_s):
            return None
        try:
            if not self._is_free(deadline):
                return None
            answers: list[T] = []
            asking = threading.Thread(
                target=lambda: answers.append(question()), name="question", daemon=True
            )
            self._asking = asking
            asking.start()
            if not self._is_free(deadline):
                return None
        finally:
            self._turn.release()
        if not answers:
            raise RuntimeError("a question to a driver broke")
        return (answers[0],)

    def _is_free(self, deadline: float) -> bool:
        """Whether the last question was answered, by then at the latest."""
        if self._asking is not None:
            self._asking.join(max(0.0, deadline - time.monotonic()))
            if self._asking.is_alive():
                return False
        self._asking = None
        return True
