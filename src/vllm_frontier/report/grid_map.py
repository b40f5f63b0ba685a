"""The whole grid at a glance: one sign for every cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from vllm_frontier.grid import shortest

# Plain ASCII, so that the map survives every terminal, log and mail.
_SIGNS = {
    "measured": ("#", "works", "green"),
    "inferred works": ("+", "works, inferred", "cyan"),
    "infeasible": ("x", "does not fit", "red"),
    "inferred refused": ("-", "does not fit, inferred", "magenta"),
    "invalid": ("i", "refused by vLLM", "yellow"),
    "failed": ("!", "failed", "bold red"),
    "interrupted": ("?", "interrupted", "blue"),
    "running": ("o", "running", "bold"),
    "": (".", "not tried", "dim"),
}
_GAP = 1


class GridMap:
    """Rows are depth and graphs, columns are windows, one sign a utilization.

    Windows that do not fit the width go into a further block; further axes have blocks of
    their own.
    """

    def __init__(self, cells: Sequence[Mapping[str, Any]], heading: str) -> None:
        self._heading = heading
        self._cells = cells
        self._utilizations = sorted({cell["utilization"] for cell in cells})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._heading, style="bold")
        yield Text(
            "One sign a utilization: " + " ".join(shortest(each) for each in self._utilizations)
        )
        used: dict[str, None] = {}
        for extra, group in self._by_extra():
            if extra:
                yield Text(" ".join(f"{name}={value}" for name, value in extra))
            yield from self._blocks(group, options.max_width, used)
        yield from _legend(used, options.max_width)

    def _by_extra(
        self,
    ) -> Iterator[tuple[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]]]:
        def key(cell: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
            return tuple((name, cell[name]) for name in cell.get("extra_axes", ()))

        for extra, group in itertools.groupby(sorted(self._cells, key=lambda c: str(key(c))), key):
            yield extra, list(group)

    def _blocks(
        self, cells: Sequence[Mapping[str, Any]], width: int, used: dict[str, None]
    ) -> Iterator[Text]:
        at = {
            (cell["depth"], cell["graphs"], cell["context"], cell["utilization"]): cell
            for cell in cells
        }
        lines = sorted({(cell["depth"], cell["graphs"]) for cell in cells})
        labels = [f"depth {depth} {'graphs' if graphs else 'eager'}" for depth, graphs in lines]
        margin = max(len(label) for label in labels)
        contexts = sorted({cell["context"] for cell in cells})
        column = max(len(self._utilizations), *(len(str(each)) for each in contexts)) + _GAP
        fitting = max(1, (width - margin) // column)
        for first in range(0, len(contexts), fitting):
            block = contexts[first : first + fitting]
            yield Text(" " * margin + "".join(f"{each:>{column}}" for each in block))
            for (depth, graphs), label in zip(lines, labels, strict=True):
                line = Text(label.ljust(margin))
                for context in block:
                    line.append(" " * (column - len(self._utilizations)))
                    for utilization in self._utilizations:
                        kind = _kind(at.get((depth, graphs, context, utilization)))
                        used[kind] = None
                        sign, _, style = _SIGNS[kind]
                        line.append(sign, style)
                yield line


def grid_map(cells: Sequence[Mapping[str, Any]], heading: str) -> GridMap:
    """A map of cells.

    Args:
        cells: objects with the axes, `status` and `failure_class`.
        heading: the line above it.
    """
    return GridMap(cells, heading)


def _legend(used: Mapping[str, None], width: int) -> Iterator[Text]:
    """What the signs mean; a line ends between two of them."""
    line = Text()
    for kind, (sign, words, style) in _SIGNS.items():
        if kind not in used:
            continue
        entry = Text.assemble((sign, style), f" {words}")
        if line and len(line) + 2 + len(entry) > width:
            yield line
            line = Text()
        line = Text("  ").join([line, entry]) if line else entry
    yield line


def _kind(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    status = str(cell["status"])
    if status == "inferred":
        return "inferred works" if cell["failure_class"] is None else "inferred refused"
    return status
