"""What is launched after refusals that no expectation of memory explains, and to check."""

import numpy as np
import pytest
from search_under_test import CARD_GIB, SMALL, at, proofs, refused, speed_of, works

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, StartupFacts
from vllm_frontier.search.audit import around, least_certain, second_speed
from vllm_frontier.search.lattice import Lattice, Mask
from vllm_frontier.search.limits import Limits
from vllm_frontier.search.probes import next_probe
from vllm_frontier.search.speeds import Speeds

LATTICE = Lattice(SMALL.cells())
POINTS = LATTICE.points
OOM = FailureClass.OOM_GRAPH_CAPTURE
TOP = Cell(2, 32768, True, 0.95)
NONE = Limits(CARD_GIB)


def limits(**facts: float) -> Limits:
    known = Limits(CARD_GIB)
    hear(known, StartupFacts(**facts))  # type: ignore[arg-type]
    return known


def hear(known: Limits, facts: StartupFacts) -> None:
    """Of a launch that was refused."""
    known.observe(Cell(0, 4096, False, 0.85), facts, works=False)


# Limits that vLLM names


def test_without_a_word_there_is_no_limit() -> None:
    assert not NONE.exceeded(POINTS).any()
    assert NONE.exceeded(POINTS).dtype == bool


def test_shares_above_what_is_free_and_windows_above_the_models() -> None:
    known = limits(free_gib=0.9 * CARD_GIB, model_context=16384)
    above = LATTICE.nothing() | known.above_free(POINTS)
    assert {cell.utilization for cell in LATTICE.chosen(above)} == {0.95}
    longer = LATTICE.nothing() | known.above_model(POINTS)
    assert {cell.context for cell in LATTICE.chosen(longer)} == {32768, 65536}
    assert bool((known.exceeded(POINTS) == (above | longer)).all())


def test_of_what_is_free_the_last_word_counts_and_silence_changes_nothing() -> None:
    known = limits(free_gib=0.8 * CARD_GIB, model_context=8192)
    hear(known, StartupFacts())
    assert known.above_free(POINTS).all()
    hear(known, StartupFacts(free_gib=CARD_GIB))
    assert not known.above_free(POINTS).any()
    assert known.above_model(POINTS).any()


def test_a_log_rounds_what_is_free() -> None:
    # 21.6 of 24 GiB are wanted, and 21.595 are told as 21.6, or 21.59.
    assert {cell.utilization for cell in LATTICE.chosen(_above(limits(free_gib=21.59)))} == {0.95}
    assert {c.utilization for c in LATTICE.chosen(_above(limits(free_gib=21.58)))} == {0.9, 0.95}


def _above(known: Limits) -> Mask:
    return LATTICE.nothing() | known.above_free(POINTS)


def test_the_memory_that_vllm_sees_counts_not_that_of_the_configuration() -> None:
    assert not _above(limits(free_gib=22.0, device_gib=23.0)).any()
    assert _above(limits(free_gib=22.0, device_gib=26.0)).any()


def test_what_works_beyond_a_limit_shows_that_there_is_none() -> None:
    known = limits(free_gib=21.0, model_context=8192)
    known.observe(Cell(0, 4096, False, 0.85), StartupFacts(), works=True)
    assert known.above_free(POINTS).any()
    known.observe(Cell(0, 4096, False, 0.95), StartupFacts(), works=True)
    assert not known.above_free(POINTS).any()
    assert known.above_model(POINTS).any()
    known.observe(Cell(0, 16384, False, 0.85), StartupFacts(model_context=8192), works=True)
    assert not known.above_model(POINTS).any()


# Probes


def test_no_refusal_no_probe() -> None:
    assert next_probe(proofs([]), NONE) is None
    assert next_probe(proofs([(TOP, works())]), NONE) is None
    assert next_probe(proofs([(TOP, refused())]), NONE) is None


def test_the_first_share_above_what_is_free_then_the_first_window_above_the_models() -> None:
    known = limits(free_gib=21.0, model_context=8192)
    probe = next_probe(proofs([]), known)
    assert probe is not None
    assert probe.utilization == 0.9
    told = [(probe, refused(FailureClass.UTILIZATION_ABOVE_FREE))]
    window = next_probe(proofs(told), known)
    assert window is not None
    assert (window.context, window.utilization) == (16384, 0.85)
    told.append((window, refused(FailureClass.CONTEXT_EXCEEDS_MODEL)))
    rest = next_probe(proofs(told), known)
    # It holds for every window from there on, for any depth.
    assert rest is None


@pytest.mark.parametrize("why", [OOM, FailureClass.OOM_WARMUP, FailureClass.OOM_SERVE])
def test_memory_beside_the_share_is_tried_with_the_shortest_window_first(why: FailureClass) -> None:
    told = [(TOP, refused(why))]
    # Unconfirmed it is no lead yet.
    assert next_probe(proofs(told), NONE) is None
    told.append((at(TOP, depth=3), refused(why)))
    assert next_probe(proofs(told), NONE) in (at(TOP, depth=3, context=4096), at(TOP, context=4096))


def test_when_the_shortest_window_is_refused_too_a_lighter_one_is_tried() -> None:
    shortest = at(TOP, context=4096)
    told = [(TOP, refused(OOM)), (shortest, refused(OOM))]
    # Does anything work with this share at all?
    probe = next_probe(proofs(told), NONE)
    assert probe == Cell(0, 4096, False, 0.95)
    told.append((probe, works()))
    # How deep a head with such graphs?
    following = next_probe(proofs(told), NONE)
    assert following is not None
    assert (following.graphs, following.context, following.utilization) == (True, 4096, 0.95)
    assert following.depth < TOP.depth


def test_when_the_shortest_window_works_what_lies_between_is_halved() -> None:
    told = [
        (at(TOP, context=65536), refused(OOM)),
        (at(TOP, context=65536, depth=3), refused(OOM)),
        (at(TOP, context=4096, depth=3), works()),
    ]
    probe = next_probe(proofs(told), NONE)
    assert probe is not None
    assert probe.context in (8192, 16384, 32768)
    assert probe.utilization == 0.95


BY_RULE = [
    *(FailureClass.SPEC_UNSUPPORTED, FailureClass.INVALID_ARGUMENT),
    *(FailureClass.OOM_LOAD, FailureClass.OOM_PROFILE),
]


@pytest.mark.parametrize("why", BY_RULE)
def test_where_nothing_tells_on_what_a_refusal_depends_least_is_asked(why: FailureClass) -> None:
    easiest = Cell(0, 4096, False, 0.95)
    told = [(TOP, refused(why))]
    assert next_probe(proofs(told), NONE) == easiest
    # Everything is refused: nothing is left to find out.
    assert next_probe(proofs([*told, (easiest, refused(why))]), NONE) is None


@pytest.mark.parametrize("why", BY_RULE)
def test_then_one_setting_at_a_time_until_it_is_found(why: FailureClass) -> None:
    easiest = Cell(0, 4096, False, 0.95)
    told = [(TOP, refused(why)), (easiest, works())]
    graphs = at(easiest, graphs=True)
    assert next_probe(proofs(told), NONE) == graphs
    told.append((graphs, works()))
    depth = at(easiest, depth=TOP.depth)
    assert next_probe(proofs(told), NONE) == depth
    # It is the depth: what lies between is halved.
    found = next_probe(proofs([*told, (depth, refused(why))]), NONE)
    assert found == at(easiest, depth=1)
    # It is not: the window is left.
    told.append((depth, works()))
    assert next_probe(proofs(told), NONE) == at(easiest, context=TOP.context)


# Where launches disagree


def test_a_contradicted_refusal_is_launched_twice_and_then_looked_around() -> None:
    low, high = Cell(1, 8192, True, 0.9), Cell(1, 32768, True, 0.9)
    known = proofs([(low, refused()), (high, works())])
    assert around(known, {low: 1, high: 1}) == [low]
    near = around(known, {low: 2, high: 1})
    assert set(near) == {at(low, context=4096), at(low, context=16384), at(low, graphs=False),
                         at(low, depth=0)}  # fmt: skip
    # Nothing to look at where launches agree.
    assert around(proofs([(low, works()), (high, refused())]), {low: 1, high: 1}) == []


def test_a_refusal_that_stands_alone_is_launched_twice() -> None:
    hole = Cell(1, 8192, True, 0.9)
    known = proofs([(hole, refused(FailureClass.OOM_LOAD))])
    assert around(known, {hole: 1}) == [hole]
    assert around(known, {hole: 2}) == []
    assert around(proofs([(hole, refused())]), {hole: 1}) == []
    confirmed = [(hole, refused(FailureClass.OOM_LOAD)), (TOP, refused(FailureClass.OOM_LOAD))]
    assert around(proofs(confirmed), {hole: 1, TOP: 1}) == []


def test_a_refusal_at_values_the_grid_lacks_is_not_launched_again() -> None:
    odd = Cell(1, 9000, True, 0.9)
    assert around(proofs([(odd, refused(FailureClass.OOM_LOAD))]), {odd: 1}) == []
    assert around(proofs([(odd, refused()), (at(odd, context=65536), works())]), {odd: 1}) == []


# Spot checks


def flat(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return LATTICE.of([value] * len(SMALL.cells()))


def test_disputed_cells_are_checked_first() -> None:
    low, high = Cell(1, 4096, True, 0.9), Cell(1, 16384, True, 0.9)
    known = proofs([(low, refused()), (high, works())])
    for seed in range(5):
        cell = least_certain(known, LATTICE.nothing(), flat(1.0), flat(1.0), seed)
        assert cell == Cell(1, 8192, True, 0.9)


def test_leading_cells_and_those_close_to_a_boundary_are_checked_before_others() -> None:
    known = proofs([(Cell(3, 65536, True, 0.85), works())])
    lead = Cell(1, 8192, False, 0.85)
    cell = least_certain(known, LATTICE.mask(lead.__eq__), flat(50.0), flat(1.0), 0)
    assert cell == lead
    close = Cell(2, 8192, True, 0.85)
    mean = LATTICE.of([0.1 if each == close else 50.0 for each in SMALL.cells()])
    assert least_certain(known, LATTICE.nothing(), mean, flat(1.0), 0) == close


def test_the_seed_decides_among_equals_only() -> None:
    known = proofs([(Cell(3, 65536, True, 0.85), works())])
    drawn = [least_certain(known, LATTICE.nothing(), flat(9.0), flat(1.0), s) for s in range(12)]
    assert len(set(drawn)) > 3
    again = [least_certain(known, LATTICE.nothing(), flat(9.0), flat(1.0), s) for s in range(12)]
    assert drawn == again
    inferred = {each.cell for each in known.knowledge().inferences}
    assert set(drawn) <= inferred
    # All have no value in common with the launch: there every pair is new.
    assert all(cell is not None and cell.depth != 3 for cell in drawn)


def test_without_an_inferred_cell_there_is_nothing_to_check() -> None:
    assert least_certain(proofs([]), LATTICE.nothing(), flat(1.0), flat(1.0), 0) is None
    alone = proofs([(TOP, refused(OOM))])
    assert least_certain(alone, LATTICE.nothing(), flat(1.0), flat(1.0), 0) is None


# Whether speed depends on more


def test_the_second_speed_is_of_the_fastest_group_at_its_shortest_window_and_largest_share() -> (
    None
):
    speeds = Speeds()
    fast, slow = Cell(2, 16384, True, 0.85), Cell(0, 16384, False, 0.85)
    everywhere = LATTICE.exists
    assert second_speed(LATTICE, everywhere, speeds) is None
    speeds.add(slow, speed_of(slow))
    assert second_speed(LATTICE, everywhere, speeds) == at(slow, context=4096, utilization=0.95)
    speeds.add(fast, speed_of(fast))
    assert second_speed(LATTICE, everywhere, speeds) == at(fast, context=4096, utilization=0.95)
    # Nothing else works in that group: another one shows it.
    works_here = LATTICE.mask(lambda cell: cell == fast or cell.depth == 0)
    assert second_speed(LATTICE, works_here, speeds) == at(slow, context=4096, utilization=0.95)
    assert second_speed(LATTICE, LATTICE.mask(fast.__eq__), speeds) is None
