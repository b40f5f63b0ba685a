"""Small words that several reports share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_frontier.grid import BUILT_IN_AXES, Cell


def several(count: int, one: str, more: str) -> str:
    """A number with its noun: `1 launch`, `2 launches`."""
    return f"{count} {one if count == 1 else more}"


def label(axes: Mapping[str, Any]) -> str:
    """The axes of a cell in a document, further ones included, as `Cell.label` has them."""
    extra = tuple((name, value) for name, value in axes.items() if name not in BUILT_IN_AXES)
    cell = Cell(axes["depth"], axes["context"], axes["graphs"], axes["utilization"], extra)
    return cell.label()
