"""The ready sweep on the bundled RTX 5090: what is known of that card is what the search finds."""

import csv
from pathlib import Path

import pytest
from random_cards import least_launches

from vllm_frontier.config import compose_sweep
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Purpose
from vllm_frontier.rehearse import Rehearsal, frontier_of, rehearse, works_on

SWEEP = "rtx5090-qwen3.8-27b-nvfp4"
REFERENCE = Path(__file__).parents[1] / "unit/data/feasibility.csv"
CELLS = 448  # 7 depths, 8 windows, 2 graphs, 4 shares


def found_with(verify: str) -> Rehearsal:
    composed = compose_sweep(SWEEP, ["engine=simulated", f"search.verify={verify}"])
    assert composed.spec.search.strategy == "boundary"
    return rehearse(composed.spec, load_card(composed.spec.engine.card_file))


@pytest.fixture(scope="module")
def found() -> Rehearsal:
    return found_with("boundaries")


@pytest.mark.parametrize("depth", range(7))
def test_130000_without_graphs_up_to_depth_4(found: Rehearsal, depth: int) -> None:
    assert found.answers[Cell(depth, 130000, False, 0.93)] == (depth <= 4)


@pytest.mark.parametrize(("context", "expected"), [(100000, True), (110000, False)])
def test_100000_with_graphs_at_depth_4(found: Rehearsal, context: int, expected: bool) -> None:
    assert found.answers[Cell(4, context, True, 0.93)] is expected


def test_every_row_of_the_reference(found: Rehearsal) -> None:
    with REFERENCE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11
    for row in rows:
        cell = Cell(
            depth=int(row["depth"]),
            context=int(row["context"]),
            graphs=row["graphs"] == "true",
            utilization=0.93 if row["utilization"] == "raised" else float(row["utilization"]),
        )
        assert found.answers[cell] == (row["starts"] == "true"), cell.label()


def test_every_answer_is_the_cards_after_few_launches(found: Rehearsal) -> None:
    assert found.answers == {cell: works_on(outcome) for cell, outcome in found.truth.items()}
    assert len(found.answers) == CELLS
    assert found.wrong == found.inferred_wrong == []
    least = least_launches(found.answers)
    assert least <= found.count(Purpose.PROOF, Purpose.AUDIT) <= 1.5 * least + 6
    assert len(found.launches) <= CELLS / 8
    # What vLLM works out itself is firm, and nothing speaks against the others.
    assert 0 < len(found.firm) < len(found.knowledge.inferences)
    assert found.in_doubt == []


@pytest.mark.parametrize("verify", ["boundaries", "frontier"])
def test_its_frontier_is_that_of_launching_every_cell(verify: str) -> None:
    found = found_with(verify)
    every = {
        cell: outcome.speed.decode_tok_s
        for cell, outcome in found.truth.items()
        if outcome.speed is not None
    }
    assert found.frontier == frontier_of(every)
    assert found.frontier
