"""How SIGINT and SIGTERM end a sweep that runs inside Tune."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Self

from ray import tune

from vllm_frontier.errors import Interrupted


class Signals:
    """SIGINT and SIGTERM end the sweep at the next turn of Tune's loop; a second one at once.

    A handler that raised would raise inside Ray's own C code, which does not survive that.
    """

    WATCHED = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._before = {each: signal.getsignal(each) for each in self.WATCHED}
        self.listen()
        return self

    def __exit__(self, *exception: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def listen(self) -> None:
        """Put the handlers in place."""
        for each in self.WATCHED:
            signal.signal(each, self._note)

    def check(self) -> None:
        """Raise Interrupted once a signal has arrived."""
        if self.received is not None:
            raise Interrupted(self.received.name)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            # The supervisors of running launches see this process go and end them.
            os._exit(130)
        self.received = signal.Signals(number)


class InterruptCallback(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Looks for a signal at every turn of Tune's loop, ten times a second."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Leave the loop when a signal has arrived."""
        self._signals.check()
