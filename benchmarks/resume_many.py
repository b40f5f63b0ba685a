"""How long a sweep with many finished attempts takes to go on, and to be looked at.

    python benchmarks/resume_many.py [--attempts 10000] [--folder DIR]

Writes a sweep of that many measured attempts through the store's own functions into a temporary
folder (or DIR, which is kept, and used again when it is there), and prints seconds for what
`resume` does before it launches anything, for `status` and `show` as whole commands, and for the
tables. Files are in the page cache, as they are right after they were written.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from vllm_frontier.config import Composed, compose_sweep
from vllm_frontier.identity import identify
from vllm_frontier.outcome import Outcome, Phase, Run, StartupFacts, Status
from vllm_frontier.search import create_search
from vllm_frontier.spec import SweepSpec
from vllm_frontier.store import records, rows
from vllm_frontier.store.sweep_store import SweepStore
from vllm_frontier.sweep import make_tables

VERSION = "simulated"
CELLS_PER_WINDOW = 10
RUNS = tuple(
    Run(
        task,
        repeat,
        "decode",
        prompt_tokens=900,
        completion_tokens=384,
        decode_s=4.2,
        decode_tok_s=91.25,
        decode_tok_s_server=91.25,
        decode_tok_s_client=90.5,
        drafts=120,
        draft_tokens=360,
        accepted_tokens=264,
        accepted_per_position=(110, 90, 64),
        output_sha256="0" * 64,
        started_at=1_750_000_000.0 + repeat,
    )
    for task in ("edit", "code", "prose")
    for repeat in range(3)
)
MEASURED = Outcome(
    status=Status.MEASURED,
    phase=Phase.STOP,
    started=True,
    filled=True,
    facts=StartupFacts(kv_available_gib=5.5, kv_tokens=150_000, weights_gib=20.9),
    runs=RUNS,
    wall_s=120.0,
    started_at=1_750_000_000.0,
    ended_at=1_750_000_120.0,
)


def composed_sweep(attempts: int) -> Composed:
    """A simulated sweep with a cell for each attempt."""
    windows = -(-attempts // CELLS_PER_WINDOW)
    contexts = ",".join(str(8192 + 16 * number) for number in range(windows))
    return compose_sweep(
        "rtx5090-qwen3.8-27b-nvfp4",
        [
            "engine=simulated",
            "search=exhaustive",
            "name=many",
            "grid.depth=[0,1,2,3,4]",
            "grid.graphs=[false,true]",
            "grid.utilization=[0.93]",
            f"grid.context=[{contexts}]",
        ],
    )


def write(composed: Composed, folder: Path, attempts: int) -> None:
    """Fill the folder with measured attempts."""
    spec, identity = composed.spec, identify(composed.spec, VERSION)
    with SweepStore.create_or_open(folder, composed.document, identity)[0] as store:
        for cell in spec.grid.cells()[:attempts]:
            attempt = store.new_attempt(identity.cell_id(cell))
            number = attempt.number
            row = rows.interrupted_row(
                spec, identity, cell, number, started_at=1_750_000_000.0, engine_version=VERSION
            )
            store.write_attempt(attempt, row, {"supervisor": {"pid": 1, "start_time": 1}})
            store.write_outcome(
                attempt,
                rows.trial_row(spec, identity, cell, number, MEASURED, engine_version=VERSION),
                rows.run_rows(spec, identity, cell, number, MEASURED),
            )


def decide(store: SweepStore, spec: SweepSpec) -> None:
    """What `resume` does to know what is left."""
    attempts, damaged = store.take_stock()
    if damaged:
        raise SystemExit("what was just written is damaged")
    search = create_search(spec)
    for record in records.by_end(attempts):
        search.tell(record.cell, record.outcome())
    search.ask()


def command(name: str, folder: Path) -> Callable[[], None]:
    """A whole command of the program, with a new interpreter."""

    def call() -> None:
        words = [sys.executable, "-m", "vllm_frontier", name, "--json", str(folder)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    return call


def measure(composed: Composed, folder: Path) -> dict[str, float]:
    """Seconds of each, the best of three."""
    spec, identity = composed.spec, identify(composed.spec, VERSION)
    with SweepStore.create_or_open(folder, composed.document, identity)[0] as store:
        calls: dict[str, Callable[[], object]] = {
            "check and read all files": store.take_stock,
            "that, and ask the search": lambda: decide(store, spec),
            "make all tables": lambda: make_tables(store, spec),
        }
        found = {name: min(_seconds(call) for _ in range(3)) for name, call in calls.items()}
    # Without the lock: while a sweep is written, `status` need not think of what is left.
    for name in ("status", "show"):
        call = command(name, folder)
        found[f"`{name}`, the whole command"] = min(_seconds(call) for _ in range(3))
    return found


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    composed = composed_sweep(options.attempts)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "many"
        if not folder.exists():
            write(composed, folder, options.attempts)
        print(f"| {options.attempts} attempts | seconds |\n|---|---|")
        for name, seconds in measure(composed, folder).items():
            print(f"| {name} | {seconds:.2f} |")
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
