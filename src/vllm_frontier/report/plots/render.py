"""From figures to what draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl
from altair.utils.schemapi import debug_mode

from vllm_frontier.characters import all_printable
from vllm_frontier.report.plots import theme, vega
from vllm_frontier.report.plots.figure import Figure, Panel

_LINE = 17  # pixels of a line of the legend
_COLUMNS = 3
_FIT = {"type": "fit", "contains": "padding"}


def panels(figure: Figure) -> list[str]:
    """Every panel as SVG to stand in a page, which must define the colours of `theme`.

    A panel is as wide as its chart says, axes and legends included. One whose parts stand below
    each other is as wide as these and their axes.
    """
    return vega.svgs(specifications(figure))


def specifications(figure: Figure) -> list[dict[str, Any]]:
    """Every panel as `vega.svgs` takes it: plain values, so that another process can draw it."""
    return [
        _specification(panel, autosize=None if isinstance(panel, alt.VConcatChart) else _FIT)
        for panel in figure.panels
    ]


def svg_file(figure: Figure) -> str:
    """The whole picture as an SVG file of its own, on a light ground."""
    drawn: alt.ConcatChart | alt.VConcatChart = alt.concat(
        *figure.panels, columns=min(_COLUMNS, len(figure.panels))
    ).resolve_scale(color="independent", shape="independent")
    if figure.legend:
        drawn = alt.vconcat(drawn, _legend(figure), spacing=16)
    whole = drawn.properties(title=figure.title, padding=12)
    [svg] = vega.svgs([_specification(whole, background=theme.colour("page"))])
    return theme.resolved(svg)


def _legend(figure: Figure) -> alt.LayerChart:
    """What colours and signs mean, a line each; a page tells it in words of its own."""
    rows = []
    for place, (colour, told) in enumerate(figure.legend):
        sign, words = _sign(told)
        rows.append({"line": place, "sign": sign, "words": words, "colour": theme.colour(colour)})
    line = alt.Y("line:O", axis=None)
    base = alt.Chart(pl.DataFrame(rows), height=_LINE * len(rows))
    signs = base.mark_text(align="center", fontSize=12, aria=False).encode(
        x=alt.value(6), y=line, text=alt.Text("sign:N"), color=alt.Color("colour:N", scale=None)
    )
    words = base.mark_text(align="left", fontSize=11).encode(
        x=alt.value(18), y=line, text=alt.Text("words:N")
    )
    return alt.LayerChart(layer=[signs, words], view=alt.ViewConfig(stroke=None))


def _sign(told: str) -> tuple[str, str]:
    """The sign with which words of a legend begin, or a square, and the words."""
    first, _, rest = told.partition(" ")
    return (first, rest) if len(first) == 1 and rest and not first.isdigit() else ("■", told)


def _specification(
    chart: Panel | alt.ConcatChart | alt.VConcatChart,
    *,
    background: str | None = None,
    autosize: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    # Charts come from our own code; to hold each against the whole schema takes as long again.
    with debug_mode(False):
        # An SVG is XML, which has no control characters, however they are written.
        specification: dict[str, Any] = all_printable(chart.to_dict(validate=False))
    specification["config"] = {**theme.config(), "background": background}
    if autosize is not None:
        specification["autosize"] = dict(autosize)
    return specification
