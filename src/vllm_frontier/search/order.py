"""An order of launches in which no axis goes along with time.

In the order of the grid every deeper cell comes later, and a card that slows down while it warms
up makes depth look slow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from vllm_frontier.grid import Cell, Value
from vllm_frontier.search.lattice import Floats

_DRAWN = 64


def balanced_order(cells: Sequence[Cell], seed: int) -> tuple[Cell, ...]:
    """The cells in a drawn order that goes along least with any axis.

    Of some permutations the one whose places have the smallest rank correlation with the axis
    with which they correlate most.

    Args:
        cells: the grid.
        seed: the same seed gives the same order.
    """
    if len(cells) < 2:
        return tuple(cells)
    axes = list(_axes(cells))
    places = _centred(np.arange(len(cells), dtype=float))
    draw = random.Random(f"order {seed}")
    best, least = tuple(cells), np.inf
    for _ in range(_DRAWN):
        order = np.argsort([draw.random() for _ in cells], kind="stable")
        # Rounded, so that the first of equals is taken on every machine.
        along = max((round(abs(float(axis[order] @ places)), 9) for axis in axes), default=0.0)
        if along < least:
            best, least = tuple(cells[at] for at in order), along
    return best


def _axes(cells: Sequence[Cell]) -> Iterator[Floats]:
    """Every axis that varies, as ranks."""
    points = [cell.axes() for cell in cells]
    for name in points[0]:
        values = [point[name] for point in points]
        # Values of a further axis may be words, or of several types: then their order is theirs.
        known = {value: at for at, value in enumerate(sorted(set(values), key=_place))}
        if len(known) > 1:
            yield _centred(_middle_ranks(np.array([known[value] for value in values])))


def _place(value: Value) -> tuple[str, float, str]:
    if isinstance(value, str):
        return "str", 0.0, value
    return "", float(value), type(value).__name__


def _middle_ranks(codes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """Ranks, equal values with the middle of theirs."""
    counts = np.bincount(codes)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[codes], dtype=float)


def _centred(ranks: Floats) -> Floats:
    """Ranks scaled so that the product of two of them is their correlation."""
    apart = ranks - ranks.mean()
    return np.asarray(apart / max(float(np.linalg.norm(apart)), 1e-12), dtype=float)
