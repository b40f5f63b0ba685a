"""Whether what the memory model predicts of random cards is as certain as it says."""

import random

import numpy as np
import pytest
from random_cards import GRID, monotone

from vllm_frontier.engine.simulated.attempt import simulate_attempt
from vllm_frontier.engine.simulated.card import kv_available_gib, kv_needed_gib
from vllm_frontier.memory import MemoryModel

CARDS = 200
OF_90_PERCENT = 1.645  # standard deviations


@pytest.mark.parametrize("launches", [1, 3, 10])
def test_nine_of_ten_margins_lie_in_the_interval(launches: int) -> None:
    """Eight at least, for the model is only nearly linear; and not because it says nothing."""
    draw = random.Random(launches)
    cells = GRID.cells()
    inside, widths = [], []
    for _ in range(CARDS):
        card = monotone(draw)
        total = card.card.total_gib
        model = MemoryModel(total)
        for cell in draw.sample(cells, launches):
            model.observe(cell, simulate_attempt(card, cell))
        some = draw.sample(cells, 60)
        mean, sd = model.margins(some)
        margins = [kv_available_gib(card, cell) - kv_needed_gib(card, cell) for cell in some]
        inside.append(np.mean(np.abs(mean - np.array(margins)) <= OF_90_PERCENT * sd))
        widths.append(np.mean(sd) / total)
    assert np.mean(inside) >= 0.8
    assert np.median(widths) < {1: 0.1, 3: 0.04, 10: 0.01}[launches]
