"""Pictures as a page holds them: panels that stand in it, and files of their own."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from vllm_frontier.report.pages import frame, tabular
from vllm_frontier.report.pages.tabular import Table
from vllm_frontier.report.plots import render
from vllm_frontier.report.plots.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure for the templates: its panels are SVG, its frame is a table of texts."""

    name: str
    title: str
    question: str
    summary: str
    panels: tuple[Markup, ...]
    legend: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    table: Table | None


def picture(figure: Figure) -> Picture:
    """A figure, drawn for a page."""
    panels = render.panels(figure)
    return Picture(
        name=figure.name,
        title=figure.title,
        question=figure.question,
        summary=figure.summary,
        panels=tuple(
            frame.inlined(svg, f"{figure.name}-{number}") for number, svg in enumerate(panels)
        ),
        legend=figure.legend,
        notes=figure.notes,
        table=None
        if figure.table is None
        else tabular.table(figure.table, f"{figure.title}: figures"),
    )


def files(figure: Figure) -> dict[str, bytes]:
    """The figure as files, by name: SVG, and PNG for what cannot show that."""
    svg = render.svg_file(figure)
    return {f"{figure.name}.svg": svg.encode(), f"{figure.name}.png": render.png_file(svg)}
