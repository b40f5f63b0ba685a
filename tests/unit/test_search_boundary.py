"""The boundary search from outside: what it launches, in which order, and what it then knows."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_under_test import (
    CARD_GIB,
    SMALL,
    Memory,
    World,
    answers,
    at,
    boundary,
    drive,
    interrupted,
    refused,
    several_at_once,
    speed_of,
    told,
    works,
)

from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Axis, Cell, Grid
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Purpose, Speed, StartupFacts, Status
from vllm_frontier.rehearse import frontier_of
from vllm_frontier.search import Ask, Boundary, create_strategy, infer
from vllm_frontier.spec import SearchSpec

MEMORY = Memory()
CELLS = SMALL.cells()
GROUPS = {(cell.depth, cell.graphs) for cell in CELLS}
TRUTH = {cell: MEMORY.why(cell) is None for cell in CELLS}
memories = st.builds(
    Memory,
    weights=st.floats(8, 21),
    head=st.floats(0, 1.5),
    graphs=st.floats(0, 1.5),
    kv_per_1k=st.floats(0.02, 0.4),
    state_per_depth=st.floats(0, 0.3),
)


def known(search: Boundary, made: list[tuple[Ask, Outcome]]) -> dict[Cell, bool]:
    """What is known of every cell in the end."""
    own = {ask.cell: outcome.status is Status.MEASURED for ask, outcome in made}
    return dict(answers(search.knowledge())) | own


def purposes(made: list[tuple[Ask, Outcome]], *wanted: Purpose) -> list[Cell]:
    return [ask.cell for ask, _ in made if ask.purpose in wanted]


# Determined by what it was told


def test_the_same_seed_asks_for_the_same() -> None:
    assert drive(boundary(seed=3), MEMORY) == drive(boundary(seed=3), MEMORY)


@pytest.mark.parametrize("verify", ["boundaries", "frontier"])
def test_a_search_that_goes_on_asks_for_what_it_would_have(verify: str) -> None:
    world: World = Memory(free=23.0, on_top=1.0)
    made = drive(boundary(verify=verify), world)
    for done in (1, 3, len(made) // 2, len(made) - 1, len(made)):
        search = boundary(verify=verify)
        for ask, outcome in made[:done]:
            search.tell(ask.cell, outcome)
        if done < len(made):
            # An attempt that was interrupted is no attempt at all.
            search.tell(made[done][0].cell, interrupted(made[done][0]))
        assert search.finished == (done == len(made))
        assert drive(search, world) == made[done:]


@pytest.mark.parametrize("seed", range(3))
def test_a_search_that_goes_on_after_failures_is_the_same(seed: int) -> None:
    def world_after(launches: int) -> World:
        """Every other launch breaks down, whoever asks for it."""
        number = iter(range(launches, 2000))

        def world(ask: Ask) -> Outcome:
            if random.Random(f"{seed} {next(number)}").random() < 0.5:
                return refused(FailureClass.ENGINE_CRASHED, ask, phase=Phase.LOAD)
            return MEMORY(ask)

        return world

    made = drive(boundary(retries=2), world_after(0))
    assert sum(outcome.status is Status.FAILED for _, outcome in made) > 5
    for done in range(2, len(made), 5):
        search = boundary(retries=2)
        for ask, outcome in made[:done]:
            search.tell(ask.cell, outcome)
        # Interrupted in the process that goes on, and in the one before.
        asked = search.ask() if done % 2 else made[done][0]
        assert asked is not None
        search.tell(asked.cell, interrupted(asked))
        assert drive(search, world_after(done)) == made[done:]


def test_what_is_asked_for_is_not_changed_by_looking() -> None:
    looked, unseen = boundary(), boundary()
    for _ in range(6):
        assert looked.finished == unseen.finished
        assert looked.outlook == looked.outlook
        ask = looked.ask()
        assert ask is not None
        assert ask == unseen.ask()
        for each in (looked, unseen):
            each.tell(ask.cell, MEMORY(ask))


@settings(max_examples=15, deadline=None)
@given(memory=memories, width=st.integers(2, 4), seed=st.integers(0, 1 << 30))
def test_several_launches_at_once_come_to_the_same_answers(
    memory: Memory, width: int, seed: int
) -> None:
    search = boundary(audit=1)
    made = several_at_once(search, memory, width, random.Random(seed))
    assert known(search, made) == {cell: memory.why(cell) is None for cell in CELLS}
    proofs = purposes(made, Purpose.PROOF, Purpose.AUDIT)
    assert len(set(proofs)) == len(proofs)


def test_what_is_out_counts_as_expected() -> None:
    search = boundary()
    first, second, third = search.ask(), search.ask(), search.ask()
    assert first is not None
    assert second is not None
    assert third is not None
    assert len({first.cell, second.cell, third.cell}) == 3
    assert not search.finished


# What it launches, and what it then knows


@settings(max_examples=15, deadline=None)
@given(memory=memories)
def test_every_answer_is_found_and_true(memory: Memory) -> None:
    search = boundary()
    made = drive(search, memory)
    assert known(search, made) == {cell: memory.why(cell) is None for cell in CELLS}
    assert len(made) < len(CELLS) / 2
    assert search.outlook.known == len(CELLS)
    assert search.outlook.launches_left == 0


def test_verify_all_launches_every_cell() -> None:
    made = drive(boundary(verify="all", audit=3), MEMORY)
    assert sorted(map(str, purposes(made, Purpose.PROOF))) == sorted(map(str, CELLS))
    assert purposes(made, Purpose.AUDIT) == []


def test_verify_frontier_proves_what_leads_with_no_more_launches() -> None:
    wide = Grid(tuple(range(6)), tuple(range(4096, 70000, 4096)), (False, True), (0.85, 0.9, 0.95))
    memory = Memory(kv_per_1k=0.11, head=1.1)
    made = drive(boundary(wide, verify="frontier"), memory)
    whole = drive(boundary(wide, verify="boundaries"), memory)
    count = len(purposes(made, Purpose.PROOF, Purpose.AUDIT))
    assert count <= len(purposes(whole, Purpose.PROOF, Purpose.AUDIT))


def test_nothing_works_and_everything_works() -> None:
    search = boundary()
    made = drive(search, Memory(weights=23.5))
    assert not any(known(search, made).values())
    assert len(made) <= 5
    search = boundary()
    made = drive(search, Memory(weights=1.0, kv_per_1k=0.01))
    assert all(known(search, made).values())
    assert len(purposes(made, Purpose.PROOF)) <= 5


def test_a_grid_of_one_cell() -> None:
    search = boundary(CELLS[:1])
    assert drive(search, MEMORY) == [(Ask(CELLS[0]), MEMORY(Ask(CELLS[0])))]
    assert search.knowledge().inferences == ()


def test_combinations_of_further_axes_are_searched_apart() -> None:
    grid = replace(SMALL, depth=(0, 1), extra=(Axis("kv_cache_dtype", ("auto", "fp8")),))

    def world(ask: Ask) -> Outcome:
        small = ask.cell.extra == (("kv_cache_dtype", "fp8"),)
        return replace(MEMORY, kv_per_1k=0.07 if small else 0.2)(ask)

    search = boundary(grid)
    made = drive(search, world)
    assert known(search, made) == {
        cell: world(Ask(cell)).status is Status.MEASURED for cell in grid.cells()
    }
    for inference in search.knowledge().inferences:
        assert inference.cell.extra == inference.evidence.extra


def test_launches_at_values_the_grid_lacks_are_told_as_well() -> None:
    search = boundary()
    hardest = Cell(9, 99999, True, 0.8)
    search.tell(hardest, works(Ask(hardest)))
    # What the launch of a harder cell proved with that share is not launched again; what it
    # says of speed is of no cell here.
    assert hardest not in {ask.cell for ask, _ in drive(search, MEMORY)}


def test_what_the_search_knows_is_what_is_inferred_of_its_outcomes() -> None:
    words = ["engine=simulated", "engine.card_file=tiny-8gib", "search=boundary"]
    spec = compose_sweep("rtx5090-qwen3.8-27b-nvfp4", words).spec
    search = create_strategy(spec)
    assert isinstance(search, Boundary)
    made = drive(search, Memory(weights=4.0, kv_per_1k=0.012))
    assert search.knowledge() == infer(spec, told(made))


# Budget and order


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_a_budget_ends_the_search(budget: int) -> None:
    search = boundary(max_launches=budget)
    made = drive(search, MEMORY)
    assert len(made) == budget
    assert made == drive(boundary(), MEMORY)[:budget]
    assert search.cut_short
    assert search.outlook.launches_left == 0
    assert search.outlook.known < len(CELLS)


def test_a_budget_counts_launches_that_are_out() -> None:
    search = boundary(max_launches=2)
    first, second = search.ask(), search.ask()
    assert first is not None
    assert second is not None
    assert search.ask() is None
    assert not search.finished
    search.tell(first.cell, MEMORY(first))
    assert search.ask() is None
    search.tell(second.cell, MEMORY(second))
    assert search.finished


def test_launches_made_before_do_not_count_in_the_budget_of_this_run() -> None:
    made = drive(boundary(), MEMORY)
    enough = boundary(max_launches=len(made))
    assert drive(enough, MEMORY) == made
    assert not enough.cut_short
    search = boundary(max_launches=2)
    for ask, outcome in made[:4]:
        search.tell(ask.cell, outcome)
    assert drive(search, MEMORY) == made[4:6]


def test_the_outlook_is_about_right() -> None:
    search, made = boundary(), drive(boundary(), MEMORY)
    for done, (ask, outcome) in enumerate(made):
        left = search.outlook.launches_left
        assert left > 0
        if done >= 3:
            assert abs(left - (len(made) - done)) <= 8
        search.ask()
        search.tell(ask.cell, outcome)
    assert search.outlook.launches_left == 0


def leading(memory: Memory) -> list[Cell]:
    """The frontier of the sweep that launches every cell."""
    return frontier_of(
        {cell: speed_of(cell).decode_tok_s for cell in CELLS if memory.why(cell) is None}
    )


@pytest.mark.parametrize(("verify", "budget"), [("all", 20), ("boundaries", 10), ("frontier", 10)])
def test_an_early_end_leaves_most_of_the_frontier(verify: str, budget: int) -> None:
    """A sixth of all launches, or two thirds of the few."""
    draw = random.Random(4)
    leads = found = best_found = 0
    for _ in range(8):
        memory = Memory(
            weights=draw.uniform(12, 17),
            head=draw.uniform(0, 1.5),
            graphs=draw.uniform(0, 1.5),
            kv_per_1k=draw.uniform(0.08, 0.3),
        )
        made = drive(boundary(verify=verify, max_launches=budget), memory)
        launched = {ask.cell for ask, outcome in made if outcome.status is Status.MEASURED}
        lead = leading(memory)
        leads += len(lead)
        found += len(launched & set(lead))
        best = max(lead, key=lambda cell: cell.context * speed_of(cell).decode_tok_s)
        best_found += best in launched
    assert leads >= 16
    assert found >= 0.7 * leads
    assert best_found >= 7


# Speed


def longest(group: tuple[int, bool]) -> int:
    return max(c.context for c in CELLS if (c.depth, c.graphs) == group and TRUTH[c])


def measured(made: list[tuple[Ask, Outcome]]) -> set[Cell]:
    return {ask.cell for ask, outcome in made if outcome.speed is not None}


def test_speed_is_measured_at_the_longest_window_and_checked_at_one_cell_more() -> None:
    made = drive(boundary(), MEMORY)
    cells = measured(made)
    for group in GROUPS:
        assert longest(group) in {c.context for c in cells if (c.depth, c.graphs) == group}
    assert len(cells) == len(GROUPS) + 1
    # In the launch that proves it, where there is one.
    again = set(purposes(made, Purpose.SPEED)) & set(purposes(made, Purpose.PROOF, Purpose.AUDIT))
    assert len(again) <= 2
    # Where the check is not part of an audit, it is a launch of its own.
    made = drive(boundary(audit=0), MEMORY)
    assert len(purposes(made, Purpose.SPEED_CHECK)) == 1
    assert len(measured(made)) == len(GROUPS) + 1


def test_measure_boundaries_measures_the_longest_window_of_every_share() -> None:
    cells = measured(drive(boundary(measure="boundaries", audit=0), MEMORY))
    for group in GROUPS:
        for share in SMALL.utilization:
            windows = [
                c.context
                for c in CELLS
                if (c.depth, c.graphs) == group and c.utilization == share and TRUTH[c]
            ]
            assert Cell(group[0], max(windows), group[1], share) in cells
    assert len(cells) == len(GROUPS) * len(SMALL.utilization)


def test_measure_all_measures_every_cell_that_works() -> None:
    assert measured(drive(boundary(measure="all"), MEMORY)) == {c for c in CELLS if TRUTH[c]}


def slower_with_length(by: float, spread: float) -> World:
    """Speed falls by a share from the shortest to the longest window; repeats differ."""

    def world(ask: Ask) -> Outcome:
        outcome = MEMORY(ask)
        if outcome.speed is None:
            return outcome
        figure = 100 * (1 - by * ask.cell.context / 65536)
        speed = Speed(figure, figure * (1 - spread), figure * (1 + spread))
        return replace(outcome, speed=speed)

    return world


@pytest.mark.parametrize(
    ("by", "spread", "everything"),
    [(0.6, 0.01, True), (0.1, 0.0, False), (0.6, 0.5, False)],
)
@pytest.mark.parametrize("audit", [0, 3])
def test_where_speed_depends_on_more_every_cell_is_measured(
    by: float, spread: float, everything: bool, audit: int
) -> None:
    cells = measured(drive(boundary(audit=audit), slower_with_length(by, spread)))
    assert (cells == {c for c in CELLS if TRUTH[c]}) == everything
    if not everything:
        assert len(cells) <= len(GROUPS) + 1


# Spot checks


@pytest.mark.parametrize("audit", [0, 1, 5])
def test_so_many_inferred_cells_are_launched_to_check(audit: int) -> None:
    search = boundary(audit=audit)
    audited = 0
    while (ask := search.ask()) is not None:
        if ask.purpose is Purpose.AUDIT:
            audited += 1
            assert ask.cell in answers(search.knowledge())
        search.tell(ask.cell, MEMORY(ask))
    assert audited == audit


def test_more_audits_than_cells_end() -> None:
    few = Grid((0,), (4096, 8192), (False,), (0.9,))
    made = drive(boundary(few, audit=50), MEMORY)
    assert len({ask.cell for ask, _ in made}) == 4


def test_a_seed_matters_only_for_spot_checks() -> None:
    first = drive(boundary(seed=0), MEMORY)
    count = [ask.purpose for ask, _ in first].index(Purpose.AUDIT)
    for seed in range(1, 5):
        other = drive(boundary(seed=seed), MEMORY)
        assert other[:count] == first[:count]
        assert other[count][0].purpose is Purpose.AUDIT


# Launches that fail


def failing(cells: set[Cell], why: FailureClass, times: int = 1 << 30) -> World:
    """The first so many launches of some cells fail."""
    left = dict.fromkeys(cells, times)

    def world(ask: Ask) -> Outcome:
        if left.get(ask.cell, 0) > 0:
            left[ask.cell] -= 1
            return refused(why, ask, phase=Phase.LOAD)
        return MEMORY(ask)

    return world


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_failed_cells_are_tried_again_last_and_at_most_retries_times(retries: int) -> None:
    first = boundary().ask()
    assert first is not None
    search = boundary(retries=retries)
    made = drive(search, failing({first.cell}, FailureClass.ENGINE_CRASHED))
    tries = [number for number, (ask, _) in enumerate(made) if ask.cell == first.cell]
    assert len(tries) == 1 + retries
    assert tries[0] == 0
    assert tries[1:] == list(range(len(made) - retries, len(made)))
    # What it was launched for stays the same.
    assert {made[number][0] for number in tries} == {first}
    result = known(search, made)
    assert first.cell not in answers(search.knowledge())
    assert {cell: result[cell] for cell in CELLS if cell != first.cell} == {
        cell: TRUTH[cell] for cell in CELLS if cell != first.cell
    }


def test_a_cell_that_recovers_has_its_answer() -> None:
    first = boundary().ask()
    assert first is not None
    search = boundary(retries=2)
    made = drive(search, failing({first.cell}, FailureClass.ENGINE_CRASHED, times=1))
    assert [outcome.status for ask, outcome in made if ask.cell == first.cell] == [
        Status.FAILED,
        MEMORY(first).status,
    ]
    assert known(search, made) == TRUTH


def test_a_refusal_that_stands_alone_is_launched_twice() -> None:
    hole = Cell(1, 8192, True, 0.9)
    search = boundary()
    search.tell(hole, refused(FailureClass.OOM_LOAD, Ask(hole), phase=Phase.LOAD))
    made = drive(search, failing({hole}, FailureClass.OOM_LOAD))
    second = [ask for ask, _ in made if ask.cell == hole]
    assert [(ask.purpose, ask.with_speed) for ask in second] == [(Purpose.AUDIT, False)]
    assert known(search, made) | {hole: False} == TRUTH | {hole: False}
    contradicted = [each for each in search.knowledge().contradictions if each.fails == hole]
    assert len(contradicted) == 1


def test_a_refusal_that_passes_leaves_no_trace() -> None:
    hole = Cell(1, 8192, True, 0.9)
    search = boundary()
    search.tell(hole, refused(FailureClass.OOM_LOAD, Ask(hole), phase=Phase.LOAD))
    made = drive(search, MEMORY)
    assert [ask.purpose for ask, _ in made if ask.cell == hole] == [Purpose.AUDIT]
    assert known(search, made) == TRUTH
    assert search.knowledge().contradictions == ()


def test_around_a_hole_cells_are_looked_at() -> None:
    """Everything with 8192 and graphs fails though memory would do."""

    def world(ask: Ask) -> Outcome:
        if ask.cell.context == 8192 and ask.cell.graphs:
            return refused(FailureClass.OOM_LOAD, ask, phase=Phase.LOAD)
        return MEMORY(ask)

    search = boundary()
    start = Cell(1, 8192, True, 0.9)
    search.tell(start, world(Ask(start)))
    made = drive(search, world)
    result = known(search, made)
    truth = {cell: world(Ask(cell)).status is Status.MEASURED for cell in CELLS}
    doubtful = {each.cell for each in search.knowledge().inferences if each.doubt is not None}
    assert {cell for cell in CELLS if result[cell] != truth[cell]} <= doubtful
    # The hole was followed along its line.
    launched = {ask.cell for ask, _ in made}
    found = {cell for cell in launched if cell.context == 8192 and cell.graphs}
    assert len(found) >= 6
    assert {each.fails for each in search.knowledge().contradictions} >= found - {start}


# Refusals of other kinds


def test_graphs_on_top_of_the_share() -> None:
    """With the largest share graphs run out of memory for any window."""
    memory = Memory(free=23.0, on_top=1.0)
    search = boundary()
    made = drive(search, memory)
    assert FailureClass.OOM_GRAPH_CAPTURE in {memory.why(ask.cell) for ask, _ in made}
    assert known(search, made) == {cell: memory.why(cell) is None for cell in CELLS}
    assert len(made) <= 30


@pytest.mark.parametrize(
    "memory", [Memory(free=21.7), Memory(longest=10000), Memory(free=21.0, longest=20000)]
)
def test_limits_that_vllm_names_save_launches(memory: Memory) -> None:
    def silent(ask: Ask) -> Outcome:
        outcome = memory(ask)
        facts = replace(outcome.facts, free_gib=None, model_context=None)
        return replace(outcome, facts=facts)

    grid = replace(SMALL, utilization=(0.8, 0.83, 0.86, 0.88, 0.9, 0.92, 0.94, 0.96))
    truth = {cell: memory.why(cell) is None for cell in grid.cells()}
    counts = []
    for world in (memory, silent):
        search = boundary(grid, audit=0)
        made = drive(search, world)
        assert known(search, made) == truth
        counts.append(len(made))
    assert counts[0] <= counts[1]
    assert counts[0] < 30


def test_a_named_limit_is_proven_by_the_first_cell_above_it() -> None:
    search = boundary(audit=0)
    top = Cell(0, 4096, False, 0.95)
    facts = StartupFacts(free_gib=0.88 * CARD_GIB)
    search.tell(top, refused(FailureClass.UTILIZATION_ABOVE_FREE, Ask(top), facts=facts))
    ask = search.ask()
    assert ask is not None
    assert ask.cell.utilization == 0.9
    search.tell(ask.cell, refused(FailureClass.UTILIZATION_ABOVE_FREE, ask, facts=facts))
    found = answers(search.knowledge())
    assert all(
        found[c] is False for c in CELLS if c.utilization >= 0.9 and c not in (top, ask.cell)
    )
    following = search.ask()
    assert following is not None
    assert following.cell.utilization == 0.85


@pytest.mark.parametrize(
    "why", [FailureClass.SPEC_UNSUPPORTED, FailureClass.OOM_LOAD, FailureClass.OOM_PROFILE]
)
def test_what_a_refusal_depends_on_is_found_with_few_launches(why: FailureClass) -> None:
    """With any head it is refused: that is known after a few launches, not after one a cell."""

    def world(ask: Ask) -> Outcome:
        if ask.cell.depth:
            return refused(why, ask, phase=Phase.LOAD)
        return MEMORY(ask)

    search = boundary()
    made = drive(search, world)
    assert known(search, made) == {c: TRUTH[c] and not c.depth for c in CELLS}
    assert len(made) <= 20


def test_a_model_that_is_missing_takes_few_launches() -> None:
    def world(ask: Ask) -> Outcome:
        return refused(FailureClass.MODEL_UNAVAILABLE, ask, phase=Phase.CONFIGURE)

    search = boundary()
    made = drive(search, world)
    assert not any(known(search, made).values())
    assert len(made) <= 10


def test_speeds_of_the_driver_depend_on_the_group_only() -> None:
    """The worlds here are what the search presumes; otherwise the tests above say nothing."""
    cell = Cell(2, 8192, True, 0.9)
    assert speed_of(cell) == speed_of(at(cell, context=65536, utilization=0.95))
    assert speed_of(cell).decode_tok_s > speed_of(at(cell, depth=1)).decode_tok_s
    assert SearchSpec().verify == "boundaries"
