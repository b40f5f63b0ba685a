"""From charts to SVG and PNG, without a browser and without a network."""

from __future__ import annotations

import re
from collections.abc import Mapping

import altair as alt
import vl_convert as vlc

from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Figure, Panel

_SCALE = 2.0  # pixels of a PNG for one of the chart
_COLUMNS = 3
_PLACES = re.compile(r' (?:d|transform|x2?|y2?|width|height)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")


def panels(figure: Figure) -> list[str]:
    """Every panel as SVG to stand in a page, which must define the colours of `theme`.

    A panel is as wide as its chart says, axes and legends included.
    """
    return [_svg(panel, autosize={"type": "fit", "contains": "padding"}) for panel in figure.panels]


def svg_file(figure: Figure) -> str:
    """The whole picture as an SVG file of its own, on a light ground."""
    whole = alt.concat(*figure.panels, columns=min(_COLUMNS, len(figure.panels)))
    whole = whole.properties(title=figure.title, padding=12).resolve_scale(
        color="independent", shape="independent"
    )
    return theme.resolved(_svg(whole, background=theme.colour("page")))


def png_file(svg: str) -> bytes:
    """A picture of `svg_file` as PNG."""
    image: bytes = vlc.svg_to_png(svg, scale=_SCALE)
    return image


def _svg(
    chart: Panel | alt.ConcatChart,
    *,
    background: str | None = None,
    autosize: Mapping[str, str] | None = None,
) -> str:
    specification = chart.to_dict()
    specification["config"] = {**theme.config(), "background": background}
    if autosize is not None:
        specification["autosize"] = dict(autosize)
    svg: str = vlc.vegalite_to_svg(specification)
    return _PLACES.sub(_rounded, svg)


def _rounded(attribute: re.Match[str]) -> str:
    """A place in the picture to a hundredth of a pixel."""
    return _LONG.sub(lambda number: f"{float(number[0]):.2f}", attribute[0])
