"""Pictures as a page holds them: panels that stand in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vllm_frontier.report.pages import frame, tabular
from vllm_frontier.report.pages.tabular import Table
from vllm_frontier.report.plots import render, theme
from vllm_frontier.report.plots.figure import Figure

_SIMULATED = " (simulated)"
_WIDTH = re.compile(r'<svg[^>]* width="([\d.]+)"')


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure for the templates: its panels are SVG, its frame is a table of texts."""

    name: str
    title: str
    short: str  # the title in few words, for links
    question: str
    summary: str
    panels: tuple[Markup, ...]
    width: int  # pixels of the widest panel
    legend: tuple[tuple[str, str, str], ...]  # colour, sign (may be empty), words
    notes: tuple[str, ...]
    table: Table | None
    per_row: int  # panels that belong together, in rows of their own


def picture(
    figure: Figure, svgs: Sequence[str] | None = None, per_row: int | None = None
) -> Picture:
    """A figure, drawn for a page.

    Args:
        figure: the picture.
        svgs: its panels, as `render.panels` has them; None: they are drawn now.
        per_row: so many panels belong together each; None: all do.
    """
    panels = render.panels(figure) if svgs is None else svgs
    return Picture(
        name=figure.name,
        title=figure.title,
        short=figure.title.removesuffix(_SIMULATED).partition(",")[0],
        question=figure.question,
        summary=figure.summary,
        panels=tuple(
            frame.inlined(svg, f"{figure.name}-{number}") for number, svg in enumerate(panels)
        ),
        width=max(map(_width, panels), default=theme.PANEL_WIDTH),
        legend=tuple((colour, *_sign(words)) for colour, words in figure.legend),
        notes=figure.notes,
        table=None
        if figure.table is None
        else tabular.table(figure.table, f"{figure.title}: figures"),
        per_row=per_row or max(1, len(panels)),
    )


def _sign(words: str) -> tuple[str, str]:
    """The sign with which words of a legend begin, and the words."""
    first, _, rest = words.partition(" ")
    is_sign = len(first) == 1 and rest and not first.isdigit()
    return (first, rest) if is_sign else ("", words)


def _width(svg: str) -> int:
    found = _WIDTH.search(svg)
    return round(float(found[1])) if found else theme.PANEL_WIDTH
