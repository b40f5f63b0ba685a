from typing import Any

import polars as pl

from vllm_frontier.analyze.cell_states import CellState, Reason, cell_states, reason_of
from vllm_frontier.outcome import FailureClass, Status
from vllm_frontier.store.tables import frame

Row = dict[str, Any]


def trial(context: int, status: str, **more: Any) -> Row:
    axes = {"depth": 1, "graphs": True, "utilization": 0.9, "extra": "{}"}
    attempt = 0 if status == "inferred" else 1
    row = {"cell_id": f"c{context}", "attempt": attempt, "context": context, "status": status}
    return {**axes, **row, **more}


def states(rows: list[Row], **more: pl.LazyFrame) -> dict[int, Row]:
    found = cell_states(frame("trials", rows).lazy(), **more).collect()
    assert found["context"].is_sorted()
    return {row["context"]: row for row in found.iter_rows(named=True)}


def test_every_status_has_a_state() -> None:
    told = {
        1: trial(1, "measured"),
        2: trial(2, "inferred", evidence_cell="c1"),
        3: trial(3, "infeasible", failure_class="oom_profile"),
        4: trial(4, "inferred", failure_class="kv_too_small", evidence_cell="c3"),
        5: trial(5, "invalid", failure_class="spec_unsupported"),
        6: trial(6, "failed", failure_class="killed"),
        7: trial(7, "interrupted"),
    }
    found = states(list(told.values()))
    assert {context: (row["state"], row["reason"]) for context, row in found.items()} == {
        1: ("works", None),
        2: ("works, inferred", None),
        3: ("refused", "out of memory"),
        4: ("refused, inferred", "too little memory for the KV cache"),
        5: ("refused", "vLLM refuses the settings"),
        6: ("failed", "something else broke"),
        7: ("interrupted", None),
    }
    assert {status.value for status in Status} == {row["status"] for row in told.values()}


def test_an_inferred_cell_has_the_axes_and_figures_of_its_launch() -> None:
    launched = trial(
        4096,
        "infeasible",
        failure_class="kv_too_small",
        kv_needed_gib=0.3,
        kv_available_gib=0.2,
        max_context_estimate=3000,
        depth=0,
    )
    found = states(
        [launched, trial(8192, "inferred", failure_class="kv_too_small", evidence_cell="c4096")]
    )
    row = found[8192]
    assert (row["from_context"], row["from_depth"], row["from_graphs"]) == (4096, 0, True)
    assert (row["from_kv_needed_gib"], row["from_max_context_estimate"]) == (0.3, 3000)
    assert row["kv_needed_gib"] is None
    assert found[4096]["from_context"] is None


def test_what_was_not_tried_and_what_runs_are_cells_too() -> None:
    rows = [
        trial(1024, "measured"),
        trial(2048, "failed", failure_class="killed"),
        trial(8192, "inferred"),
    ]
    planned = frame("trials", [trial(1024 * 2**power, "") for power in range(5)])
    running = frame("trials", [trial(each, "interrupted") for each in (1024, 2048, 4096, 8192)])
    found = states(rows, planned=planned.lazy(), running=running.lazy())
    assert {context: row["state"] for context, row in found.items()} == {
        1024: "works",  # launched again; its answer stands
        2048: "running",
        4096: "running",
        8192: "works, inferred",
        16384: "not tried",
    }
    assert found[16384]["cell_id"] is None
    assert found[2048]["failure_class"] is None


def test_a_launch_that_was_overruled_is_still_named() -> None:
    first = trial(1024, "infeasible", failure_class="kv_none", cell_id="old")
    later = trial(1024, "measured", cell_id="new", attempt=2)
    found = states([first, later, trial(2048, "inferred", evidence_cell="old")])
    assert found[1024]["state"] == "works"
    assert found[2048]["from_context"] == 1024


def test_what_follows_from_a_cell_has_the_figures_of_its_last_launch() -> None:
    told = {"failure_class": "kv_too_small", "status": "infeasible", "cell_id": "twice"}
    rows = [
        trial(1024, **told, attempt=each, kv_needed_gib=float(each), kv_available_gib=0.5)
        for each in (2, 1, 3)
    ]
    follows = trial(2048, "inferred", failure_class="kv_too_small", evidence_cell="twice")
    assert states([*rows, follows])[2048]["from_kv_needed_gib"] == 3.0


def test_every_failure_class_has_a_family() -> None:
    families = {each: reason_of(each) for each in FailureClass}
    assert families[FailureClass.STATE_SLOTS_TOO_FEW] is Reason.CACHE
    assert families[FailureClass.UTILIZATION_ABOVE_FREE] is Reason.SHARE
    assert families[FailureClass.OOM_GRAPH_CAPTURE] is Reason.OUT_OF_MEMORY
    assert families[FailureClass.CONTEXT_EXCEEDS_MODEL] is Reason.INVALID
    assert families[FailureClass.GPU_LOST] is Reason.BROKE
    assert set(families.values()) == set(Reason)


def test_nothing_is_an_empty_frame() -> None:
    found = cell_states(frame("trials").lazy()).collect()
    assert found.is_empty()
    assert {"state", "reason", "from_context"} <= set(found.columns)
    assert len(CellState) == 8
