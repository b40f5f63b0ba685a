"""What is said of an attempt without a server is what an attempt with one comes to."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_launch import card_file
from test_attempt_endings import WORKLOAD, attempt, sweep

from vllm_frontier.engine.simulated.attempt import simulate_attempt
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.engine.simulated.faults import FaultBook
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, Purpose, Status
from vllm_frontier.trial import AttemptRequest, run_attempt

NOT_COUNTED = {"graphs_counted": False, "graphs_per_depth": 0.07}
MEMORY = {
    "plain": {},
    "no-state": {"state": 0.0, "state_per_depth": 0.0, "head": 0.0, "activation_per_depth": 0.13},
    "hybrid": {"state": 0.41, "state_per_depth": 0.37, "block_tokens": 784},
    "graphs-on-top": NOT_COUNTED,
    "full-window": {"fill_extra": 0.55},
    "tight": {"weights": 6.0},
}
FAULTS = (
    *(("spawn", "port"), ("spawn", "exit"), ("configure", "crash"), ("load", "oom")),
    *(("profile", "contended"), ("allocate_kv", "kill"), ("capture_graphs", "crash")),
    *(("warm_up", "exit"), ("ready", "crash"), ("fill", "refuse"), ("fill", "hang")),
    ("measure", "oom"),
)


def drawn() -> Iterator[tuple[str, Cell]]:
    """Cells near the borders of every card, the same ones every time."""
    draw = random.Random(5)
    for name in MEMORY:
        for _ in range(3):
            context = draw.choice((8192, 20001, 32768, 40000, 70000))
            depth, graphs = draw.choice((0, 1, 3)), draw.random() < 0.7
            yield name, Cell(depth, context, graphs, draw.choice((0.72, 0.86, 0.9, 0.95, 0.98)))


DRAWN = (
    *drawn(),
    ("plain", Cell(3, 65537, True, 0.9)),
    ("plain", Cell(0, 8192, False, 0.97)),
    ("graphs-on-top", Cell(2, 8192, True, 0.9)),
    ("full-window", Cell(1, 8192, True, 0.95)),
    ("tight", Cell(1, 8192, True, 0.9)),
    ("hybrid", Cell(3, 30000, True, 0.9)),
)


def described(outcome: Outcome) -> dict[str, Any]:
    failure = outcome.failure
    return {
        "status": outcome.status,
        "failure_class": failure and failure.failure_class,
        "phase": (outcome.phase, failure and failure.phase),
        "started": outcome.started,
        "filled": outcome.filled,
        "facts": outcome.facts,
    }


def both(folder: Path, cell: Cell, **sections: Any) -> tuple[Outcome, Outcome]:
    """The real outcome, and what is said of it."""
    card = card_file(folder, **sections)
    # Only of what hangs the end is waited for.
    hangs = any(fault["kind"] == "hang" for fault in sections.get("faults", ()))
    limit = {"fill_timeout_s": 5.0} if hangs else {}
    spec = sweep(card, replace(WORKLOAD, tasks=("edit", "code", "prose"), **limit))
    known = load_card(card)
    return attempt(spec, folder, cell), simulate_attempt(
        known, cell, faults=FaultBook(known.faults)
    )


@pytest.mark.parametrize(("memory", "cell"), DRAWN, ids=lambda value: str(value)[:60])
def test_a_cell(tmp_path: Path, memory: str, cell: Cell) -> None:
    real, said = both(tmp_path, cell, memory=MEMORY[memory])
    assert described(said) == described(real)
    assert (said.speed is None) == (real.status is not Status.MEASURED)


def test_the_cells_show_all_that_can_become_of_one(tmp_path: Path) -> None:
    seen = set()
    for memory, cell in DRAWN:
        failure = simulate_attempt(
            load_card(card_file(tmp_path, memory=MEMORY[memory])), cell
        ).failure
        seen.add(failure and failure.failure_class)
    assert seen == {
        None,
        FailureClass.CONTEXT_EXCEEDS_MODEL,
        FailureClass.UTILIZATION_ABOVE_FREE,
        FailureClass.KV_NONE,
        FailureClass.KV_TOO_SMALL,
        FailureClass.OOM_GRAPH_CAPTURE,
        FailureClass.OOM_SERVE,
    }


@pytest.mark.parametrize(("at", "kind"), FAULTS)
def test_a_fault(tmp_path: Path, at: str, kind: str) -> None:
    faults = [{"at": at, "kind": kind, "when": {"depth": [1, 2]}}]
    real, said = both(tmp_path, Cell(2, 8192, True, 0.9), faults=faults)
    assert described(said) == described(real)
    assert said.failure is not None


def test_an_attempt_without_speed(tmp_path: Path) -> None:
    card = card_file(tmp_path, faults=[{"at": "measure", "kind": "crash"}])
    request = AttemptRequest(
        sweep(card), Cell(2, 8192, True, 0.9), "0" * 16, 1, tmp_path / "log", dict(os.environ),
        purpose=Purpose.AUDIT, with_speed=False,
    )  # fmt: skip
    steps = run_attempt(request)
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        real: Outcome = ended.value
    known = load_card(card)
    said = simulate_attempt(
        known, request.cell, purpose=Purpose.AUDIT, with_speed=False, faults=FaultBook(known.faults)
    )
    assert described(said) == described(real)
    asked = (Purpose.AUDIT, False, None)
    assert (real.purpose, real.with_speed, real.speed) == asked
    assert (said.purpose, said.with_speed, said.speed) == asked
