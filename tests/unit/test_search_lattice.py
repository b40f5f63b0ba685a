"""The order of cells, against what is said of every pair of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_under_test import SMALL, asks_no_less

from vllm_frontier.grid import Axis, Cell, Grid
from vllm_frontier.search.lattice import Lattice

HOLED = Grid(
    depth=(1, 2),
    context=(100, 200, 300),
    graphs=(True,),
    utilization=(0.9, 0.8),
    extra=(Axis("kv", ("auto", "fp8")),),
    exclude=((("depth", (2,)), ("context", (200, 300))),),
)

any_cell = st.builds(
    Cell,
    depth=st.integers(0, 4),
    context=st.sampled_from([50, 100, 150, 200, 300, 400]),
    graphs=st.booleans(),
    utilization=st.sampled_from([0.75, 0.8, 0.85, 0.9, 0.95]),
    extra=st.sampled_from([(("kv", "auto"),), (("kv", "fp8"),), (("kv", "other"),)]),
)


def test_cells_and_points_by_hand() -> None:
    lattice = Lattice(HOLED.cells())
    # further axes, depths 0 1 2, windows, graphs (depth 0 has both), shares
    assert lattice.shape == (2, 3, 3, 2, 2)
    assert int(lattice.exists.sum()) == len(HOLED.cells()) == 2 * (2 * 6 + 6 + 2)
    assert list(lattice.chosen(lattice.exists)) == list(HOLED.cells())
    assert Cell(2, 200, True, 0.9, (("kv", "fp8"),)) not in lattice
    assert Cell(2, 100, True, 0.9, (("kv", "fp8"),)) in lattice
    for cell in HOLED.cells():
        assert lattice.cell(lattice.at(cell)) == cell
    # A smaller share asks for more.
    small, large = (
        Cell(0, 100, False, 0.8, (("kv", "auto"),)),
        Cell(0, 100, False, 0.9, (("kv", "auto"),)),
    )
    assert lattice.at(small) == lattice.at(large) + 1


def test_values_by_cell_come_back_by_cell() -> None:
    lattice = Lattice(HOLED.cells())
    values = lattice.of(list(range(1, 41)))
    assert [values.flat[lattice.at(cell)] for cell in HOLED.cells()] == list(range(1, 41))
    assert values.sum() == 40 * 41 / 2  # nothing in the holes
    deep = lattice.mask(lambda cell: cell.depth == 2)
    assert [cell.context for cell in lattice.chosen(deep)] == [100] * 4


@settings(deadline=None)
@given(cell=any_cell)
def test_what_asks_no_more_is_that_of_every_pair(cell: Cell) -> None:
    lattice = Lattice(HOLED.cells())
    assert set(lattice.chosen(lattice.no_harder_than(cell))) == {
        other for other in HOLED.cells() if asks_no_less(cell, other)
    }
    assert set(lattice.chosen(lattice.column(cell))) == {
        other
        for other in HOLED.cells()
        if (other.extra, other.depth, other.graphs, other.utilization)
        == (cell.extra, cell.depth, cell.graphs, cell.utilization)
    }


@settings(deadline=None)
@given(data=st.data())
def test_extremes_and_counts_are_those_of_every_pair(data: st.DataObject) -> None:
    cells = Grid((0, 1), (1, 2, 3), (False, True), (0.9, 0.8)).cells()
    lattice = Lattice(cells)
    drawn = data.draw(st.lists(st.integers(-3, 3), min_size=24, max_size=24))
    values = lattice.of(drawn)
    by_cell = dict(zip(cells, drawn, strict=True))
    high, low = lattice.highest_among_harder(values), lattice.lowest_among_easier(values)
    mask = lattice.mask(lambda cell: by_cell[cell] > 0)
    harder_count, easier_count = lattice.count_harder(mask), lattice.count_easier(mask)
    for cell in cells:
        where = lattice.at(cell)
        harder = [other for other in cells if asks_no_less(other, cell)]
        easier = [other for other in cells if asks_no_less(cell, other)]
        assert high.flat[where] == max(
            (by_cell[other] for other in harder if other != cell), default=-np.inf
        )
        assert low.flat[where] == min(
            (by_cell[other] for other in easier if other != cell), default=np.inf
        )
        assert harder_count.flat[where] == sum(by_cell[other] > 0 for other in harder)
        assert easier_count.flat[where] == sum(by_cell[other] > 0 for other in easier)


def test_combinations_of_further_axes_do_not_compare() -> None:
    lattice = Lattice(HOLED.cells())
    values = lattice.of([5.0 if cell.extra == (("kv", "fp8"),) else 1.0 for cell in HOLED.cells()])
    auto = Cell(0, 100, False, 0.9, (("kv", "auto"),))
    assert lattice.highest_among_harder(values).flat[lattice.at(auto)] == 1.0


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Cell(0, 4096, False, 0.95), 4),  # a corner
        (Cell(1, 8192, True, 0.9), 7),  # two each, but graphs have one other value
        (Cell(3, 65536, True, 0.85), 4),
    ],
)
def test_neighbours_are_one_step_away(cell: Cell, expected: int) -> None:
    lattice = Lattice(SMALL.cells())
    near = list(lattice.chosen(lattice.neighbours(cell)))
    steps = lattice.distance(cell)
    assert len(near) == expected
    assert {int(steps.flat[lattice.at(other)]) for other in near} == {1}
    assert int((steps == 1).sum()) == expected


def test_distance_counts_steps_on_all_axes() -> None:
    lattice = Lattice(SMALL.cells())
    steps = lattice.distance(Cell(1, 8192, False, 0.9))
    assert steps.flat[lattice.at(Cell(1, 8192, False, 0.9))] == 0
    assert steps.flat[lattice.at(Cell(3, 65536, True, 0.85))] == 2 + 3 + 1 + 1
    # A launch at a window that the grid no longer has lies at the next one.
    steps = lattice.distance(Cell(1, 9000, False, 0.9))
    assert steps.flat[lattice.at(Cell(1, 16384, False, 0.9))] == 0
