"""Launches of measured cells again: replicates, and the reference cell."""

import pytest
from search_under_test import (
    MANY,
    SMALL,
    Made,
    Memory,
    World,
    boundary,
    drive,
    fails,
    learned,
    measured,
    of,
    on_small,
    own,
    refused,
    repeated,
    told,
    works,
)

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Purpose
from vllm_frontier.search import Ask, Exhaustive

MEMORY = Memory()

# The reference cell


def test_the_first_cell_is_launched_again_in_the_middle_and_at_the_end() -> None:
    made = drive(repeated(), works)
    assert own(made) == drive(Exhaustive(MANY), works)
    assert [at for at, (ask, _) in enumerate(made) if ask.purpose is Purpose.REFERENCE] == [6, 13]
    assert of(made, Purpose.REFERENCE) == [MANY[0]] * 2
    assert all(ask.with_speed for ask, _ in made)
    assert of(made, Purpose.REPLICATE) == []


def test_without_a_reference_and_replicates_it_is_the_search_itself() -> None:
    made = drive(repeated(reference=False), works)
    assert made == drive(Exhaustive(MANY), works)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_tiny_sweep_needs_none(count: int) -> None:
    assert len(drive(repeated(cells=MANY[:count]), works)) == count


def test_six_launches_are_enough() -> None:
    made = drive(repeated(cells=MANY[:6]), works)
    assert [at for at, (ask, _) in enumerate(made) if ask.purpose is Purpose.REFERENCE] == [4, 7]


def test_what_has_no_speed_does_not_count() -> None:
    """Twelve launches of which four are measured."""

    def world(ask: Ask) -> Outcome:
        return works(ask) if ask.cell.depth % 3 == 0 else refused(ask=ask)

    assert of(drive(repeated(), world), Purpose.REFERENCE) == []


def test_the_search_with_few_launches_has_a_reference_cell_too() -> None:
    made = drive(on_small(), MEMORY)
    plain = drive(boundary(), MEMORY)
    assert own(made) == plain
    first = next(ask.cell for ask, outcome in plain if outcome.speed is not None)
    places = [at for at, (ask, _) in enumerate(made) if ask.purpose is Purpose.REFERENCE]
    assert [made[at][0].cell for at in places] == [first] * 2
    assert len(made) / 3 < places[0] < 2 * len(made) / 3
    assert places[1] == len(made) - 1


def test_the_last_launch_may_be_that_of_the_reference_cell() -> None:
    """Its end is one then, and no other is made."""
    made = drive(repeated(replicates=2, cells=MANY[:1]), works)
    assert [ask.purpose for ask, _ in made] == [Purpose.PROOF, Purpose.REPLICATE]


def test_a_reference_cell_that_stops_working_is_followed_by_the_next() -> None:
    made = drive(repeated(), fails(MANY[0], Purpose.REFERENCE, why=FailureClass.OOM_LOAD))
    assert of(made, Purpose.REFERENCE) == [MANY[0], MANY[1], MANY[1]]


@pytest.mark.parametrize("retries", [0, 2])
def test_a_reference_launch_that_fails_is_tried_again_and_given_up(retries: int) -> None:
    world = fails(MANY[0], Purpose.REFERENCE)
    made = drive(repeated(retries=retries), world)
    assert of(made, Purpose.REFERENCE) == [MANY[0]] * 2 * (1 + retries)
    once = drive(repeated(retries=1), fails(MANY[0], Purpose.REFERENCE, 1))
    assert of(once, Purpose.REFERENCE) == [MANY[0]] * 3
    assert measured(once)[MANY[0]] == 3


# Replicates


@pytest.mark.parametrize("replicates", [2, 3, 4])
def test_every_measured_cell_has_so_many_launches(replicates: int) -> None:
    made = drive(on_small(replicates=replicates), MEMORY)
    plain = drive(boundary(), MEMORY)
    assert own(made) == plain
    counts = measured(made)
    assert set(counts) == set(measured(plain))
    reference = of(made, Purpose.REFERENCE)
    assert len(reference) == 2
    rest = {cell: count for cell, count in counts.items() if cell != reference[0]}
    assert set(rest.values()) == {replicates}
    assert replicates <= counts[reference[0]] <= replicates + 2
    # They come last.
    first = next(at for at, (ask, _) in enumerate(made) if ask.purpose is Purpose.REPLICATE)
    assert all(ask.purpose.repeats for ask, _ in made[first:])


def test_launches_that_the_search_made_again_count() -> None:
    search = repeated(reference=False, replicates=2)
    search.tell(MANY[0], works(Ask(MANY[0], Purpose.SPEED)))
    search.tell(MANY[0], works(Ask(MANY[0], Purpose.SPEED_CHECK)))
    assert MANY[0] not in of(drive(search, works), Purpose.REPLICATE)


def blocks(made: Made, size: int) -> list[list[Cell]]:
    cells = of(made, Purpose.REPLICATE)
    return [cells[at : at + size] for at in range(0, len(cells), size)]


def test_blocks_hold_every_cell_once_and_every_second_runs_backwards() -> None:
    made = drive(repeated(reference=False, replicates=5), works)
    found = blocks(made, len(MANY))
    assert len(found) == 4
    assert all(sorted(map(str, block)) == sorted(map(str, MANY)) for block in found)
    assert found[1] == found[0][::-1]
    assert found[3] == found[2][::-1]
    assert found[0] not in (list(MANY), found[2], found[3])
    # A drift that goes on steadily hits all cells alike.
    for one, other in ((0, 1), (2, 3)):
        middle = {found[one].index(cell) + found[other].index(cell) for cell in MANY}
        assert len(middle) == 1


def test_the_seed_draws_the_order_of_a_block() -> None:
    orders = [
        blocks(drive(repeated(reference=False, replicates=2, seed=seed), works), 12)[0]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_a_short_sweep_with_replicates_has_its_reference() -> None:
    made = drive(repeated(cells=MANY[:2], replicates=2), works)
    assert [(ask.cell.depth, ask.purpose.value) for ask, _ in made] == [
        (0, "proof"),
        (1, "proof"),
        (0, "reference"),
        (1, "replicate"),
        (0, "reference"),
    ]


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_replicate_that_fails_is_tried_again_and_given_up(retries: int) -> None:
    broken = MANY[4]
    search = repeated(retries=retries, replicates=3, reference=False)
    made = drive(search, fails(broken, Purpose.REPLICATE))
    assert of(made, Purpose.REPLICATE).count(broken) == 2 * (1 + retries)
    assert measured(made) == {cell: 1 if cell == broken else 3 for cell in MANY}
    # The search has not heard of it: the cell has its answer.
    assert search.outlook.known == len(MANY)
    # Within its block it is tried again when the others are done.
    block = of(made, Purpose.REPLICATE)[: len(MANY) + retries]
    assert block[len(MANY) :] == [broken] * retries


@pytest.mark.parametrize("why", [FailureClass.OOM_WARMUP, FailureClass.MODEL_CORRUPT])
def test_a_cell_that_stops_working_is_not_launched_further(why: FailureClass) -> None:
    broken = MANY[4]
    made = drive(repeated(replicates=3, reference=False), fails(broken, Purpose.REPLICATE, why=why))
    assert of(made, Purpose.REPLICATE).count(broken) == 1
    # Unless it works again.
    search = repeated(replicates=3, reference=False)
    for ask, outcome in made:
        search.tell(ask.cell, outcome)
    assert search.finished
    search.tell(broken, works(Ask(broken, Purpose.AUDIT, with_speed=False)))
    assert [ask.cell for ask, _ in drive(search, works)] == [broken] * 2


def test_a_refusal_is_told_to_the_search_which_looks_again() -> None:
    made = drive(on_small(replicates=2), MEMORY)
    cell = of(made, Purpose.REPLICATE)[0]
    inner = boundary()
    again = drive(repeated(inner, SMALL.cells(), replicates=2), fails_in(MEMORY, cell))
    refusal = next(at for at, (ask, out) in enumerate(again) if ask.cell == cell and out.failure)
    assert again[:refusal] == made[:refusal]
    after = [ask for ask, _ in again[refusal + 1 :]]
    assert Ask(cell, Purpose.AUDIT, with_speed=False) in after
    assert of(again, Purpose.REPLICATE).count(cell) == 2  # it works again
    assert inner.knowledge() == learned(told(again))


def fails_in(world: World, cell: Cell) -> World:
    """A cell of which one replicate is refused for memory."""
    refusals = [FailureClass.OOM_LOAD]

    def other(ask: Ask) -> Outcome:
        if ask.cell == cell and ask.purpose is Purpose.REPLICATE and refusals:
            refusals.clear()
            return refused(FailureClass.OOM_LOAD, ask, phase=Phase.LOAD)
        return world(ask)

    return other
