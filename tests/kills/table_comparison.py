"""Whether two sweeps came to the same tables, to the last digit.

Of `trials` the row of a cell counts that decides about it: the last with a final status. Rows of
attempts that failed or were interrupted are what a kill leaves behind, and no difference. Every
column is compared that is not in `IGNORED`; on real vLLM those of `SAME_ON_VLLM`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl

from vllm_frontier.conditions import Conditions

FINAL = ("measured", "infeasible", "invalid", "inferred")

KEYS: Mapping[str, Sequence[str]] = {
    "trials": ("cell_id",),
    "runs": ("cell_id", "kind", "task", "repeat", "temperature"),
    "frontier": ("cell_id",),
    "boundaries": ("depth", "graphs", "utilization", "extra"),
}

_NUMBER = "a kill raises the numbers of the attempt that counts"
_MOMENT = "a moment"
_WALL = "how long this machine took"
_CLIENT = "the client's clock, which is this machine's and not the simulated card's"
_END = "a server that refuses is ended as soon as its log says so, or ends by itself before"
_SAMPLED = "the highest of samples that fall where they fall"
_CONDITIONS = "what this machine was like"

IGNORED: Mapping[str, Mapping[str, str]] = {
    "trials": {
        "attempt": _NUMBER,
        "started_at": _MOMENT,
        "ended_at": _MOMENT,
        "sequence": _NUMBER,
        "spawn_s": _WALL,
        "ready_s": _WALL,
        "measure_s": _WALL,
        "wall_s": _WALL,
        "memory_used_peak_gib": _SAMPLED,
        "exit_code": _END,
        "signal": _END,
    },
    "runs": {
        "attempt": _NUMBER,
        "started_at": _MOMENT,
        "ttft_s": _CLIENT,
        "decode_s": _CLIENT,
        "decode_tok_s_client": _CLIENT,
        **dict.fromkeys((field.name for field in fields(Conditions)), _CONDITIONS),
    },
    "frontier": {"attempt": _NUMBER, "memory_used_peak_gib": _SAMPLED},
    "boundaries": {},
}

# Real vLLM computes, so its speeds and its memory differ from launch to launch. What it decides,
# and what it writes when it is greedy, does not.
SAME_ON_VLLM: Mapping[str, Sequence[str]] = {
    "trials": (
        *("sweep", "cell_id", "depth", "context", "graphs", "utilization", "extra", "status"),
        *("failure_class", "phase", "started", "filled", "engine"),
        *("engine_version", "model", "card", "workload", "kv_tokens", "kv_needed_gib"),
        *("max_context_estimate", "spec_state"),
    ),
    "runs": (
        *("sweep", "cell_id", "task", "repeat", "kind", "temperature", "prompt_tokens"),
        *("completion_tokens", "cached_tokens", "drafts", "draft_tokens", "accepted_tokens"),
        *("accepted_per_position", "output_sha256"),
    ),
    "frontier": (),  # which cells lie on it follows from speeds
    "boundaries": (
        *("depth", "graphs", "utilization", "extra", "max_context_works", "min_context_fails"),
        *("verified", "failure_class", "cells", "monotone"),
    ),
}

# Of `runs`, kept short in a message.
_SHOWN = 3


def differences(
    folder: Path, reference: Path, *, exact: bool = True, scores: bool = True
) -> list[str]:
    """In what the tables of two sweeps differ, one line each; empty for equal ones.

    Args:
        folder: of the sweep that was killed.
        reference: of the sweep that was not.
        exact: compare everything but `IGNORED`, else `SAME_ON_VLLM` only.
        scores: compare the runs too that score what was written. A server that is killed while it
            scores has measured its cell all the same.
    """
    found: list[str] = []
    for name in KEYS:
        file = folder / f"{name}.parquet"
        if not file.is_file():
            found.append(f"{name}: there is no such table")
            continue
        here, there = (_deciding(each, name, scores) for each in (folder, reference))
        columns = _compared(name, there.columns, exact)
        if here.columns != there.columns:
            found.append(f"{name}: other columns: {here.columns}")
        elif columns:
            found += _unlike(name, here.select(columns), there.select(columns))
    return found


def _compared(table: str, columns: Sequence[str], exact: bool) -> list[str]:
    if not exact:
        return list(SAME_ON_VLLM[table])
    unknown = IGNORED[table].keys() - set(columns)
    if unknown:
        raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
    return [name for name in columns if name not in IGNORED[table]]


def _deciding(folder: Path, table: str, scores: bool) -> pl.DataFrame:
    """A table without the rows that a kill may add."""
    content = pl.read_parquet(folder / f"{table}.parquet")
    if table not in ("trials", "runs"):
        return content
    if table == "runs" and not scores:
        content = content.filter(pl.col("kind") != "probe")
    trials = pl.read_parquet(folder / "trials.parquet")
    last = trials.filter(pl.col("status").is_in(FINAL)).group_by("cell_id").agg(pl.max("attempt"))
    return content.join(last, on=["cell_id", "attempt"], how="semi")


def _unlike(table: str, here: pl.DataFrame, there: pl.DataFrame) -> list[str]:
    rows = [_by_key(table, each) for each in (here, there)]
    if here.height != there.height or rows[0].keys() != rows[1].keys():
        missing, added = rows[1].keys() - rows[0].keys(), rows[0].keys() - rows[1].keys()
        return [
            f"{table}: {here.height} rows instead of {there.height}; "
            f"missing {sorted(missing)[:_SHOWN]}, added {sorted(added)[:_SHOWN]}"
        ]
    return [
        f"{table} {key}: {name} is {row[name]!r} instead of {expected[name]!r}"
        for key, expected in rows[1].items()
        for row in [rows[0][key]]
        for name in expected
        if row[name] != expected[name]
    ]


def _by_key(table: str, content: pl.DataFrame) -> dict[str, dict[str, Any]]:
    rows = content.rows(named=True)
    return {" ".join(str(row[name]) for name in KEYS[table]): row for row in rows}
