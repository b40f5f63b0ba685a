import polars as pl
import pytest

from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.by_depth import by_depth
from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.derived import derived_tables
from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.analyze.gains import acceptance, gains
from vllm_frontier.analyze.latest import counted
from vllm_frontier.analyze.speed import cell_speeds
from vllm_frontier.analyze.summary import failures, status_counts
from vllm_frontier.store.schema import SCHEMAS
from vllm_frontier.store.tables import frame


def trials(*rows: dict) -> pl.LazyFrame:
    base = {
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
    rows_ = [{**base, "cell_id": f"c{number}", **row} for number, row in enumerate(rows)]
    return frame("trials", rows_).lazy()


def decode(cell_id: str, task: str, *speeds: float, attempt: int = 1) -> list[dict]:
    return [
        {
            "cell_id": cell_id,
            "attempt": attempt,
            "task": task,
            "repeat": repeat,
            "kind": "decode",
            "concurrency": 1,
            "decode_tok_s": speed,
        }
        for repeat, speed in enumerate(speeds)
    ]


def runs(*rows: dict) -> pl.LazyFrame:
    return frame("runs", rows).lazy()


REFUSED = {"status": "infeasible", "failure_class": "kv_too_small", "phase": "allocate_kv"}
ABOVE_FREE = {**REFUSED, "failure_class": "utilization_above_free", "phase": "load"}


# Which attempt counts


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([(1, "failed"), (2, "measured"), (3, "failed")], 2),
        ([(1, "measured"), (2, "infeasible")], 2),
        ([(1, "failed"), (2, "interrupted")], 2),
        ([(0, "inferred"), (1, "failed")], 0),
        ([(0, "inferred"), (1, "measured")], 1),
        ([(10, "measured"), (9, "infeasible")], 10),
    ],
)
def test_the_last_final_attempt_counts(attempts: list[tuple[int, str]], expected: int) -> None:
    table = trials(
        *({"cell_id": "x", "attempt": number, "status": status} for number, status in attempts)
    )
    assert counted(table).collect()["attempt"].to_list() == [expected]


# Speed


def test_speed_is_the_median_over_tasks_of_their_medians() -> None:
    table = runs(
        *decode("a", "edit", 90, 100, 500),
        *decode("a", "code", 60, 62, 61),
        *decode("a", "prose", 40, 41, 45),
        *decode("b", "edit", 10),
        {**decode("a", "edit", 9999)[0], "kind": "fill"},
        {**decode("a", "edit", 9999)[0], "concurrency": 8, "kind": "load"},
        {"cell_id": "a", "attempt": 1, "kind": "prefill", "prefill_tok_s": 900.0},
        {"cell_id": "a", "attempt": 1, "kind": "prefill", "prefill_tok_s": 700.0},
        {"cell_id": "c", "attempt": 2, "kind": "prefill", "prefill_tok_s": 500.0},
    )
    a, b, c = cell_speeds(table).collect().to_dicts()
    assert a["decode_tok_s"] == 61
    assert a["task_decode_tok_s"] == [
        {"task": "code", "decode_tok_s": 61},
        {"task": "edit", "decode_tok_s": 100},
        {"task": "prose", "decode_tok_s": 41},
    ]
    # Repeats are 90/60/40, 100/62/41 and 500/61/45.
    assert (a["decode_tok_s_low"], a["decode_tok_s_high"]) == (60, 62)
    assert a["prefill_tok_s"] == 800
    assert (b["decode_tok_s"], b["prefill_tok_s"]) == (10, None)
    assert (c["cell_id"], c["attempt"], c["decode_tok_s"]) == ("c", 2, None)


# Boundaries


def test_boundaries_by_hand() -> None:
    table = trials(
        {"context": 1024},
        {"context": 2048},
        {"context": 4096, **REFUSED},
        {"context": 8192, "status": "inferred", "failure_class": "kv_too_small", "attempt": 0},
        {"context": 1024, "utilization": 0.98, **ABOVE_FREE},
        {"context": 2048, "utilization": 0.98, **REFUSED},
        {"context": 1024, "depth": 2, "status": "failed", "failure_class": "port_in_use"},
        {"context": 1024, "depth": 3, "status": "inferred", "attempt": 0},
        {"context": 2048, "depth": 3, **REFUSED},
        {"context": 1024, "depth": 4},
        {"context": 1024, "depth": 5},
        {"context": 2048, "depth": 5, "status": "failed", "failure_class": "port_in_use"},
        {"context": 4096, "depth": 5, **REFUSED},
    )
    found = boundaries(table).select(
        "depth",
        "utilization",
        "max_context_works",
        "min_context_fails",
        "verified",
        "failure_class",
        "cells",
        "monotone",
        "launched",
    )
    assert found.collect().rows() == [
        (0, 0.9, 2048, 4096, True, "kv_too_small", 4, True, True),
        (0, 0.98, None, 1024, True, "utilization_above_free", 2, True, True),
        (2, 0.9, None, None, False, None, 1, True, False),
        (3, 0.9, 1024, 2048, True, "kv_too_small", 2, True, False),
        (4, 0.9, 1024, None, True, None, 1, True, True),
        (5, 0.9, 1024, 4096, False, "kv_too_small", 3, True, True),
    ]


def test_a_window_that_works_beyond_one_that_does_not() -> None:
    table = trials(
        {"context": 20_000},
        {"context": 29_000, **REFUSED},
        {"context": 35_000},
        {"context": 45_000},
    )
    (row,) = boundaries(table).collect().to_dicts()
    assert (row["max_context_works"], row["min_context_fails"]) == (45_000, 29_000)
    assert row["monotone"] is False


def test_what_vllm_refuses_whatever_the_card_is_a_refusal() -> None:
    table = trials(
        {"context": 1024},
        {"context": 2048, "status": "invalid", "failure_class": "context_exceeds_model"},
    )
    (row,) = boundaries(table).collect().to_dicts()
    assert (row["min_context_fails"], row["failure_class"]) == (2048, "context_exceeds_model")


def test_further_axes_and_cells_not_yet_tried_have_rows() -> None:
    table = trials({"context": 1024}, {"context": 1024, "extra": '{"a": 1}', **REFUSED})
    planned = trials(
        {"context": 1024}, {"context": 2048}, {"context": 1024, "depth": 5, "graphs": True}
    )
    columns = ["extra", "depth", "graphs", "max_context_works", "min_context_fails", "cells"]
    assert boundaries(table, planned).select(columns).collect().rows() == [
        ('{"a": 1}', 0, False, None, 1024, 1),
        ("{}", 0, False, 1024, None, 2),
        ("{}", 5, True, None, None, 1),
    ]


# Frontier and choices


def ten_cells() -> tuple[pl.LazyFrame, pl.LazyFrame]:
    cells = [
        # name, context, utilization, depth, edit, prose
        ("base", 32_768, 0.9, 0, 50, 50),  # longest
        ("base-low", 8_192, 0.8, 0, 50, 50),  # less memory
        ("base-mid", 16_384, 0.9, 0, 50.5, 50.5),  # equal to base, shorter
        ("deep", 16_384, 0.9, 3, 120, 60),  # balanced
        ("deeper", 16_384, 0.9, 4, 121, 60),  # equal to deep, deeper
        ("deepest", 8_192, 0.9, 5, 150, 50),  # fastest
        ("deepest-high", 8_192, 0.95, 5, 151, 50),  # equal to deepest, more memory
        ("short", 4_096, 0.9, 1, 70, 62.5),  # leads for prose alone
    ]
    table = trials(
        *(
            {"cell_id": name, "context": context, "utilization": share, "depth": depth}
            for name, context, share, depth, _, _ in cells
        ),
        {"cell_id": "refused", "context": 65_536, **REFUSED},
        # Nothing of its depth was measured.
        {
            "cell_id": "unmeasured",
            "context": 65_536,
            "depth": 6,
            "status": "inferred",
            "attempt": 0,
        },
    )
    rows = [
        row
        for name, *_, edit, prose in cells
        for row in (*decode(name, "edit", edit), *decode(name, "prose", prose))
    ]
    return table, runs(*rows, *decode("refused", "edit", 999))


def test_frontier_by_hand() -> None:
    found = frontier(*ten_cells()).collect()
    assert dict(found.select("cell_id", "on_frontier_for").rows()) == {
        "base": ["all", "edit", "prose"],
        "deep": ["all", "edit", "prose"],
        "deepest": ["all", "edit"],
        "base-low": ["all", "edit", "prose"],
        "short": ["prose"],
    }
    assert found["cell_id"].to_list()[:2] == ["base", "deep"]
    deep = found.row(1, named=True)
    assert deep["decode_tok_s"] == 90
    assert deep["max_context"] == 16_384
    assert deep["gain_no_graphs"] == pytest.approx(90 / 50.5)


def test_a_smaller_tolerance_tells_more_cells_apart() -> None:
    found = frontier(*ten_cells(), tie=0.0).collect()
    assert {"deeper", "deepest-high"} <= set(found["cell_id"])


def test_all_launches_that_were_measured_have_a_say_and_no_other() -> None:
    cell = {"cell_id": "a", "context": 1024}
    table = trials(
        cell,
        {**cell, "attempt": 2, "purpose": "replicate"},
        {**cell, "attempt": 3, "status": "failed", "failure_class": "killed"},
        {**cell, "attempt": 4, "purpose": "reference"},
    )
    rows = runs(
        *decode("a", "edit", 10, 11, 30),
        *decode("a", "edit", 20, attempt=2),
        *decode("a", "edit", 999, attempt=3),
        *decode("a", "edit", 12, attempt=4),
        *decode("a", "edit", 999, attempt=5),
    )
    (row,) = frontier(table, rows).collect().to_dicts()
    assert (row["attempt"], row["decode_tok_s"], row["launches"], row["runs"]) == (4, 12, 3, 5)
    assert row["interval_basis"] == "launches"


def test_a_cell_that_no_longer_works_has_no_speed() -> None:
    table = trials(
        {"cell_id": "a", "context": 1024},
        {"cell_id": "a", "context": 1024, "attempt": 2, **REFUSED},
    )
    assert frontier(table, runs(*decode("a", "edit", 10))).collect().is_empty()


def test_headroom_is_what_is_left_beyond_one_window() -> None:
    table = trials(
        {"cell_id": "logged", "context": 1024, "kv_available_gib": 5.0, "kv_needed_gib": 3.5},
        {"cell_id": "ratio", "context": 2048, "kv_available_gib": 4.0, "kv_tokens": 8192},
        {"cell_id": "unknown", "context": 4096, "kv_available_gib": 4.0},
    )
    rows = runs(*decode("logged", "t", 30), *decode("ratio", "t", 20), *decode("unknown", "t", 10))
    found = dict(frontier(table, rows).select("cell_id", "kv_headroom_gib").collect().rows())
    assert found == {"logged": 1.5, "ratio": 3.0, "unknown": None}


def test_choices_by_hand() -> None:
    found = choices(frontier(*ten_cells())).select("cell_id", "choices").collect()
    # Products: base 1.64 M, deep 1.47 M, deepest 0.82 M.
    assert found.rows() == [("deepest", ["fastest"]), ("base", ["longest", "balanced"])]


def test_choices_within_limits() -> None:
    found = choices(frontier(*ten_cells(), min_decode=60.0)).select("cell_id", "choices").collect()
    assert found.rows() == [("deepest", ["fastest"]), ("deep", ["longest", "balanced"])]
    found = choices(frontier(*ten_cells(), min_context=20_000)).select("cell_id", "choices")
    assert found.collect().rows() == [("base", ["fastest", "longest", "balanced"])]
    assert choices(frontier(*ten_cells(), min_decode=1e6)).collect().height == 0


def test_a_limit_is_applied_before_equals_give_way() -> None:
    table = trials({"cell_id": "fast", "context": 16384}, {"cell_id": "long", "context": 32768})
    rows = runs(*decode("fast", "edit", 100.0), *decode("long", "edit", 98.5))
    assert frontier(table, rows).collect()["cell_id"].to_list() == ["long"]
    assert frontier(table, rows, min_decode=99.0).collect()["cell_id"].to_list() == ["fast"]
    found = frontier(table, rows, task="edit", min_decode=99.0).collect()
    assert found["cell_id"].to_list() == ["fast"]


def test_choices_for_a_task_go_by_its_speed() -> None:
    found = choices(frontier(*ten_cells()), task="prose").collect()
    assert found.select("cell_id", "choices", "decode_tok_s").rows() == [
        ("short", ["fastest"], 62.5),
        ("base", ["longest", "balanced"], 50.0),
    ]
    assert choices(frontier(*ten_cells()), task="unheard of").collect().height == 0


# Gains and acceptance


def test_gains_over_both_baselines() -> None:
    table = trials(
        {"cell_id": "off", "context": 1024},
        {"cell_id": "on", "context": 1024, "graphs": True},
        {"cell_id": "spec", "context": 1024, "graphs": True, "depth": 2},
        {"cell_id": "elsewhere", "context": 2048, "graphs": True, "depth": 2},
        {"cell_id": "other", "context": 1024, "depth": 1, "extra": '{"a": 1}'},
        {"cell_id": "share", "context": 1024, "graphs": True, "depth": 2, "utilization": 0.5},
        {"cell_id": "far", "context": 4096, "graphs": True},
    )
    speeds = {"off": 20.0, "on": 40.0, "spec": 60.0, "elsewhere": 50.0, "other": 30.0}
    # Of two windows, the baseline of the cell's own counts, whatever its share of the card.
    speeds |= {"share": 80.0, "far": 60.0}
    rows = [row for name, speed in speeds.items() for row in decode(name, "t", speed)]
    assert gains(table, runs(*rows)).collect().rows() == [
        ("elsewhere", 1.0, 2.5, "other windows"),
        ("far", 1.0, 3.0, "same window"),
        ("off", 1.0, 1.0, "same window"),
        ("on", 1.0, 2.0, "same window"),
        ("other", None, None, None),
        ("share", 2.0, 4.0, "same window"),
        ("spec", 1.5, 3.0, "same window"),
    ]


def test_acceptance_is_accepted_over_drafts_by_position() -> None:
    def drafted(cell: str, task: str, drafts: int, *accepted: int) -> dict:
        row = decode(cell, task, 10.0)[0]
        return {**row, "drafts": drafts, "accepted_per_position": list(accepted)}

    table = runs(
        drafted("a", "edit", 100, 90, 50),
        drafted("a", "edit", 300, 210, 150),
        drafted("a", "prose", 100, 1, 0),
        drafted("b", "edit", 50, 50, 50),
        drafted("c", "edit", 0, 0, 0),
        *decode("d", "edit", 10.0),
    )
    assert acceptance(table).collect().rows() == [
        ("a", 1, "edit", [0.75, 0.5], 2.25),
        ("a", 1, "prose", [0.01, 0.0], 1.01),
        ("b", 1, "edit", [1.0, 1.0], 3.0),
    ]


def test_speed_and_acceptance_by_depth_pool_windows_and_keep_graphs_apart() -> None:
    def drafted(cell: str, speed: float, drafts: int, *accepted: int) -> dict:
        row = decode(cell, "edit", speed)[0]
        return {**row, "drafts": drafts, "accepted_per_position": list(accepted)}

    table = trials(
        {"cell_id": "base", "context": 1024},
        {"cell_id": "short", "context": 1024, "depth": 2},
        {"cell_id": "long", "context": 4096, "depth": 2},
        {"cell_id": "graphs", "context": 4096, "depth": 2, "graphs": True},
        {"cell_id": "refused", "context": 8192, "depth": 2, **REFUSED},
    )
    rows = runs(
        *decode("base", "edit", 10.0, 12.0, 50.0),
        drafted("short", 20.0, 100, 90, 50),
        drafted("long", 30.0, 300, 210, 150),
        drafted("graphs", 40.0, 100, 75, 50),
        drafted("refused", 999.0, 100, 0, 0),
    )
    assert by_depth(table, rows).collect().rows() == [
        ("{}", 0, "edit", 12.0, None, None),
        ("{}", 2, "edit", 25.0, 40.0, [0.75, 0.5]),
    ]


# Summary


def test_counts_and_failures() -> None:
    refused = {**REFUSED, "evidence": "needs 5 GiB", "evidence_line": 7}
    table = trials(
        {"cell_id": "a", "context": 1024},
        {"cell_id": "b", "context": 8192, **refused},
        {"cell_id": "c", "context": 4096, **refused},
        {"cell_id": "d", "context": 2048, "status": "failed", "failure_class": "killed"},
        {"cell_id": "d", "context": 2048, "attempt": 2, "status": "interrupted"},
    )
    assert dict(status_counts(table).collect().rows()) == {
        "measured": 1,
        "infeasible": 2,
        "interrupted": 1,
    }
    first, second = failures(table).collect().to_dicts()
    assert (first["failure_class"], first["cells"], first["cell_id"]) == ("kv_too_small", 2, "c")
    assert (first["evidence"], first["evidence_line"]) == ("needs 5 GiB", 7)
    assert (second["status"], second["failure_class"]) == ("interrupted", None)


# Nothing, one cell, nothing that works


@pytest.mark.parametrize(
    "table",
    [
        trials(),
        trials({"context": 1024}),
        trials({"context": 1024, **REFUSED}, {"context": 2048, **REFUSED}),
        trials({"context": 1024, "status": "interrupted"}),
    ],
    ids=["empty", "one without runs", "all refused", "interrupted"],
)
def test_tables_keep_their_columns_when_there_is_no_speed(table: pl.LazyFrame) -> None:
    found = derived_tables(table, runs())
    for name, each in found.items():
        assert each.collect().schema == frame(name).schema
    assert found["frontier"].collect().height == 0
    assert choices(found["frontier"]).collect().height == 0
    assert gains(table, runs()).collect().height == 0
    assert acceptance(runs()).collect().height == 0
    assert by_depth(trials(), runs()).collect().height == 0


def test_one_measured_cell_is_the_whole_frontier() -> None:
    table = trials({"cell_id": "a", "context": 1024})
    found = frontier(table, runs(*decode("a", "edit", 10.0))).collect()
    assert found.schema == frame("frontier").schema
    assert found.columns == SCHEMAS["frontier"].names
    (row,) = choices(found.lazy()).collect().to_dicts()
    assert row["choices"] == ["fastest", "longest", "balanced"]


def test_a_cell_tried_under_two_identities_counts_once() -> None:
    table = trials(
        {"cell_id": "old", "context": 1024, "status": "failed", "failure_class": "killed"},
        {"cell_id": "new", "context": 1024, "changed": "engine.version 0.31.0 -> 0.32.0"},
        {"cell_id": "done", "context": 2048},
        {"cell_id": "later", "context": 2048, "attempt": 2, "status": "interrupted"},
    )
    assert set(counted(table).collect()["cell_id"]) == {"new", "done"}
    rows = runs(*decode("new", "edit", 30.0), *decode("done", "edit", 10.0))
    found = frontier(table, rows).collect()
    assert dict(found.select("cell_id", "changed").rows()) == {
        "new": "engine.version 0.31.0 -> 0.32.0",
        "done": None,
    }


def test_positions_that_a_server_does_not_tell_are_no_zeros() -> None:
    table = trials({"cell_id": "a", "depth": 2, "context": 8192})
    told = {"cell_id": "a", "attempt": 1, "kind": "decode", "concurrency": 1, "task": "edit"}
    told |= {"decode_tok_s": 50.0, "drafts": 10}
    untold = told | {"accepted_per_position": [None, None]}
    assert by_depth(table, runs(untold)).collect()["acceptance"].to_list() == [None]
    assert acceptance(runs(untold)).collect().is_empty()
    both = runs(untold, told | {"accepted_per_position": [8, 4]})
    assert by_depth(table, both).collect()["acceptance"].to_list() == [[0.8, 0.4]]
    assert acceptance(both).collect()["acceptance"].to_list() == [[0.8, 0.4]]
