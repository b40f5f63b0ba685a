"""Launches of measured cells again: replicates, and the reference cell."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_under_test import (
    SMALL,
    Memory,
    World,
    boundary,
    drive,
    interrupted,
    learned,
    refused,
    several_at_once,
    told,
    works,
)

from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Purpose, Status
from vllm_frontier.search import Ask, Exhaustive, Repeated, Search, create_search, infer
from vllm_frontier.spec import WorkloadSpec

CELLS = tuple(Cell(depth, 8192, True, 0.9) for depth in range(12))
MEMORY = Memory()
Made = Sequence[tuple[Ask, Outcome]]


def repeated(
    search: Search | None = None,
    cells: Iterable[Cell] = CELLS,
    *,
    max_launches: int | None = None,
    retries: int = 1,
    seed: int = 0,
    **workload: Any,
) -> Repeated:
    """Every cell, and what comes on top."""
    inner = search or Exhaustive(tuple(cells), retries=retries)
    return Repeated(
        inner,
        tuple(cells),
        WorkloadSpec(**workload),
        seed=seed,
        retries=retries,
        max_launches=max_launches,
    )


def on_small(**workload: Any) -> Repeated:
    return repeated(boundary(), SMALL.cells(), **workload)


def of(made: Made, *purposes: Purpose) -> list[Cell]:
    return [ask.cell for ask, _ in made if ask.purpose in purposes]


def own(made: Made) -> list[tuple[Ask, Outcome]]:
    """What the search itself launched."""
    return [each for each in made if not each[0].purpose.repeats]


def measured(made: Made) -> Counter[Cell]:
    return Counter(ask.cell for ask, outcome in made if outcome.speed is not None)


def fails(
    cell: Cell, purpose: Purpose, times: int = 99, why: FailureClass = FailureClass.KILLED
) -> World:
    """Everything works, but for some launches of a cell."""
    seen: Counter[Cell] = Counter()

    def world(ask: Ask) -> Outcome:
        if ask.cell == cell and ask.purpose is purpose:
            seen[cell] += 1
            if seen[cell] <= times:
                return refused(why, ask, phase=Phase.LOAD)
        return works(ask)

    return world


# The reference cell


def test_the_first_cell_is_launched_again_in_the_middle_and_at_the_end() -> None:
    made = drive(repeated(), works)
    assert own(made) == drive(Exhaustive(CELLS), works)
    assert [at for at, (ask, _) in enumerate(made) if ask.purpose is Purpose.REFERENCE] == [6, 13]
    assert of(made, Purpose.REFERENCE) == [CELLS[0]] * 2
    assert all(ask.with_speed for ask, _ in made)
    assert of(made, Purpose.REPLICATE) == []


def test_without_a_reference_and_replicates_it_is_the_search_itself() -> None:
    made = drive(repeated(reference=False), works)
    assert made == drive(Exhaustive(CELLS), works)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_tiny_sweep_needs_none(count: int) -> None:
    assert len(drive(repeated(cells=CELLS[:count]), works)) == count


def test_six_launches_are_enough() -> None:
    made = drive(repeated(cells=CELLS[:6]), works)
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
    made = drive(repeated(replicates=2, cells=CELLS[:1]), works)
    assert [ask.purpose for ask, _ in made] == [Purpose.PROOF, Purpose.REPLICATE]


def test_a_reference_cell_that_stops_working_is_followed_by_the_next() -> None:
    made = drive(repeated(), fails(CELLS[0], Purpose.REFERENCE, why=FailureClass.OOM_LOAD))
    assert of(made, Purpose.REFERENCE) == [CELLS[0], CELLS[1], CELLS[1]]


@pytest.mark.parametrize("retries", [0, 2])
def test_a_reference_launch_that_fails_is_tried_again_and_given_up(retries: int) -> None:
    world = fails(CELLS[0], Purpose.REFERENCE)
    made = drive(repeated(retries=retries), world)
    assert of(made, Purpose.REFERENCE) == [CELLS[0]] * 2 * (1 + retries)
    once = drive(repeated(retries=1), fails(CELLS[0], Purpose.REFERENCE, 1))
    assert of(once, Purpose.REFERENCE) == [CELLS[0]] * 3
    assert measured(once)[CELLS[0]] == 3


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
    search.tell(CELLS[0], works(Ask(CELLS[0], Purpose.SPEED)))
    search.tell(CELLS[0], works(Ask(CELLS[0], Purpose.SPEED_CHECK)))
    assert CELLS[0] not in of(drive(search, works), Purpose.REPLICATE)


def blocks(made: Made, size: int) -> list[list[Cell]]:
    cells = of(made, Purpose.REPLICATE)
    return [cells[at : at + size] for at in range(0, len(cells), size)]


def test_blocks_hold_every_cell_once_and_every_second_runs_backwards() -> None:
    made = drive(repeated(reference=False, replicates=5), works)
    found = blocks(made, len(CELLS))
    assert len(found) == 4
    assert all(sorted(map(str, block)) == sorted(map(str, CELLS)) for block in found)
    assert found[1] == found[0][::-1]
    assert found[3] == found[2][::-1]
    assert found[0] not in (list(CELLS), found[2], found[3])
    # A drift that goes on steadily hits all cells alike.
    for one, other in ((0, 1), (2, 3)):
        middle = {found[one].index(cell) + found[other].index(cell) for cell in CELLS}
        assert len(middle) == 1


def test_the_seed_draws_the_order_of_a_block() -> None:
    orders = [
        blocks(drive(repeated(reference=False, replicates=2, seed=seed), works), 12)[0]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_a_short_sweep_with_replicates_has_its_reference() -> None:
    made = drive(repeated(cells=CELLS[:2], replicates=2), works)
    assert [(ask.cell.depth, ask.purpose.value) for ask, _ in made] == [
        (0, "proof"),
        (1, "proof"),
        (0, "reference"),
        (1, "replicate"),
        (0, "reference"),
    ]


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_replicate_that_fails_is_tried_again_and_given_up(retries: int) -> None:
    broken = CELLS[4]
    search = repeated(retries=retries, replicates=3, reference=False)
    made = drive(search, fails(broken, Purpose.REPLICATE))
    assert of(made, Purpose.REPLICATE).count(broken) == 2 * (1 + retries)
    assert measured(made) == {cell: 1 if cell == broken else 3 for cell in CELLS}
    # The search has not heard of it: the cell has its answer.
    assert search.outlook.known == len(CELLS)
    # Within its block it is tried again when the others are done.
    block = of(made, Purpose.REPLICATE)[: len(CELLS) + retries]
    assert block[len(CELLS) :] == [broken] * retries


@pytest.mark.parametrize("why", [FailureClass.OOM_WARMUP, FailureClass.MODEL_CORRUPT])
def test_a_cell_that_stops_working_is_not_launched_further(why: FailureClass) -> None:
    broken = CELLS[4]
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


# Only what was told decides


def worlds() -> list[Callable[[Ask], Outcome]]:
    def hostile(ask: Ask) -> Outcome:
        draw = random.Random(f"{ask.cell} {ask.purpose}").random()
        if ask.purpose.repeats and draw < 0.3:
            return refused(FailureClass.KILLED, ask, phase=Phase.LOAD)
        if ask.purpose.repeats and draw < 0.4:
            return refused(FailureClass.OOM_LOAD, ask, phase=Phase.LOAD)
        return MEMORY(ask)

    return [MEMORY, hostile]


@pytest.mark.parametrize("world", worlds())
@pytest.mark.parametrize("replicates", [1, 3])
def test_every_prefix_goes_on_as_it_would_have(world: World, replicates: int) -> None:
    made = drive(on_small(replicates=replicates), world)
    for done in range(len(made) + 1):
        search = on_small(replicates=replicates)
        for ask, outcome in made[:done]:
            search.tell(ask.cell, outcome)
        if done == len(made):
            assert search.finished
            assert search.ask() is None
            continue
        following = made[done][0]
        search.tell(following.cell, interrupted(following))
        assert not search.finished
        assert search.ask() == following
    resumed = on_small(replicates=replicates)
    half = len(made) // 2
    for ask, outcome in made[:half]:
        resumed.tell(ask.cell, outcome)
    assert drive(resumed, world) == made[half:]


def test_more_replicates_of_a_sweep_that_ended_are_what_is_missing() -> None:
    made = drive(on_small(), MEMORY)
    search = on_small(replicates=2)
    for ask, outcome in made:
        search.tell(ask.cell, outcome)
    more = drive(search, MEMORY)
    assert {ask.purpose for ask, _ in more} <= {Purpose.REPLICATE, Purpose.REFERENCE}
    assert min(measured([*made, *more]).values()) == 2
    assert len(of(more, Purpose.REFERENCE)) == 1  # the end; the middle was


def test_looking_changes_nothing() -> None:
    looked, unseen = on_small(replicates=2), on_small(replicates=2)
    while (ask := unseen.ask()) is not None:
        assert not looked.finished
        assert looked.outlook == looked.outlook
        assert not looked.cut_short
        assert looked.ask() == ask
        for each in (looked, unseen):
            each.tell(ask.cell, MEMORY(ask))
    assert looked.finished


@settings(max_examples=12, deadline=None)
@given(
    width=st.integers(2, 4),
    seed=st.integers(0, 1 << 30),
    replicates=st.integers(1, 3),
    share=st.floats(0, 0.4),
)
def test_several_at_once_end_and_never_hold_a_cell_twice(
    width: int, seed: int, replicates: int, share: float
) -> None:
    draw = random.Random(seed)
    whys = list(FailureClass)

    def world(ask: Ask) -> Outcome:
        if draw.random() < 0.05:
            return interrupted(ask)
        if ask.purpose.repeats and draw.random() < share:
            return refused(draw.choice(whys), ask, phase=Phase.LOAD)
        return MEMORY(ask)

    search = on_small(replicates=replicates)
    made = several_at_once(search, world, width, draw)
    assert search.outlook.known == len(SMALL.cells())
    assert search.outlook.launches_left == 0
    ended = [each for each in made if each[1].status is not Status.INTERRUPTED]
    counts = measured(ended)
    answers = {
        ask.cell: outcome.status is Status.MEASURED
        for ask, outcome in ended
        if outcome.status is not Status.FAILED
    }
    gave_up = {ask.cell for ask, outcome in ended if outcome.status is Status.FAILED}
    for cell, count in counts.items():
        assert count >= replicates or cell in gave_up or not answers[cell]


def test_what_the_search_wants_waits_while_its_cell_is_out_for_drift() -> None:
    """It was told of no launch of the cell, and the reference is under way."""
    search = repeated(cells=CELLS[:7])
    for cell in CELLS[:4]:
        search.tell(cell, works(Ask(cell)))
    search = repeated(Wanting(Exhaustive(CELLS[:7]), CELLS[0]), CELLS[:7])
    for cell in CELLS[:4]:
        search.tell(cell, works(Ask(cell)))
    middle = search.ask()
    assert middle == Ask(CELLS[0], Purpose.REFERENCE)
    assert search.ask() is None
    assert not search.finished
    search.tell(CELLS[0], interrupted(middle))
    assert search.ask() == Ask(CELLS[0], Purpose.SPEED_CHECK)


class Wanting:
    """A search that wants a cell again before anything else."""

    def __init__(self, inner: Exhaustive, cell: Cell) -> None:
        self._inner = inner
        self._again: Ask | None = Ask(cell, Purpose.SPEED_CHECK)
        self.finished, self.cut_short = False, False
        self.tell = inner.tell

    @property
    def outlook(self) -> Any:
        return self._inner.outlook

    def ask(self) -> Ask | None:
        ask, self._again = self._again, None
        return ask or self._inner.ask()


# Budget and outlook


def test_the_budget_holds_for_all_launches() -> None:
    whole = drive(on_small(replicates=2), MEMORY)
    for budget in (0, 1, len(whole) // 2, len(whole) - 1):
        search = on_small(replicates=2, max_launches=budget)
        assert drive(search, MEMORY) == whole[:budget]
        assert search.cut_short
        assert search.finished
        assert search.outlook.launches_left == 0
    enough = on_small(replicates=2, max_launches=len(whole))
    assert drive(enough, MEMORY) == whole
    assert not enough.cut_short


def test_the_budget_counts_what_is_out() -> None:
    search = repeated(max_launches=2)
    first, second = search.ask(), search.ask()
    assert first is not None
    assert second is not None
    assert search.ask() is None
    assert search.outlook.launches_left == 2
    assert not search.finished
    search.tell(first.cell, works(first))
    search.tell(second.cell, works(second))
    assert search.finished


@pytest.mark.parametrize("replicates", [1, 3])
def test_the_outlook_is_that_of_the_whole(replicates: int) -> None:
    made = drive(repeated(replicates=replicates), works)
    search = repeated(replicates=replicates)
    for done, (ask, outcome) in enumerate(made):
        assert search.outlook.launches_left == pytest.approx(len(made) - done, abs=1)
        assert search.ask() == ask
        search.tell(ask.cell, outcome)
    assert search.outlook.launches_left == 0
    assert search.outlook.known == len(CELLS)


def test_the_outlook_of_few_launches_is_about_right() -> None:
    made = drive(on_small(replicates=2), MEMORY)
    search = on_small(replicates=2)
    for done, (ask, outcome) in enumerate(made):
        if done >= 4:
            assert abs(search.outlook.launches_left - (len(made) - done)) <= 10
        search.tell(ask.cell, outcome)


# What follows


def test_launches_again_tell_nothing_of_a_search_that_infers() -> None:
    """A sweep that launches every cell infers nothing, with replicates as well."""
    spec = compose_sweep("demo-cpu", ["search=exhaustive"]).spec
    cells = spec.grid.cells()
    easiest = [
        (cells[-1], works(Ask(cells[-1], purpose))) for purpose in Purpose if purpose.repeats
    ]
    assert infer(spec, easiest).inferences == ()
    checked = (cells[-1], works(Ask(cells[-1], Purpose.AUDIT)))
    assert infer(spec, [checked]).inferences != ()


def test_a_replicate_that_fails_gives_no_cell_up() -> None:
    spec = compose_sweep("demo-cpu").spec
    cell = spec.grid.cells()[0]
    hardest = max(spec.grid.cells(), key=lambda c: (c.depth, c.graphs, c.context, -c.utilization))
    launches = [(hardest, works(Ask(hardest)))]
    broken = refused(FailureClass.KILLED, Ask(cell, Purpose.REPLICATE), phase=Phase.LOAD)
    assert infer(spec, [*launches, *[(cell, broken)] * 5]) == infer(spec, launches)
    proof = replace(broken, purpose=Purpose.PROOF)
    assert infer(spec, [*launches, *[(cell, proof)] * 5]) != infer(spec, launches)


def test_the_configuration_decides() -> None:
    words = ["engine=simulated", "search=exhaustive"]
    spec = compose_sweep("demo-cpu", words).spec
    plain = drive(create_search(spec), works)
    assert Counter(ask.purpose for ask, _ in plain) == {Purpose.PROOF: 36, Purpose.REFERENCE: 2}
    spec = replace(spec, workload=replace(spec.workload, replicates=2, reference=False))
    assert Counter(ask.purpose for ask, _ in drive(create_search(spec), works)) == {
        Purpose.PROOF: 36,
        Purpose.REPLICATE: 36,
    }


def test_ten_thousand_cells_take_a_moment() -> None:
    cells = tuple(
        Cell(depth, 1024 * window, True, 0.9) for depth in range(10) for window in range(1, 301)
    )
    began = time.process_time()
    assert len(drive(repeated(cells=cells, replicates=2), works, limit=10**5)) == 2 * len(cells) + 1
    assert time.process_time() - began < 5
