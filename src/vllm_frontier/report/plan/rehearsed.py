"""What a rehearsal of a sweep came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from vllm_frontier.analyze.monotony import unexplored
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Purpose, Status
from vllm_frontier.rehearse import Rehearsal
from vllm_frontier.report.again import launched_again
from vllm_frontier.report.disagreement import not_explored
from vllm_frontier.report.plan.durations import about
from vllm_frontier.report.terminal.grid_map import grid_map
from vllm_frontier.report.terminal.grid_signs import NOT_REACHED
from vllm_frontier.report.wording import label, several
from vllm_frontier.search.proof import DISAGREEMENT
from vllm_frontier.spec import SearchSpec, SweepSpec
from vllm_frontier.window_end import window_end

_FEASIBILITY = (Purpose.PROOF, Purpose.AUDIT)
_MEASURING = (Purpose.SPEED, Purpose.SPEED_CHECK)
_LISTED_MAX = 6


def document(spec: SweepSpec, found: Rehearsal) -> dict[str, Any]:
    """What `rehearse --json` prints.

    Keys: `sweep`, `card`, `search`, `verify`; `cells` (how many the grid has); `launches` (to
    learn what works, spot checks included), `launches_measure` (made only to measure) and
    `launches_exhaustive`; beside these `launches_replicate` (measured cells again) and
    `launches_reference` (one of them again, to see whether its speed drifts); `hours` (simulated,
    of all launches one after another); `boundaries` (the other axes, `max_context_works`,
    `min_context_fails`, `verified`); `frontier` (the axes of its cells); `wrong_cells` and
    `inferred_wrong` (launched and inferred cells whose answer is not the card's); `inferred`, and
    how many of them are `firm` (by vLLM's own arithmetic) or `uncertain` (all others), and of these
    `in_doubt` (something speaks against them); `uncertain_wrong` (how many of the uncertain are
    wrong); `failed` (launched, without an answer), `not_reached`; `contradictions` (launches that
    disagree: `works` asks for at least as much as `fails`) and `unexplored` (how many of these have
    neighbours that are still inferred to work).
    """
    uncertain, wrong = set(found.uncertain), found.inferred_wrong
    inferences = found.knowledge.inferences
    firm = len(found.firm)
    presumed = {each.cell for each in inferences if each.works}
    failed = {
        each.ask.cell
        for each in found.launches
        if each.outcome.status is Status.FAILED and each.ask.cell not in found.answers
    }
    return {
        "sweep": spec.name,
        "card": spec.card.name,
        "search": spec.search.strategy,
        "verify": spec.search.verify,
        "cells": len(found.truth),
        "launches": found.count(*_FEASIBILITY),
        "launches_measure": found.count(*_MEASURING),
        "launches_exhaustive": len(found.truth),
        "launches_replicate": found.count(Purpose.REPLICATE),
        "launches_reference": found.count(Purpose.REFERENCE),
        "hours": round(found.seconds / 3600, 2),
        "boundaries": list(_boundaries(found)),
        "frontier": [cell.axes() for cell in found.frontier],
        "wrong_cells": len(found.wrong),
        "inferred_wrong": len(wrong),
        "inferred": len(inferences),
        "firm": firm,
        "uncertain": len(uncertain),
        "in_doubt": len(found.in_doubt),
        "uncertain_wrong": sum(cell in uncertain for cell in wrong),
        "failed": len(failed),
        "not_reached": len(found.truth) - len(found.answers) - len(failed),
        "contradictions": [
            {"works": each.works.axes(), "fails": each.fails.axes()}
            for each in found.knowledge.contradictions
        ],
        "unexplored": unexplored(
            list(found.truth), presumed, (each.fails for each in found.knowledge.contradictions)
        ),
    }


def _boundaries(found: Rehearsal) -> Iterator[dict[str, Any]]:
    disputed = {each.cell for each in found.knowledge.inferences if each.doubt == DISAGREEMENT}
    columns: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in found.truth:
        columns.setdefault((cell.extra, cell.depth, cell.graphs, cell.utilization), []).append(cell)
    for cells in columns.values():
        end = window_end(
            {cell.context: found.answers.get(cell) for cell in cells},
            {cell.context for cell in cells if cell in disputed},
        )
        axes = {name: value for name, value in cells[0].axes().items() if name != "context"}
        yield {
            **axes,
            "max_context_works": end.longest,
            "min_context_fails": end.shortest,
            "verified": end.verified,
        }


def show(spec: SweepSpec, found: Rehearsal, console: Console) -> None:
    """Print what a rehearsal came to: launches, the map, the frontier, and what was wrong."""
    told = document(spec, found)
    console.print(
        Text.assemble(
            (spec.name, "bold"),
            f" (simulated): {told['cells']} cells, search {spec.search.strategy}",
        ),
        soft_wrap=True,
    )
    for line in _launches(told, found):
        console.print(line, soft_wrap=True, markup=False)
    console.print()
    console.print(grid_map(_signs(found), "Grid (simulated)"))
    console.print(Text("\nFrontier (simulated)", style="bold"))
    for cell in found.frontier:
        console.print(
            f"  {cell.label()}  {found.speeds[cell]:.1f} tokens/s", soft_wrap=True, markup=False
        )
    console.print()
    for line in _verdict(told, spec.search):
        console.print(line, markup=False)


def _launches(told: Mapping[str, Any], found: Rehearsal) -> Iterator[str]:
    """How many launches it took, what for, and how long they would take."""
    made = told["launches"] + told["launches_measure"]
    every = told["launches_exhaustive"]
    saved = f" instead of {every}" if made < every else ""
    count = several(made, "launch", "launches")
    took = about(found.seconds - found.seconds_again)
    yield f"Rehearsed on {told['card']}: {count}{saved}, {took}:"
    audits = found.count(Purpose.AUDIT)
    checks = f" ({audits} of them spot checks)" if audits else ""
    yield (
        f"{told['launches']} to learn what works{checks}, "
        f"{told['launches_measure']} only to measure speed."
    )
    again = launched_again(told["launches_replicate"], told["launches_reference"])
    if again:
        yield f"And {again}, {about(found.seconds_again)}."


def _signs(found: Rehearsal) -> list[dict[str, Any]]:
    """The cells as the grid map wants them."""
    inferred = {each.cell: each.failure_class for each in found.knowledge.inferences}
    return [_sign(found, cell, inferred) for cell in found.truth]


def _sign(
    found: Rehearsal, cell: Cell, inferred: Mapping[Cell, FailureClass | None]
) -> dict[str, Any]:
    status = NOT_REACHED
    if cell in inferred:
        status = Status.INFERRED.value
    elif cell in found.answers:
        status = found.status[cell].value
    elif cell in found.status:
        status = Status.FAILED.value
    extra = dict(cell.extra)
    return {
        **cell.axes(),
        "extra_axes": sorted(extra),
        "status": status,
        "failure_class": inferred.get(cell),
    }


def _verdict(told: Mapping[str, Any], search: SearchSpec) -> Iterator[str]:
    wrong, inferred = told["inferred_wrong"], told["inferred"]
    launched = told["cells"] - inferred - told["not_reached"] - told["failed"]
    yield (
        f"Compared with the card: {told['wrong_cells']} of {launched} launched and "
        f"{wrong} of {inferred} inferred cells are wrong."
    )
    yield (
        f"Inferred: {told['firm']} firm, {told['uncertain']} uncertain, "
        f"{told['in_doubt']} of them in doubt."
    )
    if wrong:
        yield f"Of the wrong inferred ones, said to be uncertain: {told['uncertain_wrong']}."
    if told["failed"]:
        yield f"{several(told['failed'], 'cell', 'cells')} failed."
    if told["not_reached"]:
        left = several(told["not_reached"], "cell has", "cells have")
        yield f"{left} no answer: {_why_open(search)}."
    if told["contradictions"]:
        yield "Not monotone: refused, though what asks for more works"
    for each in told["contradictions"][:_LISTED_MAX]:
        yield f"  refused  {label(each['fails'])}"
        yield f"  works    {label(each['works'])}"
    more = len(told["contradictions"]) - _LISTED_MAX
    if more > 0:
        yield f"  and {more} more; see --json."
    yield from not_explored(told["unexplored"])


def _why_open(search: SearchSpec) -> str:
    limited = search.max_hours is not None or search.max_launches is not None
    if search.verify == "frontier" and not limited:
        return "the frontier does not rest on them"
    return "the search ended before"
