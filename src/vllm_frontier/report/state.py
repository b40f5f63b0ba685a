"""How far a sweep is: for `status`, also while it runs and without its lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from vllm_frontier.config import spec_from_document
from vllm_frontier.grid import Cell
from vllm_frontier.inferred import inferred_rows
from vllm_frontier.outcome import Status
from vllm_frontier.search import create_search
from vllm_frontier.spec import SweepSpec
from vllm_frontier.store.records import RecordedOutcome, in_order
from vllm_frontier.store.rows import cell_of
from vllm_frontier.store.sweep_store import SweepStore


def document(store: SweepStore, folder: Path) -> dict[str, Any]:
    """What `status --json` prints.

    Keys: `sweep`, `folder`, `state` (`running`, `interrupted` or `finished`), `writer`,
    `planned`, `done` (cells with an answer, inferred ones included), `launched`, `inferred` and
    `not_reached` (of the planned cells), `launches` (how many were made), `cells` (how many have
    each status) and `running` (cells that are being tried, with the attempt's number).
    """
    spec = spec_from_document(store.config, secrets=False)
    cells = spec.grid.cells()
    records = store.outcomes()
    latest = _latest(records)
    planned = [latest[cell] for cell in cells if cell in latest]
    inferred = {cell_of(row) for row in inferred_rows(spec, store.identities, records)}
    launched = [each for each in planned if each.cell not in inferred]
    writer = store.writer()
    open_attempts = [each for each in planned if each.status is Status.INTERRUPTED]
    settled = [each for each in launched if not (writer and each in open_attempts)]
    statuses = Counter(record.status.value for record in settled)
    if inferred:
        statuses[Status.INFERRED.value] = len(inferred)
    state = "running" if writer else "interrupted" if _goes_on(spec, records) else "finished"
    return {
        "sweep": store.config["name"],
        "folder": str(folder),
        "state": state,
        "writer": str(writer) if writer else None,
        "planned": len(cells),
        "done": sum(record.status.is_final for record in launched) + len(inferred),
        "launched": len(launched),
        "inferred": len(inferred),
        "not_reached": len(cells) - len(launched) - len(inferred),
        "launches": len(records),
        "cells": dict(statuses),
        "running": [
            {**record.cell.axes(), "attempt": record.attempt}
            for record in (open_attempts if writer else [])
        ],
    }


def _latest(records: Sequence[RecordedOutcome]) -> dict[Cell, RecordedOutcome]:
    """Of every cell the attempt that counts: the last final one, else the last."""
    latest: dict[Cell, RecordedOutcome] = {}
    for record in records:
        known = latest.get(record.cell)
        if known is None or not known.status.is_final or record.status.is_final:
            latest[record.cell] = record
    return latest


def _goes_on(spec: SweepSpec, records: Sequence[RecordedOutcome]) -> bool:
    """Whether `resume` would launch anything."""
    search = create_search(spec)
    for record in in_order(records):
        search.tell(record.cell, record.outcome())
    return search.ask() is not None


def show(found: dict[str, Any], console: Console) -> None:
    """Print the state in a few lines."""
    console.print(
        f"{found['sweep']}: {found['state']}, {found['done']} of {found['planned']} cells done",
        soft_wrap=True,
    )
    for status, count in sorted(found["cells"].items()):
        console.print(f"  {status:<12} {count}")
    if found["not_reached"]:
        console.print(f"  {'not reached':<12} {found['not_reached']}")
    if found["inferred"]:
        console.print(f"  {found['launches']} launches so far; inferred cells need none")
    for cell in found["running"]:
        axes = " ".join(f"{name}={value}" for name, value in cell.items() if name != "attempt")
        console.print(f"  now: {axes} (attempt {cell['attempt']})", soft_wrap=True)
    if found["state"] == "interrupted":
        console.print(f"Go on with: vllm-frontier resume {found['folder']}", soft_wrap=True)
