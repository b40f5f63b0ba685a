"""Whose fault a lack of memory is: the cell's, or that of somebody else who holds some.

A refusal for lack of memory says nothing about a cell while another process holds memory that
was free when the sweep began. What is in use is compared with that baseline before the launch
and once nothing of it is left; the launch's own memory is in neither figure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_frontier import telemetry
from vllm_frontier.conditions import HOST
from vllm_frontier.outcome import Failure, FailureClass, StartupFacts, Status
from vllm_frontier.telemetry import CardProcess

# Figures move by this much without anybody doing anything, GiB.
NOISE_GIB = 0.1
_POLL_S = 0.2

_ABOVE_FREE = re.compile(r"\((-?[\d.]+)/[\d.]+ GiB\).*?([\d.]+) GiB\)")
# "... of which 605.88 MiB is free", before PyTorch 2.1 "605.88 MiB free;".
_ALLOCATION = re.compile(
    r"Tried to allocate (?P<size>[\d.]+) (?P<unit>[KMG])iB.*?"
    r"(?P<free>[\d.]+) (?P<free_unit>[KMG])iB (?:is )?free"
)
_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0}

# On a CPU the KV cache is given in bytes: what others hold only matters to this refusal.
_OF_HOST_MEMORY = frozenset({FailureClass.UTILIZATION_ABOVE_FREE})


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Memory in use at one moment.

    Attributes:
        used_gib: by card (UUID), or under `host` that of the machine; what cannot be read is
            not there.
        processes: those that the driver shows on the cards, this program left out.
    """

    used_gib: Mapping[str, float] = field(default_factory=dict)
    processes: tuple[CardProcess, ...] = ()

    def lowest(self, earlier: Mapping[str, float]) -> MemoryState:
        """This state, with a lower figure where an earlier one of the same card was lower."""
        used = {where: min(gib, earlier.get(where, gib)) for where, gib in self.used_gib.items()}
        return replace(self, used_gib=used)


def read_state(uuids: Sequence[str], *, host: bool = False) -> MemoryState:
    """The state of some cards, or (`host`, without cards) of this machine's own memory."""
    if not uuids:
        used = telemetry.host_memory_used_gib() if host else None
        return MemoryState({} if used is None else {HOST: used})
    found = [card for card in telemetry.cards() if card.uuid in uuids]
    return MemoryState(
        {card.uuid: card.used_gib for card in found if card.used_gib is not None},
        tuple(process for card in found for process in card.processes or ()),
    )


def excess_gib(baseline: MemoryState | None, *later: MemoryState | None) -> float | None:
    """How far memory in use lay above the baseline on any card; None where it is not known."""
    if baseline is None:
        return None
    above = [
        gib - baseline.used_gib[where]
        for state in later
        if state is not None
        for where, gib in state.used_gib.items()
        if where in baseline.used_gib
    ]
    return max(above) if above else None


def settled_state(
    read: Callable[[], MemoryState], baseline: MemoryState | None, timeout_s: float
) -> MemoryState:
    """The state once memory in use is back at the baseline, or after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = read()
        above = excess_gib(baseline, state)
        if above is None or above <= NOISE_GIB or time.monotonic() >= deadline:
            return state
        time.sleep(_POLL_S)


def may_be_contended(failure: Failure, *, host: bool = False) -> bool:
    """Whether somebody else's memory can be the reason of a failure of this class."""
    if host:
        return failure.failure_class in _OF_HOST_MEMORY
    return failure.failure_class.status is Status.INFEASIBLE


def unless_contended(
    failure: Failure,
    facts: StartupFacts,
    *,
    above_gib: float | None,
    tolerance_gib: float,
    who: str = "",
    host: bool = False,
) -> Failure:
    """The failure, or `memory_contended` where others held memory above the baseline.

    Within the tolerance (a desktop's browser) a failure stands where the log shows that the
    memory of others cannot have been the reason: more was missing than they held.

    Args:
        failure: what the log says.
        facts: its figures.
        above_gib: from `excess_gib`.
        tolerance_gib: how far memory in use may lie above the baseline.
        who: from `holders`, for the evidence.
        host: the memory is the machine's own, not a card's.
    """
    if not may_be_contended(failure, host=host) or above_gib is None or above_gib <= NOISE_GIB:
        return failure
    missing = shortage_gib(failure, facts)
    if above_gib <= tolerance_gib and missing is not None and missing > above_gib:
        return failure
    evidence = (
        f"{failure.evidence} [while {above_gib:.2f} GiB more were in use than before the sweep"
        f"{who}]"
    )
    return replace(failure, failure_class=FailureClass.MEMORY_CONTENDED, evidence=evidence)


def shortage_gib(failure: Failure, facts: StartupFacts) -> float | None:
    """How much memory was missing at least; None where the log does not say."""
    if failure.failure_class is FailureClass.KV_TOO_SMALL:
        if facts.kv_needed_gib is None or facts.kv_available_gib is None:
            return None
        return facts.kv_needed_gib - facts.kv_available_gib
    if failure.failure_class is FailureClass.KV_NONE:
        left = facts.kv_available_gib
        return -left if left is not None and left < 0 else None
    if failure.failure_class is FailureClass.UTILIZATION_ABOVE_FREE:
        found = _ABOVE_FREE.search(failure.evidence)
        return float(found[2]) - float(found[1]) if found else None
    asked = _ALLOCATION.search(failure.evidence)
    if asked is None:
        return None
    size, free = float(asked["size"]), float(asked["free"])
    return size * _GIB[asked["unit"]] - free * _GIB[asked["free_unit"]]


def holders(state: MemoryState | None, baseline: MemoryState | None) -> str:
    """Who has come to hold memory since the baseline, as the end of a sentence; or nothing."""
    before = {} if baseline is None else {each.pid: each.used_gib for each in baseline.processes}
    came = [
        _described(each)
        for each in (state.processes if state is not None else ())
        if each.pid not in before or (each.used_gib or 0.0) > (before[each.pid] or 0.0)
    ]
    return f": {', '.join(came)}" if came else ""


def _described(process: CardProcess) -> str:
    try:
        name = Path(f"/proc/{process.pid}/comm").read_text(errors="replace").strip()
    except OSError:  # gone, or outside of this container
        name = ""
    size = "" if process.used_gib is None else f" {process.used_gib:.2f} GiB"
    return f"pid {process.pid}{f' ({name})' if name else ''}{size}"
