"""The JSON documents of the commands that print tables.

The terminal's tables are drawn from the same documents, so that both say the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import polars as pl

from vllm_frontier.analyze.by_depth import by_depth
from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.latest import AXES, counted
from vllm_frontier.analyze.summary import failures, status_counts
from vllm_frontier.outcome import Status

SIMULATED = "simulated"


def show_document(
    sweep: str,
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    frontier: pl.LazyFrame,
    boundaries: pl.LazyFrame,
) -> dict[str, Any]:
    """What `show --json` prints.

    Args:
        sweep: the sweep's name.
        trials: the table `trials`.
        runs: the table `runs`.
        frontier: the table `frontier`.
        boundaries: the table `boundaries`.

    Returns:
        JSON values. `sweep`; `simulated` (whether nothing here was measured on a card);
        `cells` (how many have each status); `frontier`, `boundaries`, `choices`, `speeds`
        (by depth and task, with acceptance by position) and `failures`
        (rows as objects, further axes as keys beside the built-in ones); `grid` (what is known
        of every cell).
    """
    table = trials.collect()
    grid = counted(table.lazy()).sort("extra", "depth", "graphs", "utilization", "context")
    told = ("status", "failure_class", "spec_state")
    known = grid.select("cell_id", "attempt", *AXES, *told).collect()
    return {
        "sweep": sweep,
        "simulated": is_simulated(table),
        "cells": _cells(table.lazy()),
        "frontier": objects(frontier),
        "boundaries": objects(boundaries),
        "choices": objects(choices(frontier)),
        "speeds": objects(by_depth(table.lazy(), runs)),
        "failures": objects(failures(table.lazy())),
        "grid": objects(known.lazy()),
    }


def is_simulated(trials: pl.DataFrame) -> bool:
    """Whether any row comes from a simulated card."""
    return SIMULATED in trials["engine"].to_list()


def objects(table: pl.LazyFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON objects.

    Further axes become keys of their own in the place of `extra`, speeds by task a mapping,
    moments ISO 8601 text.
    """
    return [_object(row) for row in table.collect().iter_rows(named=True)]


def _cells(trials: pl.LazyFrame) -> dict[str, int]:
    """How many cells have each status that occurs, what is known best first."""
    counts: dict[str, int] = dict(status_counts(trials).collect().iter_rows())
    return {status.value: counts[status.value] for status in Status if status.value in counts}


def _object(row: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in row.items():
        if name == "extra":
            further = json.loads(value or "{}")
            result |= further
            result["extra_axes"] = sorted(further)
        elif name == "task_decode_tok_s":
            result[name] = {each["task"]: each["decode_tok_s"] for each in value or ()}
        else:
            result[name] = value.isoformat() if isinstance(value, datetime) else value
    return result
