"""What an SVG shows: its marks, with their words and places."""

import re
from dataclasses import dataclass
from xml.etree import ElementTree

from vllm_frontier.report.plots import render
from vllm_frontier.report.plots.figure import Figure

SVG = "{http://www.w3.org/2000/svg}"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MOVED = re.compile(r"translate\((-?[\d.]+),(-?[\d.]+)\)")


@dataclass(frozen=True)
class Mark:
    """A mark that stands for data.

    `left` and `top` are those of its path, moved by its own transform, in pixels of the plot.
    """

    words: str
    kind: str
    left: float
    top: float
    right: float
    bottom: float
    fill: str
    opacity: float


def panels(figure: Figure | None) -> list[str]:
    """The panels of a figure that must be there; each is sound XML."""
    assert figure is not None
    found = render.panels(figure)
    for svg in found:
        ElementTree.fromstring(svg)
    return found


def marks(svg: str, kind: str) -> list[Mark]:
    """The marks of one kind, such as `cell`, in the order in which they are drawn."""
    return [
        _mark(element)
        for element in ElementTree.fromstring(svg).iter()
        if element.get("aria-roledescription") == kind and element.get("aria-label")
    ]


def texts(svg: str) -> list[str]:
    """All words of a panel."""
    return [
        " ".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")
    ]


def _mark(element: ElementTree.Element) -> Mark:
    moved = _MOVED.search(element.get("transform") or "")
    x, y = (float(moved[1]), float(moved[2])) if moved else (0.0, 0.0)
    path = element.get("d") or ""
    if element.tag == f"{SVG}line":
        path = f"0,0 {element.get('x2')},{element.get('y2')}"
    corners = _corners(path)
    return Mark(
        words=element.get("aria-label") or "",
        kind=element.get("aria-roledescription") or "",
        left=x + min(each[0] for each in corners),
        top=y + min(each[1] for each in corners),
        right=x + max(each[0] for each in corners),
        bottom=y + max(each[1] for each in corners),
        fill=element.get("fill") or "",
        opacity=float(element.get("fill-opacity") or 1.0),
    )


def _corners(path: str) -> list[tuple[float, float]]:
    """The points of a path; of an arc only its ends."""
    at = (0.0, 0.0)
    found = []
    for command, rest in re.findall(r"([MLHVhvAZ]?)([^MLHVhvAZ]*)", path):
        numbers = [float(each) for each in _NUMBER.findall(rest)]
        if not numbers:
            continue
        if command in "hH":
            at = (numbers[0] + (at[0] if command == "h" else 0.0), at[1])
        elif command in "vV":
            at = (at[0], numbers[0] + (at[1] if command == "v" else 0.0))
        else:
            at = (numbers[-2], numbers[-1])
        found.append(at)
    return found
