"""From a chart's specification to SVG and PNG, without a browser and without a network.

Only what is named here is loaded with it, so that a process beside another is soon ready.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import vl_convert as vlc

Specification: TypeAlias = Mapping[str, Any]
"""Vega-Lite as `Chart.to_dict` gives it."""

_SCALE = 2.0  # pixels of a PNG for one of the chart
_WIDEST = 1280  # pixels of a PNG, where the chart itself is no wider
_PLACES = re.compile(r' (?:d|transform|x2?|y2?|width|height)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")


def ready() -> None:
    """Load all that drawing takes, which else the first chart has to wait for."""
    vlc.vegalite_to_svg({"mark": "point", "data": {"values": [{}]}})


def svgs(specifications: Sequence[Specification]) -> list[str]:
    """Charts as SVG, places to a hundredth of a pixel."""
    return [_PLACES.sub(_rounded, vlc.vegalite_to_svg(dict(each))) for each in specifications]


def png(svg: str, width: float = 0) -> bytes:
    """A picture as PNG, finer than the screen where that does not make it large.

    Args:
        svg: the picture; it names no colours of a style sheet.
        width: its own, pixels; 0: not known.
    """
    scale = max(1.0, min(_SCALE, _WIDEST / width)) if width else _SCALE
    image: bytes = vlc.svg_to_png(svg, scale=scale)
    return image


def _rounded(attribute: re.Match[str]) -> str:
    return _LONG.sub(lambda number: f"{float(number[0]):.2f}", attribute[0])
