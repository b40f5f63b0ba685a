"""The rows of `benchmarks/boundary.py` on fewer cards: few launches, and nothing but the truth."""

import functools
import itertools
import operator
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cards import BROKEN, GRID, least_launches, monotone, run, sweep

from vllm_frontier.engine.simulated.card import Fault
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, Purpose, Status
from vllm_frontier.rehearse import Launched, Rehearsal, frontier_of, works_on
from vllm_frontier.rehearse import truth_of as truth_on
from vllm_frontier.spec import SearchSpec

CELLS = 672
SEED = 1
MONOTONE_CARDS = 10
BROKEN_CARDS = 2
# Of so few cards a median may lie a little off that of 200.
ROOM = 1.1


def launches(found: Rehearsal) -> int:
    """To learn what works, spot checks included."""
    return found.count(Purpose.PROOF, Purpose.AUDIT)


def truth_of(found: Rehearsal) -> dict[Cell, bool]:
    return {cell: works_on(outcome) for cell, outcome in found.truth.items()}


def true_frontier(found: Rehearsal) -> set[Cell]:
    """Of the sweep that launches and measures every cell."""
    every = {
        cell: outcome.speed.decode_tok_s
        for cell, outcome in found.truth.items()
        if outcome.speed is not None
    }
    return set(frontier_of(every))


def asks_no_less(one: Cell, other: Cell) -> bool:
    """Whether a cell asks for at least as much as another in every axis."""
    return (
        one.extra == other.extra
        and one.depth >= other.depth
        and one.context >= other.context
        and one.graphs >= other.graphs
        and one.utilization <= other.utilization
    )


def last_answers(found: Rehearsal) -> dict[Cell, Outcome]:
    """Of each launched cell the last outcome that says anything about it."""
    return {
        each.ask.cell: each.outcome
        for each in found.launches
        if each.outcome.status is not Status.FAILED
    }


# Cards on which memory alone decides


@pytest.fixture(scope="module")
def whole_maps() -> list[Rehearsal]:
    draw = random.Random(SEED)
    return [run(monotone(draw)) for _ in range(MONOTONE_CARDS)]


@pytest.fixture(scope="module")
def frontiers() -> list[Rehearsal]:
    draw = random.Random(SEED)
    return [run(monotone(draw), verify="frontier") for _ in range(MONOTONE_CARDS)]


def test_the_grid_is_that_of_the_benchmark() -> None:
    assert len(GRID.cells()) == CELLS


def test_answers_and_frontier_are_those_of_launching_every_cell(
    whole_maps: Sequence[Rehearsal],
) -> None:
    for found in whole_maps:
        truth = truth_of(found)
        assert 0 < sum(truth.values()) < CELLS
        assert found.answers == truth
        assert set(found.frontier) == true_frontier(found)
        assert found.wrong == found.inferred_wrong == []
        assert found.knowledge.contradictions == ()


def test_a_proven_frontier_is_that_of_launching_every_cell(frontiers: Sequence[Rehearsal]) -> None:
    for found in frontiers:
        assert set(found.frontier) == true_frontier(found)
        assert found.wrong == found.inferred_wrong == []


def test_launches_are_little_more_than_the_least(whole_maps: Sequence[Rehearsal]) -> None:
    least = [least_launches(truth_of(found)) for found in whole_maps]
    made = [launches(found) for found in whole_maps]
    assert all(one >= other for one, other in zip(made, least, strict=True))
    over = [one / other for one, other in zip(made, least, strict=True)]
    assert statistics.median(over) <= 1.3
    assert all(one <= 1.5 * other + 6 for one, other in zip(made, least, strict=True))


def test_launches_are_a_small_share_of_the_grid(
    whole_maps: Sequence[Rehearsal], frontiers: Sequence[Rehearsal]
) -> None:
    boundaries = [launches(found) / CELLS for found in whole_maps]
    frontier = [launches(found) / CELLS for found in frontiers]
    assert statistics.median(boundaries) <= 0.045 * ROOM
    assert statistics.median(frontier) <= 0.035 * ROOM
    assert max(frontier) <= 0.07
    assert statistics.median(frontier) <= statistics.median(boundaries)


def test_each_depth_with_and_without_graphs_is_measured_at_its_longest_window(
    whole_maps: Sequence[Rehearsal],
) -> None:
    for found in whole_maps:
        longest: dict[tuple[int, bool], int] = {}
        for cell, works in truth_of(found).items():
            if works:
                group = cell.depth, cell.graphs
                longest[group] = max(longest.get(group, 0), cell.context)
        measured: dict[tuple[int, bool], list[Cell]] = {}
        for each in found.launches:
            if each.outcome.speed is not None and not each.ask.purpose.repeats:
                cell = each.ask.cell
                measured.setdefault((cell.depth, cell.graphs), []).append(cell)
        assert {
            group: max(cell.context for cell in cells) for group, cells in measured.items()
        } == longest
        # One cell more shows that windows and shares do not matter.
        assert sum(len(cells) > 1 for cells in measured.values()) >= 1
        speeds = [each for each in found.launches if each.ask.purpose is Purpose.SPEED_CHECK]
        assert len(speeds) <= 1


def test_one_measured_cell_is_launched_again_in_the_middle_and_at_the_end(
    whole_maps: Sequence[Rehearsal],
) -> None:
    for found in whole_maps:
        speeds = [each for each in found.launches if each.outcome.speed is not None]
        again = [each for each in speeds if each.ask.purpose is Purpose.REFERENCE]
        assert {each.ask.cell for each in again} == {speeds[0].ask.cell}
        # At the end only where something was measured after the middle.
        assert len(again) in (1, 2)
        middle = found.launches.index(again[0]) / len(found.launches)
        assert 0.35 <= middle <= 0.65
        assert speeds[-1] is again[-1]
        assert found.count(Purpose.REPLICATE) == 0


def test_audits_are_three_inferred_cells(whole_maps: Sequence[Rehearsal]) -> None:
    for found in whole_maps:
        audits = [each for each in found.launches if each.ask.purpose is Purpose.AUDIT]
        assert len(audits) == 3
        # To learn what works, no cell is launched twice where launches agree.
        assert len({each.ask.cell for each in found.launches if _learns(each)}) == launches(found)


def _learns(launched: Launched) -> bool:
    return launched.ask.purpose in (Purpose.PROOF, Purpose.AUDIT)


# Cards on which more than memory decides


@pytest.fixture(scope="module", params=BROKEN)
def broken(request: pytest.FixtureRequest) -> list[Rehearsal]:
    draw = random.Random(f"{SEED} {request.param}")
    return [run(BROKEN[request.param](draw)) for _ in range(BROKEN_CARDS)]


def test_no_launched_cell_is_wrong(broken: Sequence[Rehearsal]) -> None:
    for found in broken:
        assert found.wrong == []


def test_every_inferred_mistake_is_among_the_uncertain(broken: Sequence[Rehearsal]) -> None:
    for found in broken:
        assert set(found.inferred_wrong) <= set(found.uncertain)


def test_every_cell_is_known_or_failed_for_good(broken: Sequence[Rehearsal]) -> None:
    for found in broken:
        failed = {each.ask.cell for each in found.launches if each.outcome.status is Status.FAILED}
        assert {cell for cell in found.truth if cell not in found.answers} <= failed
        for cell in failed - set(found.answers):
            assert not works_on(found.truth[cell])


def test_disagreement_is_told_of_every_refusal_below_a_working_cell(
    broken: Sequence[Rehearsal],
) -> None:
    for found in broken:
        answers = last_answers(found)
        works = [cell for cell, outcome in answers.items() if works_on(outcome)]
        told = {each.fails: each.works for each in found.knowledge.contradictions}
        for cell, outcome in answers.items():
            against = [
                other
                for other in works
                if asks_no_less(other, cell) and other.utilization == cell.utilization
            ]
            if not works_on(outcome) and against:
                assert cell in told, cell.label()
        for fails, working in told.items():
            assert not works_on(answers[fails])
            assert works_on(answers[working])
            assert working.context >= fails.context


def test_a_hole_that_is_met_is_launched_twice_and_told() -> None:
    draw = random.Random(f"{SEED} told")
    found = [run(BROKEN["hole"](draw)) for _ in range(4)]
    told = [each for each in found if each.knowledge.contradictions]
    assert told
    for each in told:
        for contradiction in each.knowledge.contradictions:
            ends = [
                one.outcome.failure
                for one in each.launches
                if one.ask.cell == contradiction.fails and one.outcome.failure is not None
            ]
            assert len(ends) == 2  # it may have passed
            assert FailureClass.KV_TOO_SMALL not in {end.failure_class for end in ends}


# The least that proves a map, counted another way


def brute_force(works: Mapping[Cell, bool]) -> int:
    """The size of the smallest set of launches from which every answer follows."""
    cells = list(works)
    settles = [
        sum(
            1 << number
            for number, other in enumerate(cells)
            if works[other] == works[cell]
            and (asks_no_less(cell, other) if works[cell] else asks_no_less(other, cell))
        )
        for cell in cells
    ]
    everything = (1 << len(cells)) - 1
    for size in range(len(cells) + 1):
        for chosen in itertools.combinations(settles, size):
            if functools.reduce(operator.or_, chosen, 0) == everything:
                return size
    raise AssertionError("launching every cell proves the map")


@settings(deadline=None, max_examples=40)
@given(
    shape=st.sampled_from([(2, 2, 2, 1), (2, 3, 1, 2), (1, 3, 2, 2), (3, 3, 1, 1), (1, 4, 1, 3)]),
    cost=st.tuples(*[st.integers(0, 4)] * 4),
    budget=st.integers(-2, 12),
)
def test_the_least_is_what_counting_all_ways_gives(
    shape: tuple[int, int, int, int], cost: tuple[int, int, int, int], budget: int
) -> None:
    cells = [
        Cell(depth, 1024 * (1 + window), bool(graphs), 0.9 - share / 10)
        for depth, window, graphs, share in itertools.product(*map(range, shape))
    ]
    works = {
        cell: sum(map(operator.mul, cost, place)) <= budget
        for cell, place in zip(cells, itertools.product(*map(range, shape)), strict=True)
    }
    assert least_launches(works) == brute_force(works)


def test_a_fault_while_measuring_makes_no_launch_without_speed_wrong() -> None:
    card = monotone(random.Random(4))
    fault = Fault(kind="error", at="measure", when={"depth": 4})
    found = run(replace(card, faults=(fault,)))
    assert any(each.outcome.status is Status.FAILED for each in found.launches)
    assert found.wrong == []


def test_a_passing_refusal_is_launched_again_also_where_every_cell_is() -> None:
    card = monotone(random.Random(4))
    truth = truth_on(sweep(card, SearchSpec()), card)
    working = [cell for cell, outcome in truth.items() if outcome.filled]
    axes = min(working, key=lambda cell: (cell.depth, cell.graphs, cell.context)).axes()
    fault = Fault(kind="oom", at="load", when=axes, times=1)
    found = run(replace(card, faults=(fault,)), verify="all", audit=0)
    assert found.wrong == []
    assert found.knowledge.contradictions == ()
