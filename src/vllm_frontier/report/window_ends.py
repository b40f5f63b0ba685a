"""How far a window works, in one word with its marks, for tables in terminals and pages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from vllm_frontier.analyze.comparison.windows import Known

NOT_IN_GRID = "not in grid"
_MARKS = {Known.INFERRED: "~", Known.OPEN: "?", Known.NOT_MONOTONE: "!"}
_MEANING = {
    Known.INFERRED: "it, or what is refused next, follows from launches of other cells",
    Known.OPEN: "cells between are not known yet",
    Known.NOT_MONOTONE: "a longer window works than one that is refused",
}


def window_end(end: Mapping[str, Any], unknown: str) -> str:
    """The longest window that works, and what that rests on.

    Args:
        end: with `max_context_works`, `min_context_fails` and `known` (of `Known`).
        unknown: what stands where neither works nor is refused what is known.

    Returns:
        `none` only where something is refused and nothing works.
    """
    longest, refused = end["max_context_works"], end["min_context_fails"]
    if longest is None and refused is None:
        return unknown
    text = "none" if longest is None else str(longest)
    at_end = ">=" if longest is not None and refused is None else ""
    return f"{at_end}{text}{_MARKS.get(end['known'], '')}"


def marks(ends: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """What the marks of some of these mean."""
    some = [
        end
        for end in ends
        if end["max_context_works"] is not None or end["min_context_fails"] is not None
    ]
    if any(end["min_context_fails"] is None for end in some):
        yield ">= nothing longer in the grid is refused"
    for known, mark in _MARKS.items():
        if any(end["known"] == known for end in some):
            yield f"{mark} {_MEANING[known]}"
