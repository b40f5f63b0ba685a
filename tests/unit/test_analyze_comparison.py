"""Sweeps side by side: which cells are the same, and what one sweep is against another."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from checked_sweep import decode, launch
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.cell_states import cell_states
from vllm_frontier.analyze.comparison.matching import matched_cells, only_in
from vllm_frontier.analyze.comparison.speeds import Measured, matched_speeds, shared_prompts
from vllm_frontier.analyze.comparison.windows import matched_windows
from vllm_frontier.engine.simulated.card import SimulatedCard, decode_speed, noise_factor
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.grid import Cell
from vllm_frontier.store.tables import frame

Row = dict[str, Any]
TASKS = ("edit", "code", "prose")


def measured(trials: list[Row], runs: list[Row]) -> Measured:
    return Measured(frame("trials", trials).lazy(), frame("runs", runs).lazy())


def cell(context: int, works: bool | None, **more: Any) -> Row:
    """A launch that works, is refused, or (None) broke for another reason."""
    row = launch(context=context, **more)
    if works:
        return row
    status = "infeasible" if works is False else "failed"
    reason = "kv_too_small" if works is False else "killed"
    return row | {"status": status, "failure_class": reason}


def states(*rows: Row) -> pl.LazyFrame:
    return cell_states(frame("trials", list(rows)).lazy())


# Which cells are the same


def test_cells_are_matched_by_their_axes_with_equal_numbers_for_equal_values() -> None:
    one = states(
        launch(utilization=0.9, extra='{"a": 4, "b": "x"}'),
        launch(utilization=0.1 + 0.2, extra='{"a": 0.5}'),
        launch(utilization=0.9, extra='{"a": true}'),
    )
    other = states(
        launch(utilization=0.90, extra='{"b": "x", "a": 4.0}'),
        launch(utilization=0.3, extra='{"a": 0.50}'),
        launch(utilization=0.9, extra='{"a": 1}'),
    )
    found = matched_cells([one, other])
    places = dict(found.select("extra", "in_sweeps").iter_rows())
    assert places == {
        '{"a": 4, "b": "x"}': [0, 1],
        '{"a": 0.5}': [0, 1],
        '{"a": true}': [0],
        '{"a": 1}': [1],
    }


def test_what_only_one_has_is_kept_and_told_by_the_values_only_it_has() -> None:
    one = states(cell(1024, True), cell(2048, True), cell(4096, False))
    other = states(cell(1024, True), cell(2048, False), cell(8192, True, depth=3))
    found = matched_cells([one, other])
    assert found.filter(context=4096).select("state_0", "state_1").row(0) == ("refused", None)
    assert found.filter(context=2048).select("state_0", "state_1").row(0) == ("works", "refused")
    told = {tuple(row["in_sweeps"]): row for row in only_in(found, 2).iter_rows(named=True)}
    assert told[0,]["cells"] == told[1,]["cells"] == 1
    assert (told[0,]["context"], told[0,]["depth"]) == ([4096], [])
    assert (told[1,]["context"], told[1,]["depth"]) == ([8192], [3])


def test_a_value_that_some_others_have_is_not_of_one_alone() -> None:
    """4096 is in the first two: what the first alone has there is a depth, not a window."""
    first = states(cell(1024, True), cell(4096, True), cell(4096, True, depth=3))
    second = states(cell(1024, True), cell(4096, True))
    found = matched_cells([first, second, states(cell(1024, True))])
    told = {tuple(row["in_sweeps"]): row for row in only_in(found, 3).iter_rows(named=True)}
    assert set(told) == {(0,), (0, 1)}
    assert (told[0,]["depth"], told[0,]["context"]) == ([3], [])
    assert told[0, 1]["context"] == [4096]


GRIDS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([1024, 2048]), st.booleans()), unique=True
)


@given(st.lists(GRIDS, min_size=2, max_size=3))
def test_no_cell_is_lost_or_comes_twice(grids: list[list[tuple[int, int, bool]]]) -> None:
    frames = [
        states(*(launch(depth, context=context, graphs=graphs) for depth, context, graphs in grid))
        for grid in grids
    ]
    found = matched_cells(frames)
    rows = {
        (row["depth"], row["context"], row["graphs"]): row["in_sweeps"]
        for row in found.iter_rows(named=True)
    }
    assert len(rows) == found.height
    every = set(itertools.chain.from_iterable(grids))
    assert rows == {
        key: [place for place, grid in enumerate(grids) if key in grid] for key in every
    }


# Windows


@pytest.mark.parametrize(
    ("own", "others", "reach", "difference"),
    [
        ({1: True, 2: True, 4: False}, {1: True, 2: True, 4: False}, "same", 0),
        ({1: True, 2: True, 4: False}, {1: True, 2: False, 4: False}, "shorter", -1),
        ({1: True, 2: False}, {1: True, 2: True}, "longer", 1),
        ({1: True, 2: True}, {1: True, 2: True}, "both to the end", 0),
        # 3 works there, and here the window ends anywhere from 2 to 4: no difference is known.
        ({2: True, 4: False}, {3: True, 5: False}, "open", 1),
        ({2: True, 4: False}, {4: True, 5: False}, "longer", 2),
        ({2: True}, {3: True}, "open", 1),
        ({1: False, 2: False}, {1: True, 2: False}, "longer", None),
        ({1: False, 2: False}, {1: False, 2: False}, "same", None),
        # What lies between is not known.
        ({1: True, 2: None, 4: False}, {1: True, 2: None, 4: False}, "open", 0),
    ],
)
def test_one_window_is_longer_only_where_both_ends_are_known_well_enough(
    own: dict[int, bool | None],
    others: dict[int, bool | None],
    reach: str,
    difference: int | None,
) -> None:
    tables = [
        boundaries(frame("trials", [cell(n, works) for n, works in each.items()]).lazy())
        for each in (own, others)
    ]
    row = matched_windows(*tables).row(0, named=True)
    assert (row["reach"], row["difference"]) == (reach, difference)
    swapped = matched_windows(*reversed(tables)).row(0, named=True)
    turned = {"longer": "shorter", "shorter": "longer"}
    assert swapped["reach"] == turned.get(reach, reach)


def test_a_combination_that_one_lacks_is_only_in_the_other() -> None:
    one = boundaries(frame("trials", [cell(1024, True, utilization=0.8)]).lazy())
    other = boundaries(frame("trials", [cell(1024, True, utilization=0.81)]).lazy())
    found = matched_windows(one, other)
    assert found["reach"].to_list() == ["only in base", "only in other"]
    assert found["difference"].to_list() == [None, None]


# Speeds


def sweep(speeds: dict[int, list[float]], **more: Any) -> Measured:
    """Cells by depth, each with the speeds of its launches, all runs of which are alike."""
    trials, runs = [], []
    for depth, launched in speeds.items():
        for number, speed in enumerate(launched, start=1):
            row = launch(depth, number, hours=number + depth / 10, **more)
            trials.append(row)
            for task, factor in zip(TASKS, (1.2, 1.0, 0.8), strict=True):
                runs += decode(row, *(speed * factor * n for n in (0.99, 1.0, 1.01)), task=task)
    return measured(trials, runs)


def test_cells_with_the_same_id_in_both_sweeps_are_two_cells() -> None:
    found = matched_speeds(sweep({0: [100.0]}), sweep({0: [150.0]}))
    overall = found.filter(pl.col("task").is_null()).row(0, named=True)
    assert (overall["decode_tok_s"], overall["decode_tok_s_other"]) == (100.0, 150.0)
    assert overall["ratio"] == pytest.approx(1.5)
    assert (overall["verdict"], overall["basis"], overall["launches"]) == ("faster", "runs", 1)
    assert set(found["task"]) == {None, *TASKS}
    assert set(found["verdict"]) == {"faster"}


def test_launches_that_differ_are_in_the_interval_of_each_sweep_s_own() -> None:
    calm = sweep({depth: [100.0, 100.5, 99.5] for depth in range(4)})
    wild = sweep({depth: [110.0, 100.0, 120.0] for depth in range(4)})
    row = matched_speeds(calm, wild).filter(pl.col("task").is_null()).row(0, named=True)
    assert row["basis"] == "launches"
    assert row["ratio_low"] < 1.1 < row["ratio_high"]
    both = matched_speeds(calm, sweep({depth: [110.0, 110.5, 109.5] for depth in range(4)}))
    sure = both.filter(pl.col("task").is_null()).row(0, named=True)
    assert sure["verdict"] == "faster"
    width = row["ratio_high"] / row["ratio_low"]
    assert width > 3 * (sure["ratio_high"] / sure["ratio_low"] - 1) + 1


def test_one_launch_against_several_is_no_surer_than_these_are() -> None:
    wild = sweep({depth: [110.0, 100.0, 120.0] for depth in range(4)})
    once = sweep({depth: [150.0] for depth in range(4)})
    for pair, own in (((wild, once), ""), ((once, wild), "_other")):
        rows = matched_speeds(*pair)
        assert set(rows["basis"]) == {"runs"}
        widths = rows.select(
            ratio=pl.col("ratio_high") / pl.col("ratio_low"),
            own=pl.col(f"high{own}") / pl.col(f"low{own}"),
        )
        assert rows.height == 16
        assert (widths["ratio"] > widths["own"] * 0.999).all()
        assert (widths["ratio"] < widths["own"] * 1.5).all()


def test_a_borrowed_speed_is_told_once_and_marked() -> None:
    def two(longest: int, speed: float) -> Measured:
        row = launch(context=longest)
        inferred = launch(context=1024, attempt=0) | {"status": "inferred"}
        return measured([row, inferred], decode(row, speed, speed * 1.01, speed * 0.99))

    found = matched_speeds(two(4096, 100.0), two(2048, 50.0))
    row = found.filter(pl.col("task").is_null()).row(0, named=True)
    assert (row["cells"], row["same_cell"]) == (1, False)
    assert (row["context"], row["context_other"]) == (4096, 2048)
    assert row["verdict"] == "slower"
    same = matched_speeds(two(4096, 100.0), two(4096, 100.0))
    row = same.filter(pl.col("task").is_null()).row(0, named=True)
    assert (row["cells"], row["same_cell"], row["verdict"]) == (2, True, "no clear difference")


def test_what_works_in_one_sweep_only_is_not_compared() -> None:
    refused = measured([cell(8192, False)], [])
    assert matched_speeds(sweep({0: [100.0]}), refused).is_empty()
    assert matched_speeds(sweep({0: [100.0]}), sweep({1: [100.0]})).is_empty()


def test_one_run_of_one_task_tells_no_interval() -> None:
    def single(speed: float) -> Measured:
        row = launch()
        return measured([row], decode(row, speed))

    found = matched_speeds(single(100.0), single(120.0)).row(0, named=True)
    assert (found["ratio_low"], found["ratio_high"]) == (None, None)
    assert (found["verdict"], found["basis"]) == ("faster", "runs")


def test_the_interval_is_that_of_a_median_of_prompts_asked_of_both() -> None:
    """By hand: what is common to both cells is no noise, and a median is less sure than a mean."""
    row = launch()
    speeds = (50.0, 100.0, 200.0)
    gaps = (0.0, 0.1, 0.2)
    one = measured([row], decode(row, *speeds))
    faster = (speed * math.exp(gap) for speed, gap in zip(speeds, gaps, strict=True))
    found = matched_speeds(one, measured([row], decode(row, *faster))).row(0, named=True)
    assert found["ratio"] == pytest.approx(math.exp(0.1))
    half = 4.302653 * math.sqrt(math.pi / 2 * 0.01 / 3)  # t of 2 degrees of freedom
    assert found["ratio_high"] == pytest.approx(math.exp(0.1 + half), rel=1e-6)
    assert found["ratio_low"] == pytest.approx(math.exp(0.1 - half), rel=1e-6)


def test_only_prompts_that_both_asked_count_where_repeats_differ() -> None:
    row = launch()
    few = measured([row], decode(row, 100.0))
    many = measured([row], decode(row, 100.0, 10.0, 10.0))
    own, others = shared_prompts(few, many)
    found = matched_speeds(own, others).filter(pl.col("task").is_null()).row(0, named=True)
    assert found["ratio"] == 1.0
    assert matched_speeds(few, many)["ratio"].to_list()[0] == pytest.approx(0.1)


# Cards with a known truth


def card(slower: float) -> SimulatedCard:
    known = load_card("rtx5090-qwen3.8-27b-nvfp4")
    speed = known.speed
    steps, more = (
        dataclasses.replace(each, eager=each.eager * slower, graphs=each.graphs * slower)
        for each in (speed.step_ms, speed.step_ms_per_depth)
    )
    return dataclasses.replace(
        known, speed=dataclasses.replace(speed, step_ms=steps, step_ms_per_depth=more)
    )


def simulated(of: SimulatedCard, seed: int) -> Measured:
    """84 cells of a card, each launched once with three repeats of each task."""
    trials, runs = [], []
    for depth, graphs, context in itertools.product(
        range(7), (False, True), range(10_000, 70_000, 10_000)
    ):
        row = launch(depth, context=context, graphs=graphs)
        point = Cell(depth, context, graphs, 0.9)
        trials.append(row)
        for task in TASKS:
            speed = decode_speed(of, point, task)
            noise = [noise_factor(of, point, f"{task}{number}", seed) for number in range(3)]
            runs += decode(row, *(speed * each for each in noise), task=task)
    return measured(trials, runs)


def overall(slower: float) -> pl.DataFrame:
    found = matched_speeds(simulated(card(1.0), seed=1), simulated(card(slower), seed=2))
    found = found.filter(pl.col("task").is_null())
    assert (found.height, set(found["same_cell"])) == (84, {True})
    return found


def test_the_interval_of_two_cards_contains_the_true_ratio() -> None:
    found = overall(1.1)
    holds = found.select(pl.lit(1 / 1.1).is_between("ratio_low", "ratio_high"))
    assert holds.to_series().mean() >= 0.9
    assert np.median(found["ratio"]) == pytest.approx(1 / 1.1, rel=0.005)
    assert found.filter(verdict="slower").height >= 0.9 * found.height
    assert found.filter(verdict="faster").is_empty()


def test_two_equal_cards_show_no_clear_difference_in_nearly_all_cells() -> None:
    found = overall(1.0)
    assert found.filter(verdict="no clear difference").height >= 0.9 * found.height
