"""A picture as a file of its own, for a pull request or a slide: title, panels, legend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from vllm_frontier.report.pages import frame
from vllm_frontier.report.pages.beside import Beside
from vllm_frontier.report.pages.drawn import Picture
from vllm_frontier.report.plots import theme, vega

_COLUMNS, _MARGIN, _TITLE, _GAP, _LINE = 3, 16, 36, 20, 20  # pixels but for the first
_WORDS_MAX = 100  # letters of an entry of the legend
_LETTER = 6.9  # pixels of an average one at 12 pixels; a little more than most fonts need
_SIZE = re.compile(r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"')


@dataclass(frozen=True, slots=True)
class _Placed:
    """A panel, and where it stands."""

    x: float
    y: float
    width: float
    height: float
    svg: Markup


@dataclass(frozen=True, slots=True)
class _Entry:
    """A colour or a sign of the legend, and where it stands."""

    x: float
    y: float
    colour: str
    sign: str
    words: str


class Files:
    """Pictures as files: SVG, and PNG for what cannot show that.

    Args:
        beside: makes PNGs, unless it is busy; None: none.
    """

    def __init__(self, beside: Beside | None = None) -> None:
        self._beside = beside
        self._drawn: list[tuple[str, str, Callable[[], bytes]]] = []

    def add(self, picture: Picture) -> None:
        """Draw the files of a picture."""
        svg, width = _svg(picture)
        if self._beside is None or self._beside.busy:
            made: Callable[[], bytes] = partial(bytes, vega.png(svg, width))
        else:
            made = self._beside.begin(vega.png, svg, width, here_too=True)
        self._drawn.append((picture.name, svg, made))

    def each(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Of every picture that was added: name, SVG and PNG."""
        # From the other end, so that both processes are done at the same time.
        images = [made() for _, _, made in reversed(self._drawn)]
        for (name, svg, _), image in zip(self._drawn, reversed(images), strict=True):
            yield name, svg.encode(), image


def _svg(picture: Picture) -> tuple[str, float]:
    """The whole picture, and its width."""
    panels, bottom = _placed(picture.panels, picture.per_row)
    right = max(panel.x + panel.width for panel in panels) if panels else theme.PANEL_WIDTH
    title = 9.5 * len(picture.title)  # bold letters of 16 pixels
    width = max(right, title, theme.PANEL_WIDTH) + _MARGIN
    legend, bottom = _legend(picture.legend, width, bottom + _GAP)
    drawn = frame.svg(
        "figure.svg.j2",
        {
            "width": round(width),
            "height": round(bottom + _MARGIN),
            "margin": _MARGIN,
            "font": theme.FONT,
            "title": picture.title,
            "question": picture.question,
            "summary": picture.summary,
            "panels": panels,
            "legend": legend,
        },
    )
    return theme.resolved(drawn), width


def _placed(panels: Sequence[Markup], per_row: int) -> tuple[list[_Placed], float]:
    """The panels in rows, those that belong together apart, and where the last row ends."""
    sizes = [_size(svg) for svg in panels]
    column = max((width for width, _ in sizes), default=0.0) + _GAP
    sized = list(zip(panels, sizes, strict=True))
    most = _COLUMNS + 1 if per_row == _COLUMNS + 1 else _COLUMNS
    placed: list[_Placed] = []
    top = float(_MARGIN + _TITLE)
    for start in range(0, len(panels), per_row):
        together = sized[start : start + per_row]
        for first in range(0, len(together), most):
            row = together[first : first + most]
            placed += [
                _Placed(_MARGIN + place * column, top, *size, svg)
                for place, (svg, size) in enumerate(row)
            ]
            top += max(height for _, (_, height) in row) + _GAP
    return placed, top - _GAP


def _size(svg: str) -> tuple[float, float]:
    found = _SIZE.search(svg)
    if found is None:
        return float(theme.PANEL_WIDTH), float(theme.PANEL_HEIGHT)
    return float(found[1]), float(found[2])


def _legend(
    entries: Sequence[tuple[str, str, str]], room: float, top: float
) -> tuple[list[_Entry], float]:
    """The legend in lines that fit, and where it ends."""
    placed = list(_lines(entries, room - 2 * _MARGIN, top))
    return placed, placed[-1].y if placed else top - _GAP


def _lines(entries: Sequence[tuple[str, str, str]], room: float, top: float) -> Iterator[_Entry]:
    x = 0.0
    for colour, sign, whole in entries:
        cut = len(whole) > _WORDS_MAX
        words = f"{whole[: _WORDS_MAX - 1]}…" if cut else whole
        width = 16 + _LETTER * len(words) + _GAP
        if x and x + width > room:
            x, top = 0.0, top + _LINE
        yield _Entry(_MARGIN + x, top, colour, sign, words)
        x += width
