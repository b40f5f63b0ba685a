"""Waiting until nothing of an earlier launch is left on the card and on its port."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from vllm_frontier.launch.ports import is_released

POLL_S = 0.2
_SHORTEST_S = 0.001  # a rest too short to move a clock would be slept for ever


@dataclass(frozen=True, slots=True)
class DrainResult:
    """Whether the card and the port are free again.

    Attributes:
        ok: both are.
        waited_s: how long that took.
        used_gib: memory in use at the end, None where the card does not tell.
        memory_ok: the memory is back at its baseline (or cannot be told).
        port_ok: a server can listen on the port.
    """

    ok: bool
    waited_s: float
    used_gib: float | None
    memory_ok: bool
    port_ok: bool


def wait_drained(
    read_used: Callable[[], float | None],
    *,
    baseline_gib: float | None,
    tolerance_gib: float,
    timeout_s: float,
    port: int | None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> DrainResult:
    """Wait until memory in use is back at the baseline and the port is free.

    Args:
        read_used: memory in use now, GiB; None where it cannot be read, which counts as free.
        baseline_gib: memory in use before the sweep; None means that only the port counts.
        tolerance_gib: how far above the baseline memory in use may lie.
        timeout_s: how long to wait at most; the state is read at least once.
        port: the port that must be free, if any.
        sleep: waits for the given seconds.
        clock: monotonic seconds.
    """
    started = clock()
    while True:
        used = read_used()
        memory_ok = used is None or baseline_gib is None or used <= baseline_gib + tolerance_gib
        port_ok = port is None or is_released(port)
        waited = clock() - started
        ok = memory_ok and port_ok
        if ok or waited >= timeout_s:
            return DrainResult(ok, waited, used, memory_ok, port_ok)
        sleep(min(POLL_S, max(timeout_s - waited, _SHORTEST_S)))
