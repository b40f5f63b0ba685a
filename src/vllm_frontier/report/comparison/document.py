"""What `compare --json` prints; terminal and pages are made from the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from vllm_frontier.analyze.cell_states import cell_states
from vllm_frontier.analyze.choices import CHOICES, choices
from vllm_frontier.analyze.comparison.matching import matched_cells, only_in
from vllm_frontier.analyze.comparison.memory import matched_memory, matched_needs
from vllm_frontier.analyze.comparison.speeds import Measured, matched_speeds, shared_prompts
from vllm_frontier.analyze.comparison.windows import matched_windows
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.analyze.latest import AXES
from vllm_frontier.analyze.memory_split import memory_split
from vllm_frontier.report.comparison import sides as sweeps
from vllm_frontier.report.comparison.sides import Side
from vllm_frontier.report.comparison.words import quoted
from vllm_frontier.report.comparison.workloads import Comparable, comparable
from vllm_frontier.report.documents import objects
from vllm_frontier.report.unread import unread
from vllm_frontier.report.wording import listed, several
from vllm_frontier.store import tables

_OTHER = "_other"
_CHOSEN = (
    *("cell_id", "decode_tok_s", "decode_tok_s_low", "decode_tok_s_high", "interval_basis"),
    *("kv_headroom_gib", "gain_no_graphs", "status"),
)


def compare(folders: Sequence[Path]) -> dict[str, Any]:
    """Sweeps side by side, the first of them as the base of the others.

    Args:
        folders: of two sweeps or more, also such that run now.

    Returns:
        JSON values, sweeps named by `name`:

        - `base`: the first. `sweeps`: `name`, `sweep`, `folder`, `simulated`, `state` and `reason`
          (as in `status --json`), `done` and `planned` (cells), `damaged`, `card`,
          `card_memory_gib`, `model`, `quantization`, `engine`, `engine_version`, `driver`.
        - `differences`: `key`, `word` and `values` (by name) of what is not equal in all.
        - `grid`: every cell of any sweep: the axes, `sweeps` (which have it), `states` and
          `failure_classes` (by name). `shared`: how many cells all have. `only_in`: for each set
          of `sweeps` the `cells` that only these have, and by axis the values only they have.
        - `windows`: for each other sweep (`against` the base) and combination of the other axes:
          of `base` and `other` `max_context_works`, `min_context_fails`, `failure_class`, `cells`,
          `known`; null where a sweep does not have the combination; `difference` (tokens),
          `share` and `reach` (see `analyze.comparison.windows`).
        - `speeds`: for each other sweep `against`, `compared`, the `reason` why not, `settings` of
          the workload that differ, `notes` and `rows`: axes, `cells`, `same_cell`, `base` and
          `other` (the measured cell's `context` and `utilization`, its `decode_tok_s`, `low`,
          `high`, `launches`, `interval_basis`, `prefill_tok_s`, `spec_state`, `broken`), `ratio`,
          `ratio_low`, `ratio_high`, `verdict`, `basis`, and the same by task in `tasks`.
        - `memory`: for each other sweep `against` and combination `budget_gib` of `base` and
          `other`, `parts` (`part`, `base`, `other` and `difference` in GiB, `base_source`,
          `other_source`) and `window` (what one takes: `context`, `base`, `other` in GiB).
        - `choices`: `choice` and `sweeps` (by name: the axes, `context`, `decode_tok_s` with
          its interval, null where its workload is not that of the base; null where there is none).
        - `notes`: what must be known to read it right, sentences.

    Raises:
        StoreError: fewer than two folders, one twice, or one that is no sweep.
    """
    found = sweeps.load(folders)
    names = sweeps.names(found)
    pairs = list(zip(names[1:], found[1:], strict=True))
    base = found[0]
    may = [comparable(base, other) for _, other in pairs]
    cells = matched_cells([_cells(each) for each in found])
    speeds = [
        _speeds((names[0], name), base, other, each)
        for (name, other), each in zip(pairs, may, strict=True)
    ]
    return {
        "base": names[0],
        "sweeps": [_sweep(name, side) for name, side in zip(names, found, strict=True)],
        "differences": [
            {
                "key": each.key,
                "word": each.word,
                "values": dict(zip(names, each.values, strict=True)),
            }
            for each in sweeps.differences(found)
        ],
        "grid": _grid(cells, names),
        "shared": cells.filter(pl.col("in_sweeps").list.len() == len(names)).height,
        "only_in": _only_in(cells, names),
        "windows": [row for name, other in pairs for row in _windows(name, base, other)],
        "speeds": speeds,
        "memory": [row for name, other in pairs for row in _memory(name, base, other)],
        "choices": _choices(names, found, [True, *(each.reason is None for each in may)]),
        "notes": list(_notes(names, found)),
    }


def _sweep(name: str, side: Side) -> dict[str, Any]:
    spec, progress = side.spec, side.progress
    versions = [str(each.cell_part["engine"]["version"]) for each in side.identities]
    drivers = side.found.trials["driver"].drop_nulls().unique(maintain_order=True).to_list()
    return {
        "name": name,
        "sweep": side.found.name,
        "folder": str(side.folder),
        "simulated": side.found.simulated,
        **{key: progress[key] for key in ("state", "reason", "done", "planned", "damaged")},
        "card": spec.card.name,
        "card_memory_gib": spec.card.memory_gib,
        "model": spec.model.name,
        "quantization": spec.model.quantization,
        "engine": spec.engine.kind,
        "engine_version": " -> ".join(dict.fromkeys(versions)),
        "driver": " -> ".join(drivers) or None,
    }


def _cells(side: Side) -> pl.LazyFrame:
    """Every cell of the grid of a sweep."""
    found = side.found
    planned = tables.planned(side.spec.grid.cells())
    return cell_states(found.trials.lazy(), planned=planned.lazy(), running=found.running.lazy())


def _grid(cells: pl.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    told = []
    for row in objects(cells.lazy()):
        has = row.pop("in_sweeps")
        states = {name: row.pop(f"state_{place}") for place, name in enumerate(names)}
        classes = {name: row.pop(f"failure_class_{place}") for place, name in enumerate(names)}
        own = [names[place] for place in has]
        told.append(
            {
                **row,
                "sweeps": own,
                "states": {name: states[name] for name in own},
                "failure_classes": {name: classes[name] for name in own if classes[name]},
            }
        )
    return told


def _only_in(cells: pl.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    found = only_in(cells, len(names))
    return [
        {
            "sweeps": [names[place] for place in row["in_sweeps"]],
            "cells": row["cells"],
            "axes": {axis: row[axis] for axis in AXES if row[axis]},
        }
        for row in found.iter_rows(named=True)
    ]


def _windows(name: str, base: Side, other: Side) -> Iterator[dict[str, Any]]:
    found = matched_windows(base.found.boundaries.lazy(), other.found.boundaries.lazy())
    figures = ("max_context_works", "min_context_fails", "failure_class", "cells", "known")
    for row in objects(found.lazy()):
        told = _both(row, figures)
        for side in ("base", "other"):
            if told[side]["known"] is None:
                told[side] = None
        yield {"against": name, **told}


def _speeds(names: tuple[str, str], base: Side, other: Side, may: Comparable) -> dict[str, Any]:
    told: dict[str, Any] = {
        "against": names[1],
        "compared": may.reason is None,
        "reason": may.reason,
        "settings": [{"key": key, "base": one, "other": two} for key, one, two in may.settings],
        "notes": [],
        "rows": [],
    }
    if may.reason is not None:
        return told
    own, others = (
        Measured(each.found.trials.lazy(), each.found.runs.lazy()) for each in (base, other)
    )
    if may.fewer_prompts:
        own, others = shared_prompts(own, others)
    found = objects(matched_speeds(own, others).lazy())
    by_task: dict[tuple[Any, ...], dict[str, Any]] = {}
    figures = (
        *("context", "utilization", "decode_tok_s", "low", "high", "launches", "interval_basis"),
        *("prefill_tok_s", "spec_state", "broken"),
    )
    verdict = ("ratio", "ratio_low", "ratio_high", "verdict", "basis")
    rows = []
    for each in found:
        task = each.pop("task")
        row = _both(each, figures)
        key = tuple(str(row[name]) for name in row if name not in (*verdict, "base", "other"))
        key += tuple(row[side][axis] for side in ("base", "other") for axis in figures[:2])
        if task is None:
            rows.append({**row, "tasks": by_task.setdefault(key, {})})
        else:
            speeds = {f"{side}_tok_s": row[side]["decode_tok_s"] for side in ("base", "other")}
            by_task.setdefault(key, {})[task] = {
                **{each: row[each] for each in verdict},
                **speeds,
            }
    told["rows"] = rows
    told["notes"] = list(_speed_notes(names, rows, may))
    return told


def _both(row: dict[str, Any], figures: Sequence[str]) -> dict[str, Any]:
    """A row with what both sweeps have of a figure under `base` and `other`."""
    base = {name: row.pop(name) for name in figures}
    other = {name: row.pop(f"{name}{_OTHER}") for name in figures}
    return {**row, "base": base, "other": other}


def _speed_notes(
    names: tuple[str, str], rows: Sequence[dict[str, Any]], may: Comparable
) -> Iterator[str]:
    if may.fewer_prompts:
        yield "Only runs of prompts that both sweeps asked are compared: their repeats differ."
    within = [row for row in rows if row["basis"] == RUNS]
    if within:
        yield f"* interval within launches: {_unknown(names, within)}."
    if any(not row["same_cell"] for row in rows):
        yield (
            "~ not measured in the same cell: speeds are those that each sweep gives the cells of "
            "this depth and graphs."
        )
    if rows:
        yield "No interval holds what another day, or another card of the same kind, would change."
    if any(side["broken"] for row in rows for side in (row["base"], row["other"])):
        yield "! what is written there is broken, so that its speed says nothing."


def _memory(name: str, base: Side, other: Side) -> list[dict[str, Any]]:
    own, others = (
        memory_split(each.found.trials.lazy(), reserved_gib=each.spec.card.reserved_gib or None)
        for each in (base, other)
    )
    needs = {
        _combination(row): {
            "context": row["context"],
            "base": row["needed_gib"],
            "other": row["needed_gib_other"],
        }
        for row in matched_needs(own, others).iter_rows(named=True)
    }
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    table = matched_memory(own, others)
    for raw, row in zip(table.iter_rows(named=True), objects(table.lazy()), strict=True):
        key = _combination(raw)
        budgets = {"base": row.pop("budget_gib"), "other": row.pop(f"budget_gib{_OTHER}")}
        part = {
            "part": row.pop("part"),
            "base": row.pop("gib"),
            "other": row.pop(f"gib{_OTHER}"),
            "difference": row.pop("difference"),
            "base_source": row.pop("source"),
            "other_source": row.pop(f"source{_OTHER}"),
        }
        entry = {**row, "budget_gib": budgets, "window": needs.get(key), "parts": []}
        found.setdefault(key, {"against": name, **entry})["parts"].append(part)
    return list(found.values())


def _combination(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["depth"], row["graphs"], row["utilization"], row["extra"]


def _choices(
    names: Sequence[str], found: Sequence[Side], told: Sequence[bool]
) -> list[dict[str, Any]]:
    """The choices of each sweep; with speeds only where these are told, of the same workload."""
    chosen: dict[str, dict[str, Any]] = {choice: dict.fromkeys(names) for choice in CHOICES}
    for name, side, same in zip(names, found, told, strict=True):
        for row in objects(choices(side.found.frontier.lazy())):
            axes = ("depth", "context", "graphs", "utilization", *row["extra_axes"])
            cell = {key: row[key] for key in (*axes, "extra_axes", *_CHOSEN)}
            if not same:
                speeds = [key for key in _CHOSEN if key.startswith(("decode", "interval"))]
                cell |= dict.fromkeys(speeds)
            for choice in row["choices"]:
                chosen[choice][name] = cell
    return [{"choice": choice, "sweeps": each} for choice, each in chosen.items()]


def _same_card(names: Sequence[str], found: Sequence[Side]) -> Iterator[str]:
    """That a described card is held against itself, whatever the sweeps are called."""
    described = [{_described(each.cell_part) for each in side.identities} for side in found]
    if None in described[0] or len(described[0]) > 1:
        return
    alike = [place for place, each in enumerate(described) if each == described[0]]
    if len(alike) > 1:
        models = {(each.name, each.quantization) for each in (found[at].spec.model for at in alike)}
        named = ", whatever model or quantization they name" if len(models) > 1 else ""
        both = "both simulate" if len(alike) == 2 else "all simulate"
        some = listed([quoted(names[place]) for place in alike])
        yield f"{some} {both} the same described card{named}: differences in speed are noise."


def _described(cell_part: Mapping[str, Any]) -> str | None:
    """The digest of a described card; None of a card that is there."""
    told = cell_part["arguments"].get("described_card")
    return None if told is None else str(told)


def _notes(names: Sequence[str], found: Sequence[Side]) -> Iterator[str]:
    simulated = [
        quoted(name) for name, side in zip(names, found, strict=True) if side.found.simulated
    ]
    if simulated:
        some = f"{listed(simulated)} {'is' if len(simulated) == 1 else 'are'}"
        all_of = "All sweeps are" if len(simulated) == len(names) else some
        yield f"{all_of} simulated: figures of a described card, not measured on one."
    yield from _same_card(names, found)
    for name, side in zip(names, found, strict=True):
        progress = side.progress
        if progress["state"] != "finished":
            word = "is running" if progress["state"] == "running" else "was interrupted"
            if progress["reason"]:
                word = f"was ended by its budget ({progress['reason']})"
            cells = several(progress["planned"], "cell", "cells")
            done = f"{progress['done']} of {cells} done"
            yield f"{quoted(name)} {word}: {done}; the rest is not known."
        if told := unread(side.found.damaged):
            yield f"{quoted(name)}: {told}."
        if len(side.identities) > 1:
            both = "its figures are of both (column changed)"
            yield f"{quoted(name)} went on with something else: {both}."
    axes = [sorted(axis.name for axis in side.spec.grid.extra) for side in found]
    if any(each != axes[0] for each in axes):
        told = "; ".join(
            f"{quoted(name)}: {', '.join(each) or 'none'}"
            for name, each in zip(names, axes, strict=True)
        )
        yield f"Further axes differ ({told}): a cell with another axis is another cell."


def _unknown(names: tuple[str, str], within: Sequence[dict[str, Any]]) -> str:
    """Why some intervals hold nothing of what launches differ by."""
    sides = dict(zip(("base", "other"), names, strict=True))
    unsure = {
        side: [row[side]["launches"] for row in within if row[side]["interval_basis"] == RUNS]
        for side in sides
    }
    once = [quoted(sides[side]) for side, launches in unsure.items() if 1 in launches]
    if once:
        return (
            f"one launch of a cell of {' and '.join(once)} does not tell what launches differ by, "
            "so that a difference may be luck; workload.replicates=3 would tell"
        )
    quiet = [quoted(sides[side]) for side, launches in unsure.items() if launches]
    if quiet:
        return f"launches of {' and '.join(quiet)} do not show how much they differ"
    return "the two do not have the same tasks"
