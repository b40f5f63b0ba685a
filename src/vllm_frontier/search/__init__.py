"""Which cell is launched next: ask and tell, without I/O."""

from collections.abc import Sequence

from vllm_frontier.grid import Cell
from vllm_frontier.search.exhaustive import Exhaustive
from vllm_frontier.search.protocol import Search
from vllm_frontier.spec import ScheduleSpec, SearchSpec

__all__ = ["Exhaustive", "Search", "create_search"]


def create_search(cells: Sequence[Cell], search: SearchSpec, schedule: ScheduleSpec) -> Search:
    """The search that a sweep's configuration asks for."""
    return Exhaustive(cells, retries=schedule.retries, max_launches=search.max_launches)
