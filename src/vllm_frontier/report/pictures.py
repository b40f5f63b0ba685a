"""The pictures of a sweep, in the order in which a page shows them."""

from __future__ import annotations

from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.result import Result


def pictures(found: Result) -> list[Figure]:
    """Every picture that this sweep has something to show for.

    Args:
        found: a sweep that is finished, interrupted or running.
    """
    del found
    return []
