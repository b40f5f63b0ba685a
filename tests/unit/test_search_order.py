"""The order in which every cell is launched."""

import statistics
import time

import pytest

from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Axis, Cell, Grid
from vllm_frontier.search import create_strategy
from vllm_frontier.search.order import balanced_order

SMALL = Grid((0, 1, 3), (8192, 16384, 32768), (False, True), (0.6, 0.9))
WORDS = Axis("kv_cache_dtype", ("auto", "fp8"))


def correlations(order: tuple[Cell, ...]) -> dict[str, float]:
    """Spearman's correlation of every axis that varies with time."""
    points = [cell.axes() for cell in order]
    found = {}
    for name in points[0]:
        values = [str(each[name]).zfill(9) for each in points]
        ranks = [sum(b < a for b in values) + sum(b == a for b in values) / 2 for a in values]
        if len(set(ranks)) > 1:
            found[name] = statistics.correlation(range(len(order)), ranks)
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("grid", "most"), [(SMALL, 0.15), (Grid((0, 5), (1, 2), (True,), (0.8, 0.9)), 0.5)]
)
def test_no_axis_goes_along_with_time(grid: Grid, most: float, seed: int) -> None:
    cells = grid.cells()
    order = balanced_order(cells, seed)
    assert sorted(map(str, order)) == sorted(map(str, cells))
    of_grid = max(map(abs, correlations(cells).values()))
    assert max(map(abs, correlations(order).values())) < min(most, of_grid)


def test_further_axes_are_looked_at_as_well() -> None:
    grid = Grid((0, 1), (8192, 16384), (False, True), (0.9, 0.95), extra=(WORDS,))
    found = correlations(balanced_order(grid.cells(), 0))
    assert set(found) >= {"depth", "kv_cache_dtype"}
    assert max(map(abs, found.values())) < 0.2


def test_the_seed_decides() -> None:
    cells = SMALL.cells()
    assert balanced_order(cells, 3) == balanced_order(cells, 3)
    assert balanced_order(cells, 3) != balanced_order(cells, 4)
    spec = compose_sweep("demo-cpu", ["search=exhaustive", "search.seed=4"]).spec
    first = create_strategy(spec).ask()
    assert first is not None
    assert first.cell == balanced_order(spec.grid.cells(), 4)[0]


def test_tiny_grids_have_an_order() -> None:
    cells = SMALL.cells()
    assert balanced_order((), 0) == ()
    assert balanced_order(cells[:1], 0) == cells[:1]
    assert set(balanced_order(cells[:2], 0)) == set(cells[:2])


def test_ten_thousand_cells_take_a_moment() -> None:
    grid = Grid(
        tuple(range(10)), tuple(range(4096, 516097, 4096)), (False, True), (0.8, 0.85, 0.9, 0.95)
    )
    cells = grid.cells()
    assert len(cells) > 9000
    began = time.process_time()
    assert len(set(balanced_order(cells, 0))) == len(cells)
    assert time.process_time() - began < 8  # several times what it takes
