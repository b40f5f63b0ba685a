"""Where marks and words of the frontier stand, in pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from vllm_frontier.report.plots.windows import Windows

WIDTH, HEIGHT = 268.0, 230.0  # pixels of the ground
LINE = 13.0  # pixels of a line of words
_ABOVE = 17.0  # pixels from the middle of a mark to that of its name


@dataclass(frozen=True, slots=True)
class Ground:
    """Where windows and speeds are drawn, in pixels from the lower left."""

    windows: Windows
    fastest: float

    def x(self, context: int) -> float:
        """From the left."""
        return round((self.windows.left(context) + self.windows.right(context)) / 2, 2)

    def y(self, speed: float) -> float:
        """From the top."""
        return HEIGHT * (1 - speed / self.fastest)


Part: TypeAlias = tuple[float, float, float, float]
"""A stretch of a line: left, right, top and bottom, pixels from the upper left."""


def parts(best: Sequence[tuple[int, float]], ground: Ground) -> Iterator[Part]:
    """The line along windows and speeds, shortest window first."""
    before = 0.0
    for place, (context, speed) in enumerate(best):
        x, y = ground.x(context), ground.y(speed)
        below = ground.y(best[place + 1][1] if place + 1 < len(best) else 0.0)
        yield before, x, y, y
        yield x, x, y, below
        before = x


def covers(curve: Iterable[Part], left: float, width: float, middle: float) -> bool:
    """Whether words would stand on a part of the line."""
    return any(
        x < left + width and to_x > left and y < middle + LINE / 2 and to_y > middle - LINE / 2
        for x, to_x, y, to_y in curve
    )


def around(y: float) -> Iterator[float]:
    """Places for a line of words, the nearest first: a little above, then further up or down."""
    above = min(max(y - _ABOVE, LINE / 2), HEIGHT - LINE / 2)
    yield above
    for step in range(1, 20):
        for at in (above - step * LINE, above + step * LINE):
            if LINE / 2 <= at <= HEIGHT - LINE / 2:
                yield at
