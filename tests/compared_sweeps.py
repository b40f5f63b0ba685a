"""Folders of small sweeps that were never launched, to be held against each other."""

from collections.abc import Callable
from pathlib import Path

from vllm_frontier.config import compose_sweep
from vllm_frontier.engine.simulated.card import (
    SimulatedCard,
    decode_speed,
    noise_factor,
    simulate_start,
)
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
from vllm_frontier.store.rows import interrupted_row, run_rows, trial_row
from vllm_frontier.store.sweep_store import SweepStore

AT = 1_700_000_000.0
SMALL = (
    "engine=simulated",
    "engine.card_file=tiny-8gib",
    "search=exhaustive",
    "grid.depth=[0,3]",
    "grid.context=[8192,16384]",
    "grid.utilization=[0.9]",
)


def outcome(cell: Cell, speed: float, available: float, number: int) -> Outcome:
    """A launch on a card where a window of 16384 tokens needs 2 GiB of KV cache."""
    facts = StartupFacts(
        kv_available_gib=available,
        kv_tokens=int(16384 * available / 2),
        weights_gib=3.5 + 0.25 * (cell.depth > 0),
        activation_gib=0.5,
    )
    times = {"started_at": AT + 100 * number, "ended_at": AT + 100 * number + 60}
    if cell.context > facts.kv_tokens:
        failure = Failure(FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, "ValueError: too small", 9)
        return Outcome(Status.INFEASIBLE, Phase.ALLOCATE_KV, failure, facts=facts, **times)
    runs = tuple(
        Run(task, repeat, "decode", decode_tok_s=speed * factor * wobble, variant=repeat)
        for task, factor in (("edit", 1.2), ("code", 1.0), ("prose", 0.8))
        for repeat, wobble in enumerate((0.99, 1.0, 1.01))
    )
    return Outcome(
        Status.MEASURED, Phase.STOP, started=True, filled=True, facts=facts, runs=runs, **times
    )


def on_card(card: SimulatedCard, cell: Cell, seed: int, number: int) -> Outcome:
    """A launch on a described card, on which the cell works."""
    runs = tuple(
        Run(
            task,
            repeat,
            "decode",
            decode_tok_s=decode_speed(card, cell, task)
            * noise_factor(card, cell, f"{task}{repeat}", seed),
            variant=repeat,
        )
        for repeat in range(3)
        for task in ("edit", "code", "prose")
    )
    start = simulate_start(card, cell)
    assert start.failure is None
    return Outcome(
        Status.MEASURED,
        Phase.STOP,
        started=True,
        filled=True,
        facts=start.facts,
        runs=runs,
        started_at=AT + 100 * number,
        ended_at=AT + 100 * number + 60,
    )


def sweep(
    folder: Path,
    *overrides: str,
    speed: float = 100.0,
    available: float = 3.0,
    cells: int | None = None,
    launch: Callable[[Cell, int], Outcome] | None = None,
) -> Path:
    """The folder of a sweep whose cells are all launched, or the first of them.

    Args:
        folder: must not be there.
        overrides: of the sweep, after `SMALL`.
        speed: of depth 0, tokens/s.
        available: KV cache, GiB.
        cells: how many are launched; None: all.
        launch: what comes of a cell and its number, instead of `speed` and `available`.
    """
    composed = compose_sweep("demo-cpu", [*SMALL, *overrides])
    spec = composed.spec
    identity = identify(spec, "simulated-1")
    store, _ = SweepStore.create_or_open(folder, composed.document, identity)
    with store:
        for number, cell in enumerate(spec.grid.cells()[:cells]):
            attempt = store.new_attempt(identity.cell_id(cell))
            began = {"started_at": AT + 100 * number, "engine_version": "simulated-1"}
            row = interrupted_row(spec, identity, cell, attempt.number, **began)
            store.write_attempt(attempt, row, {})
            if launch is None:
                found = outcome(cell, speed * (1 + cell.depth / 2), available, number)
            else:
                found = launch(cell, number)
            trial = trial_row(
                spec, identity, cell, attempt.number, found, engine_version="simulated-1"
            )
            runs = run_rows(spec, identity, cell, attempt.number, found)
            store.write_outcome(attempt, trial, runs)
    return folder
