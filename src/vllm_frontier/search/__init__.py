"""Which cell is launched next: ask and tell, without I/O."""

from vllm_frontier.memory import MemoryPrior
from vllm_frontier.search.exhaustive import Exhaustive
from vllm_frontier.search.knowledge import Contradiction, Inference, Knowledge
from vllm_frontier.search.protocol import Ask, Outlook, Search
from vllm_frontier.spec import SweepSpec

__all__ = [
    "Ask",
    "Contradiction",
    "Exhaustive",
    "Inference",
    "Knowledge",
    "Outlook",
    "Search",
    "create_search",
]


def create_search(spec: SweepSpec, prior: MemoryPrior | None = None) -> Search:
    """The search that a sweep's configuration asks for.

    Args:
        spec: the sweep.
        prior: what is believed of its memory; None where nothing is.
    """
    del prior
    return Exhaustive(
        spec.grid.cells(), retries=spec.schedule.retries, max_launches=spec.search.max_launches
    )
