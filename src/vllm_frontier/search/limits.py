"""What vLLM says outright: how much of the card is free, and how long a window the model has."""

from __future__ import annotations

import numpy as np

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import StartupFacts
from vllm_frontier.search.lattice import Mask, Points

# Logs round to two decimals.
_ROUNDING_GIB = 0.01


class Limits:
    """Limits that launches have named; they say what to expect and prove nothing.

    Args:
        card_gib: memory of the card, as far as vLLM does not name another figure.
    """

    def __init__(self, card_gib: float) -> None:
        self._card_gib = card_gib
        self._share = np.inf
        self._window = np.inf

    def observe(self, cell: Cell, facts: StartupFacts, *, works: bool) -> None:
        """Take in what a launch was told; of each limit the last word counts.

        Whatever works beyond a limit, or is told so, shows that there is none.
        """
        if facts.free_gib is not None:
            device_gib = facts.device_gib or self._card_gib
            self._share = (facts.free_gib + _ROUNDING_GIB) / device_gib
        if facts.model_context is not None:
            self._window = facts.model_context
        if works and cell.utilization > self._share:
            self._share = np.inf
        if works and cell.context > self._window:
            self._window = np.inf

    def above_free(self, points: Points) -> Mask:
        """Points that want a larger share of the card than was free."""
        return np.asarray(points.utilization > self._share)

    def above_model(self, points: Points) -> Mask:
        """Points that want a longer window than the model has."""
        return np.asarray(points.context > self._window)

    def exceeded(self, points: Points) -> Mask:
        """Points that are above any of the limits."""
        return self.above_free(points) | self.above_model(points)
