"""The signs of the map: what is known of one cell, or of a cell at every utilization."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from vllm_frontier.grid import shortest
from vllm_frontier.outcome import Status

NOT_REACHED = "not_reached"
"""The status of a cell of the grid of which nothing is known."""
RUNNING = "running"
_INFERRED_WORKS, _INFERRED_REFUSED = "inferred works", "inferred refused"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sign:
    """A character of the map; colour only repeats what the character says."""

    character: str
    words: str
    style: str
    place: int = field(default=0, compare=False)  # in the legend


# Plain ASCII, so that the map survives every terminal, log and mail.
_SIGNS = {
    kind: Sign(character, words, style, place)
    for place, (kind, character, words, style) in enumerate(
        (
            (Status.MEASURED.value, "#", "works", "green"),
            (_INFERRED_WORKS, "+", "works, inferred", "cyan"),
            (Status.INFEASIBLE.value, "x", "does not fit", "red"),
            (_INFERRED_REFUSED, "-", "does not fit, inferred", "magenta"),
            (Status.INVALID.value, "i", "refused by vLLM", "yellow"),
            (Status.FAILED.value, "!", "failed", "bold red"),
            (Status.INTERRUPTED.value, "?", "interrupted", "blue"),
            (RUNNING, "o", "running now", "bold"),
            (NOT_REACHED, ".", "not tried", "dim"),
        ),
        start=100,
    )
}
_FROM = string.digits[1:] + string.ascii_uppercase  # none of them is another sign
_NONE_WORKS = (RUNNING, Status.FAILED.value, Status.INTERRUPTED.value, NOT_REACHED)
_REFUSED = (Status.INFEASIBLE.value, _INFERRED_REFUSED)


def sign(cell: Row) -> Sign:
    """What is known of a cell."""
    return _SIGNS[_kind(cell)]


def folded(cells: Sequence[Row | None], utilizations: Sequence[float]) -> Sign | None:
    """One sign for a cell at all utilizations: the lowest at which it is known to work.

    Args:
        cells: a cell for each utilization; None: it is not in the grid.
        utilizations: ascending.

    Returns:
        Where it works at none, what is known that can still change, else why not. None where no
        utilization is in the grid.
    """
    kinds = [None if cell is None else _kind(cell) for cell in cells]
    told = {kind for kind in kinds if kind is not None}
    if not told:
        return None
    if RUNNING in told:
        return _SIGNS[RUNNING]
    for number, kind in enumerate(kinds):
        if kind in (Status.MEASURED.value, _INFERRED_WORKS):
            return _from(number, utilizations)
    for kind in (*_NONE_WORKS, *_REFUSED):
        if kind in told:
            return _SIGNS[kind]
    return _SIGNS[Status.INVALID.value]


def _from(number: int, utilizations: Sequence[float]) -> Sign:
    """The sign of the utilization with that number; those beyond the signs there are share one."""
    place = min(number, len(_FROM) - 1)
    more = " or more" if place == len(_FROM) - 1 < len(utilizations) - 1 else ""
    return Sign(_FROM[place], f"works from {shortest(utilizations[place])}{more}", "green", place)


def works(cell: Row) -> bool:
    """Whether a cell is known to work."""
    return _kind(cell) in (Status.MEASURED.value, _INFERRED_WORKS)


def refused(cell: Row) -> bool:
    """Whether a cell is known not to work."""
    return _kind(cell) in (*_REFUSED, Status.INVALID.value)


def legend(used: Collection[Sign], width: int) -> Iterator[Text]:
    """What the signs that occur mean; a line ends between two of them."""
    line = Text()
    for each in sorted(used, key=lambda one: one.place):
        entry = Text.assemble((each.character, each.style), f" {each.words}")
        if line and len(line) + 2 + len(entry) > width:
            yield line
            line = Text()
        line = Text("  ").join([line, entry]) if line else entry
    yield line


def _kind(cell: Row) -> str:
    status = str(cell["status"])
    if status == Status.INFERRED.value:
        return _INFERRED_WORKS if cell["failure_class"] is None else _INFERRED_REFUSED
    return status
