"""Launches of cells that were measured before, in words: they are told apart from the search's."""

from __future__ import annotations

from vllm_frontier.report.wording import several


def launched_again(replicates: int, reference: int) -> str | None:
    """What launches beside those of the search are for; None where there are none.

    Args:
        replicates: launches of measured cells again.
        reference: launches of the reference cell.
    """
    words = []
    if replicates:
        words.append(several(replicates, "replicate", "replicates"))
    if reference:
        words.append(several(reference, "reference launch", "reference launches"))
    return " and ".join(words) or None
