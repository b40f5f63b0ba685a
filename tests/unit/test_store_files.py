import json
import os
import resource
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_frontier.grid import Cell
from vllm_frontier.store import atomic
from vllm_frontier.store.lock import holder
from vllm_frontier.store.paths import SweepPaths
from vllm_frontier.store.rows import (
    axes_row,
    cell_of,
    row_from_json,
    row_to_json,
)
from vllm_frontier.store.schema import SCHEMAS, conform, to_parquet
from vllm_frontier.store.tables import frame, parquet, planned

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12).filter(
    lambda name: name not in {"depth", "context", "graphs", "utilization"}
)
VALUES = st.booleans() | st.integers(-(2**40), 2**40) | st.floats(0, 1) | st.text(max_size=8)
CELLS = st.builds(
    Cell,
    depth=st.integers(0, 64),
    context=st.integers(1, 10**7),
    graphs=st.booleans(),
    utilization=st.floats(0.01, 1),
    extra=st.dictionaries(NAMES, VALUES, max_size=3).map(lambda d: tuple(sorted(d.items()))),
)


@settings(deadline=None)
@given(CELLS)
def test_a_cell_survives_its_row(cell: Cell) -> None:
    assert cell_of(json.loads(json.dumps(axes_row(cell)))) == cell


SCALARS = {
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=10),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", tz="UTC"): st.integers(0, 2**52).map(
        lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    ),
}


def value_of(kind: pa.DataType) -> st.SearchStrategy:
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: value_of(field.type) for field in kind})
    if pa.types.is_list(kind):
        return st.lists(value_of(kind.value_type), max_size=3)
    return SCALARS[kind]


@pytest.mark.parametrize("table", SCHEMAS)
@settings(deadline=None)
@given(data=st.data())
def test_every_schema_survives_its_file(table: str, data: st.DataObject) -> None:
    row = st.fixed_dictionaries(
        {field.name: st.none() | value_of(field.type) for field in SCHEMAS[table]}
    )
    rows = data.draw(st.lists(row, max_size=3))
    content = pq.read_table(pa.BufferReader(to_parquet(table, rows)))
    assert content.to_pylist() == rows
    assert content.schema.equals(SCHEMAS[table], check_metadata=True)
    through_polars = pq.read_table(pa.BufferReader(parquet(table, frame(table, rows))))
    assert through_polars.to_pylist() == rows
    assert through_polars.schema.equals(SCHEMAS[table], check_metadata=True)


def test_every_column_says_what_it_is() -> None:
    for schema in SCHEMAS.values():
        assert schema.metadata[b"schema_version"] == b"1"
        assert len(set(schema.names)) == len(schema.names)
        assert all(field.metadata[b"comment"] for field in schema)


def test_conform_fills_and_drops_columns() -> None:
    content = pa.table({"cells": pa.array([3], pa.int32()), "unknown": [1]})
    (row,) = conform("boundaries", content).to_pylist()
    assert row["cells"] == 3
    assert row["depth"] is None
    assert "unknown" not in row


def test_moments_survive_json() -> None:
    row = {"started_at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "ended_at": None, "n": 1}
    assert row_from_json(json.loads(json.dumps(row_to_json(row)))) == row


def test_rows_of_a_table_keep_their_types_when_all_are_null() -> None:
    content = frame("trials", [{"cell_id": "a"}])
    assert content.schema["kv_needed_gib"] == pl.Float64
    assert content.schema["ended_at"] == pl.Datetime("us", "UTC")


def test_planned_cells_have_the_axis_columns() -> None:
    cells = [Cell(0, 1024, True, 0.9), Cell(3, 2048, False, 0.5, (("a", 1), ("b", "x")))]
    assert planned(cells).rows() == [
        (0, 1024, True, 0.9, "{}"),
        (3, 2048, False, 0.5, '{"a": 1, "b": "x"}'),
    ]
    assert planned([]).columns == ["depth", "context", "graphs", "utilization", "extra"]


def test_an_unknown_table_has_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no table 'cells'"):
        SweepPaths(tmp_path).table("cells")


def test_a_file_is_replaced_and_obeys_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    before = os.umask(0o027)
    try:
        atomic.write_json(path, {"a": 1})
        atomic.write_json(path, {"b": [1.5, None, "ü"]})
    finally:
        os.umask(before)
    assert json.loads(path.read_text()) == {"b": [1.5, None, "ü"]}
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_what_is_no_json_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    atomic.write_json(path, 1)
    with pytest.raises(ValueError, match="nan"):
        atomic.write_json(path, float("nan"))
    assert path.read_text() == "1\n"


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from vllm_frontier.store import atomic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    atomic.write_bytes(Path(sys.argv[1]), b"x" * 5000)
except OSError as error:
    print(error.strerror)
"""


def test_a_disk_that_takes_no_more_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    shown = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "File too large\n"
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


KILLED = """
import sys
from pathlib import Path
from vllm_frontier.store import atomic
path = Path(sys.argv[1])
print("go", flush=True)
number = 0
while True:
    atomic.write_bytes(path, (b"%08d" % number) * 100_000)
    number += 1
"""


def test_a_writer_that_is_killed_never_leaves_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for delay in (0.03, 0.05, 0.08):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "go\n"
            # Long enough for some writes; the kill falls somewhere into one of them.
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(timeout=delay)
            writer.send_signal(signal.SIGKILL)
        if path.exists():
            content = path.read_bytes()
            assert len(content) == 800_000
            assert content == content[:8] * 100_000
        assert all(each == path or atomic.is_temporary(each) for each in tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": "abc"},
        {"pid": -1},
        {"pid": 1.5},
        {"process_started_at": None},
        {"since": "y"},
        {"since": 1e30},
        {"host": 3},
    ],
)
def test_a_lock_file_with_a_wrong_value_names_nobody(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    paths = SweepPaths(tmp_path)
    told = {"pid": 7, "host": "h", "process_started_at": 1.0, "since": 2.0}
    paths.lock_holder.write_text(json.dumps(told))
    assert holder(paths) is not None
    paths.lock_holder.write_text(json.dumps(told | changes))
    assert holder(paths) is None
