"""The JSON documents of the commands that print tables.

The terminal's tables are drawn from the same documents, so that both say the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from vllm_frontier.analyze.borrowed import working_speeds
from vllm_frontier.analyze.by_depth import by_depth
from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.analyze.latest import AXES, counted, is_inferred, works
from vllm_frontier.analyze.monotony import audits, contested, contradictions, unexplored_in
from vllm_frontier.analyze.standing import against_fastest
from vllm_frontier.analyze.summary import failures, launch_counts, status_counts
from vllm_frontier.outcome import Purpose, Status
from vllm_frontier.report.checks import rests_on_doubt
from vllm_frontier.search.proof import is_in_doubt

SIMULATED = "simulated"


def show_document(
    sweep: str,
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    frontier: pl.LazyFrame,
    boundaries: pl.LazyFrame,
    *,
    checks: pl.LazyFrame | None = None,
    running: pl.DataFrame | None = None,
    simulated: bool | None = None,
    reason: str | None = None,
) -> dict[str, Any]:
    """What `show --json` prints.

    Args:
        sweep: the sweep's name.
        trials: the table `trials`.
        runs: the table `runs`.
        frontier: the table `frontier`.
        boundaries: the table `boundaries`.
        checks: the table `checks`; None: nothing was checked.
        running: rows like those of `trials` of attempts that run now.
        simulated: whether the sweep is; None: what the rows say.
        reason: why there is no frontier.

    Returns:
        JSON values. `sweep`; `simulated` (whether nothing here was measured on a card);
        `reason` (why there is no frontier, null where there is one);
        `cells` (how many have each status); `not_reached` (cells of the grid without a row that
        are not running either);
        `launches` (how many were made, by purpose); `inferred` (how many cells, how many of
        them `firm` by vLLM's own arithmetic or `uncertain`, how many of these `in_doubt` because
        something speaks against them, how many were `audited` by a launch and how many
        `audit_wrong`);
        `contradictions` (launches that disagree, `works` and `fails`); `unexplored` (how many of
        these have neighbours that are still inferred to work); `contested` (inferred cells that
        are in doubt for that);
        `without_speed` (how many cells work of whose depth and graphs no speed is known);
        `frontier`, `boundaries`, `choices`, `speeds` (by depth and task, with acceptance by
        position), `failures` and `checks` (rows as objects, further axes as keys beside the
        built-in ones); `grid` (what is known of every cell; `running` where nothing is yet).
        Rows of `frontier` also have `against_fastest`: `slower` than the fastest of them, or
        `no clear difference`; null for that itself, and where it does not lead for the median.
        These and `choices` have `gain_in_doubt`: whether checks doubt the baseline of
        `gain_no_graphs`.
    """
    table = trials.collect()
    checked = [] if checks is None else objects(checks)
    known = known_cells(table.lazy(), running)
    planned = boundaries.select(pl.col("cells").sum()).collect().item()
    return {
        "sweep": sweep,
        "simulated": is_simulated(table) if simulated is None else simulated,
        "reason": reason,
        "cells": _cells(table.lazy()),
        "not_reached": planned - known.height,
        "launches": launches(table.lazy()),
        "inferred": _inferred(table),
        "contradictions": _contradictions(table.lazy()),
        "unexplored": unexplored_in(table.lazy()),
        "contested": _contested(table.lazy()),
        "without_speed": without_speed(table.lazy(), runs),
        "frontier": with_doubt(frontier_rows(frontier, table.lazy(), runs), checked),
        "boundaries": objects(boundaries),
        "choices": with_doubt(objects(choices(frontier)), checked),
        "speeds": objects(by_depth(table.lazy(), runs)),
        "failures": objects(failures(table.lazy())),
        "checks": checked,
        "grid": objects(known.lazy()),
    }


def known_cells(trials: pl.LazyFrame, running: pl.DataFrame | None = None) -> pl.DataFrame:
    """What is known of every cell that was tried, or inferred, or runs for the first time now.

    Args:
        trials: the table `trials`.
        running: rows like those of `trials` of attempts that run now.
    """
    grid = counted(trials).sort("extra", "depth", "graphs", "utilization", "context")
    told = ("status", "failure_class", "spec_state", "evidence_cell", "doubt")
    known = grid.select("cell_id", "attempt", *AXES, *told).collect()
    if running is None:
        return known
    # A cell that is launched once more is known already.
    first = running.select(known.columns).join(known, on=AXES, how="anti")
    return pl.concat([known, first.with_columns(status=pl.lit("running"))])


def frontier_rows(
    frontier: pl.LazyFrame, trials: pl.LazyFrame, runs: pl.LazyFrame
) -> list[dict[str, Any]]:
    """The rows of the frontier, each with what it is against the fastest for the median.

    Args:
        frontier: the table `frontier`.
        trials: the table `trials`.
        runs: the table `runs`.
    """
    told = against_fastest(frontier, cell_figures(trials, runs)).collect()
    against = dict(told.select("cell_id", "against_fastest").iter_rows())
    return [{**row, "against_fastest": against.get(row["cell_id"])} for row in objects(frontier)]


def with_doubt(
    cells: Sequence[Mapping[str, Any]], checked: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of the frontier, each with `gain_in_doubt`; see `show_document`.

    Args:
        cells: rows of the table `frontier`, as objects.
        checked: of the table `checks`, as objects.
    """
    return [{**cell, "gain_in_doubt": rests_on_doubt(checked, cell)} for cell in cells]


def is_simulated(trials: pl.DataFrame) -> bool:
    """Whether any row comes from a simulated card."""
    return SIMULATED in trials["engine"].to_list()


def objects(table: pl.LazyFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON objects.

    Further axes become keys of their own in the place of `extra`, speeds by task a mapping,
    moments ISO 8601 text. What is no number, such as an infinite one, is null.
    """
    return [_object(row) for row in table.collect().iter_rows(named=True)]


def _cells(trials: pl.LazyFrame) -> dict[str, int]:
    """How many cells have each status that occurs, what is known best first."""
    counts: dict[str, int] = dict(status_counts(trials).collect().iter_rows())
    return {status.value: counts[status.value] for status in Status if status.value in counts}


def launches(trials: pl.LazyFrame) -> dict[str, int]:
    """How many launches were made for each purpose that occurs."""
    counts: dict[str, int] = dict(launch_counts(trials).collect().iter_rows())
    return {each.value: counts[each.value] for each in Purpose if each.value in counts}


def _inferred(trials: pl.DataFrame) -> dict[str, int]:
    rows = counted(trials.lazy()).filter(is_inferred()).collect()
    firm = rows["doubt"].null_count()
    checked = audits(trials.lazy()).collect()
    return {
        "cells": rows.height,
        "firm": firm,
        "uncertain": rows.height - firm,
        "in_doubt": sum(is_in_doubt(doubt) for doubt in rows["doubt"]),
        "audited": checked.height,
        "audit_wrong": int(checked["wrong"].sum()),
    }


def _contradictions(trials: pl.LazyFrame) -> list[dict[str, Any]]:
    found = contradictions(trials).collect()
    works, fails = (
        objects(found.lazy().select(pl.col(f"{side}_{name}").alias(name) for name in AXES))
        for side in ("works", "fails")
    )
    return [{"works": one, "fails": other} for one, other in zip(works, fails, strict=True)]


def _contested(trials: pl.LazyFrame) -> list[dict[str, Any]]:
    cells = counted(trials).join(contested(trials), on="cell_id", how="semi")
    order = ("extra", "depth", "graphs", "utilization", "context")
    return objects(cells.sort(order).select("cell_id", *AXES, "failure_class"))


def without_speed(trials: pl.LazyFrame, runs: pl.LazyFrame) -> int:
    """How many cells work of whose depth and graphs no speed is known."""
    working = counted(trials).filter(works()).collect().height
    return working - working_speeds(trials, runs).collect().height


def _object(row: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in row.items():
        if name == "extra":
            further = json.loads(value or "{}")
            result |= further
            result["extra_axes"] = sorted(further)
        elif name == "task_decode_tok_s":
            result[name] = {each["task"]: _plain(each["decode_tok_s"]) for each in value or ()}
        else:
            result[name] = _plain(value)
    return result


def _plain(value: Any) -> Any:
    """A value of a table as JSON has it."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value
