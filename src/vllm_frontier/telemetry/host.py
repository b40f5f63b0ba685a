"""What the kernel tells of this machine and of processes: memory, processor time, clocks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vllm_frontier.telemetry.paced import Paced

GIB = 1024**3

# Shared pages are told apart only by a walk over the whole address space, some 40 ms for a
# loaded model: worth it where the plain figure has changed by this share, and at most for this
# share of a core.
_CHANGE = 1 / 128
_COST = 1 / 250
# Some kernels ask every core for its clock.
_CLOCK_COST = 1 / 1000
# Processor time is counted in hundredths of a second: less than this apart it says nothing.
_APART_S = 0.2

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_MEMINFO = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)
_MHZ = re.compile(rb"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)
_SYSTEM = Path("/sys")
_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
# The best first: some processors add an offset to the control temperature.
_LABELS = ("Package id", "Tdie", "Tctl")
_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal")


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


class TreeMemory:
    """Memory of a process tree, read again and again at a bounded cost.

    A large tree that changes is measured every few seconds only.
    """

    def __init__(self) -> None:
        self._pids: Sequence[int] = ()
        self._measured_rss = 0
        self._walk = Paced(lambda: tree_memory_gib(self._pids), _COST)
        self._last: float | None = None

    def read(self, pids: Sequence[int]) -> float | None:
        """What these processes hold, GiB; None where there are none."""
        if not pids:
            return None
        self._pids = pids
        rss = sum(_rss_bytes(pid) for pid in pids)
        changed = abs(rss - self._measured_rss) > self._measured_rss * _CHANGE
        if self._last is None or (changed and self._walk.due):
            self._last = self._walk.fresh()
            self._measured_rss = rss
        return self._last


class _Spent(NamedTuple):
    """Processor time of a process, and when it began, in ticks since boot."""

    began: int
    ticks: int


class CpuTimes:
    """Cores that some processes keep busy, and cores that everybody else does.

    Time that a hypervisor gives to other machines counts as everybody else's.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._busy: int | None = None
        self._spent: Mapping[int, _Spent] = {}
        self._last: tuple[float | None, float | None] = (None, None)

    def read(
        self, pids: Iterable[int], neutral: Iterable[int] = ()
    ) -> tuple[float | None, float | None]:
        """Cores kept busy since the last look: by these processes, and by others.

        None at the first look, and where the kernel does not tell.

        Args:
            pids: the processes.
            neutral: further ones that count for nobody.
        """
        now = time.monotonic()
        if self._at is not None and now - self._at < _APART_S:
            return self._last
        mine = set(pids)
        nobodys = set(neutral) - mine
        spent = {pid: found for pid in mine | nobodys if (found := _spent(pid)) is not None}
        busy = _busy_ticks()
        if self._at is not None:
            second = (now - self._at) * _TICKS
            used = self._grown(spent, mine)
            others = None
            if busy is not None and self._busy is not None:
                left_out = self._grown(spent, nobodys)
                others = max(0.0, (busy - self._busy - used - left_out) / second)
            self._last = (used / second, others)
        self._at, self._busy, self._spent = now, busy, spent
        return self._last

    def _grown(self, spent: Mapping[int, _Spent], pids: Iterable[int]) -> int:
        """Ticks that processes used since the last look.

        One that is found for the first time but is older was there before: what it used by then
        is not of this while.
        """
        since = (time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic() + (self._at or 0.0)) * (
            _TICKS
        )
        grown = 0
        for pid in pids:
            found, before = spent.get(pid), self._spent.get(pid)
            if found is None:
                continue
            if before is not None and before.began == found.began:
                grown += max(0, found.ticks - before.ticks)
            elif found.began >= since - 1:
                grown += found.ticks
        return grown


class CpuState:
    """Clock and temperature of the processor, where the kernel tells them.

    Args:
        system: where sysfs is mounted.
        cpuinfo: what is read where sysfs does not tell clocks.
    """

    def __init__(self, system: Path = _SYSTEM, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
        cores = (system / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        self._clocks = sorted(cores)
        self._cpuinfo = cpuinfo
        self._sensors = _cpu_sensors(system / "class")
        self._mhz = Paced(self._read_mhz, _CLOCK_COST)

    def mhz(self) -> float | None:
        """Mean clock of the cores, some seconds old on a machine with many."""
        return self._mhz()

    def temperature_c(self) -> float | None:
        """Temperature of the package, of the hottest where there are several."""
        found = [value for sensor in self._sensors if (value := _number(sensor)) is not None]
        return max(found) / 1000 if found else None

    def _read_mhz(self) -> float | None:
        found = [khz / 1000 for file in self._clocks if (khz := _number(file)) is not None]
        if not found:
            try:
                found = [float(mhz) for mhz in _MHZ.findall(self._cpuinfo.read_bytes())]
            except OSError:
                return None
        return sum(found) / len(found) if found else None


def _cpu_sensors(folder: Path) -> list[Path]:
    """The files with the temperature of the package, thousandths of a degree."""
    for label in _LABELS:
        found = [
            file.with_name(file.name.replace("_label", "_input"))
            for chip in _CHIPS
            for file in _of_chip(folder, chip, "temp*_label")
            if _text(file).startswith(label)
        ]
        if found:
            return found
    unlabelled = [file for chip in _CHIPS for file in _of_chip(folder, chip, "temp1_input")]
    if unlabelled:
        return unlabelled
    zones = sorted((folder / "thermal").glob("thermal_zone*/type"))
    return [zone.with_name("temp") for zone in zones if _text(zone) in _ZONES]


def _of_chip(folder: Path, chip: str, pattern: str) -> list[Path]:
    return [
        file
        for name in sorted((folder / "hwmon").glob("hwmon*/name"))
        if _text(name) == chip
        for file in sorted(name.parent.glob(pattern))
    ]


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.lstrip("-").isdecimal() else None


def _busy_ticks() -> int | None:
    """Processor time that was not idle, of all cores since boot."""
    words = _text(Path("/proc/stat")).partition("\n")[0].split()
    if len(words) < 8 or words[0] != "cpu":
        return None
    user, nice, system, _, _, *rest = map(int, words[1:])
    return user + nice + system + sum(rest[:3])  # interrupts and what was stolen


def _spent(pid: int) -> _Spent | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # gone
        return None
    if not text:  # as an emulated `/proc` may give it
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Spent(int(fields[19]), int(fields[11]) + int(fields[12]))


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
