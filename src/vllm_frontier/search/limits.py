"""What vLLM says outright: how much of the card is free, and how long a window the model has."""

from __future__ import annotations

import numpy as np

from vllm_frontier.outcome import StartupFacts
from vllm_frontier.search.lattice import Mask, Points

# Logs round to two decimals.
_ROUNDING_GIB = 0.01


class Limits:
    """Limits that launches have named; they say what to expect and prove nothing.

    Args:
        card_gib: memory of the card.
    """

    def __init__(self, card_gib: float) -> None:
        self._card_gib = card_gib
        self._free_gib: float | None = None
        self._model_context: int | None = None

    def observe(self, facts: StartupFacts) -> None:
        """Take in what a launch was told; of free memory the last counts."""
        self._free_gib = facts.free_gib if facts.free_gib is not None else self._free_gib
        self._model_context = facts.model_context or self._model_context

    def above_free(self, points: Points) -> Mask:
        """Points that want a larger share of the card than was free."""
        limit = np.inf if self._free_gib is None else self._free_gib + _ROUNDING_GIB
        return np.asarray(points.utilization * self._card_gib > limit)

    def above_model(self, points: Points) -> Mask:
        """Points that want a longer window than the model has."""
        limit = np.inf if self._model_context is None else self._model_context
        return np.asarray(points.context > limit)

    def exceeded(self, points: Points) -> Mask:
        """Points that are above any of the limits."""
        return self.above_free(points) | self.above_model(points)
