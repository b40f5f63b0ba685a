"""Where the window ends, by what is known of each window while the other axes stay as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowEnd:
    """Where the window ends; windows in tokens.

    Attributes:
        longest: the longest window that works; None where none does.
        shortest: the shortest that does not; None where none is refused.
        verified: whether that is proven.
        monotone: whether no window works that is longer than one that does not.
    """

    longest: int | None
    shortest: int | None
    verified: bool
    monotone: bool


def window_end(
    answers: Mapping[int, bool | None], disputed: Collection[int] = frozenset()
) -> WindowEnd:
    """Where the window ends.

    It is proven where no window is without an answer between the two sides (where none is refused,
    above the longest that works; where none works, below the shortest that is refused), launches
    do not disagree about a side, and no longer window works than one that is refused.

    Args:
        answers: whether a window works, for every window of the grid; None: not known.
        disputed: windows about which launches disagree.
    """
    works = [window for window, answer in answers.items() if answer is True]
    fails = [window for window, answer in answers.items() if answer is False]
    longest, shortest = max(works, default=None), min(fails, default=None)
    monotone = longest is None or shortest is None or longest < shortest
    between = any(
        answer is None
        and (longest is None or window > longest)
        and (shortest is None or window < shortest)
        for window, answer in answers.items()
    )
    known = longest is not None or shortest is not None
    doubted = longest in disputed or shortest in disputed
    verified = known and monotone and not between and not doubted
    return WindowEnd(longest, shortest, verified, monotone)
