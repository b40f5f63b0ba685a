"""Which cells lead: what no other cell beats on window, speed and memory at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

Name = TypeVar("Name")

TIE = 0.02
"""Speeds that differ by less than this share count as equal."""


class Point(NamedTuple, Generic[Name]):
    """What counts of a cell: window (tokens), share of the card, tokens/s, depth."""

    cell_id: Name
    context: int
    utilization: float
    speed: float
    depth: int


Faster: TypeAlias = Callable[[Point[Name], Point[Name]], bool]
"""Whether the first point is faster than the second beyond doubt."""


def leaders(points: Iterable[Point[Name]], tie: float = TIE) -> set[Name]:
    """The cells that no other beats.

    A cell is beaten by one with at least its window, at most its share of the card and at least
    its speed, speeds within `tie` counting as equal. Of cells that are equal in all three the
    shallowest stays.

    Args:
        points: the cells that work and have a speed.
        tie: speeds `a <= b` are equal when `a >= (1 - tie) * b`.
    """
    return leaders_by(points, lambda one, other: other.speed < (1 - tie) * one.speed)


def leaders_by(points: Iterable[Point[Name]], faster: Faster[Name]) -> set[Name]:
    """The cells that no other beats, where something else decides which are faster.

    Of two cells one has the better place if it has at least the window of the other and at most
    its share of the card. A cell is beaten by one with the better place, unless it is faster than
    that one. Of cells with the same window and share those go that another is faster than, and of
    the rest the shallowest stay.

    That two cells do not differ does not carry over: of three the first may be faster than the
    last without either differing from the middle. This holds all the same, in whatever order the
    points come:

    - Every cell that is left out has a leader with the better place, or the same, that it is not
      faster than.
    - A leader is faster than every other leader with the better place. Leaders with the same
      place have the same depth, and none of them is faster than another.
    - Where `faster` is transitive, no cell at all with the better place, or the same, is faster
      than a leader.

    Args:
        points: the cells that work and have a speed.
        faster: must only be true where the speed of the first point is the higher.
    """
    all_points = list(points)
    places = [(-point.context, point.utilization) for point in all_points]
    order = sorted(range(len(places)), key=places.__getitem__)
    stay: list[Point[Name]] = []
    # A cell can be beaten only by one that comes earlier in this order, or has the same place.
    for (_, utilization), group in itertools.groupby(order, key=places.__getitem__):
        better = [other for other in stay if other.utilization <= utilization]
        # Most are slower than one of these, which needs no comparison of the two.
        highest = max((other.speed for other in better), default=-math.inf)
        open_points = [
            point
            for point in map(all_points.__getitem__, group)
            if point.speed > highest and all(faster(point, other) for other in better)
        ]
        stay += _best_of_equals(open_points, faster)
    return {point.cell_id for point in stay}


def _best_of_equals(points: Sequence[Point[Name]], faster: Faster[Name]) -> list[Point[Name]]:
    """Of points with the same window and share: the fastest, and of these the shallowest."""
    if not points:
        return []
    by_speed = sorted(points, key=lambda point: -point.speed)
    fastest = [
        point
        for point in by_speed
        if not any(other.speed > point.speed and faster(other, point) for other in by_speed)
    ]
    depth = min(point.depth for point in fastest)
    return [point for point in fastest if point.depth == depth]
