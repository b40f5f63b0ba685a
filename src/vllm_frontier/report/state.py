"""How far a sweep is: for `status`, also while it runs and without its lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from vllm_frontier.config import spec_from_document
from vllm_frontier.errors import StoreError
from vllm_frontier.grid import Cell
from vllm_frontier.inferred import inferred_rows
from vllm_frontier.outcome import Purpose, Status
from vllm_frontier.report.again import launched_again
from vllm_frontier.report.so_far import so_far
from vllm_frontier.report.terminal.frontier_table import frontier_section
from vllm_frontier.report.terminal.grid_map import grid_map
from vllm_frontier.report.underway import under_way
from vllm_frontier.report.unread import unread
from vllm_frontier.report.wording import label, several, titled
from vllm_frontier.search import Ask, create_search
from vllm_frontier.spec import SweepSpec
from vllm_frontier.store.records import RecordedOutcome, in_order
from vllm_frontier.store.rows import cell_of
from vllm_frontier.store.sweep_store import SweepStore
from vllm_frontier.store.vanished import read_again

_FOR = {
    "answer": "to learn what works",
    "speed": "to measure speed",
    "check": "as a check",
    "repeat": "to repeat a measurement",
}
# A budget of hours is over a moment before the last launch that was begun within it has ended.
_ABOUT = 0.9


def document(store: SweepStore, folder: Path, *, analysed: bool = True) -> dict[str, Any]:
    """What `status --json` prints.

    Keys: `sweep`, `folder`, `state` (`running`, `interrupted` or `finished`: nothing is left, or
    only launches that repeat a measurement, in a sweep that nothing cut short), `reason` (why it
    ended before it was finished: `search.max_launches`, `search.max_hours`, or null: nothing says
    that a budget ended it), `writer`, `planned`, `done` (cells with an answer, inferred ones
    included), `launched`, `inferred` and `not_reached` (of the planned cells; one that is launched
    for the first time just now is none of them), `launches` (how many have ended), `replicates` and
    `reference` (how many of these repeat a measured cell, or watch one), `launches_left`
    (about how many are to come without a budget, null while it runs), `next` (what the next of
    these is for: `answer`, `speed`, `check` or `repeat`), `cells` (how many have each status),
    `running` (cells that are being tried, with the attempt's number), `damaged` (a path for each
    attempt that cannot be read and counts as interrupted), `simulated`, `grid` (every
    cell of the grid and every other one that was tried: what is known of it, `running`, or
    `not_reached`), `without_frontier` (why there is none) and, as in `show --json`, but so far:
    `frontier`, `choices`, `checks` and `without_speed`; from `simulated` on only if `analysed`.
    """
    return read_again(partial(_document, store, folder, analysed=analysed))


def _document(store: SweepStore, folder: Path, *, analysed: bool) -> dict[str, Any]:
    spec = spec_from_document(store.config, secrets=False, file=store.paths.sweep_yaml)
    cells = spec.grid.cells()
    (found, damaged), writer = store.look_through(), store.writer()
    running, records = under_way(writer, found)
    latest = _latest(records)
    follows = inferred_rows(spec, store.identities, records)
    inferred = {cell_of(row) for row in follows}
    launched = [latest[cell] for cell in cells if cell in latest and cell not in inferred]
    statuses = Counter(record.status.value for record in launched)
    if inferred:
        statuses[Status.INFERRED.value] = len(inferred)
    reached = inferred | {each.cell for each in launched}
    under = {each.cell for each in running} & set(cells)
    left, upcoming = (None, None) if writer else _left(spec, records)
    state = "running" if writer else "interrupted" if _cut(spec, records, upcoming) else "finished"
    return {
        "sweep": store.config["name"],
        "folder": str(folder),
        "state": state,
        "reason": _budget(spec, records) if state == "interrupted" else None,
        "writer": str(writer) if writer else None,
        "planned": len(cells),
        "done": sum(record.status.is_final for record in launched) + len(inferred),
        "launched": len(launched),
        "inferred": len(inferred),
        "not_reached": len(cells) - len(reached | under),
        "launches": len(records),
        "replicates": sum(each.row.get("purpose") == Purpose.REPLICATE for each in records),
        "reference": sum(each.row.get("purpose") == Purpose.REFERENCE for each in records),
        "launches_left": left,
        "next": None if upcoming is None else _wanted(upcoming, latest),
        "cells": dict(statuses),
        "running": [{**each.cell.axes(), "attempt": each.attempt} for each in running],
        "damaged": damaged,
        **(so_far(store, spec, records, follows, running) if analysed else {}),
    }


def _latest(records: Sequence[RecordedOutcome]) -> dict[Cell, RecordedOutcome]:
    """Of every cell the attempt that counts: the last final one, else the last."""
    latest: dict[Cell, RecordedOutcome] = {}
    for record in records:
        known = latest.get(record.cell)
        if known is None or not known.status.is_final or record.status.is_final:
            latest[record.cell] = record
    return latest


def _left(spec: SweepSpec, records: Sequence[RecordedOutcome]) -> tuple[int, Ask | None]:
    """About how many launches `resume` would make if it had no budget, and the next of them."""
    search = create_search(replace(spec, search=replace(spec.search, max_launches=None)))
    for record in in_order(records):
        search.tell(record.cell, record.outcome())
    expected = search.outlook.launches_left
    upcoming = search.ask()
    return (0 if upcoming is None else max(1, expected)), upcoming


def _cut(spec: SweepSpec, records: Sequence[RecordedOutcome], upcoming: Ask | None) -> bool:
    """Whether something ended a sweep early that nobody runs.

    What another setting or a later version would measure once more, it was not to measure.
    """
    if upcoming is None or not upcoming.purpose.repeats:
        return upcoming is not None
    ordered = in_order(records)
    stopped = bool(ordered) and ordered[-1].status is Status.INTERRUPTED
    return stopped or _budget(spec, records) is not None


def _wanted(ask: Ask, latest: Mapping[Cell, RecordedOutcome]) -> str:
    """What a launch is for, in a word."""
    if ask.purpose.repeats:
        return "repeat"
    if ask.purpose in (Purpose.AUDIT, Purpose.SPEED_CHECK):
        return "check"
    known = ask.cell in latest and latest[ask.cell].status is Status.MEASURED
    return "speed" if known or ask.purpose is Purpose.SPEED else "answer"


def _budget(spec: SweepSpec, records: Sequence[RecordedOutcome]) -> str | None:
    """The setting that ended a sweep; None where nothing says that one did.

    A sweep that was stopped from outside leaves an attempt without an outcome behind; one that came
    to the end of its budget brings its last launches to their end.
    """
    launches, hours = spec.search.max_launches, spec.search.max_hours
    ordered = in_order(records)
    if ordered and ordered[-1].status is Status.INTERRUPTED:
        return None
    # That of a run is not known where there were several: it is no longer than all of them.
    began = [each.row.get("started_at") for each in ordered]
    ended = [each.row.get("ended_at") for each in ordered]
    times = [each for each in (*began, *ended) if isinstance(each, datetime)]
    took_s = (max(times) - min(times)).total_seconds() if times else 0.0
    if hours is not None and took_s >= _ABOUT * hours * 3600:
        return "search.max_hours"
    if launches is not None and len(ordered) >= launches:
        return "search.max_launches"
    return None


def show(found: dict[str, Any], console: Console) -> None:
    """Print the state in a few lines, the map and the frontier so far."""
    _headline(found, console)
    for status, count in sorted(found["cells"].items()):
        console.print(f"  {status:<12} {count}")
    if found["not_reached"]:
        console.print(f"  {'not reached':<12} {found['not_reached']}")
    again = launched_again(found["replicates"], found["reference"])
    made = several(
        found["launches"] - found["replicates"] - found["reference"], "launch", "launches"
    )
    if found["inferred"]:
        console.print(f"  {made} so far; inferred cells need none")
    if again:
        console.print(f"  beside these {again}" if found["inferred"] else f"  {made} and {again}")
    for cell in found["running"]:
        console.print(f"  now: {_in_words(cell)}", soft_wrap=True, markup=False)
    if told := unread(found["damaged"]):
        console.print(f"  {told}", soft_wrap=True, markup=False)
    _pictures(found, console)
    if found["launches_left"]:
        folder = found["folder"]
        console.print()
        console.print(f"Go on with: vllm-frontier resume {folder}", soft_wrap=True, markup=False)


def show_stopped(folder: Path, console: Console) -> None:
    """Print how far a sweep is that was just stopped, its map and its frontier so far.

    Nothing where nothing was launched yet, or nothing can be read.
    """
    try:
        store = SweepStore.open(folder)
        if not store.outcomes():
            return
        found = document(store, folder)
    except StoreError:  # there will be more to say of that than now
        return
    _headline(found, console)
    _pictures(found, console)
    console.print()


def _headline(found: dict[str, Any], console: Console) -> None:
    reason = found["reason"]
    state = found["state"] if reason is None else f"stopped by its budget ({reason})"
    told = ", ".join([state, *_known(found)])
    console.print(f"{found['sweep']}: {told}", soft_wrap=True, markup=False)


def _pictures(found: dict[str, Any], console: Console) -> None:
    """The map and the frontier, each below an empty line."""
    console.print()
    console.print(grid_map(found["grid"], titled("Grid", found["simulated"])))
    console.print()
    console.print(frontier_section({**found, "reason": found["without_frontier"]}, short=True))


def _known(found: dict[str, Any]) -> Iterator[str]:
    """How many cells are done; where others are left than those, what is."""
    yield f"{found['done']} of {found['planned']} cells done"
    if found["launches_left"]:
        about = several(found["launches_left"], "launch", "launches")
        yield f"about {about} left, the next {_FOR[found['next']]}"


def _in_words(running: dict[str, Any]) -> str:
    axes = {name: value for name, value in running.items() if name != "attempt"}
    return f"{label(axes)} (attempt {running['attempt']})"
