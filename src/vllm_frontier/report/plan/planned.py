"""What a sweep will launch, and what is expected of it, before it does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_frontier.checkpoint import unread
from vllm_frontier.grid import Cell, shortest
from vllm_frontier.outcome import Purpose
from vllm_frontier.report.again import launched_again
from vllm_frontier.report.plan.durations import about
from vllm_frontier.report.plan.forecast import DEVIATIONS_90, Forecast, make_forecast
from vllm_frontier.report.terminal.grid_map import grid_map
from vllm_frontier.report.wording import several
from vllm_frontier.spec import SweepSpec

WORKS, DOES_NOT_FIT = "works", "does not fit"
_LISTED_MAX = 30  # launches in the terminal; --json has all
_CERTAIN = 0.99
_PURPOSES = (
    "proof: does it work? speed: how fast is it? audit: is what was inferred true? "
    "speed check: does speed depend on window or utilization?"
)

_PURPOSES_AGAIN = "replicate: do its launches differ? reference: does the speed of one cell drift?"


def document(spec: SweepSpec, outputs: Path = Path("outputs")) -> dict[str, Any]:
    """The plan as JSON values; nothing is launched.

    Keys: `sweep`, `model`, `card`, `engine`, `search`; `axes` with their values; `n_cells`;
    `launches` and `launches_expected` (how many are still to come if memory is as expected),
    `launches_range` (`low` and `high`, if it is a little more or less), `launches_replicate` and
    `launches_reference` (how many of them launch a measured cell again), `launches_search` and
    `launches_search_range` (all others), `launches_exhaustive` (of every cell that was not launched
    yet), `launches_cut` (those beyond `search.max_hours`);
    `attempts_done` and `cells_done` (of earlier runs of this sweep); `seconds_expected` and
    `seconds_basis`; `prediction_basis`; `launch_order` (every launch: its place, the axes, what
    it is for and how long it takes) and `cells`.

    Each cell has its place in the `order` of launches (null and last: none is expected), its
    axes, `launch`, `purpose` and `with_speed` of its first launch, `launched` (by earlier runs,
    to an end), `known` (`works` or `does not fit`, from earlier runs), `predicted` (the same;
    null where nothing is known of the model's memory), `probability` (that it works, 0 to 1) and
    `margin_gib`: what the memory has to spare when one window is full, `mean` and the 90 %
    interval from `low` to `high`; below 0 it does not fit.

    Args:
        spec: the sweep.
        outputs: where sweeps are kept: what was launched already is left out, and earlier sweeps
            tell how long launches take.
    """
    cells = spec.grid.cells()
    forecast = make_forecast(spec, outputs)
    orders: dict[Cell, int] = {}
    for order, ask in enumerate(forecast.asks, start=1):
        orders.setdefault(ask.cell, order)
    first = sorted(cells, key=lambda cell: orders.get(cell, len(forecast.asks) + 1))
    replicates, reference = forecast.count(Purpose.REPLICATE), forecast.count(Purpose.REFERENCE)
    parallel = max(1, len(spec.card.uuids) // max(1, spec.engine.tensor_parallel))
    return {
        "sweep": spec.name,
        "model": spec.model.name,
        "card": spec.card.name,
        "engine": spec.engine.kind,
        "search": spec.search.strategy,
        "axes": _axes(cells),
        "n_cells": len(cells),
        "launches": len(forecast.asks),
        "launches_expected": len(forecast.asks),
        "launches_range": {"low": forecast.fewest, "high": forecast.most},
        "launches_replicate": replicates,
        "launches_reference": reference,
        "launches_search": len(forecast.asks) - replicates - reference,
        "launches_search_range": {
            "low": forecast.fewest_of_search,
            "high": forecast.most_of_search,
        },
        "launches_exhaustive": len(set(cells) - forecast.launched),
        "launches_cut": forecast.cut,
        "attempts_done": len(forecast.told),
        "cells_done": len(forecast.known),
        "seconds_expected": round(sum(forecast.seconds) / parallel, 1),
        "seconds_basis": forecast.times.basis,
        "prediction_basis": forecast.basis,
        "launch_order": list(_launch_order(forecast)),
        "cells": [_cell(forecast, cell, orders.get(cell)) for cell in first],
    }


def _launch_order(forecast: Forecast) -> Iterator[dict[str, Any]]:
    for order, (ask, seconds) in enumerate(
        zip(forecast.asks, forecast.seconds, strict=True), start=1
    ):
        yield {
            "order": order,
            **ask.cell.axes(),
            "purpose": ask.purpose.value,
            "with_speed": ask.with_speed,
            "seconds": round(seconds, 1),
        }


def _cell(forecast: Forecast, cell: Cell, order: int | None) -> dict[str, Any]:
    prediction = forecast.predictions[cell]
    ask = None if order is None else forecast.asks[order - 1]
    spread = DEVIATIONS_90 * prediction.sd_gib
    known = forecast.known.get(cell)
    return {
        "order": order,
        **cell.axes(),
        "launch": ask is not None,
        "purpose": None if ask is None else ask.purpose.value,
        "with_speed": None if ask is None else ask.with_speed,
        "launched": cell in forecast.launched,
        "known": _word(known),
        "predicted": _word(forecast.works(cell)),
        "probability": round(prediction.probability if known is None else float(known), 4),
        "margin_gib": {
            "mean": round(prediction.margin_gib, 4),
            "low": round(prediction.margin_gib - spread, 4),
            "high": round(prediction.margin_gib + spread, 4),
        },
    }


def _word(works: bool | None) -> str | None:
    if works is None:
        return None
    return WORKS if works else DOES_NOT_FIT


def _axes(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    """The values that really occur, excluded ones left out."""
    points = [cell.axes() for cell in cells]
    return {
        name: sorted({point[name] for point in points}, key=lambda value: (str(type(value)), value))
        for name in points[0]
    }


# The terminal


def show(spec: SweepSpec, console: Console, outputs: Path = Path("outputs")) -> None:
    """Print the plan: axes, launches in order, and what is expected of the whole grid."""
    plan = document(spec, outputs)
    console.print(
        Text.assemble(
            (plan["sweep"], "bold"), f": {plan['model']} on {plan['card']} ({plan['engine']})"
        ),
        soft_wrap=True,
    )
    console.print(f"{plan['n_cells']} cells, {_launches(plan)}")
    again = launched_again(plan["launches_replicate"], plan["launches_reference"])
    if again:
        console.print(f"And {again}.")
    widest = max(len(name) for name in plan["axes"])
    for name, values in plan["axes"].items():
        console.print(
            f"  {name:<{widest}}  {', '.join(_text(value) for value in values)}", markup=False
        )
    if plan["attempts_done"]:
        console.print(
            f"Already in {outputs / spec.name}: "
            f"{several(plan['attempts_done'], 'attempt', 'attempts')}, with which "
            f"{several(plan['cells_done'], 'cell has its', 'cells have their')} answer."
            + (" What is left:" if plan["launch_order"] else ""),
            soft_wrap=True,
            markup=False,
        )
    if plan["launch_order"]:
        console.print()
        console.print(_launch_table(plan))
        if plan["search"] == "boundary":
            console.print(_PURPOSES, style="dim")
        if again:
            console.print(_PURPOSES_AGAIN, style="dim")
    if _is_predicted(plan):
        console.print()
        heading = "Expected (# x launched, + - to be inferred)"
        console.print(grid_map(_signs(plan), heading, whole=True))
    console.print()
    for line in _closing(plan, None if _is_predicted(plan) else unread(spec)):
        console.print(line, markup=False)


def _launches(plan: Mapping[str, Any]) -> str:
    count, span = plan["launches_search"], plan["launches_search_range"]
    if not plan["launches_expected"]:
        return "nothing left to launch"
    if not count:
        return "every one has its launches"
    word = "launch" if count == 1 else "launches"
    if plan["search"] == "exhaustive":
        return f"{count} {word}"
    # Where nothing is known of the model, any number of launches may do: no range to speak of.
    ranged = _is_predicted(plan) and span["low"] < span["high"]
    wide = f" ({span['low']} to {span['high']})" if ranged else ""
    more = " more" if plan["attempts_done"] else ""
    saves = count < plan["launches_exhaustive"]
    instead = f" instead of {plan['launches_exhaustive']}" if saves else ""
    return f"about {count}{more} {word}{wide}{instead}"


def _launch_table(plan: Mapping[str, Any]) -> Table:
    """The first launches, each with what its memory is expected to have to spare."""
    table = Table(box=box.SIMPLE, padding=0, show_edge=False)
    table.add_column("#", justify="right")
    for name in plan["axes"]:
        short = "util" if name == "utilization" else name
        table.add_column(Text(short), justify="right", overflow="fold")
    table.add_column("for", overflow="fold")
    at = {_point(cell, plan): cell for cell in plan["cells"]}
    predicted = _is_predicted(plan)
    if predicted:
        table.add_column("expected", overflow="fold")
        table.add_column("spare, GiB (90 %)", justify="right", overflow="fold")
    listed = plan["launch_order"][:_LISTED_MAX]
    digits = _digits(at[_point(launch, plan)]["margin_gib"] for launch in listed)
    for launch in listed:
        cell = at[_point(launch, plan)]
        expected = _expectation(cell), _interval(cell["margin_gib"], digits)
        table.add_row(
            str(launch["order"]),
            *(Text(_text(launch[name])) for name in plan["axes"]),
            _purpose(launch),
            *(expected if predicted else ()),
        )
    rest = len(plan["launch_order"]) - _LISTED_MAX
    if rest > 0:
        table.add_row("...", *([""] * len(plan["axes"])), f"{rest} more")
    return table


def _point(row: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in plan["axes"])


def _is_predicted(plan: Mapping[str, Any]) -> bool:
    return any(cell["predicted"] is not None for cell in plan["cells"])


def _purpose(launch: Mapping[str, Any]) -> str:
    what = str(launch["purpose"]).replace("_", " ")
    return "proof, speed" if launch["with_speed"] and what == "proof" else what


def _expectation(cell: Mapping[str, Any]) -> str:
    likely = max(cell["probability"], 1 - cell["probability"])
    share = ">99%" if likely > _CERTAIN else f"{likely:.0%}"
    return f"{cell['predicted']}, {share}"


def _interval(margin: Mapping[str, float], digits: int) -> str:
    return f"{margin['low']:.{digits}f} to {margin['high']:.{digits}f}"


def _digits(margins: Iterable[Mapping[str, float]]) -> int:
    """Enough that a small card's figures differ."""
    largest = max((abs(each[end]) for each in margins for end in ("low", "high")), default=1.0)
    return 3 if largest < 1 else 2


def _signs(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells as they would stand in the map of the sweep once it is done."""
    built_in = {"depth", "context", "graphs", "utilization"}
    extra = [name for name in plan["axes"] if name not in built_in]
    signs = []
    for cell in plan["cells"]:
        works = cell["predicted"] == WORKS
        launched = cell["launch"] or cell["launched"]
        status = ("measured" if works else "infeasible") if launched else "inferred"
        failure = None if works else DOES_NOT_FIT
        axes = {name: cell[name] for name in plan["axes"]}
        signs.append({**axes, "extra_axes": extra, "status": status, "failure_class": failure})
    return signs


def _closing(plan: Mapping[str, Any], missing: str | None) -> Iterator[str]:
    if plan["launch_order"]:
        yield f"Expected time: {about(plan['seconds_expected'])} ({plan['seconds_basis']})."
    if plan["launches_cut"]:
        cut = several(plan["launches_cut"], "launch, which is", "launches, which are")
        yield f"Beyond search.max_hours: {cut} left out here."
    if _is_predicted(plan):
        yield f"Predictions rest on {plan['prediction_basis']}."
    else:
        why = missing or "a simulated card has no model files"
        guess = " So launches and their number are a guess." if plan["search"] == "boundary" else ""
        yield f"No predictions: {why}, and nothing was launched yet.{guess}"
        if plan["engine"] == "simulated":
            yield "`vllm-frontier rehearse` with the same arguments runs the search on that card."


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return shortest(value) if isinstance(value, float) else str(value)
