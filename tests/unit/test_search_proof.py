"""What launches prove: how far an answer reaches by its kind, and what stays in doubt."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_under_test import (
    CARD_GIB,
    SMALL,
    Memory,
    answers,
    asks_no_less,
    at,
    interrupted,
    learned,
    proofs,
    refused,
    works,
)

from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Axis, Cell, Grid
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Status
from vllm_frontier.search import Ask, Contradiction, infer
from vllm_frontier.search.lattice import Lattice
from vllm_frontier.search.proof import (
    DISAGREEMENT,
    ELSEWHERE,
    MONOTONY,
    NEXT_TO_IT,
    NOT_ARITHMETIC,
    Evidence,
    Proofs,
    holds_for,
    speaks_for,
)

MIDDLE = Cell(1, 16384, True, 0.9)
KV = {FailureClass.KV_TOO_SMALL, FailureClass.KV_NONE, FailureClass.STATE_SLOTS_TOO_FEW}
BESIDE = {FailureClass.OOM_GRAPH_CAPTURE, FailureClass.OOM_WARMUP, FailureClass.OOM_SERVE}
FIRM = {*KV, FailureClass.UTILIZATION_ABOVE_FREE, FailureClass.CONTEXT_EXCEEDS_MODEL}
FINAL = [each for each in FailureClass if each.status is not Status.FAILED]
OTHERS = [each for each in FINAL if each not in FIRM | BESIDE]
EXTRA = Axis("kv_cache_dtype", ("auto", "fp8"))
WITH_EXTRA = Grid((0, 1), (4096, 8192), (False, True), (0.85, 0.9), (EXTRA,))


def kind(name: str) -> tuple[tuple[str, str], ...]:
    return (("kv_cache_dtype", name),)


def reaches(why: FailureClass, one: Cell, other: Cell) -> bool:
    """As the kinds of refusals are described, for a single pair of cells."""
    if why is FailureClass.UTILIZATION_ABOVE_FREE:
        return other.utilization >= one.utilization
    longer = other.extra == one.extra and other.context >= one.context
    if why is FailureClass.CONTEXT_EXCEEDS_MODEL:
        return longer
    harder = longer and other.depth >= one.depth and other.graphs >= one.graphs
    if why in KV:
        return harder and other.utilization <= one.utilization
    if why in BESIDE:
        return harder and other.utilization >= one.utilization
    return harder


# How far a refusal reaches


@pytest.mark.parametrize("why", FINAL)
def test_a_refusal_speaks_for_what_its_kind_says(why: FailureClass) -> None:
    lattice = Lattice(SMALL.cells())
    for cell in (MIDDLE, at(MIDDLE, depth=0, graphs=False, context=12000, utilization=0.87)):
        evidence = Evidence(cell, why, Phase.LOAD)
        scope = set(lattice.chosen(speaks_for(evidence, lattice.points) & lattice.exists))
        assert scope == {other for other in SMALL.cells() if reaches(why, cell, other)}
        assert scope
        for other in SMALL.cells():
            assert holds_for(evidence, other) == (other in scope)


@pytest.mark.parametrize("why", FINAL)
def test_only_a_share_above_what_is_free_concerns_other_further_axes(why: FailureClass) -> None:
    refusal = Evidence(Cell(0, 4096, False, 0.85, kind("auto")), why, Phase.LOAD)
    other = Cell(1, 8192, True, 0.85, kind("fp8"))
    assert holds_for(refusal, at(other, extra=kind("auto")))
    assert holds_for(refusal, other) == (why is FailureClass.UTILIZATION_ABOVE_FREE)


@pytest.mark.parametrize("why", sorted(FIRM))
def test_arithmetic_proves_at_once_and_without_doubt(why: FailureClass) -> None:
    found = learned([(MIDDLE, refused(why))])
    assert answers(found) == {
        cell: False for cell in SMALL.cells() if cell != MIDDLE and reaches(why, MIDDLE, cell)
    }
    for each in found.inferences:
        assert (each.evidence, each.failure_class) == (MIDDLE, why)
        assert (each.phase, each.doubt) == (Phase.ALLOCATE_KV, None)


@pytest.mark.parametrize("why", [*sorted(BESIDE), *OTHERS])
def test_any_other_refusal_proves_nothing_alone(why: FailureClass) -> None:
    alone = proofs([(MIDDLE, refused(why))])
    assert alone.knowledge().inferences == ()
    assert alone.isolated() == [MIDDLE]
    # The same cell again is no second launch that agrees.
    assert learned([(MIDDLE, refused(why))] * 2).inferences == ()


@pytest.mark.parametrize("why", [*sorted(BESIDE), *OTHERS])
def test_a_second_refusal_confirms_the_first(why: FailureClass) -> None:
    harder = at(MIDDLE, depth=2)
    both = proofs([(MIDDLE, refused(why)), (harder, refused(why))])
    found = both.knowledge()
    assert answers(found) == {
        cell: False
        for cell in SMALL.cells()
        if cell not in (MIDDLE, harder) and reaches(why, MIDDLE, cell)
    }
    assert {each.doubt for each in found.inferences} == {NOT_ARITHMETIC}
    assert both.isolated() == []


@pytest.mark.parametrize("why", [*sorted(BESIDE), *OTHERS])
def test_a_refusal_for_another_reason_confirms_nothing(why: FailureClass) -> None:
    other = FailureClass.OOM_PROFILE if why is not FailureClass.OOM_PROFILE else OTHERS[0]
    found = learned([(MIDDLE, refused(why)), (at(MIDDLE, depth=2), refused(other))])
    assert found.inferences == ()


@pytest.mark.parametrize("why", sorted(BESIDE))
def test_what_lies_beside_the_share_is_confirmed_by_a_shorter_window(why: FailureClass) -> None:
    shorter = at(MIDDLE, context=4096)
    found = learned([(MIDDLE, refused(why)), (shorter, refused(why))])
    assert answers(found) == {
        cell: False
        for cell in SMALL.cells()
        if cell not in (MIDDLE, shorter) and reaches(why, MIDDLE, cell)
    } | {
        cell: False
        for cell in SMALL.cells()
        if cell not in (MIDDLE, shorter) and reaches(why, shorter, cell)
    }


def test_other_refusals_are_not_confirmed_by_an_easier_one() -> None:
    why = FailureClass.OOM_LOAD
    shorter = at(MIDDLE, context=4096)
    found = answers(learned([(MIDDLE, refused(why)), (shorter, refused(why))]))
    # The shorter one is: the longer one is as it leads to expect.
    assert found == {
        cell: False
        for cell in SMALL.cells()
        if cell not in (MIDDLE, shorter) and reaches(why, shorter, cell)
    }


@pytest.mark.parametrize("why", [FailureClass.OOM_LOAD, FailureClass.SPEC_UNSUPPORTED])
def test_a_working_launch_takes_a_confirmed_refusal_back(why: FailureClass) -> None:
    against = at(MIDDLE, depth=3, context=65536)
    outcomes = [(MIDDLE, refused(why)), (at(MIDDLE, depth=2), refused(why)), (against, works())]
    found = learned(outcomes)
    assert found.contradictions == (
        Contradiction(works=against, fails=MIDDLE),
        Contradiction(works=against, fails=at(MIDDLE, depth=2)),
    )
    assert all(each.works for each in found.inferences)


# How far a working launch reaches


def test_what_works_proves_what_asks_for_no_more_with_its_share() -> None:
    found = learned([(MIDDLE, works())])
    assert answers(found) == {
        cell: True
        for cell in SMALL.cells()
        if cell != MIDDLE and asks_no_less(MIDDLE, cell) and cell.utilization == 0.9
    }
    for each in found.inferences:
        assert (each.evidence, each.failure_class) == (MIDDLE, None)
        assert (each.phase, each.doubt) == (Phase.STOP, MONOTONY)


@pytest.mark.parametrize(
    ("other", "granted"),
    [
        # As large a share served as deep a head and such graphs, whatever its window.
        (Cell(1, 4096, True, 0.95), {(0, False), (0, True), (1, False), (1, True)}),
        (Cell(3, 4096, True, 0.95), {(0, False), (0, True), (1, False), (1, True)}),
        (Cell(1, 4096, False, 0.95), {(0, False), (1, False)}),
        (Cell(0, 4096, True, 0.95), {(0, False), (0, True)}),
        (Cell(0, 4096, False, 0.95), {(0, False)}),
        (Cell(3, 65536, True, 0.85), set()),
    ],
)
def test_a_larger_share_is_proven_only_where_it_served(
    other: Cell, granted: set[tuple[int, bool]]
) -> None:
    found = answers(learned([(MIDDLE, works()), (other, works())]))
    for cell in SMALL.cells():
        if cell.utilization == 0.95 and cell.context == MIDDLE.context:
            proven = (cell.depth, cell.graphs) in granted
            assert found.get(cell) is (True if proven else None), cell.label()


# Disagreement, failures, and what a grid lacks


def test_cells_between_a_refusal_and_a_harder_one_that_works_are_disputed() -> None:
    low, high = at(MIDDLE, context=8192), at(MIDDLE, context=65536)
    told = proofs([(low, refused()), (high, works())])
    found = told.knowledge()
    assert found.contradictions == (Contradiction(works=high, fails=low),)
    assert set(told.lattice.chosen(told.disputed)) == {
        at(MIDDLE, context=16384),
        at(MIDDLE, context=32768),
    }
    doubts = {each.cell: (each.works, each.doubt) for each in found.inferences}
    # Each is given the answer of the launch that is nearer.
    assert doubts[at(MIDDLE, context=16384)] == (False, DISAGREEMENT)
    assert doubts[at(MIDDLE, context=32768)] == (True, DISAGREEMENT)
    # Shorter windows work, and no arithmetic is firm that one launch did not keep to.
    assert doubts[at(MIDDLE, context=4096)] == (True, NEXT_TO_IT)
    assert doubts[at(MIDDLE, context=4096, graphs=False)] == (True, MONOTONY)
    assert doubts[at(MIDDLE, depth=2)] == (False, DISAGREEMENT)


def test_a_kind_of_refusal_that_was_contradicted_is_nowhere_firm() -> None:
    low, high = at(MIDDLE, context=8192), at(MIDDLE, context=65536)
    elsewhere = Cell(3, 4096, True, 0.85)
    free = Cell(0, 4096, False, 0.95)
    found = learned(
        [
            (low, refused()),
            (high, works()),
            (elsewhere, refused()),
            (free, refused(FailureClass.UTILIZATION_ABOVE_FREE)),
        ]
    )
    doubts = {each.cell: each.doubt for each in found.inferences}
    assert doubts[at(elsewhere, context=8192)] == ELSEWHERE
    assert doubts[at(free, context=65536)] is None


def test_the_nearest_working_launch_is_named_in_a_contradiction() -> None:
    low, near, far = (at(MIDDLE, context=context) for context in (4096, 32768, 65536))
    found = learned([(low, refused()), (far, works()), (near, works())])
    assert found.contradictions == (Contradiction(works=near, fails=low),)


def test_own_launches_are_never_overruled() -> None:
    cells = [at(MIDDLE, context=context) for context in SMALL.context]
    outcomes = [(cell, works() if number % 2 else refused()) for number, cell in enumerate(cells)]
    proven = proofs(outcomes)
    for number, cell in enumerate(cells):
        assert bool(proven.works.flat[proven.lattice.at(cell)]) == bool(number % 2)
        assert bool(proven.refused.flat[proven.lattice.at(cell)]) != bool(number % 2)
    assert not set(answers(proven.knowledge())) & set(cells)


def test_the_last_answer_of_a_cell_counts() -> None:
    assert all(answers(learned([(MIDDLE, refused()), (MIDDLE, works())])).values())
    assert not any(answers(learned([(MIDDLE, works()), (MIDDLE, refused())])).values())


def test_a_cell_that_failed_for_good_is_never_inferred() -> None:
    crash = refused(FailureClass.ENGINE_CRASHED)
    easy = at(MIDDLE, context=4096)
    outcomes: list[tuple[Cell, Outcome]] = [(easy, crash), (MIDDLE, works()), (easy, crash)]
    assert easy not in answers(learned(outcomes, retries=1))
    assert answers(learned(outcomes, retries=2))[easy] is True
    given_up = proofs(outcomes, retries=1)
    assert not given_up.open.flat[given_up.lattice.at(easy)]
    # An answer after all counts.
    late = proofs([*outcomes, (easy, works())], retries=1)
    assert late.works.flat[late.lattice.at(easy)]
    # And a failure after an answer does not take it away.
    again = proofs([(easy, works()), (easy, crash), (easy, crash)], retries=1)
    assert again.works.flat[again.lattice.at(easy)]
    assert not again.given_up.any()


def test_failed_and_interrupted_launches_prove_nothing() -> None:
    for why in FailureClass:
        if why.status is Status.FAILED:
            assert learned([(MIDDLE, refused(why))]).inferences == ()
    assert learned([(MIDDLE, interrupted(Ask(MIDDLE)))] * 5).inferences == ()


def test_a_launch_at_values_that_the_grid_lacks_proves_cells_of_the_grid() -> None:
    odd = Cell(2, 20000, True, 0.9)
    found = answers(learned([(odd, works())]))
    assert found == {
        cell: True for cell in SMALL.cells() if asks_no_less(odd, cell) and cell.utilization == 0.9
    }
    assert len(found) == 3 * 3 * 2
    found = answers(learned([(odd, refused())]))
    assert found == {cell: False for cell in SMALL.cells() if asks_no_less(cell, odd)}
    assert len(found) == 2 * 2 * 1 * 2
    # A share between those of the grid: no larger one served, and no smaller one asks for less.
    assert learned([(at(odd, utilization=0.88), works())]).inferences == ()


def test_what_a_grid_leaves_out_is_not_inferred() -> None:
    grid = Grid(
        SMALL.depth,
        SMALL.context,
        SMALL.graphs,
        SMALL.utilization,
        exclude=((("depth", (2,)), ("graphs", (True,))), (("context", (8192,)),)),
    )
    hardest = Cell(3, 65536, True, 0.85)
    found = learned([(hardest, works())], grid)
    assert set(answers(found)) == {
        cell for cell in grid.cells() if cell != hardest and cell.utilization == 0.85
    }
    easiest = Cell(0, 4096, False, 0.95)
    found = learned([(easiest, refused())], grid)
    assert set(answers(found)) == set(grid.cells()) - {easiest}


def test_combinations_of_further_axes_prove_nothing_about_each_other() -> None:
    hard = Cell(1, 8192, True, 0.85, kind("fp8"))
    found = answers(learned([(hard, works())], WITH_EXTRA))
    assert {cell.extra for cell in found} == {kind("fp8")}
    easy = Cell(0, 4096, False, 0.9, kind("auto"))
    found = answers(learned([(hard, works()), (easy, refused())], WITH_EXTRA))
    assert {cell.extra for cell, working in found.items() if working} == {kind("fp8")}
    assert {cell.extra for cell, working in found.items() if not working} == {kind("auto")}
    assert learned([(hard, works()), (easy, refused())], WITH_EXTRA).contradictions == ()


# Worlds of which the truth is known

memories = st.builds(
    Memory,
    weights=st.floats(10, 22),
    head=st.floats(0, 2),
    graphs=st.floats(0, 2),
    kv_per_1k=st.floats(0.01, 0.6),
    state_per_depth=st.floats(0, 0.4),
    free=st.sampled_from([CARD_GIB, 0.92 * CARD_GIB, 0.87 * CARD_GIB]),
    on_top=st.floats(0, 2),
    longest=st.sampled_from([1 << 20, 20000]),
)


@settings(deadline=None)
@given(memory=memories, seed=st.integers(0, 1 << 30), count=st.integers(1, 12))
def test_what_follows_from_any_launches_is_true(memory: Memory, seed: int, count: int) -> None:
    launched = random.Random(seed).sample(SMALL.cells(), count)
    found = learned([(cell, memory(Ask(cell))) for cell in launched])
    assert found.contradictions == ()
    for each in found.inferences:
        assert each.works == (memory.why(each.cell) is None)
        assert each.evidence in launched
        assert each.cell not in launched
        assert (each.doubt is None) == (each.failure_class in FIRM)


@settings(deadline=None)
@given(
    memory=memories,
    seed=st.integers(0, 1 << 30),
    whys=st.lists(st.sampled_from([None, *FINAL]), min_size=1, max_size=8),
)
def test_the_order_of_launches_does_not_matter(
    memory: Memory, seed: int, whys: list[FailureClass | None]
) -> None:
    draw = random.Random(seed)
    cells = draw.sample(SMALL.cells(), 6 + len(whys))
    outcomes = [(cell, memory(Ask(cell))) for cell in cells[:6]]
    outcomes += [
        (cell, works() if why is None else refused(why))
        for cell, why in zip(cells[6:], whys, strict=True)
    ]
    one = proofs(outcomes)
    draw.shuffle(outcomes)
    other = proofs(outcomes)
    assert _told(one) == _told(other)
    assert {each.fails for each in one.contradictions} == {
        each.fails for each in other.contradictions
    }


def _told(found: Proofs) -> list[tuple[Cell, bool | None, bool]]:
    """What is said of each cell; a disputed one is given the answer of the nearest launch."""
    disputed = set(found.lattice.chosen(found.disputed))
    return [
        (each.cell, None if each.cell in disputed else each.works, each.doubt is None)
        for each in found.knowledge().inferences
    ]


# What a sweep makes of it


def test_only_a_search_for_boundaries_infers() -> None:
    words = ["engine=simulated", "grid.depth=[0,1]", "grid.context=[4096,8192]"]
    outcome = [(Cell(0, 8192, False, 0.9), works())]

    def count(*more: str) -> int:
        return len(infer(compose_sweep("demo-cpu", [*words, *more]).spec, outcome).inferences)

    assert count("search=exhaustive") == 0
    assert count("search=boundary", "search.verify=all") == 0
    # A sweep that was begun with inference keeps what was known.
    deep = Cell(1, 8192, False, 0.9)
    outcome.append((deep, works(Ask(deep, with_speed=False))))
    assert count("search=exhaustive", "grid.utilization=[0.9]") == 2
    outcome.pop()
    assert count("search=boundary", "grid.utilization=[0.9]") == 1
    crash = refused(FailureClass.ENGINE_CRASHED)
    spec = compose_sweep(
        "demo-cpu", [*words, "search=boundary", "grid.utilization=[0.9]", "schedule.retries=0"]
    ).spec
    assert infer(spec, [*outcome, (Cell(0, 4096, False, 0.9), crash)]).inferences == ()
