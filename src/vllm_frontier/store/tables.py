"""The tables of a whole sweep, made from what its attempts left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from vllm_frontier.grid import Cell
from vllm_frontier.store.paths import AttemptPaths
from vllm_frontier.store.rows import AXIS_COLUMNS, axes_row
from vllm_frontier.store.schema import SCHEMAS, arrow_to_parquet, conform, to_parquet

Derive = Callable[[pl.LazyFrame, pl.LazyFrame], Mapping[str, pl.LazyFrame]]
"""From the tables `trials` and `runs` to further tables of the schema, by name."""


def frame(table: str, rows: Sequence[Mapping[str, Any]] = ()) -> pl.DataFrame:
    """Rows of a table as a frame with all its columns, also when there are none."""
    content = pl.from_arrow(pa.Table.from_pylist(list(rows), schema=SCHEMAS[table]))
    if not isinstance(content, pl.DataFrame):
        raise TypeError(f"the table {table} came out as a {type(content).__name__}")
    return content


def trials(finished: Sequence[AttemptPaths], others: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """All rows of `trials`: those of finished attempts from their files, and the others."""
    parts = [frame("trials", others), _read("trials", [each.trial_parquet for each in finished])]
    return pl.concat(parts).sort("started_at", "cell_id", "attempt", nulls_last=True)


def runs(finished: Sequence[AttemptPaths]) -> pl.DataFrame:
    """All rows of `runs`, in the order in which they were made."""
    content = _read("runs", [each.runs_parquet for each in finished])
    return content.sort("started_at", "cell_id", "attempt", maintain_order=True, nulls_last=True)


def telemetry(finished: Sequence[AttemptPaths]) -> pl.DataFrame:
    """All rows of `telemetry`, oldest first."""
    content = _read("telemetry", [each.telemetry_parquet for each in finished])
    return content.sort("at", "cell_id", "attempt", maintain_order=True)


def planned(cells: Iterable[Cell]) -> pl.DataFrame:
    """Cells as the axis columns of `trials`."""
    content = frame("trials", [axes_row(cell) for cell in cells])
    return content.select(list(AXIS_COLUMNS))


def parquet(table: str, content: pl.DataFrame) -> bytes:
    """The file of a table, with the schema's columns, types and metadata."""
    if content.is_empty():
        return to_parquet(table, [])
    return arrow_to_parquet(conform(table, content.to_arrow()))


def read(table: str, path: Path) -> pl.DataFrame:
    """A table from its file; columns that its version did not have are null."""
    return _read(table, [path])


def _read(table: str, files: Sequence[Path]) -> pl.DataFrame:
    empty = frame(table)
    if not files:
        return empty
    content = pl.scan_parquet(
        _sources(files),
        schema=empty.schema,
        missing_columns="insert",
        extra_columns="ignore",
        glob=False,
    )
    return content.select(empty.columns).collect()


def _sources(files: Sequence[Path]) -> list[Path] | list[bytes]:
    """What polars reads files from: it knows no path whose bytes are no UTF-8.

    Where the locale is not UTF-8 either, that is any name with other letters than those of ASCII.
    """
    try:
        "".join(map(str, files)).encode()
    except UnicodeEncodeError:
        return [file.read_bytes() for file in files]
    return list(files)
