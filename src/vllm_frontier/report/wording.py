"""Small words that several reports share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vllm_frontier.grid import BUILT_IN_AXES, Cell

SIMULATED = "(simulated)"
K = 1024
"""Tokens that `k` stands for where every window of a grid is so many times a whole number."""


def titled(title: str, simulated: bool) -> str:
    """A heading; what was simulated says so."""
    return f"{title} {SIMULATED}" if simulated else title


def several(count: int, one: str, more: str) -> str:
    """A number with its noun: `1 launch`, `2 launches`."""
    return f"{count} {one if count == 1 else more}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def on_off(value: bool) -> str:
    """A switch in words."""
    return "on" if value else "off"


def in_k(windows: Collection[int]) -> bool:
    """Whether all windows of a grid can be told in `K`.

    Beside a window of 130000 tokens, 128k would look like the shorter one.
    """
    return all(each and each % K == 0 for each in windows)


def label(axes: Mapping[str, Any]) -> str:
    """The axes of a cell in a document, further ones included, as `Cell.label` has them."""
    extra = tuple((name, value) for name, value in axes.items() if name not in BUILT_IN_AXES)
    cell = Cell(axes["depth"], axes["context"], axes["graphs"], axes["utilization"], extra)
    return cell.label()
