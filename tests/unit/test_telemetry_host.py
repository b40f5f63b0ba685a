"""What the kernel tells of this machine: processor time, clocks, temperature."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from vllm_frontier.conditions import HOST
from vllm_frontier.telemetry import Sampler, host
from vllm_frontier.telemetry.host import CpuState, CpuTimes

SPIN = "import sys; print(flush=True)\nwhile True: pass"


@pytest.fixture
def spinning() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


class Kernel:
    """What the kernel counts, at moments that a test chooses: ticks of a hundredth of a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.busy = 5000
        self.spent: dict[int, tuple[int, int]] = {}  # began, ticks
        clock = SimpleNamespace(
            monotonic=lambda: self.now, clock_gettime=lambda _: self.now, CLOCK_BOOTTIME=7
        )
        monkeypatch.setattr(host, "time", clock)
        monkeypatch.setattr(host, "_TICKS", 100)
        monkeypatch.setattr(host, "_busy_ticks", lambda: self.busy)
        monkeypatch.setattr(host, "_spent", self.spent_by)

    def spent_by(self, pid: int) -> host._Spent | None:
        return host._Spent(*self.spent[pid]) if pid in self.spent else None

    def passes(self, seconds: float, **ticks: int) -> None:
        """Time in which processes, and others, keep cores busy."""
        self.now += seconds
        self.busy += sum(ticks.values())
        for name, more in ticks.items():
            pid = int(name.strip("p")) if name != "others" else 0
            began, before = self.spent.get(pid, (round(self.now * 100), 0))
            self.spent[pid] = began, before + more


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def test_cores_of_the_launch_and_of_others(kernel: Kernel) -> None:
    kernel.spent = {1: (300, 1000), 2: (400, 2000)}
    mine, theirs, without = CpuTimes(), CpuTimes(), CpuTimes()
    assert mine.read([1]) == (None, None)
    assert theirs.read([]) == (None, None)
    assert without.read([], [2]) == (None, None)
    kernel.passes(2.0, p1=150, p2=50, others=100)
    assert mine.read([1]) == (0.75, 0.75)
    assert theirs.read([]) == (0.0, 1.5)
    # What counts for nobody.
    assert without.read([], [2]) == (0.0, 1.25)
    kernel.passes(0.1, p1=10)  # too soon to tell anything new
    assert mine.read([1]) == (0.75, 0.75)


def test_a_process_that_begins_meanwhile_counts_from_its_beginning(kernel: Kernel) -> None:
    kernel.spent = {1: (300, 1000)}
    times = CpuTimes()
    times.read([])
    kernel.passes(2.0, p1=100, p2=60)
    # What the other one used by then is not of this while.
    assert times.read([1, 2]) == (0.3, 0.5)
    kernel.passes(1.0, p1=50, p2=20)
    assert times.read([1, 2]) == (0.7, 0.0)


def used_s(pid: int) -> float:
    told = psutil.Process(pid).cpu_times()
    return float(told.user + told.system)


def test_cores_of_a_process_are_those_that_it_has(spinning: subprocess.Popen[str]) -> None:
    times = CpuTimes()
    outer, before = time.monotonic(), used_s(spinning.pid)
    times.read([spinning.pid])
    inner, after = time.monotonic(), used_s(spinning.pid)
    time.sleep(0.6)
    inner, after = time.monotonic() - inner, used_s(spinning.pid) - after
    used, others = times.read([spinning.pid])
    outer, before = time.monotonic() - outer, used_s(spinning.pid) - before
    assert used is not None
    assert others is not None
    # Whatever it did between the two; the kernel counts in hundredths of a second.
    assert (after - 0.03) / outer <= used <= (before + 0.03) / inner
    assert 0 <= others <= (os.cpu_count() or 1) + 0.1


def test_a_host_sample_has_what_the_kernel_tells(spinning: subprocess.Popen[str]) -> None:
    with Sampler(pids=lambda: [spinning.pid], phase=lambda: "load") as sampler:
        sampler.look(60)
        time.sleep(0.3)
        sampler.look(60)
    sample = sampler.samples[-1]
    assert (sample.card, sample.phase) == (HOST, "load")
    assert sample.memory_used_gib == sampler.peak_gib
    assert 0.001 < (sample.memory_used_gib or 0) < 0.1
    assert (sample.cpu_cores or 0) > 0
    assert sample.foreign_cores is not None
    assert abs(sample.at - time.time()) < 60
    # What only a card has.
    assert sample.power_w is sample.sm_clock_mhz is sample.foreign_processes is None
    assert sampler.power_limit_w is None
    assert sampler.lost is None


class Unreadable:
    """A list of processes that cannot be read for a while."""

    def __init__(self) -> None:
        self.error: OSError | None = None

    def __call__(self) -> list[int]:
        if self.error is not None:
            raise self.error
        return [os.getpid()]


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(24, "too many files")])
def test_what_cannot_be_read_is_none_and_sampling_goes_on(error: OSError) -> None:
    pids, neutral = Unreadable(), Unreadable()
    with Sampler(pids=pids, neutral=neutral, interval_s=0.05) as sampler:
        for failing in ((pids,), (neutral,), ()):
            for each in (pids, neutral):
                each.error = error if each in failing else None
            count = len(sampler.samples)
            deadline = time.monotonic() + 60
            while True:  # lists are asked for less often than the rest
                assert sampler.look(60) is None
                found = sampler.samples[-1]
                told = [found.memory_used_gib, found.cpu_cores, found.foreign_cores]
                if [value is not None for value in told] == [
                    pids not in failing,
                    pids not in failing,
                    not failing,
                ]:
                    break
                assert time.monotonic() < deadline, told
                time.sleep(0.02)
            assert len(sampler.samples) > count


def test_a_round_that_cannot_be_read_at_all_is_one_without_figures() -> None:
    broken = iter([OSError(24, "too many files")])

    def phase() -> str:
        for error in broken:
            raise error
        return "fill"

    with Sampler(phase=phase, interval_s=0.02) as sampler:
        while len(sampler.samples) < 3:
            time.sleep(0.01)
    first, *others = sampler.samples
    assert (first.card, first.phase, first.cpu_mhz) == (HOST, None, None)
    assert {each.phase for each in others} == {"fill"}


def test_a_tree_is_listed_only_as_often_as_that_is_cheap() -> None:
    asked = []

    def members() -> list[int]:
        asked.append(time.monotonic())
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return [os.getpid()]

    with Sampler(pids=members, interval_s=0.02) as sampler:
        while len(asked) < 4 or len(sampler.samples) < 6:
            time.sleep(0.01)
    # A millisecond each, and 300 times as long without.
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(asked))


# -- clocks and temperature ----------------------------------------------------------------------


def system(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def test_clocks_are_the_mean_of_all_cores(tmp_path: Path) -> None:
    files = {
        "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "3000000",
        "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "5000000",
        "devices/system/cpu/cpu2/cpufreq/scaling_cur_freq": "<unknown>",
        "devices/system/cpu/cpufreq/boost": "1",
    }
    assert CpuState(system(tmp_path, files)).mhz() == 4000.0


def test_clocks_come_from_cpuinfo_where_sysfs_has_none(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("cpu MHz\t\t: 2596.5\nflags\t: fpu\n\ncpu MHz\t\t: 2600.5\n")
    assert CpuState(tmp_path, cpuinfo).mhz() == 2598.5
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 48.00\n")  # as on ARM
    assert CpuState(tmp_path, cpuinfo).mhz() is None
    assert CpuState(tmp_path, tmp_path / "none").mhz() is None


CHIP = {"class/hwmon/hwmon0/name": "nvme", "class/hwmon/hwmon0/temp1_input": "99000"}


@pytest.mark.parametrize(
    ("files", "degrees"),
    [
        ({}, None),
        (
            {
                "class/hwmon/hwmon1/name": "coretemp",
                "class/hwmon/hwmon1/temp1_label": "Package id 0",
                "class/hwmon/hwmon1/temp1_input": "61000",
                "class/hwmon/hwmon1/temp2_label": "Core 0",
                "class/hwmon/hwmon1/temp2_input": "70000",
                "class/hwmon/hwmon2/name": "coretemp",
                "class/hwmon/hwmon2/temp1_label": "Package id 1",
                "class/hwmon/hwmon2/temp1_input": "64500",
            },
            64.5,
        ),
        (
            {
                "class/hwmon/hwmon1/name": "k10temp",
                "class/hwmon/hwmon1/temp1_label": "Tctl",  # 27 degrees too many, on some
                "class/hwmon/hwmon1/temp1_input": "95000",
                "class/hwmon/hwmon1/temp2_label": "Tdie",
                "class/hwmon/hwmon1/temp2_input": "68000",
            },
            68.0,
        ),
        ({"class/hwmon/hwmon1/name": "cpu_thermal", "class/hwmon/hwmon1/temp1_input": "52"}, 0.052),
        (
            {
                "class/thermal/thermal_zone0/type": "acpitz",
                "class/thermal/thermal_zone0/temp": "27800",
                "class/thermal/thermal_zone1/type": "x86_pkg_temp",
                "class/thermal/thermal_zone1/temp": "58000",
            },
            58.0,
        ),
    ],
)
def test_the_temperature_is_that_of_the_package(
    tmp_path: Path, files: dict[str, str], degrees: float | None
) -> None:
    assert CpuState(system(tmp_path, CHIP | files)).temperature_c() == degrees
