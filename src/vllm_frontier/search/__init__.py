"""Which cell is launched next: ask and tell, without I/O."""

from collections.abc import Iterable

from vllm_frontier.grid import Cell
from vllm_frontier.memory import MemoryPrior
from vllm_frontier.outcome import Outcome, Purpose
from vllm_frontier.search.boundary import Boundary
from vllm_frontier.search.dry_run import dry_run
from vllm_frontier.search.exhaustive import Exhaustive
from vllm_frontier.search.knowledge import Contradiction, Inference, Knowledge
from vllm_frontier.search.lattice import Lattice
from vllm_frontier.search.proof import prove
from vllm_frontier.search.protocol import Ask, Outlook, Search
from vllm_frontier.spec import SweepSpec

__all__ = [
    "Ask",
    "Boundary",
    "Contradiction",
    "Exhaustive",
    "Inference",
    "Knowledge",
    "Outlook",
    "Search",
    "create_search",
    "dry_run",
    "infer",
]


def create_search(spec: SweepSpec, prior: MemoryPrior | None = None) -> Search:
    """The search that a sweep's configuration asks for.

    Args:
        spec: the sweep.
        prior: what is believed of its memory; None where nothing is.
    """
    cells, retries = spec.grid.cells(), spec.schedule.retries
    if spec.search.strategy == "boundary":
        return Boundary(
            cells, spec.search, card_gib=spec.card.memory_gib, retries=retries, prior=prior
        )
    return Exhaustive(cells, retries=retries, max_launches=spec.search.max_launches)


def infer(spec: SweepSpec, outcomes: Iterable[tuple[Cell, Outcome]]) -> Knowledge:
    """What follows from the launches of a sweep about the others.

    Nothing where every cell is launched, unless the sweep was begun by a search that infers.

    Args:
        spec: the sweep.
        outcomes: of every attempt, in the order in which they ended.
    """
    told = list(outcomes)
    if _launches_every_cell(spec) and not any(_by_inference(outcome) for _, outcome in told):
        return Knowledge()
    return prove(Lattice(spec.grid.cells()), told, spec.schedule.retries).knowledge()


def _launches_every_cell(spec: SweepSpec) -> bool:
    return spec.search.strategy != "boundary" or spec.search.verify == "all"


def _by_inference(outcome: Outcome) -> bool:
    """Whether a search that infers made the launch: what it then knew stays known."""
    return not outcome.with_speed or outcome.purpose is not Purpose.PROOF
