"""What is expected of a sweep: which launches, how its cells end, how long it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_frontier.checkpoint import prior_for
from vllm_frontier.errors import FrontierError
from vllm_frontier.grid import Cell
from vllm_frontier.history import LaunchTimes, launch_times
from vllm_frontier.identity import identify
from vllm_frontier.memory import Figure, MemoryModel, MemoryPrior, Prediction, vague_prior
from vllm_frontier.outcome import Purpose, Status
from vllm_frontier.report.plan.expected_launches import Told, expected_launches
from vllm_frontier.search import Ask, infer
from vllm_frontier.spec import SweepSpec
from vllm_frontier.store.records import in_order
from vllm_frontier.store.sweep_store import SweepStore

DEVIATIONS_90 = 1.645
"""To either side of the mean of a normal distribution lie 90 % within so many deviations."""

_LIKELY = 0.5


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of a sweep.

    Attributes:
        told: earlier attempts of the same sweep.
        launched: cells that such an attempt brought to an end.
        asks: the launches in order, within the sweep's budget.
        seconds: how long each of them takes.
        fewest: launches, also where memory is not quite as expected.
        most: the same.
        fewest_of_search: of these, without those of measured cells again.
        most_of_search: the same.
        cut: launches that come after `search.max_hours`.
        predictions: of the memory of every cell, by its place in the grid.
        known: whether cells work whose answer is known already, by launch or inference.
        blind: whether nothing is known of the model's memory.
        basis: in words, what the predictions rest on.
        times: what a launch takes.
    """

    told: Told
    launched: frozenset[Cell]
    asks: list[Ask]
    seconds: list[float]
    fewest: int
    most: int
    fewest_of_search: int
    most_of_search: int
    cut: int
    predictions: dict[Cell, Prediction]
    known: dict[Cell, bool]
    blind: bool
    basis: str
    times: LaunchTimes

    def count(self, purpose: Purpose) -> int:
        """How many launches are for a purpose."""
        return sum(ask.purpose is purpose for ask in self.asks)

    def works(self, cell: Cell) -> bool | None:
        """Whether a cell works, by what is known, else by what is most likely."""
        if cell in self.known:
            return self.known[cell]
        return None if self.blind else self.predictions[cell].probability >= _LIKELY


def make_forecast(spec: SweepSpec, outputs: Path) -> Forecast:
    """What is expected of a sweep; nothing is launched.

    Args:
        spec: the sweep.
        outputs: where sweeps are kept.
    """
    cells = spec.grid.cells()
    prior = prior_for(spec)
    told = _earlier(spec, outputs / spec.name)
    model = MemoryModel(spec.card.memory_gib, prior)
    known = _known(spec, cells, told)
    for cell, outcome in told:
        model.observe(cell, outcome)
    mean, sd = model.margins(cells)
    # What a few launches tell stands by itself where nothing was believed before them.
    basis = model.basis.split(", and ")[0] if prior is None else model.basis
    predictions = {
        cell: Prediction(float(mean[at]), float(sd[at]), basis) for at, cell in enumerate(cells)
    }
    asks = expected_launches(spec, prior, model, told)
    times = launch_times(spec, prior, outputs)
    seconds = [
        times.seconds(
            ask.cell,
            works=predictions[ask.cell].probability >= _LIKELY,
            with_speed=ask.with_speed,
        )
        for ask in asks
    ]
    kept = _within(seconds, spec.search.max_hours)
    # Within the hours there is no time for more.
    others = [] if kept < len(asks) else _elsewhere(spec, prior, told)
    ways = [asks[:kept], *others]
    of_search = [sum(not ask.purpose.repeats for ask in way) for way in ways]
    return Forecast(
        told=told,
        launched=frozenset(cell for cell, outcome in told if outcome.status.is_final),
        asks=asks[:kept],
        seconds=seconds[:kept],
        fewest=min(map(len, ways)),
        most=max(map(len, ways)),
        fewest_of_search=min(of_search),
        most_of_search=max(of_search),
        cut=len(asks) - kept,
        predictions=predictions,
        known=known,
        blind=_blind(prior, told),
        basis=basis,
        times=times,
    )


def _elsewhere(spec: SweepSpec, prior: MemoryPrior | None, told: Told) -> list[list[Ask]]:
    """The launches where the model needs more memory than expected, and less.

    The search knows no more than before: only what it meets is different.
    """
    if spec.search.strategy == "exhaustive" or spec.search.verify == "all":
        return []  # every cell, whatever becomes of it
    believed = vague_prior(spec.card.memory_gib) if prior is None else prior
    fixed = (believed.weights, believed.activation, believed.graphs, believed.overhead)
    spread = math.hypot(*(figure.sd for figure in fixed))
    ways = []
    for shift in (-DEVIATIONS_90, DEVIATIONS_90):
        mean = max(0.0, believed.weights.mean + shift * spread)
        weights = Figure(mean, believed.weights.sd)
        model = MemoryModel(spec.card.memory_gib, replace(believed, weights=weights))
        for cell, outcome in told:
            model.observe(cell, outcome)
        ways.append(expected_launches(spec, prior, model, told))
    return ways


def _earlier(spec: SweepSpec, folder: Path) -> Told:
    """The attempts in a folder that holds the same sweep; none where it does not."""
    try:
        store = SweepStore.open(folder)
        engine = store.identity.cell_part.get("engine")
        version = engine.get("version") if isinstance(engine, dict) else None
        same = identify(spec, str(version)).digest == store.identity.digest
        if not same or store.config.get("name") != spec.name:
            return ()
        return [(each.cell, each.outcome()) for each in in_order(store.outcomes())]
    except FrontierError:  # no sweep, or none that can be read: `run` says so
        return ()


def _known(spec: SweepSpec, cells: Sequence[Cell], told: Told) -> dict[Cell, bool]:
    """Cells of the grid with an answer, and whether they work."""
    known = {each.cell: each.works for each in infer(spec, told).inferences}
    for cell, outcome in told:
        if outcome.status.is_final:
            known[cell] = outcome.status is Status.MEASURED
    return {cell: known[cell] for cell in cells if cell in known}


def _blind(prior: MemoryPrior | None, told: Told) -> bool:
    """Whether nothing is known but the size of the card."""
    return prior is None and not any(outcome.status.is_final for _, outcome in told)


def _within(seconds: Sequence[float], max_hours: float | None) -> int:
    """How many launches begin before the time is up."""
    if max_hours is None:
        return len(seconds)
    passed, kept = 0.0, 0
    for each in seconds:
        if passed > max_hours * 3600:
            break
        passed += each
        kept += 1
    return kept
