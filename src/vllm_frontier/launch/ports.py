"""Ports on the loopback interface."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from vllm_frontier.errors import EngineError

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_000
_TRIES = 200


def free_port() -> int:
    """A loopback port that nothing uses.

    It is drawn below the range from which the kernel serves outgoing connections, so that
    none of those takes it before the server does. Two callers rarely draw the same.

    Raises:
        EngineError: no free port was found.
    """
    last = min(_LAST, _ephemeral_first() - 1)
    if last < _FIRST:  # a machine with an unusually wide range of ephemeral ports
        last = _LAST
    draw = random.SystemRandom()
    for _ in range(_TRIES):
        port = draw.randint(_FIRST, last)
        if _can_bind(port, reuse=False):
            return port
    raise EngineError(f"no free port between {_FIRST} and {last} on {LOOPBACK}: {_TRIES} tries")


def is_released(port: int) -> bool:
    """Whether a server can listen on a loopback port again.

    Connections that wait out their time after the end of a server do not count: servers set
    SO_REUSEADDR, and are not kept from listening by them.
    """
    return _can_bind(port, reuse=True)


def _can_bind(port: int, *, reuse: bool) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _ephemeral_first() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    except OSError:
        return _LAST + 1
    return int(text.split()[0])
