"""The counters of one card, read again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_frontier.conditions import Sample
from vllm_frontier.telemetry.host import GIB
from vllm_frontier.telemetry.nvml import (
    COMPUTING,
    DRAWING,
    NVML,
    CardProcess,
    Question,
    is_lost,
    merged_processes,
    named,
    told_lost,
)
from vllm_frontier.telemetry.paced import Paced

# Of a core: a list of processes is made anew for each question.
_PROCESSES_COST = 1 / 500

# The bits of NVML's clocks event reasons. The first, an idle card, is no throttling.
REASONS: Mapping[int, str] = {
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal_software",
    0x040: "thermal_hardware",
    0x080: "power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
_IDLE = 0x001
# What a driver says of a counter in place of a figure.
_NOT_AVAILABLE = 0xFFFF_FFFF


def reason_words(bits: int) -> tuple[str, ...]:
    """NVML's clocks event reasons as words, sorted; a bit that is not known by its number."""
    set_bits = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
    return tuple(sorted(REASONS.get(bit, f"bit_{bit:#x}") for bit in set_bits if bit != _IDLE))


# Where there are several ways to ask, the first that the driver knows is used.
_COUNTERS: Mapping[str, tuple[Question, ...]] = {
    "memory": (
        # The second version leaves out what the driver keeps for itself.
        named("nvmlDeviceGetMemoryInfo", "nvmlMemory_v2"),
        named("nvmlDeviceGetMemoryInfo"),
    ),
    "sm_clock": (named("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),),
    "memory_clock": (named("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),),
    "power": (named("nvmlDeviceGetPowerUsage"),),
    "power_limit": (named("nvmlDeviceGetEnforcedPowerLimit"),),
    "temperature": (
        named("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
        named("nvmlDeviceGetTemperatureV", "NVML_TEMPERATURE_GPU"),
    ),
    "utilization": (named("nvmlDeviceGetUtilizationRates"),),
    "reasons": (
        named("nvmlDeviceGetCurrentClocksEventReasons"),
        named("nvmlDeviceGetCurrentClocksThrottleReasons"),  # its name before driver 535
    ),
    "computing": COMPUTING,
    "drawing": DRAWING,
}


class CardCounters:
    """What one card tells of itself; what it does not tell is None, and asked for once only.

    Args:
        uuid: the card's.

    Attributes:
        lost: which card this is and what NVML said, once the card was lost; it is asked nothing
            any more then.
    """

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.lost: str | None = None
        self._handle: Any = None
        self._silent: set[tuple[str, int]] = set()
        self._strangers = Strangers()

    def read(self, at: float, members: Paced[frozenset[int] | None]) -> Sample | None:
        """The card now; None once it is lost.

        Args:
            at: the moment, for the sample.
            members: pids of the launch; None where they cannot be listed.
        """
        import pynvml

        if self.lost is not None:
            return None
        try:
            with NVML.session() as nvml:
                if self._handle is None:
                    self._handle = nvml.nvmlDeviceGetHandleByUUID(self.uuid)
                    self._processes = Paced(lambda: self._list_processes(nvml), _PROCESSES_COST)
                return self._sample(nvml, at, members)
        except pynvml.NVMLError as error:
            self._handle = None
            if is_lost(error):
                self.lost = told_lost(self.uuid, error)
                return None
            return Sample(at, self.uuid)

    def _sample(self, nvml: Any, at: float, members: Paced[frozenset[int] | None]) -> Sample:
        memory = self._ask(nvml, "memory")
        rates = self._ask(nvml, "utilization")
        reasons = self._ask(nvml, "reasons")
        foreign = self._strangers.among(self._processes(), members)
        sizes = None if foreign is None else [each.used_gib for each in foreign]
        return Sample(
            at,
            self.uuid,
            memory_used_gib=None if memory is None else memory.used / GIB,
            sm_clock_mhz=_figure(self._ask(nvml, "sm_clock")),
            memory_clock_mhz=_figure(self._ask(nvml, "memory_clock")),
            power_w=_figure(self._ask(nvml, "power"), 1000),
            power_limit_w=_figure(self._ask(nvml, "power_limit"), 1000),
            temperature_c=_figure(self._ask(nvml, "temperature")),
            gpu_utilization=None if rates is None else _figure(rates.gpu, 100),
            memory_utilization=None if rates is None else _figure(rates.memory, 100),
            throttle_reasons=None if reasons is None else reason_words(reasons),
            foreign_processes=None if sizes is None else len(sizes),
            foreign_gib=total(sizes),
        )

    def _list_processes(self, nvml: Any) -> tuple[CardProcess, ...] | None:
        return merged_processes([self._ask(nvml, "computing"), self._ask(nvml, "drawing")])

    def _ask(self, nvml: Any, counter: str) -> Any | None:
        """A counter; None where it is not to be had, now or at all.

        Raises:
            pynvml.NVMLError: the card is lost, or the driver is gone.
        """
        for way, question in enumerate(_COUNTERS[counter]):
            if (counter, way) in self._silent:
                continue
            try:
                return question(nvml, self._handle)
            except nvml.NVMLError as error:
                if is_lost(error) or error.value in (
                    nvml.NVML_ERROR_UNINITIALIZED,
                    nvml.NVML_ERROR_DRIVER_NOT_LOADED,
                ):
                    raise
                if error.value not in (
                    nvml.NVML_ERROR_NOT_SUPPORTED,
                    nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                    nvml.NVML_ERROR_NO_PERMISSION,
                    nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                ):
                    return None
                self._silent.add((counter, way))
        return None


class Strangers:
    """Tells the processes on a card that are not of the launch.

    The pids that a driver shows may be those of another namespace (in a container, or where the
    launch's command starts one), and then the launch's own look like others. So what came to the
    card after the first look is only called foreign once a process of the launch was seen there.
    """

    def __init__(self) -> None:
        self._before: frozenset[int] | None = None
        self._launch_seen = False
        self._judged: frozenset[int] = frozenset()

    def among(
        self, processes: Sequence[CardProcess] | None, members: Paced[frozenset[int] | None]
    ) -> list[CardProcess] | None:
        """Those that are not of the launch; None where that cannot be told."""
        if processes is None:
            return None
        listed, launched = frozenset(each.pid for each in processes), members()
        if launched is not None and listed - launched - self._judged:
            launched = members.fresh()  # one of them may have come since they were asked for
        if launched is None:
            return None
        own = listed & launched
        if self._before is None:
            self._before = listed - own
        self._launch_seen = self._launch_seen or bool(own)
        others = self._judged = listed - own
        if not self._launch_seen and not others <= self._before:
            return None
        return [each for each in processes if each.pid in others]


def total(values: Sequence[float | None] | None) -> float | None:
    """The sum; None where one of them is not known."""
    if values is None or any(value is None for value in values):
        return None
    return sum(value for value in values if value is not None)


def _figure(value: int | None, parts: int = 1) -> float | None:
    """A counter in whole units; None where it has no figure, which some drivers say as a number."""
    if value is None or value & _NOT_AVAILABLE == _NOT_AVAILABLE:
        return None
    return value / parts
