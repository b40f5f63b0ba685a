"""NVML: the one library that is asked about NVIDIA cards, and what it says of each."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from vllm_frontier.telemetry.host import GIB
from vllm_frontier.telemetry.patience import Patience

# What a driver with a card that just broke may take to answer; the first question of a process
# wakes every card of the machine, one after another.
ANSWER_S = 10.0
FIRST_ANSWER_S = 60.0
SILENT = (
    "the NVIDIA driver does not answer: see `dmesg` for Xid lines, and reboot if `nvidia-smi` hangs"
)


@dataclass(frozen=True, slots=True)
class CardProcess:
    """A process on a card; `used_gib` is None where the driver does not tell (WSL)."""

    pid: int
    used_gib: float | None


@dataclass(frozen=True, slots=True)
class CardReading:
    """One card, as it is now. None stands for what its driver does not tell.

    Attributes:
        index: its number in PCI bus order, as CUDA counts under CUDA_DEVICE_ORDER=PCI_BUS_ID.
        uuid: its name for good.
        name: the product.
        total_gib: all of its memory, including what the driver keeps for itself.
        used_gib: memory that processes hold.
        free_gib: memory that can be had.
        driver: version of the driver.
        compute_capability: such as `12.0`.
        processes: other processes on it, None if that cannot be told.
    """

    index: int
    uuid: str
    name: str
    total_gib: float | None
    used_gib: float | None
    free_gib: float | None
    driver: str | None
    compute_capability: str | None
    processes: tuple[CardProcess, ...] | None


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found; `problem` is one line that says why there is no card, or one less."""

    cards: tuple[CardReading, ...]
    driver: str | None
    cuda: str | None
    problem: str | None


class Nvml:
    """The library, initialised once in the life of the process.

    Initialising it for every question would wake an idle card each time, which takes a
    second where no persistence daemon runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: ModuleType | None = None

    @property
    def ready(self) -> bool:
        """Whether it was initialised."""
        return self._module is not None

    @contextmanager
    def session(self) -> Iterator[Any]:
        """The module `pynvml`, ready to be asked.

        Raises:
            pynvml.NVMLError: there is no usable driver.
        """
        import pynvml

        with self._lock:
            if self._module is None:
                pynvml.nvmlInit()
                self._module = pynvml
        try:
            yield pynvml
        except (pynvml.NVMLError_Uninitialized, pynvml.NVMLError_DriverNotLoaded):
            with self._lock:
                self._module = None  # the next question starts afresh
            raise


NVML = Nvml()
_PATIENCE = Patience()

Question = Callable[[Any, Any], Any]
"""Asks the module `pynvml` about a card, which its handle stands for."""


def named(name: str, *constants: str) -> Question:
    """The function of that name with constants of the module; older modules may lack it."""

    def ask(nvml: Any, handle: Any) -> Any:
        function = getattr(nvml, name, None)
        if function is None:
            raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return function(handle, *(getattr(nvml, constant) for constant in constants))

    return ask


# Without a version in their names, these fail on an older driver with what is no NVMLError.
COMPUTING, DRAWING = (
    tuple(named(f"nvmlDeviceGet{kind}RunningProcesses_{version}") for version in ("v3", "v2"))
    for kind in ("Compute", "Graphics")
)


def cards() -> list[CardReading]:
    """The NVIDIA cards of this machine in PCI bus order; empty where there are none.

    Never raises, and never hangs.
    """
    return list(probe().cards)


def probe() -> Probe:
    """The NVIDIA cards of this machine, or why there is none. Never raises, and never hangs."""
    answer = _PATIENCE.ask(_probe, _limit_s())
    return Probe((), None, None, SILENT) if answer is None else answer[0]


def _limit_s() -> float:
    return ANSWER_S if NVML.ready else FIRST_ANSWER_S


def _probe() -> Probe:
    import pynvml

    driver = cuda = None
    try:
        with NVML.session() as nvml:
            driver = _told(nvml.nvmlSystemGetDriverVersion)
            version = _told(nvml.nvmlSystemGetCudaDriverVersion)
            cuda = None if version is None else f"{version // 1000}.{version % 1000 // 10}"
            count = nvml.nvmlDeviceGetCount()
            found, problem = _read_cards(nvml, count, driver)
    except pynvml.NVMLError as error:
        return Probe((), driver, cuda, explain(error))
    if count == 0:
        problem = "the NVIDIA driver is loaded but shows no card (hidden from this container?)"
    return Probe(found, driver, cuda, problem)


def lost_card(uuids: Sequence[str]) -> str | None:
    """Which of these cards the driver says it has lost, in one line; None where it says nothing.

    A card that needs a reset is lost, too, and so are all where the driver does not answer. Never
    hangs.
    """
    if not uuids:
        return None
    answer = _PATIENCE.ask(lambda: _lost_card(uuids), _limit_s())
    return told_silent(uuids) if answer is None else answer[0]


def told_silent(uuids: Sequence[str]) -> str:
    """What it is called that the driver of these cards does not answer."""
    return f"card {', '.join(uuids)}: {SILENT}"


def _lost_card(uuids: Sequence[str]) -> str | None:
    import pynvml

    for uuid in uuids:
        try:
            with NVML.session() as nvml:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                _memory(nvml, handle)
        except pynvml.NVMLError as error:
            if is_lost(error):
                return told_lost(uuid, error)
    return None


def is_lost(error: Any) -> bool:
    """Whether an error of NVML means that the card does no work any more."""
    import pynvml

    return error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)


def told_lost(uuid: str, error: Any) -> str:
    """What a card's loss is called, with what NVML said."""
    return f"card {uuid}: {explain(error)} (NVML: {error})"


def _read_cards(
    nvml: Any, count: int, driver: str | None
) -> tuple[tuple[CardReading, ...], str | None]:
    """All cards that answer, and what the last one that did not had to say."""
    problem = None
    found: list[tuple[tuple[int, int, int], CardReading]] = []
    for number in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            bus = _bus(nvml, handle, number)
            found.append((bus, _read_card(nvml, handle, driver)))
        except nvml.NVMLError as error:
            problem = f"card {number}: {explain(error)}"
    found.sort(key=lambda pair: pair[0])
    return tuple(replace(card, index=index) for index, (_, card) in enumerate(found)), problem


def _read_card(nvml: Any, handle: Any, driver: str | None) -> CardReading:
    memory = _memory(nvml, handle)
    capability = _told(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return CardReading(
        index=0,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        total_gib=None if memory is None else memory.total / GIB,
        used_gib=None if memory is None else memory.used / GIB,
        free_gib=None if memory is None else memory.free / GIB,
        driver=driver,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        processes=_processes(nvml, handle),
    )


def _bus(nvml: Any, handle: Any, number: int) -> tuple[int, int, int]:
    info = _told(nvml.nvmlDeviceGetPciInfo, handle)
    return (0, 0, number) if info is None else (info.domain, info.bus, info.device)


def _memory(nvml: Any, handle: Any) -> Any | None:
    """Bytes in use, free and in total; None on boards that share memory with the CPU.

    The second version of the question leaves out what the driver keeps for itself, which
    the first one counts as used; old drivers know the first only.
    """
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_ArgumentVersionMismatch,
        nvml.NVMLError_NotSupported,
    ):
        return _told(nvml.nvmlDeviceGetMemoryInfo, handle)


def _processes(nvml: Any, handle: Any) -> tuple[CardProcess, ...] | None:
    lists = []
    for ways in (COMPUTING, DRAWING):
        answers = (_told(question, nvml, handle) for question in ways)
        lists.append(next((each for each in answers if each is not None), None))
    return merged_processes(lists)


def merged_processes(lists: Sequence[Sequence[Any] | None]) -> tuple[CardProcess, ...] | None:
    """The processes of NVML's lists, this one left out; None where it gives no list at all."""
    if all(entries is None for entries in lists):
        return None
    # A process that both computes and draws is in both lists, with the same figure.
    used: dict[int, float | None] = {}
    for entry in (entry for entries in lists for entry in entries or ()):
        known = None if entry.usedGpuMemory is None else entry.usedGpuMemory / GIB
        used[entry.pid] = used.get(entry.pid) if known is None else known
    used.pop(os.getpid(), None)
    return tuple(CardProcess(pid, used[pid]) for pid in sorted(used))


def _told(question: Callable[..., Any], *arguments: Any) -> Any | None:
    """The answer to a question; None when this driver, card or user does not get one."""
    import pynvml

    try:
        return question(*arguments)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NoPermission,
    ):
        return None


def explain(error: Any) -> str:
    """What an error of NVML means, and what to do about it, in one line."""
    import pynvml

    lost = "a GPU is lost or needs a reset: see `dmesg` for Xid lines, then reset it or reboot"
    known = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
            "no NVIDIA driver: libnvidia-ml.so.1 was not found (in a container: was it started "
            "with --gpus?)"
        ),
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
            "the NVIDIA kernel driver is not loaded: does `nvidia-smi` work?"
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "the NVIDIA driver was updated while its older kernel module runs: reboot"
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: (
            "no permission to use the NVIDIA cards: check the rights of /dev/nvidia*"
        ),
        pynvml.NVML_ERROR_GPU_IS_LOST: lost,
        pynvml.NVML_ERROR_RESET_REQUIRED: lost,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
            "the NVIDIA driver is too old: its NVML lacks a function that is needed; update it"
        ),
        pynvml.NVML_ERROR_INSUFFICIENT_POWER: "a GPU's power cables are not attached properly",
        pynvml.NVML_ERROR_UNKNOWN: (
            f"NVML: {error} (in a container: it may have lost its access to the cards; restart it)"
        ),
    }
    return known.get(error.value, f"NVML: {error}")
