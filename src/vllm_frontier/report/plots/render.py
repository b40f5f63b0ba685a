"""From charts to SVG and PNG, without a browser and without a network."""

from __future__ import annotations

import re
from collections.abc import Mapping

import altair as alt
import polars as pl
import vl_convert as vlc

from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Figure, Panel

_LINE = 17  # pixels of a line of the legend
_SCALE = 2.0  # pixels of a PNG for one of the chart
_WIDEST = 1600  # pixels of a PNG
_COLUMNS = 3
_FIT = {"type": "fit", "contains": "padding"}
_PLACES = re.compile(r' (?:d|transform|x2?|y2?|width|height)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")


def panels(figure: Figure) -> list[str]:
    """Every panel as SVG to stand in a page, which must define the colours of `theme`.

    A panel is as wide as its chart says, axes and legends included. One whose parts stand below
    each other is as wide as these and their axes.
    """
    return [
        _svg(panel, autosize=None if isinstance(panel, alt.VConcatChart) else _FIT)
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
    return theme.resolved(_svg(whole, background=theme.colour("page")))


def png_file(svg: str, width: float = 0) -> bytes:
    """A picture of `svg_file` as PNG, finer than the screen where that does not make it large.

    Args:
        svg: the picture.
        width: its own, pixels; 0: not known.
    """
    scale = max(1.0, min(_SCALE, _WIDEST / width)) if width else _SCALE
    image: bytes = vlc.svg_to_png(svg, scale=scale)
    return image


def _legend(figure: Figure) -> alt.LayerChart:
    """What colours and signs mean, a line each; a page tells it in words of its own."""
    rows = []
    for place, (colour, told) in enumerate(figure.legend):
        sign, words = _sign(told)
        rows.append({"line": place, "sign": sign, "words": words, "colour": theme.colour(colour)})
    line = alt.Y("line:O", axis=None)
    base = alt.Chart(pl.DataFrame(rows), height=_LINE * len(rows))
    signs = base.mark_text(align="center", fontSize=12, aria=False).encode(
        x=alt.value(6), y=line, text="sign:N", color=alt.Color("colour:N", scale=None)
    )
    words = base.mark_text(align="left", fontSize=11).encode(
        x=alt.value(18), y=line, text="words:N"
    )
    return alt.LayerChart(layer=[signs, words], view=alt.ViewConfig(stroke=None))


def _sign(told: str) -> tuple[str, str]:
    """The sign with which words of a legend begin, or a square, and the words."""
    first, _, rest = told.partition(" ")
    return (first, rest) if len(first) == 1 and rest and not first.isdigit() else ("■", told)


def _svg(
    chart: Panel | alt.ConcatChart | alt.VConcatChart,
    *,
    background: str | None = None,
    autosize: Mapping[str, str] | None = None,
) -> str:
    # Charts come from our own code; to hold each against the whole schema takes as long again.
    specification = chart.to_dict(validate=False)
    specification["config"] = {**theme.config(), "background": background}
    if autosize is not None:
        specification["autosize"] = dict(autosize)
    svg: str = vlc.vegalite_to_svg(specification)
    return _PLACES.sub(_rounded, svg)


def _rounded(attribute: re.Match[str]) -> str:
    """A place in the picture to a hundredth of a pixel."""
    return _LONG.sub(lambda number: f"{float(number[0]):.2f}", attribute[0])
