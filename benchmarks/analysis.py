"""How long the tables of a sweep with a million runs take, and how much memory.

    python benchmarks/analysis.py [--cells 2000 --launches 3 [--repeats 53 | --runs 1000000]]
                                  [--times 3] [--folder DIR]

Writes a sweep that was never measured (two of them where no size is given) as the store writes
it, and makes its tables in processes of their own on two cores: all of them by the package; those
that are made of medians and sums over runs by the package and by pandas. Ends with 1 where a target
is missed or where both differ. Seconds are from opening the files to having the tables; memory is
the most that the process held.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

# Before polars starts its threads, of which it has as many as there are cores.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

import polars as pl
from analysis_sweep import Shape, write

from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.checks import counters, telemetry
from vllm_frontier.analyze.checks.evidence import Evidence
from vllm_frontier.analyze.checks.far_off import far_off
from vllm_frontier.analyze.checks.judgement import Judgement
from vllm_frontier.analyze.derived import derived_tables
from vllm_frontier.analyze.digest import Digest
from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.analyze.intervals import cell_figures

CORES = 2
SHAPES = {"deep": Shape.of_runs(2_000, 3, 1_000_000), "wide": Shape.of_runs(20_000, 1, 1_000_000)}
SECONDS, MIB = 2.0, 1024
LINE, LAUNCH = ["depth", "graphs", "utilization", "extra"], ["cell_id", "attempt"]
SPEEDS = ("decode_tok_s", "decode_tok_s_low", "decode_tok_s_high", "prefill_tok_s")
LEFT_OUT = (
    "speedup_bound, acceptance_explains, drift, series_gap, lossless, output_sane, "
    "repeat_launches, speeds of cells that were not measured, gains and memory left"
)
CLOSE = 1e-9  # as a share; sums of floats depend on their order

Found: TypeAlias = dict[str, Any]


def all_by_polars(folder: Path) -> Found:
    """All tables."""
    derived = derived_tables(*_scan(folder))
    return {name: each.collect() for name, each in derived.items()}


def read_by_polars(folder: Path) -> Found:
    """Only what is read for them."""
    digest = Digest(*_scan(folder))
    return {"runs": digest.runs, "texts": digest.texts}


def some_by_polars(folder: Path) -> Found:
    """The tables that pandas makes, too."""
    trials, runs = _scan(folder)
    digest = Digest(trials, runs)
    # That a text is broken keeps its cell off the frontier; pandas does not look at texts.
    unrated = {"cell_id": pl.String, "broken": pl.Boolean, "measured": pl.Boolean}
    figures = cell_figures(trials, runs, digest=digest)
    leading = frontier(trials, runs, figures=figures, rated=pl.DataFrame(schema=unrated))
    found = {"frontier": leading.collect(), "boundaries": boundaries(trials).collect()}
    return found | {name: check(Evidence(digest)) for name, check in CHECKS.items()}


def some_by_pandas(folder: Path) -> Found:
    """The same by pandas."""
    import analysis_pandas as by_pandas

    tables = by_pandas.Tables.read(folder)
    found = {"frontier": by_pandas.frontier(tables), "boundaries": by_pandas.boundaries(tables)}
    return found | {name: check(tables) for name, check in by_pandas.CHECKS.items()}


CHECKS: Mapping[str, Callable[[Evidence], Judgement]] = {
    "clock_gap": counters.clock_gap,
    "spec_state": counters.spec_state,
    "depth_applied": counters.depth_applied,
    "cache_leak": counters.cache_leak,
    "throttled": telemetry.throttled,
    "foreign_load": telemetry.foreign_load,
    "outliers": far_off,
}
SIDES: Mapping[str, Callable[[Path], Found]] = {
    "polars, all": all_by_polars,
    "of that reading": read_by_polars,
    "polars, some": some_by_polars,
    "pandas, some": some_by_pandas,
}


def _scan(folder: Path) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    return pl.scan_parquet(folder / "trials.parquet"), pl.scan_parquet(folder / "runs.parquet")


def one_side(side: str, folder: Path) -> None:
    """In a process of its own: make the tables, and print what it took and what came out."""
    began, cpu = time.perf_counter(), time.process_time()
    found = SIDES[side](folder)
    took = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    took["mib"] = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    plain = {name: _plain(name, each) for name, each in found.items() if "some" in side}
    rows = {name: len(each) for name, each in found.items()}
    print(json.dumps({**took, "rows": rows, "found": plain}))


def _plain(name: str, table: Any) -> dict[str, list[Any]]:
    """What both sides must agree on, by what names a row."""
    if isinstance(table, str):
        return {}
    rows = table.to_dicts() if isinstance(table, pl.DataFrame) else table.to_dict("records")
    keys = {"frontier": ["cell_id"], "boundaries": LINE}.get(name, LAUNCH)
    values = {
        "frontier": ["on_frontier_for", *SPEEDS, "launches", "runs"],
        "boundaries": ["max_context_works", "min_context_fails", "verified", "cells"],
    }.get(name, ["verdict", "value"])
    named = [row for row in rows if row[keys[0]] is not None]
    return {
        str([row[key] for key in keys]): [
            None if isinstance(row[value], float) and math.isnan(row[value]) else row[value]
            for value in values
        ]
        for row in named
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The tables in which two sides differ."""
    return [
        f"{name}: {len(one[name])} rows, and {len(other[name])}"
        for name in one
        if not _alike(one[name], other[name])
    ]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE)
    return bool(one == other)


def measure(folder: Path, times: int) -> dict[str, dict[str, Any]]:
    """Each side several times, in turn: medians of what it took, and what came out."""
    took: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(times):
        for side, runs in took.items():
            words = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
            runs.append(json.loads(done.stdout))
    figures = ("seconds", "cpu", "mib")
    return {
        side: runs[0] | {name: statistics.median(run[name] for run in runs) for name in figures}
        for side, runs in took.items()
    }


def compare(name: str, shape: Shape, folder: Path, times: int) -> list[str]:
    """Print what the sides took; what is wrong."""
    took = measure(folder, times)
    print(f"| {name}: {shape.runs} runs, {shape.cells} cells | seconds | CPU seconds | MiB |")
    print("|---|---:|---:|---:|")
    for side, run in took.items():
        print(f"| {side} | {run['seconds']:.2f} | {run['cpu']:.2f} | {run['mib']:.0f} |")
    whole, some, other = (took[side] for side in ("polars, all", "polars, some", "pandas, some"))
    print(f"\npandas takes {other['seconds'] / some['seconds']:.1f} times as long for the same")
    print(
        "rows: " + ", ".join(f"{key} {count}" for key, count in took["polars, all"]["rows"].items())
    )
    whole = took["polars, all"]
    wrong = [
        f"differs from pandas in {each}" for each in differences(some["found"], other["found"])
    ]
    if whole["seconds"] >= SECONDS:
        wrong.append(f"all tables took {whole['seconds']:.2f} s, not less than {SECONDS}")
    if whole["mib"] >= MIB:
        wrong.append(f"all tables took {whole['mib']:.0f} MiB, not less than {MIB}")
    for each in wrong:
        print(f"WRONG: {each}")
    print()
    return wrong


def main() -> None:
    """Write, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="kept, and used again")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        one_side(options.side, options.folder)
        return
    shapes = SHAPES
    if options.cells:
        of_repeats = options.repeats and Shape(options.cells, options.launches, options.repeats)
        shapes = {
            "this": of_repeats or Shape.of_runs(options.cells, options.launches, options.runs)
        }
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, shape in shapes.items():
            folder = (options.folder or Path(temporary)) / f"{name}-{shape.runs}-{shape.cells}"
            if not folder.exists():
                folder.mkdir(parents=True)
                write(folder, shape)
            wrong += compare(name, shape, folder, options.times)
    print(f"seconds from the files to the tables on {CORES} cores, medians of {options.times}")
    print(f"`some` leaves out {LEFT_OUT}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
