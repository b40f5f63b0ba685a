"""The folder of a demo sweep with known outcomes, made through the store: nothing is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Cell
from vllm_frontier.identity import identify
from vllm_frontier.outcome import (
    Failure,
    FailureClass,
    Outcome,
    Phase,
    Run,
    StartupFacts,
    Status,
)
from vllm_frontier.store.rows import run_rows, trial_row
from vllm_frontier.store.sweep_store import SweepStore

TASKS = {"edit": 1.2, "code": 1.0, "prose": 0.8}  # speeds over the one in the middle
BEGAN = 1_700_000_000.0


def demo_sweep(
    root: Path,
    speeds: Mapping[Cell, float],
    *overrides: str,
    sweep: str = "demo-cpu",
    version: str = "0.32.0",
    left: Sequence[Cell] = (),
) -> Path:
    """Make the folder.

    Args:
        root: the folder, which must not be there.
        speeds: the cells that work, with their speed, tokens/s; a speed of 0 was not measured.
        overrides: of the sweep, beside `search=exhaustive`.
        sweep: its name in sweeps/ or the path of a file.
        version: of the engine.
        left: cells that were not tried; all others of the grid do not work.
    """
    composed = compose_sweep(sweep, ["search=exhaustive", *overrides])
    spec, identity = composed.spec, identify(composed.spec, version)
    store, _ = SweepStore.create_or_open(root, composed.document, identity)
    with store:
        for number, cell in enumerate(spec.grid.cells()):
            if cell in left:
                continue
            began = BEGAN + 100 * number
            outcome = _outcome(cell, speeds.get(cell), began)
            paths = store.new_attempt(identity.cell_id(cell))
            row = trial_row(spec, identity, cell, paths.number, outcome, engine_version=version)
            store.write_attempt(paths, row, {})
            runs = run_rows(spec, identity, cell, paths.number, outcome)
            store.write_outcome(paths, row, runs)
    return root


def _outcome(cell: Cell, speed: float | None, began: float) -> Outcome:
    times = {"started_at": began, "ended_at": began + 90, "wall_s": 90.0}
    if speed is None:
        evidence = "ValueError: To serve at least one request, more KV cache is needed"
        return Outcome(
            status=Status.INFEASIBLE,
            phase=Phase.ALLOCATE_KV,
            failure=Failure(FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, evidence, 40),
            facts=StartupFacts(kv_needed_gib=2.0, kv_available_gib=1.0),
            **times,
        )
    available = 4 * cell.utilization
    return Outcome(
        status=Status.MEASURED,
        phase=Phase.STOP,
        started=True,
        filled=True,
        facts=StartupFacts(
            kv_available_gib=available,
            kv_needed_gib=cell.context / 65536,
            kv_tokens=int(available * 65536),
        ),
        runs=tuple(
            Run(task, repeat, "decode", decode_tok_s=speed * factor)
            for task, factor in TASKS.items()
            for repeat in range(3)
            if speed
        ),
        **times,
    )
