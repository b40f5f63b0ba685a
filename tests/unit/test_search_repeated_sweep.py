"""Measured cells again within a sweep: going on, several at once, budget, what follows."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_under_test import (
    MANY,
    SMALL,
    Memory,
    World,
    drive,
    interrupted,
    measured,
    of,
    on_small,
    refused,
    repeated,
    several_at_once,
    works,
)

from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Purpose, Status
from vllm_frontier.search import Ask, Exhaustive, create_search, infer

MEMORY = Memory()


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
    search = repeated(Wanting(Exhaustive(MANY[:7]), MANY[0]), MANY[:7])
    for cell in MANY[:4]:
        search.tell(cell, works(Ask(cell)))
    middle = search.ask()
    assert middle == Ask(MANY[0], Purpose.REFERENCE)
    assert search.ask() is None
    assert not search.finished
    search.tell(MANY[0], interrupted(middle))
    assert search.ask() == Ask(MANY[0], Purpose.SPEED_CHECK)


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
    assert search.outlook.known == len(MANY)


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
    assert time.process_time() - began < 15  # several times what it takes
