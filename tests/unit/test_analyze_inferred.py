"""What the tables tell of cells that were not launched or not measured."""

import itertools
from datetime import UTC, datetime
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_frontier.analyze.borrowed import working_speeds
from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.analyze.monotony import audits, contested, contradictions, unexplored_in
from vllm_frontier.search.proof import DISAGREEMENT
from vllm_frontier.store.schema import SCHEMAS
from vllm_frontier.store.tables import frame

CONTEXTS = (1024, 2048, 4096, 8192)
SHARES = (0.8, 0.9)
BASE = {
    "sweep": "s",
    "attempt": 1,
    "depth": 0,
    "graphs": False,
    "utilization": 0.9,
    "extra": "{}",
    "phase": "stop",
    "status": "measured",
    "engine": "vllm",
}
REFUSED = {"status": "infeasible", "failure_class": "kv_too_small"}
INFERRED = {"status": "inferred", "attempt": 0}
NO = {**INFERRED, "failure_class": "kv_too_small"}


def trials(*rows: dict) -> pl.LazyFrame:
    rows_ = [{**BASE, "cell_id": f"c{number}", **row} for number, row in enumerate(rows)]
    return frame("trials", rows_).lazy()


def decode(cell_id: str, speed: float, task: str = "edit") -> dict:
    return {
        "cell_id": cell_id,
        "attempt": 1,
        "task": task,
        "repeat": 0,
        "kind": "decode",
        "concurrency": 1,
        "decode_tok_s": speed,
    }


def runs(*rows: dict) -> pl.LazyFrame:
    return frame("runs", rows).lazy()


# Borrowed speeds


def test_a_cell_without_a_speed_has_that_of_the_longest_window_measured() -> None:
    table = trials(
        {"cell_id": "own", "context": 1024},
        {"cell_id": "long", "context": 4096, "utilization": 0.95},
        {"cell_id": "long-low", "context": 4096, "utilization": 0.9, "spec_state": "suspect"},
        {"cell_id": "proven", "context": 8192},  # launched, but not to be measured
        {"cell_id": "inferred", "context": 2048, **INFERRED},
        {"cell_id": "refused", "context": 8192, "utilization": 0.8, **NO},
        {"cell_id": "graphs", "context": 1024, "graphs": True},
        {"cell_id": "other", "context": 1024, "extra": '{"a": 1}'},
    )
    measured = runs(
        decode("own", 10.0),
        decode("long", 30.0),
        decode("long-low", 20.0),
        decode("long-low", 40.0, "prose"),
        {"cell_id": "long-low", "attempt": 1, "kind": "prefill", "prefill_tok_s": 900.0},
    )
    columns = ("cell_id", "speed_cell", "decode_tok_s", "prefill_tok_s", "spec_state")
    found = working_speeds(table, measured).select(columns).sort("cell_id").collect()
    assert found.rows() == [
        ("inferred", "long-low", 30.0, 900.0, "suspect"),
        ("long", "long", 30.0, None, None),
        ("long-low", "long-low", 30.0, 900.0, "suspect"),
        ("own", "own", 10.0, None, None),
        ("proven", "long-low", 30.0, 900.0, "suspect"),
    ]


def test_an_inferred_cell_on_the_frontier_is_marked_and_names_its_speed() -> None:
    table = trials(
        {"cell_id": "base", "context": 4096, "utilization": 0.95, "kv_available_gib": 2.0},
        {"cell_id": "lower", "context": 4096, **INFERRED},
        {"cell_id": "deep", "context": 2048, "utilization": 0.95, "depth": 3},
        {"cell_id": "deep-lower", "context": 2048, "depth": 3, **INFERRED},
    )
    found = frontier(table, runs(decode("base", 20.0), decode("deep", 50.0))).collect()
    assert found.columns == SCHEMAS["frontier"].names
    told = ("cell_id", "attempt", "status", "speed_cell", "decode_tok_s", "gain_same_graphs")
    assert found.select(told).rows() == [
        ("lower", 0, "inferred", "base", 20.0, 1.0),
        ("deep-lower", 0, "inferred", "deep", 50.0, 2.5),
    ]
    assert found["kv_headroom_gib"].to_list() == [None, None]
    assert found["task_decode_tok_s"].to_list()[1] == [{"task": "edit", "decode_tok_s": 50.0}]


SPEEDS = st.lists(st.sampled_from([20.0, 20.3, 31.0, 50.0]), min_size=6, max_size=6)
ENDS = st.lists(st.integers(0, len(CONTEXTS)), min_size=12, max_size=12)


@settings(deadline=None, max_examples=15)
@given(SPEEDS, ENDS, st.randoms())
def test_few_measured_cells_give_the_frontier_of_all(
    speeds: list[float], ends: list[int], random: Random
) -> None:
    """Where speed depends on depth and graphs alone, one cell of each is enough."""
    everything, few, all_runs, few_runs = [], [], [], []
    for number, (depth, graphs) in enumerate(itertools.product((0, 2, 3), (False, True))):
        speed = speeds[number]
        working = [
            {
                "cell_id": f"{depth}{graphs}{share}{context}",
                "depth": depth,
                "graphs": graphs,
                "utilization": share,
                "context": context,
            }
            for place, share in enumerate(SHARES)
            for context in CONTEXTS[: ends[2 * number + place]]
        ]
        everything += working
        all_runs += [decode(each["cell_id"], speed) for each in working]
        if working:
            lender = random.choice(working)
            few += [each if each is lender else {**each, **INFERRED} for each in working]
            few_runs.append(decode(lender["cell_id"], speed))
    names = ("cell_id", "on_frontier_for", "decode_tok_s", "max_context")
    found = frontier(trials(*few), runs(*few_runs)).select(names).collect()
    expected = frontier(trials(*everything), runs(*all_runs)).select(names).collect()
    assert found.rows() == expected.rows()


# What is proven


def row_of(*rows: dict) -> dict:
    (row,) = boundaries(trials(*rows)).collect().to_dicts()
    return row


@pytest.mark.parametrize(
    ("statuses", "verified", "launched"),
    [
        ([{}, {}, REFUSED, NO], True, True),
        ([INFERRED, INFERRED, NO, NO], True, False),
        ([{}, INFERRED, REFUSED, NO], True, False),
        ([NO, NO, NO, NO], True, False),
        ([INFERRED, INFERRED, INFERRED, {}], True, True),
        ([{}, {"status": "failed"}, REFUSED, NO], False, True),
        ([{"status": "interrupted"}, REFUSED, NO, NO], False, True),
        ([{}, {}, {}, {"status": "failed"}], False, True),
        ([{"status": "failed"}, {}, REFUSED, NO], True, True),
        ([{"status": "failed"}] * 4, False, False),
    ],
)
def test_sides_are_proven_by_launches_of_any_cell_when_they_are_neighbours(
    statuses: list[dict], verified: bool, launched: bool
) -> None:
    rows = [{"context": each, **how} for each, how in zip(CONTEXTS, statuses, strict=True)]
    row = row_of(*rows)
    assert (row["verified"], row["launched"]) == (verified, launched)


def test_a_window_of_the_grid_that_nobody_tried_leaves_a_boundary_open() -> None:
    planned = trials(*({"context": context} for context in CONTEXTS))
    found = boundaries(trials({"context": 1024}, {"context": 8192, **REFUSED}), planned)
    assert found.collect()["verified"].to_list() == [False]


def test_nothing_is_proven_where_a_longer_window_works_than_one_that_is_refused() -> None:
    planned = trials(*({"context": context} for context in CONTEXTS))
    for known in ({}, {"context": 2048, **NO}):
        rows = [{"context": 1024, **REFUSED}, {"context": 4096}, *([known] if known else [])]
        (row,) = boundaries(trials(*rows), planned).collect().to_dicts()
        assert (row["max_context_works"], row["min_context_fails"]) == (4096, 1024)
        assert (row["monotone"], row["verified"], row["launched"]) == (False, False, True)
        assert row["failure_class"] == "kv_too_small"


def test_a_side_of_which_launches_say_both_is_not_proven() -> None:
    deeper = {"cell_id": "deeper", "context": 4096, "depth": 2}
    hole = {"cell_id": "hole", "context": 1024, **REFUSED}
    side = {"cell_id": "side", "context": 2048, "doubt": DISAGREEMENT, **INFERRED}
    table = trials(deeper, hole, side, {"context": 8192, **REFUSED})
    assert contested(table).collect()["cell_id"].to_list() == ["side"]
    found = dict(boundaries(table).select("depth", "verified").collect().rows())
    assert found == {0: False, 2: True}


# Monotony


def test_launches_that_agree_have_no_contradictions() -> None:
    table = trials(
        {"context": 4096},
        {"context": 8192, **REFUSED},
        {"context": 4096, "depth": 1, **REFUSED},
        {"context": 4096, "utilization": 0.8, **REFUSED},
        {"context": 1024, "utilization": 0.98, **REFUSED}
        | {"failure_class": "utilization_above_free"},
        {"context": 1024, "status": "failed", "failure_class": "port_in_use", "depth": 0}
        | {"utilization": 0.95},
        {"context": 1024, "graphs": True, **REFUSED},
        {"context": 1024, "extra": '{"a": 1}', **REFUSED},
    )
    assert contradictions(table).collect().height == 0
    assert contested(table).collect().height == 0


@pytest.mark.parametrize(
    "refused",
    [
        {"context": 2048},
        {"context": 4096, "utilization": 0.95},
        {
            "context": 9000,
            "utilization": 0.85,
            "failure_class": "utilization_above_free",
        },
        {"context": 2048, "depth": 1},
        {"context": 4096, "graphs": False},
    ],
)
def test_a_cell_that_asks_for_no_more_and_is_refused_contradicts(refused: dict) -> None:
    works = {"cell_id": "w", "context": 4096, "graphs": True, "depth": 2, "utilization": 0.9}
    further = {"cell_id": "z", "context": 8192, "graphs": True, "depth": 3, "utilization": 0.9}
    table = trials(
        further, works, {"cell_id": "f", **REFUSED, "graphs": True, "depth": 2} | refused
    )
    (row,) = contradictions(table).collect().to_dicts()
    assert (row["works_cell_id"], row["fails_cell_id"]) == ("w", "f")
    assert (row["works_context"], row["fails_context"]) == (4096, refused["context"])


def test_a_refusal_says_what_its_reason_says() -> None:
    beside = {**REFUSED, "failure_class": "oom_graph_capture"}
    table = trials(
        {"cell_id": "w", "context": 4096, "utilization": 0.9},
        {"cell_id": "larger share", "context": 4096, "utilization": 0.95, **beside},
        {"cell_id": "smaller share", "context": 4096, "utilization": 0.8, **beside},
        {"context": 2048, "depth": 1, **REFUSED, "failure_class": "context_exceeds_model"},
    )
    found = contradictions(table).collect().select("works_cell_id", "fails_cell_id").rows()
    assert found == [("w", "smaller share"), ("w", "c3")]


def test_a_contradicted_refusal_beside_cells_presumed_to_work_is_unexplored() -> None:
    hole = {"cell_id": "hole", "context": 2048, "depth": 1, **REFUSED}
    far = {"context": 1024, "depth": 2, **INFERRED}  # no neighbour: two axes differ
    table = [{"context": 8192, "depth": 2}, hole, far]
    assert unexplored_in(trials(*table)) == 0
    for beside in ({"context": 4096}, {"context": 1024}, {"depth": 2}, {"depth": 0}):
        neighbour = {"context": 2048, "depth": 1} | beside
        assert unexplored_in(trials(*table, neighbour)) == 0  # launched
        assert unexplored_in(trials(*table, neighbour | NO)) == 0
        assert unexplored_in(trials(*table, neighbour | INFERRED)) == 1
    second = {"cell_id": "second", "context": 2048, "depth": 2, **REFUSED}
    both = trials(*table, second, {"context": 2048, "depth": 0, **INFERRED})
    assert unexplored_in(both) == 2  # and the far one is beside the second
    agreeing = trials(hole, {"context": 1024, "depth": 1, **INFERRED})
    assert unexplored_in(agreeing) == 0


def test_an_audit_is_wrong_when_all_launches_before_it_said_otherwise() -> None:
    def at(minute: int, **row: Any) -> dict:
        return {**row, "started_at": datetime(2026, 1, 1, 12, minute, tzinfo=UTC)}

    audit = {"purpose": "audit"}
    table = trials(
        at(0, cell_id="works", context=8192),
        at(1, cell_id="right", context=4096, **audit),
        at(2, cell_id="wrong", context=2048, **REFUSED, **audit),
        # Of this one launches said both.
        at(3, cell_id="disputed", context=4096, utilization=0.95, **audit),
        at(4, cell_id="nobody", context=9000, depth=3, **REFUSED, **audit),
        at(5, cell_id="again", context=1024, status="failed", failure_class="killed", **audit),
    )
    assert audits(table).collect().rows() == [
        ("disputed", False),
        ("nobody", False),
        ("right", False),
        ("wrong", True),
    ]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(CONTEXTS),
            st.booleans(),
            st.sampled_from([0.8, 0.9, 0.95]),
            st.sampled_from(["measured", "kv_too_small", "utilization_above_free"]),
        ),
        unique_by=lambda each: each[:4],
        max_size=25,
    )
)
def test_contradictions_are_the_pairs_found_one_by_one(rows: list[tuple]) -> None:
    def disagree(works: tuple, fails: tuple) -> bool:
        if fails[4] == "utilization_above_free":
            return works[3] >= fails[3]
        return all(works[axis] >= fails[axis] for axis in range(3)) and works[3] <= fails[3]

    table = trials(
        *(
            {
                "cell_id": str(number),
                "depth": depth,
                "context": context,
                "graphs": graphs,
                "utilization": share,
                **({} if end == "measured" else {**REFUSED, "failure_class": end}),
            }
            for number, (depth, context, graphs, share, end) in enumerate(rows)
        )
    )
    found = {each["fails_cell_id"]: each for each in contradictions(table).collect().to_dicts()}
    for number, fails in enumerate(rows):
        others = [each for each in rows if each[4] == "measured" and disagree(each, fails)]
        expected = fails[4] != "measured" and bool(others)
        assert (str(number) in found) is expected
        if expected:
            told = found[str(number)]
            assert rows[int(told["works_cell_id"])] in others
