"""A limit on a whole HTTP request.

httpx limits every single read, so a server that sends a byte now and then keeps a request alive
for ever. Here a timer shuts the connection down at the deadline, whatever the request waits for.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx


class Deadline:
    """Ends one request after `seconds`; used as a context manager around it.

    `extensions` go with the request, which must open a connection of its own (one that is kept
    alive would not be seen here).
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._expired = False
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    @property
    def expired(self) -> bool:
        """Whether the time was over before the request was."""
        return self._expired

    @property
    def extensions(self) -> dict[str, Any]:
        """What httpx has to be given with the request."""
        limit = self.seconds
        # The timeout is needed for connecting, when there is no connection to shut down yet.
        timeout = {"connect": limit, "read": limit, "write": limit, "pool": limit}
        return {"trace": self._trace, "timeout": timeout}

    def note(self, error: Exception) -> None:
        """Tell what broke the request: httpx may notice the same limit a moment earlier."""
        if isinstance(error, httpx.TimeoutException):
            self._expired = True

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
            if self._expired:
                self._shut()

    def _expire(self) -> None:
        self._expired = True
        self._shut()

    def _shut(self) -> None:
        with self._lock:
            if self._socket is None:
                return
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The other side, or the end of the request, was quicker.
                self._socket = None
