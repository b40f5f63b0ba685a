"""What a sweep will launch, before it does."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from vllm_frontier.search import create_search
from vllm_frontier.spec import SweepSpec


def document(spec: SweepSpec) -> dict[str, Any]:
    """The plan as JSON values: axes and cells in the order of their launch.

    Keys: `sweep`, `model`, `card`, `engine`, `search`, `axes`, `n_cells`, `launches` and
    `cells`, each of which has its place in the order and its value on every axis.
    """
    search = create_search(spec.grid.cells(), spec.search, spec.schedule)
    cells = [{"order": order, **cell.axes()} for order, cell in enumerate(search.planned, start=1)]
    limit = spec.search.max_launches
    return {
        "sweep": spec.name,
        "model": spec.model.name,
        "card": spec.card.name,
        "engine": spec.engine.kind,
        "search": spec.search.strategy,
        "axes": _axes(cells),
        "n_cells": len(cells),
        "launches": len(cells) if limit is None else min(limit, len(cells)),
        "cells": cells,
    }


def show(spec: SweepSpec, console: Console) -> None:
    """Print the plan: the axes, then every cell."""
    plan = document(spec)
    console.print(
        f"[bold]{plan['sweep']}[/]: {plan['model']} on {plan['card']} ({plan['engine']}), "
        f"{plan['n_cells']} cells, {plan['launches']} launches",
        soft_wrap=True,
    )
    for name, values in plan["axes"].items():
        console.print(f"  {name:<12} {', '.join(_text(value) for value in values)}")
    table = Table(box=None, pad_edge=False)
    table.add_column("#", justify="right")
    for name in plan["axes"]:
        table.add_column(name, justify="right")
    for cell in plan["cells"]:
        table.add_row(str(cell["order"]), *(_text(cell[name]) for name in plan["axes"]))
    console.print(table)


def _axes(cells: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values that really occur, excluded ones left out."""
    names = [name for name in cells[0] if name != "order"]
    return {
        name: sorted({cell[name] for cell in cells}, key=lambda value: (str(type(value)), value))
        for name in names
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
