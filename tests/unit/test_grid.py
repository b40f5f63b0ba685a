from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.grid import Axis, Cell, Grid, cell_id, shortest


def grid(**changes: Any) -> Grid:
    base: dict[str, Any] = {
        "depth": (0, 2),
        "context": (8192,),
        "graphs": (True,),
        "utilization": (0.9,),
    }
    return Grid(**{**base, **changes})


def test_baseline_is_added_with_and_without_graphs() -> None:
    cells = grid(depth=(2,), graphs=(True,)).cells()
    assert [(c.depth, c.graphs) for c in cells] == [(0, False), (0, True), (2, True)]


def test_baseline_can_be_excluded() -> None:
    rule = (("depth", (0,)),)
    assert {c.depth for c in grid(exclude=(rule,)).cells()} == {2}


def test_a_rule_excludes_only_where_every_entry_matches() -> None:
    rule = (("depth", (2,)), ("context", (16384,)))
    cells = grid(context=(8192, 16384), exclude=(rule,)).cells()
    assert Cell(2, 8192, True, 0.9) in cells
    assert Cell(2, 16384, True, 0.9) not in cells
    assert Cell(0, 16384, True, 0.9) in cells


def test_extra_axes_multiply_the_grid_and_name_their_values() -> None:
    extra = (Axis("kv_cache_dtype", ("auto", "fp8")), Axis("block_size", (16, 32)))
    cells = grid(depth=(0,), graphs=(True,), extra=extra).cells()
    assert len(cells) == 2 * 2 * 2  # the baseline has graphs off and on
    assert cells[0].extra == (("block_size", 16), ("kv_cache_dtype", "auto"))
    assert cells[0].axes()["kv_cache_dtype"] == "auto"


@given(
    st.lists(st.integers(0, 6), min_size=1, unique=True),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=5, unique=True),
    st.lists(st.booleans(), min_size=1, unique=True),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=4, unique=True),
)
def test_no_cell_occurs_twice_and_none_is_missing(
    depth: list[int], context: list[int], graphs: list[bool], utilization: list[float]
) -> None:
    cells = Grid(tuple(depth), tuple(context), tuple(graphs), tuple(utilization)).cells()
    assert len(cells) == len(set(cells))
    above = [d for d in depth if d > 0]
    assert len(cells) == (2 + len(above) * len(graphs)) * len(context) * len(utilization)


def test_identity_follows_what_decides_the_result_and_nothing_else() -> None:
    fixed = {"model": "m", "engine": "vllm 0.32"}
    cell = Cell(2, 8192, True, 0.9, (("kv_cache_dtype", "fp8"),))
    same = Cell(2, 8192, True, 0.90, (("kv_cache_dtype", "fp8"),))
    assert cell_id(cell, fixed) == cell_id(same, dict(reversed(fixed.items())))
    others = [
        cell_id(Cell(1, 8192, True, 0.9, cell.extra), fixed),
        cell_id(Cell(2, 8192, True, 0.9, (("kv_cache_dtype", "auto"),)), fixed),
        cell_id(cell, {**fixed, "engine": "vllm 0.33"}),
    ]
    assert len({cell_id(cell, fixed), *others}) == 4
    assert len(cell_id(cell, fixed)) == 16


def test_numbers_that_differ_look_different() -> None:
    assert [shortest(each) for each in (1.0, 0.9, 0.95)] == ["1", "0.9", "0.95"]
    assert shortest(0.900000001) == "0.900000001"
    assert shortest(0.1 + 0.2) == "0.30000000000000004"
    assert Cell(0, 8192, False, 0.9000001).label().endswith("util=0.9000001")
