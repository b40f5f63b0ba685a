import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml

from vllm_frontier.analyze.derived import derived_tables
from vllm_frontier.conditions import Conditions, Sample
from vllm_frontier.errors import StoreError
from vllm_frontier.grid import Cell, Grid
from vllm_frontier.outcome import (
    Failure,
    FailureClass,
    Outcome,
    Phase,
    Purpose,
    Run,
    Speed,
    StartupFacts,
    Status,
)
from vllm_frontier.spec import (
    CardSpec,
    EngineSpec,
    ModelSpec,
    ScheduleSpec,
    SearchSpec,
    SweepIdentity,
    SweepSpec,
    WorkloadSpec,
)
from vllm_frontier.store import tables
from vllm_frontier.store.paths import TABLES, AttemptPaths
from vllm_frontier.store.rows import (
    inferred_row,
    interrupted_row,
    outcome_of,
    run_rows,
    telemetry_rows,
    trial_row,
)
from vllm_frontier.store.schema import SCHEMAS
from vllm_frontier.store.sweep_store import SweepStore

SPEC = SweepSpec(
    name="demo",
    model=ModelSpec(name="tiny", id="org/tiny", quantization="awq"),
    card=CardSpec(kind="cpu", name="A card", memory_gib=4.0),
    engine=EngineSpec(kind="vllm-cpu"),
    grid=Grid((0,), (1024,), (False,), (0.9,)),
    workload=WorkloadSpec(),
    search=SearchSpec(),
    schedule=ScheduleSpec(),
)
IDENTITY = SweepIdentity({"model": {"id": "org/tiny"}, "card": {"gib": 4.0}}, "w1")
CONFIG = {"name": "demo", "workload": {"repeats": 3, "tasks": ["edit", "code"]}}
CELL = Cell(1, 1024, False, 0.9, (("max_num_seqs", 4),))
GOOD = Outcome(
    status=Status.MEASURED,
    phase=Phase.STOP,
    started=True,
    filled=True,
    facts=StartupFacts(engine_version="0.32.0", kv_available_gib=1.5, kv_tokens=4096),
    runs=(
        Run(
            "edit",
            0,
            "decode",
            completion_tokens=65,
            decode_tok_s=32.0,
            drafts=30,
            accepted_per_position=(20, 10),
            output="text",
            started_at=1_700_000_001.25,
            conditions=Conditions(sm_clock_mhz=2400.0, throttle_reasons=("power_cap",)),
        ),
        Run("prefill", 0, "prefill", prefill_tok_s=900.0, started_at=1_700_000_000.5),
    ),
    wall_s=30.5,
    started_at=1_700_000_000.0,
    ended_at=1_700_000_030.5,
    samples=(
        Sample(1_700_000_001.0, "GPU-1", "load", power_w=81.5, throttle_reasons=()),
        Sample(1_700_000_001.5, "GPU-1", "measure", sm_clock_mhz=2400.0, foreign_processes=2),
    ),
)
REFUSED = Outcome(
    status=Status.INFEASIBLE,
    phase=Phase.ALLOCATE_KV,
    failure=Failure(FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, "ValueError: too small", 17),
    facts=StartupFacts(kv_needed_gib=2.0, kv_available_gib=1.5, max_context_estimate=900),
    started_at=1_700_000_100.0,
    ended_at=1_700_000_120.0,
)


def launch(store: SweepStore, cell: Cell, started_at: float = 1_700_000_000.0) -> AttemptPaths:
    attempt = store.new_attempt(IDENTITY.cell_id(cell))
    row = interrupted_row(
        SPEC, IDENTITY, cell, attempt.number, started_at=started_at, engine_version="0.32.0"
    )
    store.write_attempt(attempt, row, {"supervisor": {"pid": 7, "start_time": 99}})
    return attempt


def finish(store: SweepStore, cell: Cell, outcome: Outcome) -> AttemptPaths:
    attempt = launch(store, cell)
    number = attempt.number
    store.write_outcome(
        attempt,
        trial_row(SPEC, IDENTITY, cell, number, outcome, engine_version="0.32.0"),
        run_rows(SPEC, IDENTITY, cell, number, outcome),
        telemetry_rows(SPEC, IDENTITY, cell, number, outcome),
    )
    return attempt


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    opened, resumed = SweepStore.create_or_open(tmp_path / "out", CONFIG, IDENTITY)
    assert not resumed
    with opened:
        yield opened


def test_a_new_folder_records_configuration_and_identity(store: SweepStore) -> None:
    document = yaml.safe_load(store.paths.sweep_yaml.read_text())
    assert document["config"] == CONFIG
    assert document["identity"]["digest"] == IDENTITY.digest
    assert document["identity"]["cell"] == {"model": {"id": "org/tiny"}, "card": {"gib": 4.0}}
    assert sorted(each.name for each in store.paths.root.iterdir()) == [
        "attempts",
        "lock",
        "lock.json",
        "sweep.yaml",
    ]


def test_the_same_sweep_is_resumed_and_its_manifest_left_alone(store: SweepStore) -> None:
    before = store.paths.sweep_yaml.stat()
    store.close()
    again, resumed = SweepStore.create_or_open(store.paths.root, CONFIG, IDENTITY)
    with again:
        assert resumed
    assert store.paths.sweep_yaml.stat().st_mtime_ns == before.st_mtime_ns


def test_another_grid_of_the_same_sweep_is_kept_for_the_next_resume(store: SweepStore) -> None:
    store.close()
    other = {**CONFIG, "grid": {"depth": [0, 1]}}
    again, resumed = SweepStore.create_or_open(store.paths.root, other, IDENTITY)
    with again:
        assert resumed
    assert SweepStore.open(store.paths.root).config["grid"] == {"depth": [0, 1]}


def test_a_sweep_of_another_name_is_refused(store: SweepStore) -> None:
    store.close()
    other = {**CONFIG, "name": "renamed"}
    with pytest.raises(StoreError, match="name is demo there and renamed here"):
        SweepStore.create_or_open(store.paths.root, other, IDENTITY)


def test_another_sweep_is_refused_with_the_first_key_that_differs(store: SweepStore) -> None:
    store.close()
    other = SweepIdentity({"model": {"id": "org/tiny"}, "card": {"gib": 8.0}}, "w1")
    with pytest.raises(StoreError, match=r"card\.gib is 4\.0 there and 8\.0 here") as caught:
        SweepStore.create_or_open(store.paths.root, CONFIG, other)
    assert "\n" not in str(caught.value)
    # The refusal must not leave the folder locked.
    SweepStore.create_or_open(store.paths.root, CONFIG, IDENTITY)[0].close()


def test_a_key_that_only_one_sweep_has_is_named(store: SweepStore) -> None:
    store.close()
    parts = {**IDENTITY.cell_part, "engine": {"version": "1"}}
    with pytest.raises(StoreError, match=r"engine\.version is not set there and 1 here"):
        SweepStore.create_or_open(store.paths.root, CONFIG, SweepIdentity(parts, "w1"))


def test_another_workload_is_told_by_its_setting(store: SweepStore) -> None:
    store.close()
    config = {"name": "demo", "workload": {"repeats": 5, "tasks": ("edit", "code")}}
    changed = SweepIdentity(IDENTITY.cell_part, "w2")
    with pytest.raises(StoreError, match=r"workload\.repeats is 3 there and 5 here"):
        SweepStore.create_or_open(store.paths.root, config, changed)


def test_foreign_files_are_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=r"holds thesis\.tex but no sweep\.yaml"):
        SweepStore.create_or_open(tmp_path, CONFIG, IDENTITY)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_crash_before_the_manifest_left_is_no_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "attempts").mkdir()
    (tmp_path / ".sweep.yaml.0123456789ab.tmp").write_text("half")
    opened, resumed = SweepStore.create_or_open(tmp_path, CONFIG, IDENTITY)
    with opened:
        assert not resumed
        assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "is no sweep"),
        ("{", "is not YAML"),
        ("- 1\n", "is not the configuration of a sweep"),
        (
            "schema_version: 99\nidentity: {cell: {}, workload: w}\nconfig: {}\n",
            "has schema version 99",
        ),
    ],
)
def test_a_folder_that_is_no_sweep_is_told_in_one_line(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / "sweep.yaml").write_text(content)
    with pytest.raises(StoreError, match=expected) as caught:
        SweepStore.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(StoreError, match="file cannot be written: File exists"):
        SweepStore.create_or_open(path, CONFIG, IDENTITY)
    with pytest.raises(StoreError, match="is no sweep"):
        SweepStore.open(path)


def test_attempts_are_numbered_from_one(store: SweepStore) -> None:
    assert [store.new_attempt("abc").number for _ in range(3)] == [1, 2, 3]
    assert store.paths.attempt("abc", 3).root.is_dir()
    assert store.new_attempt("def").number == 1


def test_numbers_follow_ten_by_value(store: SweepStore) -> None:
    for _ in range(10):
        store.new_attempt("abc")
    assert store.new_attempt("abc").number == 11


def test_an_outcome_comes_back_as_it_was(store: SweepStore) -> None:
    finish(store, CELL, GOOD)
    (record,) = store.outcomes()
    assert (record.cell, record.attempt, record.status) == (CELL, 1, Status.MEASURED)
    assert record.cell_id == IDENTITY.cell_id(CELL)
    assert record.workload == "w1"
    back = record.outcome()
    assert back.facts == GOOD.facts
    assert back.started_at == GOOD.started_at
    assert back.runs == ()
    assert back.wall_s == 30.5


def test_a_refusal_comes_back_with_its_evidence(store: SweepStore) -> None:
    finish(store, CELL, REFUSED)
    (record,) = store.outcomes()
    assert record.failure_class is FailureClass.KV_TOO_SMALL
    assert record.phase is Phase.ALLOCATE_KV
    assert record.evidence == "ValueError: too small"
    assert record.outcome().failure == REFUSED.failure


def test_outcome_json_names_rows_and_digests(store: SweepStore) -> None:
    attempt = finish(store, CELL, GOOD)
    document = json.loads(attempt.outcome_json.read_text())
    assert document["status"] == "measured"
    assert document["files"]["trial.parquet"]["rows"] == 1
    assert document["files"]["runs.parquet"]["rows"] == 2
    shown = subprocess.run(
        ["sha256sum", str(attempt.runs_parquet)], capture_output=True, text=True, check=True
    )
    assert document["files"]["runs.parquet"]["sha256"] == shown.stdout.split()[0]


def test_an_attempt_without_an_outcome_is_interrupted(store: SweepStore) -> None:
    launch(store, CELL)
    (record,) = store.outcomes()
    assert record.status is Status.INTERRUPTED
    assert record.cell == CELL
    assert record.launch["supervisor"] == {"pid": 7, "start_time": 99}


def test_a_folder_in_which_nothing_was_launched_is_no_attempt(store: SweepStore) -> None:
    store.new_attempt(IDENTITY.cell_id(CELL))
    assert store.outcomes() == []
    assert launch(store, CELL).number == 2


def test_an_attempt_of_a_later_version_is_told(store: SweepStore) -> None:
    attempt = finish(store, CELL, GOOD)
    document = json.loads(attempt.outcome_json.read_text())
    attempt.outcome_json.write_text(json.dumps({**document, "schema_version": 2}))
    with pytest.raises(StoreError, match="has schema version 2"):
        store.outcomes()


def of_a_sweep() -> list[tuple[str, Any]]:
    """The tables that lie beside `sweep.yaml`."""
    return [(name, schema) for name, schema in SCHEMAS.items() if name in TABLES]


def test_compaction_makes_all_tables_with_their_schemas(store: SweepStore) -> None:
    finish(store, CELL, GOOD)
    longer = Cell(1, 2048, False, 0.9, CELL.extra)
    finish(store, longer, REFUSED)
    launch(store, Cell(1, 4096, False, 0.9, CELL.extra), started_at=1_700_000_200.0)
    longest = Cell(1, 8192, False, 0.9, CELL.extra)
    row = inferred_row(
        SPEC,
        IDENTITY,
        longest,
        failure_class=FailureClass.KV_TOO_SMALL,
        phase=Phase.ALLOCATE_KV,
        evidence="ValueError: too small",
        evidence_cell=IDENTITY.cell_id(longer),
        doubt="not launched",
        engine_version="0.32.0",
    )
    store.compact([row], derived_tables)
    trials = pl.read_parquet(store.paths.table("trials"))
    assert trials.select("context", "status", "attempt").rows() == [
        (1024, "measured", 1),
        (2048, "infeasible", 1),
        (4096, "interrupted", 1),
        (8192, "inferred", 0),
    ]
    inferred = trials.row(-1, named=True)
    assert inferred["evidence_cell"] == IDENTITY.cell_id(longer)
    assert (inferred["failure_class"], inferred["doubt"]) == ("kv_too_small", "not launched")
    assert inferred["cell_id"] == IDENTITY.cell_id(longest)
    assert (inferred["started"], inferred["started_at"], inferred["purpose"]) == (None, None, None)
    assert trials["extra"].unique().to_list() == ['{"max_num_seqs": 4}']
    assert trials["started_at"].dtype == pl.Datetime("us", "UTC")
    runs = pl.read_parquet(store.paths.table("runs"))
    assert runs.select("kind", "decode_tok_s").rows() == [("prefill", None), ("decode", 32.0)]
    assert runs["accepted_per_position"].to_list() == [None, [20, 10]]
    frontier = pl.read_parquet(store.paths.table("frontier"))
    assert frontier.select("context", "decode_tok_s", "max_context").rows() == [(1024, 32.0, 1024)]
    assert frontier["kv_headroom_gib"].to_list() == [pytest.approx(1.5 * 3 / 4)]
    boundaries = pl.read_parquet(store.paths.table("boundaries"))
    columns = ["max_context_works", "min_context_fails", "verified", "failure_class", "cells"]
    assert boundaries.select(columns).rows() == [(1024, 2048, True, "kv_too_small", 4)]
    for name, schema in of_a_sweep():
        written = pq.read_schema(store.paths.table(name))
        assert written.metadata[b"schema_version"] == b"1"
        assert written.equals(schema, check_metadata=True)


def test_compaction_of_an_empty_sweep_has_all_columns(store: SweepStore) -> None:
    store.compact(derive=derived_tables)
    for name, schema in of_a_sweep():
        rows = pq.read_table(store.paths.table(name)).num_rows
        assert rows == 0 or name == "checks"  # a check of nothing says that it knows nothing
        assert pq.read_schema(store.paths.table(name)).equals(schema, check_metadata=True)


def test_a_table_of_an_earlier_version_lacks_columns(store: SweepStore, tmp_path: Path) -> None:
    attempt = finish(store, CELL, GOOD)
    path = tmp_path / "old.parquet"
    old = pl.read_parquet(attempt.trial_parquet).drop("workload", "model_name")
    old.with_columns(gone=pl.lit(1)).write_parquet(path)
    back = tables.read("trials", path)
    assert back.columns == SCHEMAS["trials"].names
    assert back.select("context", "workload").rows() == [(1024, None)]


def test_outcome_of_a_row_read_from_parquet(store: SweepStore) -> None:
    attempt = finish(store, CELL, REFUSED)
    (row,) = pl.read_parquet(attempt.trial_parquet).iter_rows(named=True)
    assert outcome_of(row).failure == REFUSED.failure
    assert outcome_of(row).started_at == REFUSED.started_at


def test_purpose_and_speed_come_back(store: SweepStore) -> None:
    asked = {"purpose": Purpose.AUDIT, "with_speed": False}
    facts = replace(REFUSED.facts, free_gib=7.25)
    finish(store, CELL, replace(REFUSED, facts=facts, **asked))
    speed = Speed(31.5, low=30.0, high=32.25)
    finish(store, replace(CELL, depth=2), replace(GOOD, speed=speed, purpose=Purpose.SPEED_CHECK))
    by_depth = {record.cell.depth: record.outcome() for record in store.outcomes()}
    assert (by_depth[1].purpose, by_depth[1].with_speed) == (Purpose.AUDIT, False)
    assert by_depth[1].facts.free_gib == 7.25
    assert by_depth[1].speed is None
    assert (by_depth[2].purpose, by_depth[2].with_speed) == (Purpose.SPEED_CHECK, True)
    assert by_depth[2].speed == speed
    trials, _ = store.tables()
    columns = ["purpose", "with_speed", "decode_tok_s", "decode_tok_s_low", "decode_tok_s_high"]
    assert trials.sort("depth").select(columns).rows() == [
        ("audit", False, None, None, None),
        ("speed_check", True, 31.5, 30.0, 32.25),
    ]


def test_what_is_counted_comes_back_as_a_whole_number(store: SweepStore) -> None:
    facts = StartupFacts(
        kv_tokens=4096, max_context_estimate=2048, auto_context=1024, model_context=512
    )
    finish(store, CELL, replace(GOOD, facts=facts))
    (record,) = store.outcomes()
    back = record.outcome().facts
    counted = (back.kv_tokens, back.max_context_estimate, back.auto_context, back.model_context)
    assert repr(counted) == "(4096, 2048, 1024, 512)"


def test_a_row_of_an_earlier_version_was_made_to_prove_and_to_measure(store: SweepStore) -> None:
    attempt = finish(store, CELL, GOOD)
    (row,) = pl.read_parquet(attempt.trial_parquet).iter_rows(named=True)
    new = ("purpose", "with_speed", "decode_tok_s", "decode_tok_s_low", "free_gib", "doubt")
    old = outcome_of({name: value for name, value in row.items() if name not in new})
    assert (old.purpose, old.with_speed, old.speed) == (Purpose.PROOF, True, None)
    assert old.facts == GOOD.facts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_needed_gib", "much"),
        ("kv_tokens", True),
        ("free_gib", float("nan")),
        ("purpose", "x"),
        ("weights_gib", -0.01),
        ("kv_tokens", -1),
        ("memory_used_peak_gib", -3.0),
        ("memory_used_peak_gib", float("inf")),
    ],
)
def test_a_value_that_no_outcome_has_is_damage(store: SweepStore, name: str, value: object) -> None:
    attempt = finish(store, CELL, GOOD)
    document = json.loads(attempt.outcome_json.read_text())
    attempt.outcome_json.write_text(json.dumps({**document, name: value}))
    (record,) = store.outcomes()
    assert record.status is Status.INTERRUPTED
    assert "holds a value that cannot be right" in str(record.evidence)


@pytest.mark.parametrize("name", ["kv_available_gib", "graph_gib"])
def test_what_is_left_of_memory_may_be_below_nothing(store: SweepStore, name: str) -> None:
    attempt = finish(store, CELL, GOOD)
    document = json.loads(attempt.outcome_json.read_text())
    attempt.outcome_json.write_text(json.dumps({**document, name: -0.25}))
    (record,) = store.outcomes()
    assert (record.status, record.row[name]) == (Status.MEASURED, -0.25)


WRITER = """
import sys, time
from pathlib import Path
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store.sweep_store import SweepStore
store, resumed = SweepStore.create_or_open(Path(sys.argv[1]), {}, SweepIdentity({"a": 1}, "w"))
print(resumed, flush=True)
time.sleep(60)
"""


def test_a_second_writer_is_refused_and_a_dead_one_replaced(tmp_path: Path) -> None:
    root = tmp_path / "out"
    identity = SweepIdentity({"a": 1}, "w")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "False\n"
            with pytest.raises(
                StoreError, match=f"is being written by pid {other.pid} on {os.uname().nodename}"
            ):
                SweepStore.create_or_open(root, {}, identity)
            reader = SweepStore.open(root)
            who = reader.writer()
            assert who is not None
            assert who.pid == other.pid
            assert abs(who.since - time.time()) < 60
        finally:
            other.send_signal(signal.SIGKILL)
    assert reader.writer() is None
    mine, resumed = SweepStore.create_or_open(root, {}, identity)
    with mine:
        assert resumed
        assert SweepStore.open(root).writer().pid == os.getpid()
    assert SweepStore.open(root).writer() is None


def test_two_stores_of_one_process_exclude_each_other(store: SweepStore) -> None:
    with pytest.raises(StoreError, match=f"is being written by pid {os.getpid()} "):
        SweepStore.open_for_writing(store.paths.root)
