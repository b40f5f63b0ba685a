"""Whether speculation really takes place, by the server's own counters.

A cell that ran is not yet a cell whose speculation worked: a draft head with the wrong weights
costs time and yields nothing, and one that is always right is not believable.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from vllm_frontier.outcome import Run, SpecState

DEAD_BELOW = 0.02
"""Below this share of accepted first tokens speculation yields nothing."""

PINNED_FROM = 0.9995
"""From this share on, at every position, acceptance is too good to be true."""

ENOUGH_DRAFTS = 20
"""Fewer drafts say nothing about a share."""


def spec_state(depth: int, runs: Iterable[Run]) -> SpecState | None:
    """The state of a cell's speculation, over all of its decode runs.

    Args:
        depth: tokens drafted per step.
        runs: of one attempt; only decode runs count.

    Returns:
        `ineffective` where nothing was drafted or next to nothing accepted; `suspect` where
        everything was accepted, or the counters contradict each other; None without
        speculation, with too few drafts to tell, or where the server does not count them.
    """
    counted = [run for run in runs if run.kind == "decode" and run.drafts is not None]
    if depth <= 0 or not counted:
        return None
    drafts = sum(run.drafts or 0 for run in counted)
    if drafts == 0:
        # The first token of an answer comes with the prompt, without a draft.
        wanted = sum((run.completion_tokens or 1) - 1 for run in counted)
        return SpecState.INEFFECTIVE if wanted >= ENOUGH_DRAFTS else None
    if drafts < ENOUGH_DRAFTS:
        return None
    accepted = [0] * depth
    for run in counted:
        for position, count in enumerate((run.accepted_per_position or ())[:depth]):
            accepted[position] += count
    if _contradictory(counted, accepted, drafts):
        return SpecState.SUSPECT
    total = sum(run.accepted_tokens or 0 for run in counted)
    if not any(accepted):  # this server does not count by position
        drafted = sum(run.draft_tokens or 0 for run in counted)
        first, pinned = min(total, drafts), 0 < drafted <= total / PINNED_FROM
    else:
        first, pinned = accepted[0], min(accepted) >= PINNED_FROM * drafts
    if first < DEAD_BELOW * drafts:
        return SpecState.INEFFECTIVE
    return SpecState.SUSPECT if pinned else SpecState.WORKING


def _contradictory(runs: list[Run], accepted: list[int], drafts: int) -> bool:
    """Whether the counters say what cannot be."""
    if any(later > earlier for earlier, later in itertools.pairwise(accepted)):
        return True  # a token counts only when those before it were accepted
    if accepted[0] > drafts:
        return True
    by_position = [run for run in runs if run.accepted_per_position and run.accepted_tokens]
    if any(sum(run.accepted_per_position or ()) != run.accepted_tokens for run in by_position):
        return True
    return any(
        run.accepted_tokens is not None
        and run.draft_tokens is not None
        and run.accepted_tokens > run.draft_tokens
        for run in runs
    )
