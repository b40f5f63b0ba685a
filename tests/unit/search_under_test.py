"""Outcomes to tell a search, small worlds to search in, and a driver that asks and tells."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_frontier.grid import Cell, Grid
from vllm_frontier.outcome import (
    Failure,
    FailureClass,
    Outcome,
    Phase,
    Purpose,
    Speed,
    StartupFacts,
    Status,
)
from vllm_frontier.search import Ask, Boundary, Exhaustive, Knowledge, Repeated, Search
from vllm_frontier.search.lattice import Lattice
from vllm_frontier.search.proof import Proofs, prove
from vllm_frontier.spec import SearchSpec, WorkloadSpec

CARD_GIB = 24.0
NO_FACTS = StartupFacts()
SMALL = Grid(
    depth=(0, 1, 2, 3),
    context=(4096, 8192, 16384, 32768, 65536),
    graphs=(False, True),
    utilization=(0.85, 0.9, 0.95),
)

World = Callable[[Ask], Outcome]


def works(ask: Ask | None = None, *, facts: StartupFacts = NO_FACTS) -> Outcome:
    """A launch that did all that was asked."""
    ask = ask or Ask(Cell(0, 4096, False, 0.9))
    speed = speed_of(ask.cell) if ask.with_speed else None
    return Outcome(
        Status.MEASURED,
        Phase.STOP,
        started=True,
        filled=True,
        facts=facts,
        purpose=ask.purpose,
        with_speed=ask.with_speed,
        speed=speed,
    )


def refused(
    why: FailureClass = FailureClass.KV_TOO_SMALL,
    ask: Ask | None = None,
    *,
    phase: Phase = Phase.ALLOCATE_KV,
    facts: StartupFacts = NO_FACTS,
) -> Outcome:
    """A launch that ended for a reason, whatever its status is then."""
    ask = ask or Ask(Cell(0, 4096, False, 0.9))
    return Outcome(
        why.status,
        phase,
        Failure(why, phase, "told"),
        facts=facts,
        purpose=ask.purpose,
        with_speed=ask.with_speed,
    )


def interrupted(ask: Ask) -> Outcome:
    return Outcome(Status.INTERRUPTED, Phase.LOAD, purpose=ask.purpose, with_speed=ask.with_speed)


def speed_of(cell: Cell) -> Speed:
    figure = (20.0 + 7 * cell.depth) * (1.6 if cell.graphs else 1.0)
    return Speed(figure, 0.99 * figure, 1.01 * figure)


@dataclass(frozen=True)
class Memory:
    """A card of 24 GiB on which memory alone decides, but for limits set on purpose."""

    weights: float = 14.0
    head: float = 0.5
    graphs: float = 0.8
    kv_per_1k: float = 0.15
    state_per_depth: float = 0.1
    free: float = CARD_GIB
    on_top: float = 0.0  # of graphs, beside the share
    longest: int = 1 << 20

    def margin(self, cell: Cell) -> float:
        taken = self.weights + (self.head if cell.depth else 0) + self.graphs * cell.graphs
        needed = self.kv_per_1k * cell.context / 1000 + self.state_per_depth * cell.depth
        return cell.utilization * CARD_GIB - taken - needed

    def why(self, cell: Cell) -> FailureClass | None:
        """Why a cell is refused; None: it works."""
        if cell.context > self.longest:
            return FailureClass.CONTEXT_EXCEEDS_MODEL
        if cell.utilization * CARD_GIB > self.free:
            return FailureClass.UTILIZATION_ABOVE_FREE
        if self.margin(cell) < 0:
            return FailureClass.KV_TOO_SMALL
        if cell.graphs and cell.utilization * CARD_GIB + self.on_top > self.free:
            return FailureClass.OOM_GRAPH_CAPTURE
        return None

    def facts(self, cell: Cell) -> StartupFacts:
        needed = self.kv_per_1k * cell.context / 1000 + self.state_per_depth * cell.depth
        available = self.margin(cell) + needed
        fits = available >= needed
        return StartupFacts(
            kv_available_gib=round(available, 2),
            kv_needed_gib=None if fits else round(needed, 2),
            kv_tokens=int(cell.context * available / needed) if fits else None,
        )

    def __call__(self, ask: Ask) -> Outcome:
        why = self.why(ask.cell)
        if why is None:
            return works(ask, facts=self.facts(ask.cell))
        if why is FailureClass.UTILIZATION_ABOVE_FREE:
            return refused(why, ask, facts=StartupFacts(free_gib=self.free))
        if why is FailureClass.CONTEXT_EXCEEDS_MODEL:
            return refused(why, ask, facts=StartupFacts(model_context=self.longest))
        return refused(why, ask, facts=self.facts(ask.cell))


def boundary(grid: Grid | Iterable[Cell] = SMALL, *, retries: int = 1, **spec: Any) -> Boundary:
    """A search; further words are keys of its configuration."""
    cells = grid.cells() if isinstance(grid, Grid) else tuple(grid)
    return Boundary(
        cells, SearchSpec(strategy="boundary", **spec), card_gib=CARD_GIB, retries=retries
    )


def drive(search: Search, world: World, *, limit: int = 2000) -> list[tuple[Ask, Outcome]]:
    """One launch after another to the end."""
    made: list[tuple[Ask, Outcome]] = []
    while (ask := search.ask()) is not None:
        assert not search.finished
        outcome = world(ask)
        search.tell(ask.cell, outcome)
        made.append((ask, outcome))
        assert len(made) < limit, "endless"
    assert search.finished
    return made


def several_at_once(
    search: Search, world: World, width: int, draw: random.Random
) -> list[tuple[Ask, Outcome]]:
    """Up to `width` launches at once, which end in any order."""
    out: list[Ask] = []
    made: list[tuple[Ask, Outcome]] = []
    while True:
        ask = search.ask() if len(out) < width else None
        if ask is not None:
            assert ask.cell not in {each.cell for each in out}
            out.append(ask)
        elif out:
            ended = out.pop(draw.randrange(len(out)))
            outcome = world(ended)
            search.tell(ended.cell, outcome)
            made.append((ended, outcome))
        else:
            assert search.finished
            return made


def told(made: Iterable[tuple[Ask, Outcome]]) -> list[tuple[Cell, Outcome]]:
    return [(ask.cell, outcome) for ask, outcome in made]


def learned(
    outcomes: Iterable[tuple[Cell, Outcome]], grid: Grid = SMALL, retries: int = 1
) -> Knowledge:
    return proofs(outcomes, grid, retries).knowledge()


def proofs(
    outcomes: Iterable[tuple[Cell, Outcome]], grid: Grid = SMALL, retries: int = 1
) -> Proofs:
    return prove(Lattice(grid.cells()), outcomes, retries)


def answers(knowledge: Knowledge) -> Mapping[Cell, bool]:
    return {each.cell: each.works for each in knowledge.inferences}


def at(cell: Cell, **axes: Any) -> Cell:
    """The cell with other values on some axes."""
    return replace(cell, **axes)


def asks_no_less(one: Cell, other: Cell) -> bool:
    """Whether a cell asks for at least as much as another in every axis."""
    return (
        one.extra == other.extra
        and one.depth >= other.depth
        and one.context >= other.context
        and one.graphs >= other.graphs
        and one.utilization <= other.utilization
    )


# Measured cells again

MANY = tuple(Cell(depth, 8192, True, 0.9) for depth in range(12))
Made = Sequence[tuple[Ask, Outcome]]


def repeated(
    search: Search | None = None,
    cells: Iterable[Cell] = MANY,
    *,
    max_launches: int | None = None,
    retries: int = 1,
    seed: int = 0,
    **workload: Any,
) -> Repeated:
    """Every cell, and what comes on top."""
    inner = search or Exhaustive(tuple(cells), retries=retries)
    return Repeated(
        inner,
        tuple(cells),
        WorkloadSpec(**workload),
        seed=seed,
        retries=retries,
        max_launches=max_launches,
    )


def on_small(**workload: Any) -> Repeated:
    return repeated(boundary(), SMALL.cells(), **workload)


def of(made: Made, *purposes: Purpose) -> list[Cell]:
    return [ask.cell for ask, _ in made if ask.purpose in purposes]


def own(made: Made) -> list[tuple[Ask, Outcome]]:
    """What the search itself launched."""
    return [each for each in made if not each[0].purpose.repeats]


def measured(made: Made) -> Counter[Cell]:
    return Counter(ask.cell for ask, outcome in made if outcome.speed is not None)


def fails(
    cell: Cell, purpose: Purpose, times: int = 99, why: FailureClass = FailureClass.KILLED
) -> World:
    """Everything works, but for some launches of a cell."""
    seen: Counter[Cell] = Counter()

    def world(ask: Ask) -> Outcome:
        if ask.cell == cell and ask.purpose is purpose:
            seen[cell] += 1
            if seen[cell] <= times:
                return refused(why, ask, phase=Phase.LOAD)
        return works(ask)

    return world
