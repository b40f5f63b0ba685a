"""Random described cards, and what a map of them takes at least.

The cards are like those people have: 16 to 80 GB, with a model whose windows end somewhere
within the grid. On `monotone` ones memory alone decides; the others have a fault, a hole, or an
upper limit to the share of the card.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from vllm_frontier.engine.simulated.card import (
    CardFigures,
    Fault,
    MemoryFigures,
    ModelFigures,
    SimulatedCard,
    SpeedFigures,
    StepFigures,
)
from vllm_frontier.grid import Cell, Grid
from vllm_frontier.rehearse import Rehearsal, rehearse
from vllm_frontier.search.lattice import Lattice
from vllm_frontier.spec import (
    CardSpec,
    EngineSpec,
    ModelSpec,
    ScheduleSpec,
    SearchSpec,
    SweepSpec,
    WorkloadSpec,
)

GRID = Grid(
    depth=(0, 1, 2, 3, 4, 5, 6),
    context=(8192, 12288, 16384, 24576, 32768, 49152, 65536, 81920, 98304, 131072, 163840, 196608),
    graphs=(False, True),
    utilization=(0.90, 0.93, 0.95, 0.97),
)


def monotone(draw: random.Random) -> SimulatedCard:
    """A card on which memory alone decides, and no share of it is too large."""
    total = draw.choice([15.6, 23.5, 31.4, 47.5, 79.2])
    size = total / 31.4
    kv = size * draw.uniform(0.015, 0.08)
    # What grows with depth beside the head's KV cache: mostly nothing, or a hybrid model's state.
    grows = draw.choice(["nothing", "nothing", "state", "activation", "graphs"])
    memory = MemoryFigures(
        weights=1.0,
        head=size * draw.uniform(0.2, 1.5),
        activation=size * draw.uniform(0.5, 2.0),
        activation_per_depth=size * draw.uniform(0.0, 0.05) if grows == "activation" else 0.0,
        graphs=size * draw.uniform(0.2, 1.2),
        graphs_per_depth=size * draw.uniform(0.0, 0.06) if grows == "graphs" else 0.0,
        kv_per_1k_tokens=kv,
        head_kv_per_1k_tokens=kv * draw.uniform(0.0, 0.1),
        # A hybrid model's state is worth some thousand tokens of its KV cache.
        state=kv * draw.uniform(1.0, 9.0) if grows == "state" else 0.0,
        state_per_depth=kv * draw.uniform(0.5, 4.0) if grows == "state" else 0.0,
    )
    # A cell in the middle of the grid has its longest window somewhere in the middle, too.
    taken = memory.head + memory.activation + memory.graphs / 2 + memory.state
    window = kv * draw.uniform(50, 180)
    return SimulatedCard(
        card=CardFigures(name="random", total_gib=total, in_use_gib=0.01 * total),
        model=ModelFigures(max_context=262144),
        memory=replace(memory, weights=max(1.0, 0.935 * total - taken - window)),
        speed=_speed(draw),
    )


def _speed(draw: random.Random) -> SpeedFigures:
    eager = draw.uniform(15, 60)
    acceptance = {}
    for task, best in (("edit", 0.97), ("code", 0.93), ("prose", 0.85)):
        share, shares = 1.0, []
        for _ in range(6):
            share *= draw.uniform(best - 0.15, best)
            shares.append(share)
        acceptance[task] = tuple(shares)
    return SpeedFigures(
        step_ms=StepFigures(eager=eager, graphs=eager * draw.uniform(0.4, 0.9)),
        step_ms_per_depth=StepFigures(eager=draw.uniform(0.2, 2), graphs=draw.uniform(0.2, 2)),
        acceptance=acceptance,
        prefill_tok_s=5000,
    )


def _too_little_free(draw: random.Random) -> SimulatedCard:
    """Others hold so much of the card that large shares of it are refused."""
    card = monotone(draw)
    in_use = card.card.total_gib * draw.uniform(0.02, 0.09)
    return replace(card, card=replace(card.card, in_use_gib=in_use))


def _graphs_on_top(draw: random.Random) -> SimulatedCard:
    """Graphs come on top of the share: large ones run out of memory while they are captured."""
    card = _too_little_free(draw)
    return replace(card, memory=replace(card.memory, graphs_counted=False))


def _memory_to_serve(draw: random.Random) -> SimulatedCard:
    """A full window needs memory beside the share."""
    card = _too_little_free(draw)
    extra = card.card.total_gib * draw.uniform(0.0, 0.05)
    return replace(card, memory=replace(card.memory, fill_extra=extra))


def _hole(draw: random.Random) -> SimulatedCard:
    """Cells that share some values always run out of memory, though memory would do."""
    where = draw.choice(["load", "profile", "warm_up", "fill"])
    return _with_fault(monotone(draw), draw, Fault(kind="oom", at=where), 1, 4)


def _lasting_fault(draw: random.Random) -> SimulatedCard:
    """Cells that share some values always crash."""
    fault = Fault(kind=draw.choice(["crash", "exit"]), at=draw.choice(["load", "profile", "fill"]))
    return _with_fault(monotone(draw), draw, fault, 1, 4)


def _passing_fault(draw: random.Random) -> SimulatedCard:
    """The first launches of some cells crash, or end otherwise."""
    kind = draw.choice(["crash", "exit", "kill", "hang"])
    fault = Fault(kind=kind, at=draw.choice(["load", "profile"]), times=draw.randint(1, 3))
    return _with_fault(monotone(draw), draw, fault, 0, 2)


def _short_model(draw: random.Random) -> SimulatedCard:
    """The model was made for shorter windows than the grid has."""
    longest = draw.choice([60000, 100000, 150000])
    return replace(monotone(draw), model=ModelFigures(max_context=longest))


def _with_fault(
    card: SimulatedCard, draw: random.Random, fault: Fault, fewest: int, most: int
) -> SimulatedCard:
    axes = draw.choice(GRID.cells()).axes()
    names = draw.sample(sorted(axes), draw.randint(fewest, most))
    return replace(card, faults=(replace(fault, when={name: axes[name] for name in names}),))


BROKEN: Mapping[str, Callable[[random.Random], SimulatedCard]] = {
    "upper limit: too little free": _too_little_free,
    "upper limit: graphs on top": _graphs_on_top,
    "upper limit: memory to serve": _memory_to_serve,
    "hole": _hole,
    "lasting fault": _lasting_fault,
    "passing fault": _passing_fault,
    "model with short windows": _short_model,
}


def run(card: SimulatedCard, **search: object) -> Rehearsal:
    """Rehearse the boundary search on a card; `search` are keys of the configuration."""
    return rehearse(sweep(card, SearchSpec(strategy="boundary", **search)), card)  # type: ignore[arg-type]


def sweep(card: SimulatedCard, search: SearchSpec, grid: Grid = GRID) -> SweepSpec:
    """A sweep of the grid on a card."""
    return SweepSpec(
        name="random",
        model=ModelSpec(name="model", id="model"),
        card=CardSpec(kind="simulated", name=card.card.name, memory_gib=card.card.total_gib),
        engine=EngineSpec(kind="simulated"),
        grid=grid,
        workload=WorkloadSpec(),
        search=search,
        schedule=ScheduleSpec(),
    )


def least_launches(works: Mapping[Cell, bool]) -> int:
    """The fewest launches that prove a monotone map: last working cells and first refused ones."""
    lattice = Lattice(tuple(works))
    answer = lattice.mask(works.__getitem__)
    last_working = answer & (lattice.highest_among_harder(np.where(answer, 1.0, 0.0)) < 1)
    first_refused = ~answer & (lattice.lowest_among_easier(np.where(answer, 1.0, 0.0)) > 0)
    return int((last_working | first_refused).sum())
