"""Which cell is launched next: ask and tell, without I/O."""

from collections.abc import Iterable
from dataclasses import replace

from vllm_frontier.grid import Cell
from vllm_frontier.memory import MemoryPrior
from vllm_frontier.outcome import Outcome, Purpose
from vllm_frontier.search.boundary import Boundary
from vllm_frontier.search.dry_run import dry_run
from vllm_frontier.search.exhaustive import Exhaustive
from vllm_frontier.search.knowledge import Contradiction, Inference, Knowledge
from vllm_frontier.search.lattice import Lattice
from vllm_frontier.search.order import balanced_order
from vllm_frontier.search.proof import prove
from vllm_frontier.search.protocol import Ask, Outlook, Search
from vllm_frontier.search.repeated import Repeated, concerns_search
from vllm_frontier.spec import SweepSpec

__all__ = [
    "Ask",
    "Boundary",
    "Contradiction",
    "Exhaustive",
    "Inference",
    "Knowledge",
    "Outlook",
    "Repeated",
    "Search",
    "create_search",
    "create_strategy",
    "dry_run",
    "infer",
    "repeat",
]


def create_search(spec: SweepSpec, prior: MemoryPrior | None = None) -> Search:
    """The search that a sweep's configuration asks for, measured cells launched again included.

    Args:
        spec: the sweep.
        prior: what is believed of its memory; None where nothing is.
    """
    unlimited = replace(spec, search=replace(spec.search, max_launches=None))
    return repeat(create_strategy(unlimited, prior), spec)


def create_strategy(spec: SweepSpec, prior: MemoryPrior | None = None) -> Boundary | Exhaustive:
    """The search alone: it launches no cell again for the sake of its speed.

    Args:
        spec: the sweep.
        prior: what is believed of its memory; None where nothing is.
    """
    cells, retries = spec.grid.cells(), spec.schedule.retries
    if spec.search.strategy == "boundary":
        return Boundary(
            cells, spec.search, card_gib=spec.card.memory_gib, retries=retries, prior=prior
        )
    ordered = balanced_order(cells, spec.search.seed)
    return Exhaustive(ordered, retries=retries, max_launches=spec.search.max_launches)


def repeat(search: Search, spec: SweepSpec) -> Repeated:
    """A search with replicates and reference launches, as a sweep's configuration wants them.

    Args:
        search: what it launches otherwise, without a budget.
        spec: the sweep.
    """
    return Repeated(
        search,
        spec.grid.cells(),
        spec.workload,
        seed=spec.search.seed,
        retries=spec.schedule.retries,
        max_launches=spec.search.max_launches,
    )


def infer(spec: SweepSpec, outcomes: Iterable[tuple[Cell, Outcome]]) -> Knowledge:
    """What follows from the launches of a sweep about the others.

    Nothing where every cell is launched, unless the sweep was begun by a search that infers.

    Args:
        spec: the sweep.
        outcomes: of every attempt, in the order in which they ended.
    """
    told = [each for each in outcomes if concerns_search(each[1])]
    if _launches_every_cell(spec) and not any(_by_inference(outcome) for _, outcome in told):
        return Knowledge()
    return prove(Lattice(spec.grid.cells()), told, spec.schedule.retries).knowledge()


def _launches_every_cell(spec: SweepSpec) -> bool:
    return spec.search.strategy != "boundary" or spec.search.verify == "all"


def _by_inference(outcome: Outcome) -> bool:
    """Whether a search that infers made the launch: what it then knew stays known."""
    if outcome.purpose.repeats:
        return False
    return not outcome.with_speed or outcome.purpose is not Purpose.PROOF
