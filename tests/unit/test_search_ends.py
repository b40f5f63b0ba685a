"""Every search ends, whatever its launches come to, and never asks twice for what is out."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_under_test import SMALL, Memory, boundary, drive, interrupted, refused, works

from vllm_frontier.grid import Axis, Cell, Grid
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Purpose, Speed, StartupFacts, Status
from vllm_frontier.search import Ask, Boundary

MEMORY = Memory()
CELLS = SMALL.cells()
FAILED = [why for why in FailureClass if why.status is Status.FAILED]


def some_grid(draw: random.Random) -> tuple[Cell, ...]:
    grid = Grid(
        depth=tuple(draw.sample(range(5), draw.randint(1, 2))),
        context=tuple(draw.sample([8, 16, 24, 32, 48, 64], draw.randint(1, 4))),
        graphs=draw.choice([(False,), (True,), (False, True)]),
        utilization=tuple(draw.sample([0.5, 0.7, 0.9, 0.95], draw.randint(1, 3))),
        extra=(Axis("kv", ("a", "b")),) if draw.random() < 0.3 else (),
    )
    cells = grid.cells()
    if draw.random() < 0.3:
        return tuple(cell for cell in cells if draw.random() < 0.7) or cells
    return cells


def anything(ask: Ask, draw: random.Random, whys: list[FailureClass], share: float) -> Outcome:
    """Any outcome at all, and whatever a log may say of memory."""
    if draw.random() < 0.1:
        return interrupted(ask)
    if draw.random() < share:
        facts = StartupFacts(
            kv_available_gib=draw.uniform(-3, 10),
            kv_needed_gib=draw.uniform(0, 10),
            free_gib=draw.choice([None, 20.0]),
            model_context=draw.choice([None, None, 30]),
        )
        return refused(draw.choice(whys), ask, phase=Phase.LOAD, facts=facts)
    figure = draw.uniform(5, 100)
    speed = Speed(figure, figure * 0.95, figure * 1.05)
    return Outcome(
        Status.MEASURED,
        Phase.STOP,
        started=True,
        filled=True,
        facts=StartupFacts(kv_tokens=draw.choice([None, draw.randint(1, 200000)])),
        purpose=ask.purpose,
        with_speed=ask.with_speed,
        speed=speed if ask.with_speed and draw.random() < 0.9 else None,
    )


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_a_search_ends_whatever_comes(seed: int) -> None:
    draw = random.Random(seed)
    cells = some_grid(draw)
    retries = draw.randint(0, 2)
    words = ("all", "boundaries", "frontier")
    search = boundary(
        cells,
        retries=retries,
        verify=draw.choice(words),
        measure=draw.choice(words),
        audit=draw.randint(0, 5),
        seed=seed,
    )
    whys, share = draw.sample(list(FailureClass), draw.randint(1, 6)), 0.6 * draw.random()
    out: list[Ask] = []
    ended: Counter[Cell] = Counter()
    while True:
        ask = search.ask() if len(out) < draw.randint(1, 4) or not out else None
        if ask is not None:
            assert ask.cell in cells
            assert ask.cell not in {each.cell for each in out}
            out.append(ask)
        elif out:
            one = out.pop(draw.randrange(len(out)))
            outcome = anything(one, draw, whys, share)
            search.tell(one.cell, outcome)
            ended[one.cell] += outcome.status is not Status.INTERRUPTED
            assert ended[one.cell] <= 6 + retries
        else:
            break
        assert search.outlook.known <= len(cells)
        assert search.outlook.launches_left >= 0
    assert search.finished
    assert search.ask() is None
    inferred = {each.cell for each in search.knowledge().inferences}
    assert inferred <= set(cells)


def asked_of(search: Boundary, world: object) -> Counter[Cell]:
    assert callable(world)
    return Counter(ask.cell for ask, _ in drive(search, world))


@pytest.mark.parametrize("measure", ["frontier", "boundaries", "all"])
@pytest.mark.parametrize("why", [FailureClass.ENGINE_CRASHED, FailureClass.OOM_SERVE])
def test_speeds_that_can_never_be_measured(why: FailureClass, measure: str) -> None:
    """What works as long as no speed is measured."""

    def world(ask: Ask) -> Outcome:
        outcome = MEMORY(ask)
        if outcome.speed is None:
            return outcome
        return refused(why, ask, phase=Phase.MEASURE, facts=outcome.facts)

    asked = asked_of(boundary(measure=measure), world)
    assert max(asked.values()) <= 4
    assert sum(asked.values()) <= 2 * len(CELLS)
    if measure == "frontier":
        assert sum(asked.values()) <= len(CELLS)


def test_a_group_of_which_two_cells_could_not_be_measured_is_left() -> None:
    def world(ask: Ask) -> Outcome:
        if ask.with_speed and ask.cell.depth == 2 and MEMORY.why(ask.cell) is None:
            return refused(FailureClass.REQUEST_TIMEOUT, ask, phase=Phase.MEASURE)
        return MEMORY(ask)

    made = drive(boundary(retries=1), world)
    for graphs in (False, True):
        tried = Counter(
            ask.cell
            for ask, outcome in made
            if (ask.cell.depth, ask.cell.graphs) == (2, graphs) and outcome.status is Status.FAILED
        )
        assert len(tried) <= 2
        assert max(tried.values()) <= 2
    rest = {(a.cell.depth, a.cell.graphs) for a, outcome in made if outcome.speed is not None}
    assert rest == {(depth, graphs) for depth in (0, 1, 3) for graphs in (False, True)}


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("why", FAILED)
def test_when_every_launch_fails_each_cell_is_tried_and_no_more(
    why: FailureClass, retries: int
) -> None:
    few = CELLS[:12]
    search = boundary(few, retries=retries)
    asked = asked_of(search, lambda ask: refused(why, ask, phase=Phase.LOAD))
    assert asked == dict.fromkeys(few, 1 + retries)
    assert search.knowledge().inferences == ()


def test_a_relaunch_that_always_fails_is_given_up() -> None:
    """What works once, and never again."""
    seen: set[Cell] = set()

    def world(ask: Ask) -> Outcome:
        if ask.cell in seen:
            return refused(FailureClass.ENGINE_CRASHED, ask, phase=Phase.LOAD)
        seen.add(ask.cell)
        return MEMORY(ask)

    for measure in ("frontier", "all"):
        seen.clear()
        search = boundary(measure=measure, audit=5)
        asked = asked_of(search, world)
        assert max(asked.values()) <= 4
        # An answer stays one, though a later launch of the cell failed.
        assert search.outlook.known == len(CELLS)


def test_a_second_look_that_always_fails_ends() -> None:
    hole = Cell(1, 8192, True, 0.9)
    search = boundary(retries=1)
    search.tell(hole, refused(FailureClass.OOM_LOAD, Ask(hole), phase=Phase.LOAD))

    def world(ask: Ask) -> Outcome:
        if ask.cell == hole:
            return refused(FailureClass.ENGINE_CRASHED, ask, phase=Phase.LOAD)
        return MEMORY(ask)

    assert asked_of(search, world)[hole] <= 3


def test_spot_checks_that_fail_end() -> None:
    def world(ask: Ask) -> Outcome:
        if ask.purpose is Purpose.AUDIT:
            return refused(FailureClass.ENGINE_CRASHED, ask, phase=Phase.LOAD)
        return MEMORY(ask)

    made = drive(boundary(audit=3, retries=1), world)
    checks = Counter(ask.cell for ask, _ in made if ask.purpose is Purpose.AUDIT)
    assert 3 <= len(checks) <= 6
    assert set(checks.values()) == {2}


def test_answers_that_change_with_every_launch_end() -> None:
    turn: Counter[Cell] = Counter()

    def world(ask: Ask) -> Outcome:
        turn[ask.cell] += 1
        if (turn[ask.cell] + hash((ask.cell.depth, ask.cell.context))) % 2:
            return works(ask)
        return refused(FailureClass.OOM_PROFILE, ask, phase=Phase.PROFILE)

    for verify in ("boundaries", "frontier", "all"):
        turn.clear()
        asked = asked_of(boundary(CELLS[::3], verify=verify), world)
        assert max(asked.values()) <= 4


def test_interruptions_use_nothing_up() -> None:
    first = boundary(retries=0).ask()
    assert first is not None
    search = boundary(retries=0)
    for _ in range(20):
        assert search.ask() == first
        search.tell(first.cell, interrupted(first))
    assert not search.finished
    plain = drive(boundary(retries=0), MEMORY)
    assert drive(search, MEMORY) == plain


def test_a_sweep_that_ended_is_not_taken_up_again() -> None:
    made = drive(boundary(), MEMORY)
    search = boundary()
    for ask, outcome in made:
        search.tell(ask.cell, outcome)
    assert search.finished
    assert search.ask() is None
    # More spot checks are wanted of the same sweep: these only.
    more = boundary(audit=5)
    for ask, outcome in made:
        more.tell(ask.cell, outcome)
    assert [ask.purpose for ask, _ in drive(more, MEMORY)] == [Purpose.AUDIT] * 2
