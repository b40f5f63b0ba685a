"""What a search would do if everything came as expected."""

import numpy as np
from search_under_test import CARD_GIB, SMALL, Memory, answers, drive, told

from vllm_frontier.memory import Figure, MemoryModel, MemoryPrior
from vllm_frontier.outcome import Purpose
from vllm_frontier.search import Boundary, Exhaustive, dry_run
from vllm_frontier.spec import SearchSpec

CELLS = SMALL.cells()
MEMORY = Memory()


def prior(memory: Memory) -> MemoryPrior:
    """Everything is known."""
    nothing = Figure(0.0, 0.0)
    return MemoryPrior(
        weights=Figure(memory.weights, 0.0),
        head=Figure(memory.head, 0.0),
        activation=nothing,
        activation_per_depth=nothing,
        graphs=Figure(memory.graphs, 0.0),
        graphs_per_depth=nothing,
        overhead=nothing,
        kv_per_1k=Figure(memory.kv_per_1k, 0.0),
        head_kv_per_1k=nothing,
        state=nothing,
        state_per_depth=Figure(memory.state_per_depth, 0.0),
        basis="the truth",
    )


def searching(memory: Memory, audit: int = 3) -> Boundary:
    spec = SearchSpec(strategy="boundary", audit=audit)
    return Boundary(CELLS, spec, card_gib=CARD_GIB, retries=1, prior=prior(memory))


def test_it_is_the_search_on_a_card_as_expected() -> None:
    model = MemoryModel(CARD_GIB, prior(MEMORY))
    before = model.margins(CELLS)
    search = searching(MEMORY)
    asked = dry_run(search, model)
    assert search.finished
    assert np.array_equal(before, model.margins(CELLS))  # it was not taught
    assert [ask for ask, _ in drive(searching(MEMORY), MEMORY)] == asked
    for cell, working in answers(search.knowledge()).items():
        assert working == (MEMORY.why(cell) is None)


def test_a_prior_saves_launches() -> None:
    knowing = drive(searching(MEMORY), MEMORY)
    spec = SearchSpec(strategy="boundary")
    unknowing = drive(Boundary(CELLS, spec, card_gib=CARD_GIB), MEMORY)
    proofs = [sum(ask.purpose is Purpose.PROOF for ask, _ in made) for made in (knowing, unknowing)]
    assert proofs[0] <= proofs[1]


def test_what_was_told_is_left_out() -> None:
    made = drive(searching(MEMORY), MEMORY)
    model = MemoryModel(CARD_GIB, prior(MEMORY))
    for done in (3, len(made) - 2, len(made)):
        rest = dry_run(searching(MEMORY), model, told(made[:done]))
        assert rest == [ask for ask, _ in made[done:]]


def test_a_wrong_expectation_is_no_loss_of_truth() -> None:
    for expected in (Memory(weights=20.0), Memory(kv_per_1k=0.02), Memory(weights=6.0, graphs=4.0)):
        search = searching(expected)
        made = drive(search, MEMORY)
        found = dict(answers(search.knowledge()))
        found |= {ask.cell: outcome.failure is None for ask, outcome in made}
        assert found == {cell: MEMORY.why(cell) is None for cell in CELLS}
        assert len(made) <= 40


def test_a_hopeless_model_and_a_roomy_one_are_short() -> None:
    for memory in (Memory(weights=30.0), Memory(weights=2.0, kv_per_1k=0.01)):
        asked = dry_run(searching(memory, audit=0), MemoryModel(CARD_GIB, prior(memory)))
        assert sum(ask.purpose is Purpose.PROOF for ask in asked) <= 4


def test_a_search_that_launches_everything_is_run_dry_as_well() -> None:
    asked = dry_run(Exhaustive(CELLS), MemoryModel(CARD_GIB))
    assert [ask.cell for ask in asked] == list(CELLS)
