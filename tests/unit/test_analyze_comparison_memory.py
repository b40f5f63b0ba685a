"""Where the memory goes in one sweep and in another."""

from typing import Any

import polars as pl
import pytest
from checked_sweep import launch

from vllm_frontier.analyze.comparison.memory import FOR_CACHE, matched_memory, matched_needs
from vllm_frontier.analyze.memory_split import memory_split
from vllm_frontier.store.tables import frame

Row = dict[str, Any]
INSIDE, BESIDE = "graphs", "graphs beside the share"
WHOLE = "weights and head"


def told(depth: int, context: int, utilization: float, **figures: Any) -> Row:
    row = launch(depth, context=context, utilization=utilization)
    return row | {"card_memory_gib": 32.0} | figures


def split(*rows: Row) -> pl.LazyFrame:
    return memory_split(frame("trials", list(rows)).lazy())


def of_depth(depth: int, found: pl.DataFrame) -> dict[str, Row]:
    return {row["part"]: row for row in found.filter(depth=depth).iter_rows(named=True)}


def drafting(weights: float, *, plain: float | None, available: float = 7.0) -> pl.LazyFrame:
    """A launch with a head, and one without where `plain` tells the weights of that."""
    figures = {"activation_gib": 1.5, "kv_available_gib": available}
    rows = [told(3, 8192, 0.9, weights_gib=weights, **figures)]
    if plain is not None:
        rows.append(told(0, 8192, 0.9, weights_gib=plain, **figures))
    return split(*rows)


def test_memory_is_held_against_each_other_part_by_part() -> None:
    def card_with(weights: float) -> pl.LazyFrame:
        available = 0.9 * 32.0 - weights - 1.5 - 0.5
        figures = {"weights_gib": weights, "activation_gib": 1.5, "graph_gib": 0.5}
        return split(told(0, 8192, 0.9, kv_available_gib=available, kv_tokens=65_536, **figures))

    found = matched_memory(card_with(20.0), card_with(18.0))
    gaps = dict(found.select("part", "difference").iter_rows())
    assert gaps["weights"] == pytest.approx(-2.0)
    assert gaps["activation"] == gaps["graphs"] == 0.0
    assert gaps[FOR_CACHE] == pytest.approx(2.0)
    assert abs(gaps.get("other", 0.0)) < 1e-6
    needs = matched_needs(card_with(20.0), card_with(18.0)).row(0, named=True)
    assert (needs["context"], needs["needed_gib"]) == (8192, pytest.approx(6.8 / 8))


@pytest.mark.parametrize("turned", [False, True])
def test_graphs_that_moved_out_of_the_share_are_no_unknown(turned: bool) -> None:
    def card_with(*, counted: bool) -> pl.LazyFrame:
        available = 0.9 * 32.0 - 20.0 - 1.5 - 0.5 * counted
        figures = {"weights_gib": 20.0, "activation_gib": 1.5, "graph_gib": 0.5}
        return split(told(0, 8192, 0.9, kv_available_gib=available, **figures))

    sides = [card_with(counted=True), card_with(counted=False)]
    found = matched_memory(*(reversed(sides) if turned else sides))
    sign = -1 if turned else 1
    gaps = dict(found.select("part", "difference").iter_rows())
    assert gaps[INSIDE] == pytest.approx(-0.5 * sign)
    assert gaps[BESIDE] == pytest.approx(0.5 * sign)
    assert gaps[FOR_CACHE] == pytest.approx(0.5 * sign)
    # All that is of the share adds up to the same share; what is beside it comes behind.
    assert found["part"].to_list()[-2:] == [FOR_CACHE, BESIDE]
    within = found.filter(pl.col("part") != BESIDE)
    assert within["difference"].sum() == pytest.approx(0.0)
    assert within["gib"].sum() == pytest.approx(within["gib_other"].sum())


@pytest.mark.parametrize("turned", [False, True])
def test_weights_are_told_with_the_head_where_one_does_not_tell_them_apart(turned: bool) -> None:
    sides = [drafting(21.0, plain=20.0), drafting(21.4, plain=None)]
    parts = of_depth(3, matched_memory(*(reversed(sides) if turned else sides)))
    assert {"weights", "head"}.isdisjoint(parts)
    assert parts[WHOLE]["difference"] == pytest.approx(-0.4 if turned else 0.4)
    assert {parts[WHOLE]["gib"], parts[WHOLE]["gib_other"]} == {21.0, 21.4}
    assert parts["other"]["difference"] is not None
    alone = of_depth(0, matched_memory(*sides))
    assert (alone["weights"]["gib"], alone["weights"]["gib_other"]) == (20.0, None)


def test_a_head_that_takes_nothing_is_none() -> None:
    found = matched_memory(drafting(20.0, plain=20.0), drafting(21.0, plain=20.0))
    head = of_depth(3, found)["head"]
    assert (head["gib"], head["difference"]) == (0.0, pytest.approx(1.0))


def test_nothing_left_for_the_cache_is_a_figure() -> None:
    full = drafting(26.0, plain=26.0, available=-0.2)
    found = of_depth(0, matched_memory(full, drafting(20.0, plain=20.0)))
    assert found[FOR_CACHE]["difference"] == pytest.approx(7.0)


def test_a_part_that_one_does_not_tell_has_no_difference() -> None:
    one = split(told(0, 8192, 0.9, weights_gib=20.0, activation_gib=1.5, kv_available_gib=7.0))
    other = split(told(0, 8192, 0.9, weights_gib=20.0, kv_available_gib=7.0))
    found = {row["part"]: row for row in matched_memory(one, other).iter_rows(named=True)}
    assert found["weights"]["difference"] == 0.0
    assert found["activation"]["difference"] is None
    assert found["other"]["difference"] is None
    assert found["other"]["gib_other"] == pytest.approx(1.8)


def test_what_the_cache_gets_is_unknown_where_nothing_tells_it() -> None:
    known = split(told(0, 8192, 0.9, weights_gib=20.0, kv_available_gib=7.0))
    refused = split(told(0, 8192, 0.9, weights_gib=20.0))
    found = {row["part"]: row for row in matched_memory(known, refused).iter_rows(named=True)}
    assert found[FOR_CACHE]["difference"] is None
    assert found[FOR_CACHE]["gib_other"] is None


def test_the_longest_window_that_was_launched_tells_the_parts() -> None:
    figures = {"weights_gib": 20.0, "kv_available_gib": 7.0}
    rows = [
        told(0, 8192, 0.9, activation_gib=1.5, **figures),
        told(0, 16384, 0.9, activation_gib=1.7, **figures),
        told(0, 32768, 0.9) | {"status": "inferred", "attempt": 0},
    ]
    found = matched_memory(split(*rows), split(*rows)).filter(part="activation").row(0, named=True)
    assert (found["gib"], found["source"]) == (1.7, "logged")


def test_memory_of_a_combination_that_one_lacks_is_told_of_the_other() -> None:
    one = split(told(0, 8192, 0.9, weights_gib=20.0, kv_available_gib=7.0))
    other = split(told(0, 8192, 0.8, weights_gib=20.0, kv_available_gib=4.0))
    found = matched_memory(one, other).filter(part="weights").sort("utilization")
    assert found["gib"].to_list() == [None, 20.0]
    assert found["gib_other"].to_list() == [20.0, None]
    assert found["budget_gib"].is_null().to_list() == [True, False]
