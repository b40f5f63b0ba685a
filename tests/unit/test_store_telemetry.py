"""The samples of attempts, as a sweep's folder keeps them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from test_store_sweep import CELL, CONFIG, GOOD, IDENTITY, REFUSED, finish, launch

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Status
from vllm_frontier.store.schema import SCHEMAS
from vllm_frontier.store.sweep_store import SweepStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    with SweepStore.create_or_open(tmp_path / "out", CONFIG, IDENTITY)[0] as opened:
        yield opened


def test_samples_come_back_and_an_attempt_without_any_has_an_empty_table(
    store: SweepStore,
) -> None:
    attempt = finish(store, CELL, GOOD)
    refused = finish(store, Cell(1, 2048, False, 0.9), REFUSED)
    files = [json.loads(each.outcome_json.read_text())["files"] for each in (attempt, refused)]
    assert [each["telemetry.parquet"]["rows"] for each in files] == [2, 0]
    empty = pq.read_schema(refused.telemetry_parquet)
    assert empty.equals(SCHEMAS["telemetry"], check_metadata=True)
    found = store.telemetry()
    assert found.columns == SCHEMAS["telemetry"].names
    told = ["cell_id", "card", "phase", "power_w", "sm_clock_mhz", "foreign_processes"]
    assert found.select(told).rows() == [
        (attempt.cell_id, "GPU-1", "load", 81.5, None, None),
        (attempt.cell_id, "GPU-1", "measure", None, 2400.0, 2),
    ]
    assert found["at"].dt.epoch("ms").to_list() == [1_700_000_001_000, 1_700_000_001_500]
    assert found["throttle_reasons"].to_list() == [[], None]
    runs = pl.read_parquet(attempt.runs_parquet)
    assert runs["sm_clock_mhz"].to_list() == [2400.0, None]
    assert runs["throttle_reasons"].to_list() == [["power_cap"], None]


def test_an_attempt_of_an_earlier_version_has_no_samples(store: SweepStore) -> None:
    old = finish(store, CELL, GOOD)
    document = json.loads(old.outcome_json.read_text())
    del document["files"]["telemetry.parquet"]
    old.outcome_json.write_text(json.dumps(document))
    old.telemetry_parquet.unlink()
    finish(store, Cell(2, 1024, False, 0.9), GOOD)
    stock, damaged = store.take_stock()
    assert damaged == []
    assert [each.status for each in stock] == [Status.MEASURED] * 2
    assert store.telemetry().height == 2
    # One that counts for nothing has no samples that count.
    launch(store, Cell(3, 1024, False, 0.9))
    assert store.telemetry(store.outcomes()).height == 2


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"PAR1")])
def test_what_was_measured_stands_without_its_telemetry(
    store: SweepStore, harm: Callable[[Path], object]
) -> None:
    finish(store, CELL, GOOD)
    harmed = finish(store, Cell(2, 1024, False, 0.9), GOOD)
    harm(harmed.telemetry_parquet)
    stock, damaged = store.take_stock()
    assert damaged == []
    assert [each.status for each in stock] == [Status.MEASURED] * 2
    assert store.tables()[0].height == 2
    assert store.telemetry()["cell_id"].unique().to_list() == [IDENTITY.cell_id(CELL)]
