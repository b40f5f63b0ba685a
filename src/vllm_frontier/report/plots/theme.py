"""The colours and sizes of every picture.

Charts name colours as CSS variables, so that a page in the dark needs no other picture. A file of
its own has no style sheet: there `resolved` puts the light values in their place.

The categorical colours keep apart for people who do not see red and green, and every text colour
has a contrast of 4.5 or more on its ground, every mark 3 or more.
"""

from __future__ import annotations

import re
from typing import Any

PANEL_WIDTH = 320  # pixels; fits a phone of 360
PANEL_HEIGHT = 220  # pixels
FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

LIGHT = {
    "page": "#ffffff",
    "raised": "#f4f5f7",
    "text": "#1b1f24",
    "muted": "#57606a",
    "rule": "#d0d7de",
    "link": "#0550ae",
    "works": "#0f7b52",
    "refused": "#b83a1b",
    "invalid": "#8a5a00",
    "failed": "#8b1a8f",
    "unknown": "#656d76",
    "running": "#0969da",
    "series-1": "#0b62b8",
    "series-2": "#b54708",
    "series-3": "#0f7b52",
    "series-4": "#8b3fa8",
    "series-5": "#a8326e",
    "series-6": "#6b6300",
    "series-7": "#00707f",
    "series-8": "#656d76",
}
"""Name of every colour, and its value on a light ground."""

DARK = {
    "page": "#0f1318",
    "raised": "#1a2028",
    "text": "#e6edf3",
    "muted": "#9da7b3",
    "rule": "#39424e",
    "link": "#79b8ff",
    "works": "#3fbf8c",
    "refused": "#ff8266",
    "invalid": "#e0aa3e",
    "failed": "#dd8be0",
    "unknown": "#8d96a0",
    "running": "#6cb0ff",
    "series-1": "#6cb0ff",
    "series-2": "#ff9f5a",
    "series-3": "#3fbf8c",
    "series-4": "#cf9be6",
    "series-5": "#f28cb9",
    "series-6": "#c9bf4b",
    "series-7": "#4dc4d4",
    "series-8": "#9da7b3",
}
"""The same on a dark ground."""

_VARIABLE = re.compile(r"var\(--([a-z0-9-]+)\)")


def colour(name: str) -> str:
    """A colour as charts name it.

    Raises:
        KeyError: there is no such colour.
    """
    if name not in LIGHT:
        raise KeyError(name)
    return f"var(--{name})"


def series(number: int) -> str:
    """The colour of the series with this number, from 0; after eight they come again."""
    return colour(f"series-{number % 8 + 1}")


def resolved(svg: str) -> str:
    """A picture with the light values in the place of names, for a file of its own."""
    return _VARIABLE.sub(lambda found: LIGHT[found[1]], svg)


def config() -> dict[str, Any]:
    """What all charts share, as Vega-Lite's `config`."""
    text, muted, rule = colour("text"), colour("muted"), colour("rule")
    words = {"labelColor": muted, "titleColor": text, "labelFont": FONT, "titleFont": FONT}
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": rule},
        "axis": {
            **words,
            "gridColor": rule,
            "domainColor": muted,
            "tickColor": muted,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            # Read aloud they would tell pixels; marks say in words where they are.
            "aria": False,
        },
        "legend": {**words, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
        "title": {"color": text, "font": FONT, "fontSize": 12, "anchor": "start", "limit": 600},
        "text": {"color": text, "font": FONT},
    }
