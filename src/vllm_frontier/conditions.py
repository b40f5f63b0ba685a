"""What a card and its machine were like while something was measured: plain values.

Memory is in GiB, clocks in MHz, power in W, temperature in degrees Celsius, shares in [0, 1]. None
stands for what a driver, a card or a kernel does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = "host"
"""The `card` of a sample of the machine itself, where there is no card."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One card, or the machine, at one moment.

    Attributes:
        at: seconds since the epoch, UTC.
        card: its UUID, or `host`.
        phase: of the attempt.
        memory_used_gib: in use on the card by anybody; on a host by the launch's processes.
        sm_clock_mhz: of the card's processors.
        memory_clock_mhz: of its memory.
        power_w: drawn now.
        power_limit_w: enforced now.
        temperature_c: of the chip.
        gpu_utilization: share of the time in which the card did anything.
        memory_utilization: share of the time in which its memory was read or written.
        throttle_reasons: why its clocks are lower than they could be; empty where nothing is.
        foreign_processes: processes on it that are not of the launch.
        foreign_gib: memory that those hold.
        cpu_cores: cores that the launch keeps busy.
        foreign_cores: cores that others keep busy, this program left out.
        cpu_mhz: mean clock of the cores.
    """

    at: float
    card: str
    phase: str | None = None
    memory_used_gib: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    gpu_utilization: float | None = None
    memory_utilization: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    foreign_processes: int | None = None
    foreign_gib: float | None = None
    cpu_cores: float | None = None
    foreign_cores: float | None = None
    cpu_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """The samples of one run in one line: what `Sample` has, over its cards and its time.

    Clocks, power and utilizations are means over time (clocks of the slowest card, power of all
    cards together), `memory_used_gib` the highest sum over cards, `temperature_c` the highest,
    `throttle_reasons` all that were seen, sorted, `throttled_share` the share of samples with any
    of them, foreign processes and memory the most that was seen, cores the mean.
    """

    memory_used_gib: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    gpu_utilization: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    throttled_share: float | None = None
    foreign_processes: int | None = None
    foreign_gib: float | None = None
    cpu_cores: float | None = None
    foreign_cores: float | None = None
    cpu_mhz: float | None = None
