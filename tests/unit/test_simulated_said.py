"""What is said of attempts on a described card without launching anything."""

import dataclasses
import time

import pytest

from vllm_frontier.engine.simulated.attempt import simulate_attempt
from vllm_frontier.engine.simulated.card import Fault, SimulatedCard
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.engine.simulated.faults import FaultBook
from vllm_frontier.grid import Cell, Grid
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Purpose, Speed, Status

RTX5090 = load_card("rtx5090-qwen3.8-27b-nvfp4")
TINY = load_card("tiny-8gib")
CELL = Cell(2, 16384, True, 0.9)


def faulty(*faults: Fault) -> SimulatedCard:
    return dataclasses.replace(TINY, faults=faults)


def test_speed_is_the_median_over_tasks_without_noise() -> None:
    outcome = simulate_attempt(RTX5090, Cell(4, 8192, True, 0.93))
    code = 1000 * (1 + 0.95 + 0.89 + 0.83 + 0.75) / (20 + 4 * 0.6)  # between prose and edit
    assert outcome.speed == Speed(code, code, code)
    assert (outcome.status, outcome.phase) == (Status.MEASURED, Phase.STOP)
    assert (outcome.started, outcome.filled, outcome.with_speed) == (True, True, True)


def test_an_attempt_without_speed_ends_with_the_full_window() -> None:
    book = FaultBook((Fault(kind="crash", at="measure"),))
    outcome = simulate_attempt(TINY, CELL, purpose=Purpose.AUDIT, with_speed=False, faults=book)
    assert (outcome.status, outcome.filled, outcome.speed) == (Status.MEASURED, True, None)
    assert (outcome.purpose, outcome.with_speed) == (Purpose.AUDIT, False)
    # 20 + 5 + 5 s of a start, and the window at 8000 tokens/s
    assert outcome.wall_s == pytest.approx(30 + 16384 / 8000)
    measured = simulate_attempt(TINY, CELL, faults=book)
    assert (measured.phase, measured.status) == (Phase.MEASURE, Status.FAILED)


def test_figures_are_those_that_the_log_rounds() -> None:
    outcome = simulate_attempt(RTX5090, Cell(1, 130000, False, 0.90))
    facts = outcome.facts
    assert (facts.kv_needed_gib, facts.kv_available_gib) == (4.73, 4.35)
    assert facts.max_context_estimate == 118832
    # what a start that was refused has not told yet
    assert (facts.kv_tokens, facts.activation_gib, facts.graph_gib, facts.free_gib) == (None,) * 4


def test_faults_are_counted_over_all_cells_of_a_sweep() -> None:
    faults = (
        Fault(kind="oom", at="load", when={"depth": [2, 3]}, times=2),
        Fault(kind="exit", at="ready", when={"max_num_seqs": 4}),
    )
    card, book = faulty(*faults), FaultBook(faults)
    classes = [
        outcome.failure and outcome.failure.failure_class
        for cell in (
            CELL,
            dataclasses.replace(CELL, depth=0),
            dataclasses.replace(CELL, depth=3),
            CELL,
            dataclasses.replace(CELL, extra=(("max-num-seqs", 4),)),
        )
        for outcome in [simulate_attempt(card, cell, faults=book)]
    ]
    oom = FailureClass.OOM_LOAD
    assert classes == [oom, None, oom, None, FailureClass.UNKNOWN]


@pytest.mark.parametrize(
    ("at", "kind", "failure_class", "phase"),
    [
        ("spawn", "port", FailureClass.PORT_IN_USE, Phase.CONFIGURE),
        ("spawn", "kill", FailureClass.KILLED, Phase.SPAWN),
        ("configure", "exit", FailureClass.UNKNOWN, Phase.CONFIGURE),
        ("load", "exit", FailureClass.ENGINE_CRASHED, Phase.LOAD),
        ("profile", "oom", FailureClass.OOM_PROFILE, Phase.PROFILE),
        ("allocate_kv", "hang", FailureClass.STARTUP_TIMEOUT, Phase.ALLOCATE_KV),
        ("warm_up", "oom", FailureClass.OOM_WARMUP, Phase.WARM_UP),
        ("ready", "kill", FailureClass.KILLED, Phase.WARM_UP),
        ("fill", "error", FailureClass.UNKNOWN, Phase.FILL),
        ("fill", "hang", FailureClass.REQUEST_TIMEOUT, Phase.FILL),
        ("measure", "exit", FailureClass.ENGINE_CRASHED, Phase.MEASURE),
    ],
)
def test_faults_have_the_names_that_their_logs_give_them(
    at: str, kind: str, failure_class: FailureClass, phase: Phase
) -> None:
    faults = (Fault(kind=kind, at=at),)
    outcome = simulate_attempt(faulty(*faults), CELL, faults=FaultBook(faults))
    assert outcome.failure is not None
    assert (outcome.failure.failure_class, outcome.phase) == (failure_class, phase)
    assert outcome.status is failure_class.status
    assert outcome.filled == (at == "measure")


def test_graphs_are_captured_only_where_there_are_any() -> None:
    faults = (Fault(kind="crash", at="capture_graphs", times=1),)
    book = FaultBook(faults)

    def of(graphs: bool) -> Outcome:
        cell = dataclasses.replace(CELL, graphs=graphs)
        return simulate_attempt(faulty(*faults), cell, faults=book)

    assert [of(graphs).phase for graphs in (False, True, True)] == [
        Phase.STOP,
        Phase.CAPTURE_GRAPHS,
        Phase.STOP,
    ]


def test_a_large_grid_takes_a_moment() -> None:
    contexts = tuple(range(16384, 16384 + 12 * 8192, 8192))
    cells = Grid(tuple(range(7)), contexts, (False, True), (0.85, 0.9, 0.93, 0.95)).cells()
    began = time.process_time()
    outcomes = [simulate_attempt(RTX5090, cell) for cell in cells]
    assert time.process_time() - began < 3  # ten times what it takes
    assert (len(outcomes), {each.started for each in outcomes}) == (672, {False, True})
