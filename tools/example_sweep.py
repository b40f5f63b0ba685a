"""A small made-up sweep in a folder, written by the store: for the answers in docs/schema.md.

Every figure follows from the rules below, so that an answer can be worked out by hand.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from vllm_frontier.conditions import Conditions, Sample
from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import (
    Failure,
    FailureClass,
    Outcome,
    Phase,
    Purpose,
    Run,
    Speed,
    StartupFacts,
    Status,
)
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store.rows import run_rows, telemetry_rows, trial_row
from vllm_frontier.store.sweep_store import SweepStore
from vllm_frontier.sweep import make_tables

BEGAN = 1_767_225_600.0  # 2026-01-01, seconds since the epoch
TASKS = {"edit": 1.2, "code": 1.0, "prose": 0.8}  # over the speed of the cell
REPEATS = 3
BROKEN = Cell(3, 8192, True, 0.6)
# Runs on a card that is hot: how fast they are, its clock in MHz, degrees Celsius.
SLOW = {
    (Cell(3, 8192, True, 0.9), "edit", 2): (0.75, 1500.0, 84.0),
    (Cell(1, 16384, True, 0.9), "code", 0): (0.8, 1600.0, 83.0),
    (Cell(0, 32768, False, 0.9), "prose", 1): (0.9, 1900.0, 80.0),
}
_COOL = (2400.0, 62.0)
# A cell that was launched again, and how fast these launches were: its own speed lies there.
AGAIN = {Cell(3, 8192, False, 0.9): (0.8, 0.8)}
# Not what decides a result on a real card: ids stay as they are when configurations change.
IDENTITY = SweepIdentity({"example": 1}, "example")


def write_example(folder: Path) -> None:
    """Write the folder of a sweep of 36 cells, tables included."""
    composed = compose_sweep(
        "demo-cpu",
        [
            "engine=simulated",
            "search=exhaustive",
            "grid.depth=[0,1,3]",
            "grid.context=[8192,16384,32768]",
            "grid.graphs=[false,true]",
            "grid.utilization=[0.6,0.9]",
        ],
    )
    spec = composed.spec
    store, _ = SweepStore.create_or_open(folder, composed.document, IDENTITY)
    with store:
        cells = [(cell, Purpose.PROOF, 1.0) for cell in spec.grid.cells()]
        cells += [(cell, Purpose.REPLICATE, each) for cell in AGAIN for each in AGAIN[cell]]
        for number, (cell, purpose, factor) in enumerate(cells):
            outcome = outcome_of(cell, BEGAN + 100 * number, purpose, factor)
            paths = store.new_attempt(IDENTITY.cell_id(cell))
            row = trial_row(
                spec,
                IDENTITY,
                cell,
                paths.number,
                outcome,
                engine_version="0.32.0",
                sequence=number + 1,
            )
            runs = run_rows(spec, IDENTITY, cell, paths.number, outcome)
            samples = telemetry_rows(spec, IDENTITY, cell, paths.number, outcome)
            store.write_attempt(paths, row, {})
            store.write_outcome(paths, row, runs, samples)
        make_tables(store, spec)


def longest(depth: int, utilization: float) -> int:
    """The longest window that fits, tokens: drafting takes memory from it."""
    fits = {0: 32768, 1: 16384, 3: 8192}[depth]
    return fits if utilization == 0.9 else max(8192, fits // 2)


def speed(cell: Cell) -> float:
    """Tokens/s of a cell: each position drafted is worth a quarter, graphs are worth a half."""
    return 40.0 * (1 + 0.25 * cell.depth) * (1.5 if cell.graphs else 1.0)


def outcome_of(
    cell: Cell, began: float, purpose: Purpose = Purpose.PROOF, factor: float = 1.0
) -> Outcome:
    """How the launch of a cell ends.

    Args:
        cell: what is launched.
        began: when, seconds since the epoch.
        purpose: what for.
        factor: how fast it is against the speed of the cell.
    """
    times = {"started_at": began, "ended_at": began + 90, "wall_s": 90.0}
    if cell == BROKEN:
        crash = Failure(FailureClass.ENGINE_CRASHED, Phase.WARM_UP, "RuntimeError: lost", 58)
        return Outcome(Status.FAILED, Phase.WARM_UP, failure=crash, exit_code=1, **times)
    if cell.context > longest(cell.depth, cell.utilization):
        words = f"ValueError: a window of {cell.context} tokens does not fit"
        refusal = Failure(FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, words, 41)
        return Outcome(Status.INFEASIBLE, Phase.ALLOCATE_KV, failure=refusal, **times)
    runs = _runs(cell, began + 30, factor)
    # The range over repeats, of each the median over tasks, which is that of `code`.
    middle = [run.decode_tok_s or 0.0 for run in runs if run.task == "code"]
    measured = Speed(statistics.median(middle), min(middle), max(middle))
    return Outcome(
        Status.MEASURED,
        Phase.STOP,
        started=True,
        filled=True,
        facts=StartupFacts(kv_available_gib=1.0, kv_tokens=20_000),
        runs=runs,
        speed=measured,
        purpose=purpose,
        samples=(Sample(began + 40, "GPU-1", "measure", sm_clock_mhz=2400.0, temperature_c=62.0),),
        **times,
    )


def _runs(cell: Cell, began: float, factor: float) -> tuple[Run, ...]:
    """The decode runs of a cell: one repeat as fast as told, one a hundredth more, one less."""
    return tuple(
        Run(
            task,
            repeat,
            "decode",
            completion_tokens=129,
            decode_tok_s=factor * _run_speed(cell, task, repeat),
            drafts=100 if cell.depth else None,
            started_at=began + 3 * repeat,
            variant=repeat,
            conditions=_conditions(cell, task, repeat),
        )
        for repeat in range(REPEATS)
        for task in TASKS
    )


def _run_speed(cell: Cell, task: str, repeat: int) -> float:
    usual = 1 + 0.01 * (repeat - 1)
    return speed(cell) * TASKS[task] * SLOW.get((cell, task, repeat), (usual,))[0]


def _conditions(cell: Cell, task: str, repeat: int) -> Conditions:
    clock, temperature = SLOW.get((cell, task, repeat), (1.0, *_COOL))[1:]
    return Conditions(sm_clock_mhz=clock, temperature_c=temperature)
