"""What a search expects of cells it has not launched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vllm_frontier.grid import Cell
from vllm_frontier.memory import MemoryModel, MemoryPrior
from vllm_frontier.outcome import Outcome
from vllm_frontier.search.lattice import Floats, Lattice


class Beliefs:
    """A memory model for every combination of further axes, all with the same prior.

    Further axes (a type of KV cache, say) may change every figure, and so each combination
    learns from its own launches.
    """

    def __init__(self, lattice: Lattice, card_gib: float, prior: MemoryPrior | None) -> None:
        self._lattice = lattice
        self._models = {
            extra: MemoryModel(card_gib, prior) for extra in {cell.extra for cell in lattice.cells}
        }

    def observe(self, cell: Cell, outcome: Outcome) -> None:
        """Learn from a launch."""
        if cell.extra in self._models:
            self._models[cell.extra].observe(cell, outcome)

    def margins(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the memory left over, GiB, for every point."""
        cells: Sequence[Cell] = self._lattice.cells
        mean, sd = np.zeros(len(cells)), np.ones(len(cells))
        for extra, model in self._models.items():
            chosen = [number for number, cell in enumerate(cells) if cell.extra == extra]
            mean[chosen], sd[chosen] = model.margins([cells[number] for number in chosen])
        return self._lattice.of(mean), np.maximum(self._lattice.of(sd), 1e-9)
