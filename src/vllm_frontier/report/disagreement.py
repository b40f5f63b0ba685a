"""Where launches disagree, in words for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from vllm_frontier.grid import shortest

_AT_MOST = 6  # of each, in a terminal; the JSON document has all of them
_DIM = "dim"


def disagreement(document: Mapping[str, Any], heading: str) -> RenderableType:
    """The launches that contradict each other, and the inferred cells in doubt for that.

    Args:
        document: from `documents.show_document`, with at least one contradiction.
        heading: the line above.
    """
    pairs = document["contradictions"]
    lines = [Text(heading, style="bold")]
    for pair in pairs[:_AT_MOST]:
        lines.append(Text.assemble(("refused  ", "red"), axes(pair["fails"])))
        lines.append(Text.assemble(("works    ", "green"), axes(pair["works"])))
    lines += _rest(pairs)
    lines += [Text(each, style="yellow") for each in not_explored(document["unexplored"])]
    lines += _in_doubt(document["contested"])
    return Group(*lines)


def not_explored(count: int) -> Iterable[str]:
    """A line where it is not known how far contradicted refusals reach."""
    if count == 1:
        yield "1 refused cell was not looked around further: how far it reaches is open."
    elif count:
        yield f"{count} refused cells were not looked around further: how far they reach is open."


def disagreement_notes(document: Mapping[str, Any]) -> list[str]:
    """What follows from launches that contradict each other, a sentence each.

    Args:
        document: from `documents.show_document`.
    """
    told = list(not_explored(document["unexplored"]))
    for cell in document["contested"]:
        said = "works" if cell["failure_class"] is None else cell["failure_class"]
        told.append(f"In doubt because of this, not launched: {axes(cell)}, inferred {said}.")
    return told


def axes(cell: Mapping[str, Any]) -> str:
    """A cell of a document in words."""
    return ", ".join(
        [
            f"depth {cell['depth']}",
            f"context {cell['context']}",
            f"graphs {'on' if cell['graphs'] else 'off'}",
            f"utilization {shortest(cell['utilization'])}",
            *(f"{name} {cell[name]}" for name in cell.get("extra_axes", ())),
        ]
    )


def _in_doubt(cells: Sequence[Mapping[str, Any]]) -> Iterable[Text]:
    if not cells:
        yield Text("No cell without a launch of its own is in doubt because of this.", style=_DIM)
        return
    yield Text("In doubt because of this, not launched:", style="yellow")
    for cell in cells[:_AT_MOST]:
        said = "works" if cell["failure_class"] is None else cell["failure_class"]
        yield Text(f"  {axes(cell)}: inferred {said}")
    yield from _rest(cells)


def _rest(rows: Sequence[Any]) -> Iterable[Text]:
    if len(rows) > _AT_MOST:
        yield Text(f"  and {len(rows) - _AT_MOST} more; see --json.", style=_DIM)
