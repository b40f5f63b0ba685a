"""What cards and machine are like while a server lives: sampled in a thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from vllm_frontier.conditions import HOST, Sample
from vllm_frontier.telemetry.card import CardCounters, total
from vllm_frontier.telemetry.host import CpuState, CpuTimes, TreeMemory
from vllm_frontier.telemetry.nvml import told_silent
from vllm_frontier.telemetry.paced import Paced

INTERVAL_S = 0.5
KEPT_SAMPLES = 20_000
LEAVE_S = 5.0

# Of a core: a look at all processes of the machine finds those of the launch.
_MEMBERS_COST = 1 / 300
_NEUTRAL_COST = 1 / 600
# Of a core: all of it together. What a driver is slow with is waited for by sampling less often;
# the beginning, with libraries to load, may cost what some seconds may.
_COST = 1 / 125
_CREDIT_S = 5.0

_Round = tuple[Sample, ...]


class Sampler:
    """Samples cards, or (without cards) this machine, twice a second in a thread.

    It takes 1 % of a core at most: what costs more is asked less often. Of many samples the older
    ones are thinned out evenly, so that memory stays bounded; the peak is that of all. What cannot
    be read, for want of a right or of file descriptors, is None, and sampling goes on.

    Args:
        cards: UUIDs of the launch's cards; empty on a CPU.
        pids: the launch's processes.
        phase: that of the attempt, for the samples.
        neutral: processes that count neither as the launch's nor as others', beside this one.
        interval_s: from one sample to the next, seconds.
        kept: samples that are kept at most.

    Attributes:
        peak_gib: most memory in use on the cards together, or of the launch on a CPU; None as
            long as nothing could be read.
        power_limit_w: of all cards together, as last seen; None where one does not tell.
        busy_s: processor time that sampling took, seconds.
    """

    def __init__(
        self,
        *,
        cards: Sequence[str] = (),
        pids: Callable[[], Iterable[int]] = tuple,
        phase: Callable[[], str | None] = lambda: None,
        neutral: Callable[[], Iterable[int]] = tuple,
        interval_s: float = INTERVAL_S,
        kept: int = KEPT_SAMPLES,
    ) -> None:
        self._cards = [CardCounters(uuid) for uuid in cards]
        self._members = Paced(lambda: _listed(pids), _MEMBERS_COST)
        self._neutral = Paced(lambda: _listed(neutral), _NEUTRAL_COST)
        self._phase = phase
        self._interval_s = interval_s
        self._rounds = Thinned(max(2, kept // max(1, len(cards))))
        self._memory = TreeMemory()
        self._times = CpuTimes()
        self._processor = CpuState()
        self._changed = threading.Condition()
        self._stopping = self._hurried = False
        self._begun = self._done = 0
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.peak_gib: float | None = None
        self.power_limit_w: float | None = None
        self.busy_s = 0.0

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What was kept so far, oldest first."""
        with self._changed:
            return tuple(sample for each in self._rounds.kept for sample in each)

    @property
    def lost(self) -> str | None:
        """Which card was lost and what NVML said, in one line; None while all are there."""
        return next((card.lost for card in self._cards if card.lost is not None), None)

    def look(self, timeout_s: float = 2.0) -> str | None:
        """Sample at once and wait until that is done, at most `timeout_s` seconds.

        A driver that has lost a card may hang for long.

        Returns:
            That the driver does not answer, in one line; None once it was sampled.
        """
        with self._changed:
            wanted = self._begun + 1
            self._hurried = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._done >= wanted or self._stopping, timeout_s)
        silent = self._cards and not done
        return told_silent([card.uuid for card in self._cards]) if silent else None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=LEAVE_S)  # a driver that hangs must not hang the sweep

    def _run(self) -> None:
        began, spent_before = time.monotonic(), time.thread_time()
        while not self._stopping:
            with self._changed:
                self._begun += 1
                self._hurried = False
            self._keep(self._readable(time.time()))
            self.busy_s = time.thread_time() - spent_before
            # By then all that it took is no more than its share.
            earliest = began + self.busy_s / _COST - _CREDIT_S
            wait_s = max(self._interval_s, earliest - time.monotonic())
            with self._changed:
                self._done = self._begun
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stopping or self._hurried, wait_s)

    def _keep(self, found: _Round) -> None:
        with self._changed:
            self._rounds.append(found)
        used = total([sample.memory_used_gib for sample in found])
        if used is not None and len(found) == max(1, len(self._cards)):
            self.peak_gib = used if self.peak_gib is None else max(self.peak_gib, used)
        if self._cards and len(found) == len(self._cards):
            self.power_limit_w = total([sample.power_limit_w for sample in found])

    def _readable(self, at: float) -> _Round:
        """A round in which nothing is known where the kernel lets nothing be read."""
        try:
            return self._sample(at)
        except OSError:
            cards = [card.uuid for card in self._cards if card.lost is None]
            return tuple(Sample(at, card) for card in (cards if self._cards else [HOST]))

    def _sample(self, at: float) -> _Round:
        members, neutral = self._members(), self._neutral()
        cores = foreign = None
        if members is not None:
            cores, foreign = self._times.read(members, {os.getpid(), *(neutral or ())})
        if neutral is None:
            foreign = None
        if self._cards:
            found = [card.read(at, self._members) for card in self._cards]
        else:
            found = [
                Sample(
                    at,
                    HOST,
                    memory_used_gib=None if members is None else self._memory.read(sorted(members)),
                    temperature_c=self._processor.temperature_c(),
                )
            ]
        phase, mhz = self._phase(), self._processor.mhz()
        return tuple(
            replace(each, phase=phase, cpu_cores=cores, foreign_cores=foreign, cpu_mhz=mhz)
            for each in found
            if each is not None
        )


def _listed(pids: Callable[[], Iterable[int]]) -> frozenset[int] | None:
    """The processes; None where this program may not look, or cannot just now."""
    try:
        return frozenset(pids())
    except OSError:
        return None


class Thinned:
    """The rounds of samples that are kept: all of them, or evenly spaced ones of the older.

    Attributes:
        kept: oldest first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers: list[int] = []
        self._next = 0
        self._stride = 2
        self.kept: list[_Round] = []

    def append(self, found: _Round) -> None:
        """Keep one more, and not more than the limit."""
        self.kept.append(found)
        self._numbers.append(self._next)
        self._next += 1
        while len(self.kept) > self._limit:
            places = [at for at, number in enumerate(self._numbers) if number % self._stride == 0]
            if len(places) <= self._limit // 2:
                self.kept = [self.kept[at] for at in places]
                self._numbers = [self._numbers[at] for at in places]
            else:
                self._stride *= 2
