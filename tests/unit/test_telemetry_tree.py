"""Memory of a process tree: sizes that are known."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from vllm_frontier.conditions import HOST
from vllm_frontier.telemetry import Sampler, tree_memory_gib

MIB = 1 / 1024

# Takes 64 MiB for each line that it reads, and gives all of it back at "drop".
CODE = """
import mmap, os, sys
held = []
if len(sys.argv) > 1:  # memory that two processes share
    shared = mmap.mmap(-1, 128 * 2**20)
    for _ in range(128):
        shared.write(b"x" * 2**20)
    if os.fork() == 0:
        shared[:]
print(os.getpid(), flush=True)
for line in sys.stdin:
    if line == "drop\\n":
        held.clear()
    else:
        held.append(mmap.mmap(-1, 64 * 2**20))
        for _ in range(64):
            held[-1].write(b"x" * 2**20)
    print("done", flush=True)
"""


def hold(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_peak_is_kept_after_memory_was_given_back() -> None:
    with hold() as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = tree_memory_gib([process.pid])
        with Sampler(pids=lambda: [process.pid], interval_s=0.02) as sampler:
            for _ in range(3):
                tell(process, "take")
            until(lambda: (sampler.peak_gib or 0) > before + 190 * MIB)
            tell(process, "drop")
            until(lambda: (sampler.samples[-1].memory_used_gib or 9) < before + 10 * MIB)
        process.communicate()
    assert sampler.peak_gib == pytest.approx(before + 192 * MIB, abs=8 * MIB)


def test_shared_memory_counts_once() -> None:
    with hold("shared") as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        together = tree_memory_gib(pids)
        alone = tree_memory_gib([process.pid])
        process.communicate()
    assert 128 * MIB < together < 190 * MIB
    assert 64 * MIB < alone < 100 * MIB  # half of what is shared


def test_processes_that_are_gone_count_nothing() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert tree_memory_gib([process.pid]) == 0.0
    mine = tree_memory_gib([os.getpid()])
    assert tree_memory_gib([process.pid, os.getpid()]) == pytest.approx(mine, rel=0.2)


def test_nothing_to_look_at_has_no_peak() -> None:
    with Sampler(pids=list, interval_s=0.01) as sampler:
        until(lambda: len(sampler.samples) > 2)
    assert sampler.peak_gib is None
    assert {sample.memory_used_gib for sample in sampler.samples} == {None}
    assert {sample.card for sample in sampler.samples} == {HOST}


def test_a_sampler_costs_less_than_a_hundredth_of_a_core() -> None:
    with hold() as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(4):
            tell(process, "take")
        began = time.monotonic()
        with Sampler(pids=lambda: [process.pid]) as sampler:
            until(lambda: len(sampler.samples) >= 5)
        took = time.monotonic() - began
        process.communicate()
    # Of the time and a credit of five seconds it may take a hundredth.
    assert 0 < sampler.busy_s < (took + 5) / 100


def test_a_tree_that_grows_is_walked_only_as_often_as_that_is_cheap() -> None:
    code = """
import mmap, sys, time
for _ in range(100):
    held = [*globals().get("held", []), mmap.mmap(-1, 8 * 2**20)]
    for _ in range(8):
        held[-1].write(b"x" * 2**20)
    time.sleep(0.02)
"""
    process, began = subprocess.Popen([sys.executable, "-c", code]), time.monotonic()
    with Sampler(pids=lambda: [process.pid], interval_s=0.002) as sampler:
        process.wait()
    took = time.monotonic() - began
    walks = len({sample.memory_used_gib for sample in sampler.samples})
    # Walks of a quarter of a millisecond and more, each followed by 250 times as long without.
    assert 1 < walks < 20 * (took + 1)
    # Of the time and a credit of five seconds it may take a hundredth.
    assert sampler.busy_s < (took + 5) / 100
    assert sampler.peak_gib is not None
    assert 100 * MIB < sampler.peak_gib < 850 * MIB
