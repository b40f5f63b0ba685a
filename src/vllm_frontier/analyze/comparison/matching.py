"""Which cells of several sweeps are the same point of the grid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from vllm_frontier.analyze.latest import AXES

# 0.1 + 0.2 and 0.3 are one share: what arithmetic leaves behind is no other setting.
_DIGITS = 12


def matchable(table: pl.LazyFrame) -> pl.LazyFrame:
    """A table with axes whose equal numbers are equal values: 0.9 and 0.90, 4 and 4.0.

    Args:
        table: with the columns `utilization` and `extra`, such as `trials` and `boundaries`.
    """
    written = table.select(pl.col("extra").unique()).collect()["extra"]
    alike = {extra: _alike(extra) for extra in written}
    return table.with_columns(
        pl.col("utilization").round(_DIGITS),
        pl.col("extra").replace_strict(alike, return_dtype=pl.String),
    )


def matched_cells(sweeps: Sequence[pl.LazyFrame]) -> pl.DataFrame:
    """Every cell of any sweep, and what each sweep knows of it.

    Args:
        sweeps: of `cell_states`, with all cells of the grid of each.

    Returns:
        A row per cell: the axes, `in_sweeps` (numbers of the sweeps whose grid has it, from 0) and,
        for each sweep, `state_0` and `failure_class_0` and so on; null where its grid lacks it.
    """
    found: pl.LazyFrame | None = None
    for number, cells in enumerate(sweeps):
        own = matchable(cells).select(
            *AXES,
            pl.col("state").alias(f"state_{number}"),
            pl.col("failure_class").alias(f"failure_class_{number}"),
        )
        own = own.unique(AXES, keep="last", maintain_order=True)
        found = own if found is None else found.join(own, on=AXES, how="full", coalesce=True)
    if found is None:
        raise ValueError("no sweeps to match")
    has = [
        pl.when(pl.col(f"state_{number}").is_not_null()).then(pl.lit(number, pl.Int64))
        for number in range(len(sweeps))
    ]
    told = [name for name in found.collect_schema().names() if name not in AXES]
    return (
        found.with_columns(in_sweeps=pl.concat_list(has).list.drop_nulls())
        .select(*AXES, "in_sweeps", *told)
        .sort("extra", "graphs", "utilization", "depth", "context")
        .collect()
    )


def only_in(cells: pl.DataFrame, sweeps: int) -> pl.DataFrame:
    """How many cells some of the sweeps have, and the values of axes that the others lack.

    Args:
        cells: of `matched_cells`.
        sweeps: how many there are.

    Returns:
        A row for each set of sweeps that does not hold all: `in_sweeps`, `cells`, and for each axis
        the values (lists) that no cell of any other sweep has.
    """
    partly = cells.filter(pl.col("in_sweeps").list.len() < sweeps)
    rows = []
    for (own,), part in partly.group_by("in_sweeps", maintain_order=True):
        others = cells.filter(pl.col("in_sweeps").list.set_difference(list(own)).list.len() > 0)
        values = {
            axis: sorted(set(part[axis].unique()) - set(others[axis].unique())) for axis in AXES
        }
        rows.append({"in_sweeps": list(own), "cells": part.height, **values})
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "in_sweeps": pl.List(pl.Int64),
        "cells": pl.Int64,
        **{axis: pl.List(cells.schema[axis]) for axis in AXES},
    }
    return pl.DataFrame(rows, schema=schema)


def _alike(extra: str | None) -> str:
    values = json.loads(extra or "{}")
    return json.dumps(_plain(values), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A JSON value whose numbers are written in one way."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        rounded = round(value, _DIGITS)
        return int(rounded) if rounded.is_integer() else rounded
    return value
