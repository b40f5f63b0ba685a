"""What sampling costs: milliseconds a sample, and share of a core.

    python benchmarks/telemetry.py [--seconds 20] [--cards UUID ...]

Samples twice a second: one and two cards, and this machine with a tree of processes of which each
holds 256 MiB, at rest and while they grow. Without `--cards` the cards are those of the library
that the tests use, which answers at once: what is measured then is this program's part of it. With
`--cards` they are real ones. A sampler keeps to 1 % of a core whatever a driver needs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "tests" / "unit" / "fake_nvml.c"
PROCESSES = 5
CHILD = """
import mmap, sys, time
held = mmap.mmap(-1, 2**30)
def fill(first, last):
    for at in range(first * 2**20, last * 2**20, 4096):
        held[at] = 1
fill(0, 256)
print(flush=True)
if len(sys.argv) > 1:
    for each in range(256, 1024, 8):
        fill(each, each + 8)
        time.sleep(0.1)
sys.stdin.read()
"""


def measure(name: str, cards: Sequence[str], pids: Sequence[int], seconds: float) -> None:
    """Sample for some seconds and print what that took."""
    from vllm_frontier.telemetry import Sampler

    with Sampler(cards=cards, pids=lambda: pids) as sampler:
        time.sleep(2.0)  # libraries are loaded
        before, rounds = sampler.busy_s, len(sampler.samples) // max(1, len(cards))
        time.sleep(seconds)
        spent = sampler.busy_s - before
        rounds = len(sampler.samples) // max(1, len(cards)) - rounds
    told = sum(value is not None for value in _values(sampler.samples[-1]))
    print(
        f"{name:22} {spent / rounds * 1000:6.2f} ms a sample   {spent / seconds:6.2%} of a core   "
        f"{rounds / seconds:4.2f} samples/s   {told} figures"
    )


def _values(sample: object) -> list[object]:
    names = [name for name in type(sample).__dataclass_fields__ if name not in ("at", "card")]
    return [getattr(sample, name) for name in names]


def tree(seconds: float, *, growing: bool) -> None:
    """Sample this machine while processes hold memory."""
    command = [sys.executable, "-c", CHILD, *(["grow"] if growing else [])]
    held = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(PROCESSES)
    ]
    for each in held:
        if each.stdout is not None:
            each.stdout.readline()
    name = f"{PROCESSES} processes, {'growing' if growing else 'at rest'}"
    measure(name, (), [each.pid for each in held], seconds)
    for each in held:
        each.kill()
        each.communicate()


def main() -> None:
    """Build the library, and measure in a process that finds it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--cards", nargs="*", default=[])
    given = parser.parse_args()
    if not given.cards and "FAKE_CARDS" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "libnvidia-ml.so.1"
            subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
            found = os.environ | {"LD_LIBRARY_PATH": folder, "FAKE_CARDS": "2"}
            subprocess.run([sys.executable, *sys.argv], env=found, check=True)
        return
    cards = given.cards or ["GPU-00000000", "GPU-00000001"]
    for count in range(1, len(cards) + 1):
        name = "one card" if count == 1 else f"{count} cards"
        measure(name, cards[:count], [os.getpid()], given.seconds)
    tree(given.seconds, growing=False)
    tree(given.seconds, growing=True)


if __name__ == "__main__":
    main()
