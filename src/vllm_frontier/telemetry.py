"""What the cards say about themselves, and how much memory a launch takes.

NVIDIA cards are asked through NVML, which is loaded at the first question and not before: a
machine without a driver gets an answer, not an error. Memory is in GiB everywhere.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

GIB = 1024**3
INTERVAL_S = 0.5

# Shared pages are told apart only by a walk over the whole address space, some 40 ms for a
# loaded model: worth it where the plain figure has changed by this share, and at most for this
# share of a core.
_CHANGE = 1 / 128
_COST = 1 / 100
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEMINFO = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


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


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory in use at a moment (seconds since the epoch, UTC), None if it cannot be read."""

    at: float
    used_gib: float | None


class _Nvml:
    """The library, initialised once in the life of the process.

    Initialising it for every question would wake an idle card each time, which takes a
    second where no persistence daemon runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: ModuleType | None = None

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


_NVML = _Nvml()


def cards() -> list[CardReading]:
    """The NVIDIA cards of this machine in PCI bus order; empty where there are none."""
    return list(probe().cards)


def probe() -> Probe:
    """The NVIDIA cards of this machine, or why there is none. Never raises."""
    import pynvml

    driver = cuda = None
    try:
        with _NVML.session() as nvml:
            driver = _told(nvml.nvmlSystemGetDriverVersion)
            version = _told(nvml.nvmlSystemGetCudaDriverVersion)
            cuda = None if version is None else f"{version // 1000}.{version % 1000 // 10}"
            count = nvml.nvmlDeviceGetCount()
            found, problem = _read_cards(nvml, count, driver)
    except pynvml.NVMLError as error:
        return Probe((), driver, cuda, _explain(error))
    if count == 0:
        problem = "the NVIDIA driver is loaded but shows no card (hidden from this container?)"
    return Probe(found, driver, cuda, problem)


def memory_used_gib(uuid: str) -> float | None:
    """Memory in use on one card; None where it cannot be read."""
    import pynvml

    try:
        with _NVML.session() as nvml:
            memory = _memory(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError:
        return None
    return None if memory is None else memory.used / GIB


def host_memory_used_gib() -> float | None:
    """Memory of this machine that cannot be had; None where the kernel does not tell."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    kib = {name: int(size) for name, size in _MEMINFO.findall(text)}
    if "MemTotal" not in kib or "MemAvailable" not in kib:
        return None
    return (kib["MemTotal"] - kib["MemAvailable"]) / 1024**2


def tree_memory_gib(pids: Iterable[int]) -> float:
    """Memory that processes hold together; pages that they share count once.

    Where the kernel does not tell shared pages apart, resident memory stands in, and shared
    pages count for every process. Processes that are gone count nothing.
    """
    return sum(_pss_bytes(pid) for pid in pids) / GIB


class MemorySampler:
    """Samples memory in use twice a second in a thread, and keeps the peak.

    With `uuids`, that is the memory in use on those cards together, other programs' share
    included; else it is the memory of the processes that `pids` gives. A large tree that
    changes is measured every few seconds only, so that sampling takes 1 % of a core at most.

    Attributes:
        samples: what was read so far, oldest first.
        peak_gib: the highest of them; None as long as nothing could be read.
    """

    def __init__(
        self,
        *,
        uuids: Sequence[str] = (),
        pids: Callable[[], Iterable[int]] | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._uuids = tuple(uuids)
        self._pids = pids
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._measured_rss = 0
        self._next_walk_at = 0.0
        self._last_tree: float | None = None
        self.samples: list[Sample] = []
        self.peak_gib: float | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(timeout=5.0)  # a driver that hangs must not hang the sweep

    def _run(self) -> None:
        self._sample()
        while not self._stopping.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        used = self._cards_gib() if self._uuids else self._tree_gib()
        self.samples.append(Sample(time.time(), used))
        if used is not None:
            self.peak_gib = used if self.peak_gib is None else max(self.peak_gib, used)

    def _cards_gib(self) -> float | None:
        readings = [memory_used_gib(uuid) for uuid in self._uuids]
        return None if None in readings else sum(used for used in readings if used is not None)

    def _tree_gib(self) -> float | None:
        pids = [] if self._pids is None else list(self._pids())
        if not pids:
            return None
        rss = sum(_rss_bytes(pid) for pid in pids)
        now = time.monotonic()
        changed = abs(rss - self._measured_rss) > self._measured_rss * _CHANGE
        if self._last_tree is None or (changed and now >= self._next_walk_at):
            before = time.thread_time()
            self._last_tree = tree_memory_gib(pids)
            self._measured_rss = rss
            self._next_walk_at = now + (time.thread_time() - before) / _COST
        return self._last_tree


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
            problem = f"card {number}: {_explain(error)}"
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
    lists = [
        _told(nvml.nvmlDeviceGetComputeRunningProcesses, handle),
        _told(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
    ]
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


def _explain(error: Any) -> str:
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
    }
    return known.get(error.value, f"NVML: {error}")


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError):  # gone
        return 0


def _pss_bytes(pid: int) -> int:
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except OSError:  # gone, another user's, or an old kernel
        found = None
    return int(found[1]) * 1024 if found else _rss_bytes(pid)
