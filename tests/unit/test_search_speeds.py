"""Where speed is measured, whose it is, and when it is believed to depend on more."""

import numpy as np
import pytest
from search_under_test import SMALL, at

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Purpose, Speed
from vllm_frontier.search import Ask
from vllm_frontier.search.lattice import Lattice
from vllm_frontier.search.relevance import leading_cells, promising, relevant
from vllm_frontier.search.speeds import GROUP_FAILURES, Speeds, assumed_speed, group_of
from vllm_frontier.search.windows import longest_windows, without_speed

LATTICE = Lattice(SMALL.cells())
SHORT = Cell(2, 4096, True, 0.95)
LONG = Cell(2, 32768, True, 0.9)


def speed(figure: float, spread: float = 0.01) -> Speed:
    return Speed(figure, figure * (1 - spread), figure * (1 + spread))


def measured(*told: tuple[Cell, Speed | None]) -> Speeds:
    speeds = Speeds()
    for cell, figure in told:
        speeds.add(cell, figure)
    return speeds


def test_a_groups_speed_is_that_of_its_longest_window_then_smallest_share() -> None:
    speeds = measured(
        (SHORT, speed(90)), (LONG, speed(80)), (at(LONG, utilization=0.85), speed(81))
    )
    assert speeds.of(group_of(SHORT)) == 81
    assert speeds.of(group_of(at(SHORT, depth=1))) is None
    assert speeds.measured(SHORT)
    assert not speeds.measured(at(SHORT, context=8192))
    # The longest was measured without a figure: the next one speaks.
    assert measured((SHORT, speed(90)), (LONG, None)).of(group_of(SHORT)) == 90


def test_of_several_launches_of_a_cell_the_median_counts() -> None:
    speeds = measured((LONG, speed(60)), (LONG, speed(100)), (LONG, speed(90)))
    assert speeds.of(group_of(LONG)) == 90


def test_a_cell_that_turns_out_not_to_work_lends_no_speed() -> None:
    speeds = measured((SHORT, speed(90)), (LONG, speed(80)))
    speeds.forget(LONG)
    assert speeds.of(group_of(LONG)) == 90
    assert not speeds.measured(LONG)
    speeds.forget(at(LONG, depth=3))  # never measured


@pytest.mark.parametrize(
    ("slow", "fast", "apart"),
    [
        (speed(80), speed(100), True),
        (speed(100), speed(80), True),
        (speed(88), speed(100), False),  # launches of one cell differ as much
        (speed(80, 0.25), speed(100), False),  # their repeats overlap
        (speed(80, 0.2), speed(100), True),
    ],
)
def test_a_difference_is_believed_after_a_second_launch_of_both(
    slow: Speed, fast: Speed, apart: bool
) -> None:
    speeds = measured((SHORT, fast), (LONG, slow))
    assert speeds.compared()
    assert set(speeds.in_doubt()) == ({SHORT, LONG} if apart else set())
    assert not speeds.depends()
    speeds.add(SHORT, fast)
    assert set(speeds.in_doubt()) == ({LONG} if apart else set())
    speeds.add(LONG, slow)
    assert speeds.in_doubt() == []
    assert speeds.depends() == apart


def test_a_difference_that_passes_is_not_believed() -> None:
    speeds = measured((SHORT, speed(100)), (LONG, speed(60)), (LONG, speed(99)), (SHORT, speed(99)))
    assert speeds.in_doubt() == []
    assert not speeds.depends()


def test_groups_are_not_compared_with_each_other() -> None:
    speeds = measured((SHORT, speed(100)), (at(SHORT, depth=0), speed(30)))
    assert not speeds.compared()
    assert speeds.in_doubt() == []


def test_a_group_is_left_once_two_cells_failed() -> None:
    speeds = Speeds()
    assert GROUP_FAILURES == 2
    third = at(SHORT, context=8192)
    speeds.give_up(SHORT)
    assert not speeds.may_measure(SHORT)
    assert speeds.may_measure(LONG)
    assert not speeds.may_measure(third, waiting=[LONG])
    assert speeds.may_measure(third, waiting=[SHORT, at(LONG, depth=1)])
    speeds.give_up(LONG)
    assert not speeds.may_measure(third)
    assert speeds.may_measure(at(third, depth=1))


def test_deeper_and_with_graphs_is_taken_to_be_faster() -> None:
    order = [assumed_speed(depth, graphs) for graphs in (False, True) for depth in range(3)]
    assert order[:3] == sorted(order[:3])
    assert order[3:] == sorted(order[3:])
    assert all(
        with_graphs > without for without, with_graphs in zip(order[:3], order[3:], strict=True)
    )


# Where


def test_longest_windows_by_hand() -> None:
    limits = {0.85: 8192, 0.9: 16384, 0.95: 16384}
    works = LATTICE.mask(lambda c: c.depth in (0, 1) and c.context <= limits[c.utilization])
    assert set(longest_windows(LATTICE, works, "frontier")) == {
        Cell(depth, 16384, graphs, 0.9) for depth in (0, 1) for graphs in (False, True)
    }
    assert set(longest_windows(LATTICE, works, "boundaries")) == {
        Cell(depth, window, graphs, share)
        for depth in (0, 1)
        for graphs in (False, True)
        for share, window in limits.items()
    }
    assert len(longest_windows(LATTICE, works, "all")) == int(works.sum()) == 4 * (2 + 3 + 3)
    assert longest_windows(LATTICE, LATTICE.nothing(), "frontier") == []


def test_what_is_measured_or_out_is_not_measured_again() -> None:
    targets = [LONG, at(LONG, depth=1)]
    none = Speeds()
    assert without_speed(targets, "frontier", none, {}) == targets
    assert without_speed(targets, "frontier", measured((LONG, speed(80))), {}) == targets[1:]
    # Where it was measured at a shorter window only, the longest is wanted after all.
    assert without_speed(targets, "frontier", measured((SHORT, speed(80))), {}) == targets
    out = {LONG: Ask(LONG, Purpose.PROOF, with_speed=True)}
    assert without_speed(targets, "frontier", none, out) == targets[1:]
    out = {LONG: Ask(LONG, Purpose.PROOF, with_speed=False)}
    assert without_speed(targets, "frontier", none, out) == targets
    # Each share for itself, or each cell.
    other_share = measured((at(LONG, utilization=0.95), speed(80)))
    assert without_speed([LONG], "frontier", other_share, {}) == []
    assert without_speed([LONG], "boundaries", other_share, {}) == [LONG]
    longer = measured((at(LONG, context=65536), speed(80)))
    assert without_speed([LONG], "boundaries", longer, {}) == []
    assert without_speed([LONG], "all", longer, {}) == [LONG]
    assert without_speed([LONG], "all", measured((LONG, None)), {}) == []


# Which cells can lead


def test_cells_that_a_leading_one_beats_are_not_relevant() -> None:
    lead = Cell(2, 16384, True, 0.85)
    works = LATTICE.mask(lead.__eq__)
    speeds = measured((lead, speed(100)), (Cell(1, 4096, True, 0.9), speed(50)))
    mask = relevant(LATTICE, works, speeds)
    chosen = set(LATTICE.chosen(mask))
    assert Cell(2, 16384, True, 0.9) not in chosen  # a larger share
    assert Cell(2, 8192, True, 0.85) not in chosen  # a shorter window
    assert Cell(1, 16384, True, 0.85) not in chosen  # slower
    assert Cell(2, 32768, True, 0.95) in chosen  # a longer window
    assert Cell(1, 32768, True, 0.95) in chosen
    assert Cell(3, 4096, True, 0.95) in chosen  # of unknown speed
    assert Cell(0, 4096, False, 0.95) in chosen


def test_of_equals_in_one_place_the_shallowest_is_relevant() -> None:
    lead = Cell(2, 16384, True, 0.85)
    speeds = measured((lead, speed(100)), (at(lead, depth=1, context=4096), speed(99)))
    mask = relevant(LATTICE, LATTICE.mask(lead.__eq__), speeds)
    assert mask.flat[LATTICE.at(at(lead, depth=1))]
    assert not mask.flat[LATTICE.at(at(lead, depth=1, context=8192))]


def test_leading_cells_come_first_then_the_windows_above_them() -> None:
    works = LATTICE.mask(lambda c: c.context <= (16384 if c.graphs else 32768))
    leading = leading_cells(LATTICE, works, Speeds())
    assert set(LATTICE.chosen(leading)) == {
        Cell(3, 16384, True, 0.85),
        Cell(3, 32768, False, 0.85),
    }
    rank = promising(LATTICE, works, Speeds())
    assert np.all(rank[leading] >= 2)
    assert rank.flat[LATTICE.at(Cell(3, 32768, True, 0.85))] >= 1
    assert rank.flat[LATTICE.at(Cell(3, 65536, False, 0.85))] >= 1
    assert np.all(rank[~leading] < 2.0)
    # Measured speeds count instead of assumed ones: here graphs gain nothing.
    speeds = measured(
        (Cell(3, 16384, True, 0.85), speed(50)), (Cell(3, 32768, False, 0.85), speed(50))
    )
    assert Cell(3, 16384, True, 0.85) not in set(
        LATTICE.chosen(leading_cells(LATTICE, works, speeds))
    )
