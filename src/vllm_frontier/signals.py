"""SIGINT, SIGTERM and SIGHUP while a sweep runs: the first stops it, a second leaves at once.

A handler that raised would raise inside whatever library is at work, and not every one
survives that: Ray's C code does not, and a half made table is of no use. While such code
runs, the first signal is only noted (`held`), and raised at the next `check`. The second one
is noticed by a thread, because Python's own handlers wait for the main thread to come back
from C code.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from vllm_frontier.errors import Interrupted

EXIT_INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h"


class Signals:
    """Handlers for the signals that end a sweep, in place inside its `with` block.

    Args:
        at_leave: called before the second signal ends the process; in a thread, and at once.

    Attributes:
        received: the first signal that arrived.
    """

    WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, at_leave: Callable[[], None] | None = None) -> None:
        self._at_leave = at_leave
        self.received: signal.Signals | None = None
        self._held = 0
        self._before: dict[signal.Signals, Callable[..., object] | int | None] = {}
        self._pipe: tuple[int, int] = (-1, -1)

    def __enter__(self) -> Self:
        # What is ignored stays so: `nohup` means it.
        watched = [each for each in self.WATCHED if signal.getsignal(each) != signal.SIG_IGN]
        self._before = {each: signal.getsignal(each) for each in watched}
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_inheritable(end, False)
        os.set_blocking(self._pipe[1], False)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._leave_at_second, daemon=True).start()
        self.listen()
        return self

    def __exit__(self, *exception: object) -> None:
        signal.set_wakeup_fd(-1)
        for each, handler in self._before.items():
            # After the first one this process is about to end; a second one is not news.
            signal.signal(each, handler if self.received is None else signal.SIG_IGN)
        os.close(self._pipe[1])  # ends the thread

    def listen(self) -> None:
        """Put the handlers in place, again where a library has put its own there."""
        for each in self._before:
            signal.signal(each, self._note)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only note a signal inside the block; `check` raises it."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def check(self) -> None:
        """Raise Interrupted once a signal has arrived."""
        if self.received is not None:
            raise Interrupted(self.received.name)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        first = self.received is None
        self.received = self.received or signal.Signals(number)
        if first and not self._held:
            self.check()

    def _leave_at_second(self) -> None:
        """End this process at the second signal, whatever its main thread is at."""
        count = 0
        with suppress(OSError), open(self._pipe[0], "rb", buffering=0) as numbers:  # noqa: PTH123
            while data := numbers.read(64):
                # A terminal that is closed may tell twice: the kernel does, and a shell as well.
                count += sum(
                    number in self._before and (number != signal.SIGHUP or count == 0)
                    for number in data
                )
                if count > 1:
                    self._leave()

    def _leave(self) -> None:
        """End this process now; the supervisors of running launches see it go and end them."""
        for stream in (sys.__stdout__, sys.__stderr__):
            with suppress(OSError, ValueError):
                if stream is not None and stream.isatty():
                    os.write(stream.fileno(), _SHOW_CURSOR)  # a live display hides it
        try:
            if self._at_leave is not None:
                self._at_leave()
        finally:
            os._exit(EXIT_INTERRUPTED)
