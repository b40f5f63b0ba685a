"""The rules of a simulated card, against figures computed by hand and the reference table."""

import csv
import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.engine.simulated.card import (
    AUTO_CONTEXT,
    SimulatedCard,
    acceptance,
    decode_speed,
    kv_needed_gib,
    noise_factor,
    simulate_start,
    start_seconds,
)
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Phase

RTX5090 = load_card("rtx5090-qwen3.8-27b-nvfp4")
RTX4090 = load_card("rtx4090-qwen3-14b-awq")
TINY = load_card("tiny-8gib")
REFERENCE = Path(__file__).parent / "data" / "feasibility.csv"


def reference_rows() -> list[dict[str, str]]:
    with REFERENCE.open(newline="") as file:
        return list(csv.DictReader(file))


def with_memory(card: SimulatedCard, **figures: float | bool) -> SimulatedCard:
    return dataclasses.replace(card, memory=dataclasses.replace(card.memory, **figures))


@pytest.mark.parametrize(
    "row", reference_rows(), ids=lambda row: f"{row['depth']}-{row['context']}"
)
def test_bundled_card_agrees_with_the_reference(row: dict[str, str]) -> None:
    cell = Cell(
        depth=int(row["depth"]),
        context=int(row["context"]),
        graphs=row["graphs"] == "true",
        utilization=0.93 if row["utilization"] == "raised" else float(row["utilization"]),
    )
    start = simulate_start(RTX5090, cell)
    assert (start.failure is None) == (row["starts"] == "true")
    if start.failure is not None:
        assert start.failure.failure_class is FailureClass.KV_TOO_SMALL


def test_reference_has_all_rows() -> None:
    assert len(reference_rows()) == 11


def test_refusal_gives_the_published_figures() -> None:
    start = simulate_start(RTX5090, Cell(1, 130000, False, 0.90))
    assert start.failure is not None
    assert "(4.73 GiB KV cache is needed" in start.failure.evidence
    assert "available KV cache memory (4.35 GiB)" in start.failure.evidence
    assert start.failure.phase is Phase.ALLOCATE_KV
    assert start.facts.kv_needed_gib == pytest.approx(4.7304)
    assert start.facts.kv_available_gib == pytest.approx(4.35)
    # (4.35 - 0.30) GiB at 0.03408 GiB a thousand: 118838 tokens, 7427 whole blocks of 16
    assert start.facts.max_context_estimate == 7427 * 16
    assert "estimated maximum model length is 118832." in start.failure.evidence


def test_facts_of_a_start_by_hand() -> None:
    start = simulate_start(TINY, Cell(3, 16384, True, 0.9))
    assert start.failure is None
    facts = start.facts
    assert facts.weights_gib == pytest.approx(3.75)
    assert facts.kv_available_gib == pytest.approx(7.2 - 3.75 - 0.5 - 0.5)
    assert facts.kv_needed_gib == pytest.approx(0.06 * 16.384 + 0.4)
    assert facts.kv_tokens == 29023  # floor(2.45 / 1.38304 * 16384)
    assert (facts.graph_gib, facts.graph_mode) == (0.5, "FULL_AND_PIECEWISE")
    assert facts.max_context_estimate is None


def test_window_is_counted_in_whole_blocks() -> None:
    cell = Cell(0, 1001, False, 0.9)
    assert kv_needed_gib(TINY, cell) == pytest.approx(0.05 * 1.008 + 0.1)


@pytest.mark.parametrize(
    ("utilization", "failure"),
    # 7.75 of 8 GiB are free: 0.96875 is the largest share
    [(0.96875, None), (0.97, FailureClass.UTILIZATION_ABOVE_FREE)],
)
def test_share_above_what_is_free(utilization: float, failure: FailureClass | None) -> None:
    start = simulate_start(TINY, Cell(0, 4096, False, utilization))
    assert (start.failure and start.failure.failure_class) == failure
    if start.failure is not None:
        assert "(7.75/8.0 GiB) on startup is less than desired" in start.failure.evidence
        assert "(0.97, 7.76 GiB)" in start.failure.evidence
        assert start.facts.kv_available_gib is None


def test_nothing_left() -> None:
    # 0.49 * 8 = 3.92 GiB, weights and activation take 4.0
    start = simulate_start(TINY, Cell(0, 4096, False, 0.49))
    assert start.failure is not None
    assert start.failure.failure_class is FailureClass.KV_NONE
    assert start.facts.kv_available_gib == pytest.approx(-0.08)
    # exactly nothing is too small, not none
    start = simulate_start(TINY, Cell(0, 4096, False, 0.5))
    assert start.failure is not None
    assert start.failure.failure_class is FailureClass.KV_TOO_SMALL
    assert start.facts.max_context_estimate is None
    assert "estimated" not in start.failure.evidence


def test_window_above_the_model() -> None:
    start = simulate_start(TINY, Cell(0, 65537, False, 0.9))
    assert start.failure is not None
    assert start.failure.failure_class is FailureClass.CONTEXT_EXCEEDS_MODEL
    assert start.failure.phase is Phase.CONFIGURE
    assert "max_model_len (65537) is greater than the derived" in start.failure.evidence


def test_graphs_that_are_not_counted_run_out_while_captured() -> None:
    card = with_memory(TINY, graphs_counted=False, graphs_per_depth=0.05)
    # free 7.75; 0.9 * 8 + 0.5 + 0.05 = 7.75 fits to the byte, depth 2 does not
    assert simulate_start(card, Cell(1, 4096, True, 0.9)).failure is None
    start = simulate_start(card, Cell(2, 4096, True, 0.9))
    assert start.failure is not None
    assert start.failure.failure_class is FailureClass.OOM_GRAPH_CAPTURE
    assert start.facts.kv_available_gib == pytest.approx(7.2 - 3.75 - 0.5)
    assert simulate_start(card, Cell(2, 4096, False, 0.9)).failure is None


def test_kv_cache_is_checked_before_graphs() -> None:
    card = with_memory(TINY, graphs_counted=False, graphs=5.0)
    start = simulate_start(card, Cell(0, 65536, True, 0.8))
    assert start.failure is not None
    assert start.failure.failure_class is FailureClass.KV_TOO_SMALL


def test_full_window_needs_memory_of_its_own() -> None:
    card = with_memory(TINY, fill_extra=0.55)
    assert simulate_start(card, Cell(0, 4096, False, 0.9)).fill_failure is None
    start = simulate_start(card, Cell(0, 4096, False, 0.95))
    assert start.failure is None
    assert start.fill_failure is not None
    assert start.fill_failure.failure_class is FailureClass.OOM_SERVE
    assert start.fill_failure.phase is Phase.FILL


def test_automatic_window() -> None:
    start = simulate_start(TINY, Cell(3, AUTO_CONTEXT, True, 0.9))
    assert start.failure is None
    assert start.context == start.facts.auto_context == 34160  # 2.05 GiB / 0.06, whole blocks
    assert simulate_start(TINY, Cell(3, 34160, True, 0.9)).failure is None
    assert simulate_start(TINY, Cell(3, 34161, True, 0.9)).failure is not None
    small = with_memory(TINY, state=10.0)
    failure = simulate_start(small, Cell(3, AUTO_CONTEXT, True, 0.9)).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.KV_NONE
    roomy = with_memory(TINY, weights=0.1)
    assert simulate_start(roomy, Cell(0, AUTO_CONTEXT, False, 0.9)).context == 65536


cells = st.builds(
    Cell,
    depth=st.integers(0, 8),
    context=st.integers(16, 131072),
    graphs=st.booleans(),
    utilization=st.floats(0.3, 1.0),
)


@given(card=st.sampled_from([RTX5090, RTX4090, TINY]), cell=cells)
def test_estimate_is_the_border(card: SimulatedCard, cell: Cell) -> None:
    estimate = simulate_start(card, cell).facts.max_context_estimate
    if estimate is not None:
        assert estimate < cell.context
        at = simulate_start(card, dataclasses.replace(cell, context=estimate)).failure
        above = simulate_start(card, dataclasses.replace(cell, context=estimate + 1)).failure
        assert at is None or at.failure_class is not FailureClass.KV_TOO_SMALL
        assert above is not None
        assert above.failure_class is FailureClass.KV_TOO_SMALL


@given(card=st.sampled_from([RTX5090, RTX4090, TINY]), cell=cells)
def test_a_shorter_window_never_hurts(card: SimulatedCard, cell: Cell) -> None:
    shorter = dataclasses.replace(cell, context=max(16, cell.context // 2))
    if simulate_start(card, cell).failure is None:
        assert simulate_start(card, shorter).failure is None


@pytest.mark.parametrize(
    ("cell", "task", "expected"),
    [
        (Cell(0, 8192, False, 0.9), "edit", 1000 / 42.0),
        (Cell(0, 8192, True, 0.9), "edit", 50.0),
        (Cell(4, 8192, True, 0.9), "edit", 1000 * (1 + 0.97 + 0.95 + 0.93 + 0.90) / 22.4),
        (Cell(2, 8192, False, 0.9), "prose", 1000 * 2.73 / 43.2),
        (Cell(2, 8192, False, 0.9), "no such task", 1000 * 2.73 / 43.2),
        # beyond the list nothing more is accepted
        (Cell(8, 8192, True, 0.9), "code", 1000 * (1 + 4.70) / 24.8),
    ],
)
def test_speed_formula(cell: Cell, task: str, expected: float) -> None:
    assert decode_speed(RTX5090, cell, task) == pytest.approx(expected, rel=1e-12)


def test_acceptance_beyond_the_list() -> None:
    assert acceptance(TINY, 6, "code") == (0.85, 0.70, 0.55, 0.45, 0.0, 0.0)
    assert acceptance(TINY, 0, "code") == ()


def test_noise_is_that_of_cell_and_run() -> None:
    cell = Cell(3, 8192, True, 0.9)
    factor = noise_factor(RTX5090, cell, "run")
    assert factor == noise_factor(RTX5090, cell, "run") != 1
    assert factor != noise_factor(RTX5090, cell, "other")
    assert factor != noise_factor(RTX5090, dataclasses.replace(cell, depth=2), "run")
    assert factor != noise_factor(RTX5090, cell, "run", seed=1)
    draws = [noise_factor(RTX5090, cell, str(run)) - 1 for run in range(2000)]
    assert math.fsum(draws) / 2000 == pytest.approx(0, abs=0.002)
    assert math.sqrt(math.fsum(d * d for d in draws) / 2000) == pytest.approx(0.02, rel=0.1)
    assert max(map(abs, draws)) <= 0.06 + 1e-12
    silent = dataclasses.replace(RTX5090, speed=dataclasses.replace(RTX5090.speed, noise=0.0))
    assert noise_factor(silent, cell, "run") == 1


def test_start_takes_longer_with_graphs() -> None:
    assert start_seconds(RTX5090, Cell(0, 8192, False, 0.9)) == 53
    assert start_seconds(RTX5090, Cell(0, 8192, True, 0.9)) == 65
