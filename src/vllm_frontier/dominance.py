"""Which cells lead: what no other cell beats on window, speed and memory at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Name = TypeVar("Name")

TIE = 0.02
"""Speeds that differ by less than this share count as equal."""


@dataclass(frozen=True, slots=True)
class Point(Generic[Name]):
    """What counts of a cell: window (tokens), share of the card, tokens/s, depth."""

    cell_id: Name
    context: int
    utilization: float
    speed: float
    depth: int


def leaders(points: Iterable[Point[Name]], tie: float = TIE) -> set[Name]:
    """The cells that no other beats.

    A cell is beaten by one with at least its window, at most its share of the card and at least
    its speed, speeds within `tie` counting as equal. Of cells that are equal in all three the
    shallowest stays.

    Args:
        points: the cells that work and have a speed.
        tie: speeds `a <= b` are equal when `a >= (1 - tie) * b`.
    """

    def place(point: Point[Name]) -> tuple[int, float]:
        return -point.context, point.utilization

    stay: list[Point[Name]] = []
    # A cell can be beaten only by one that comes earlier in this order, or has the same place.
    for _, group in itertools.groupby(sorted(points, key=place), key=place):
        open_points = [
            point
            for point in group
            if not any(
                other.utilization <= point.utilization and other.speed >= (1 - tie) * point.speed
                for other in stay
            )
        ]
        stay += _best_of_equals(open_points, tie)
    return {point.cell_id for point in stay}


def _best_of_equals(points: Sequence[Point[Name]], tie: float) -> list[Point[Name]]:
    """Of points with the same window and share: the fastest, and of these the shallowest."""
    if not points:
        return []
    fastest = max(point.speed for point in points)
    equals = [point for point in points if point.speed >= (1 - tie) * fastest]
    depth = min(point.depth for point in equals)
    return [point for point in equals if point.depth == depth]
