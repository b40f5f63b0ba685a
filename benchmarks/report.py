"""How long the report of 2,000 cells takes, in all, and how large its page is.

Run it with nothing else going on: `python benchmarks/report.py`. It ends with 1 where the command
takes more than 5 s or the page more than 5 MB.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/unit"))

import golden_sweeps as golden

ROUNDS = 5
MOST_S = 5.0
MOST_BYTES = 5_000_000


def timed(sweep: Path, out: Path) -> tuple[float, float]:
    """Seconds that pass, and seconds of all processors, for one report in a fresh process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "vllm_frontier", "report", str(sweep), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    passed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return passed, busy


def main() -> int:
    """Make it several times, and print the medians."""
    with tempfile.TemporaryDirectory() as folder:
        sweep, out = golden.large(Path(folder) / "sweep"), Path(folder) / "out"
        rounds = [timed(sweep, out) for _ in range(ROUNDS)]
        page = (out / "report.html").stat().st_size
        plots = sum(path.stat().st_size for path in (out / "plots").iterdir())
    wall, busy = (statistics.median(figures) for figures in zip(*rounds, strict=True))
    print(f"2,000 cells: {wall:.2f} s, {busy:.2f} s of processors (medians of {ROUNDS})")
    print(f"report.html {page / 1e6:.2f} MB, plots {plots / 1e6:.2f} MB")
    return int(wall > MOST_S or page > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
