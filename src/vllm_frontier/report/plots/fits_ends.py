"""Where windows end, as the line and the table of the picture of what fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.comparison.windows import known
from vllm_frontier.report.plots import theme, words
from vllm_frontier.report.plots.windows import Windows
from vllm_frontier.report.window_ends import NOT_IN_GRID, marks, window_end
from vllm_frontier.report.wording import on_off

_PANEL = ("extra", "graphs", "utilization")
_UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of the line over depths that follow on each other, all proven or none."""

    proven: bool
    points: list[tuple[float, float]]
    told: list[str]


def lines(
    boundaries: pl.DataFrame, panel: Mapping[str, Any], row: Mapping[int, int], scale: Windows
) -> Iterator[alt.Chart]:
    """The line behind the longest window that works, from one depth to the next.

    It is dashed where the end is not proven, and broken where none is known.

    Args:
        boundaries: the table `boundaries`.
        panel: the axes of the panel.
        row: the row of each depth, in order.
        scale: where windows stand.
    """
    here = boundaries.filter(*(pl.col(name) == panel[name] for name in _PANEL))
    ends = {each["depth"]: each for each in here.iter_rows(named=True)}
    for piece in _pieces(ends, row, scale):
        frame = pl.DataFrame(piece.points, schema=["x", "y"], orient="row").with_row_index("order")
        chart: alt.Chart = (
            alt.Chart(frame)
            .mark_line(
                strokeWidth=3,
                stroke=theme.colour("text"),
                strokeCap="butt",
                strokeDash=[1, 0] if piece.proven else [5, 3],
                description=f"Boundary: {'; '.join(piece.told)}",
                ariaRoleDescription="line",
            )
            .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), order=alt.Order("order:Q"))
        )
        yield chart


def _pieces(
    ends: Mapping[int, Mapping[str, Any]], row: Mapping[int, int], scale: Windows
) -> list[_Piece]:
    found: list[_Piece] = []
    joined = False
    for depth, place in row.items():
        end = ends.get(depth)
        if end is None or not _is_known(end):
            joined = False
            continue
        longest = end["max_context_works"]
        at = 0.0 if longest is None else scale.right(longest)
        proven, top = bool(end["verified"]), (at, place - 0.5)
        if not joined:
            found.append(_Piece(proven, [], []))
        elif found[-1].proven != proven:
            # What joins two of them is no surer than either.
            before = [] if proven else found[-1].points[-1:]
            found[-1].points.extend([top] if proven else [])
            found.append(_Piece(proven, before, []))
        found[-1].points.extend([top, (at, place + 0.5)])
        found[-1].told.append(f"depth {depth} {_told(end)}")
        joined = True
    return found


def _is_known(end: Mapping[str, Any]) -> bool:
    return end["max_context_works"] is not None or end["min_context_fails"] is not None


def _told(end: Mapping[str, Any]) -> str:
    longest, refused = end["max_context_works"], end["min_context_fails"]
    if longest is None:
        works = "works nowhere" if end["verified"] else "is not known to work"
    else:
        works = f"works up to {words.tokens(longest)}"
    if not end["monotone"]:
        return f"{works}, though {words.tokens(refused)} is refused"
    told = ", nothing is refused" if refused is None else f", refused from {words.tokens(refused)}"
    return works + told + ("" if end["verified"] else ", not proven")


def table(boundaries: pl.DataFrame) -> pl.DataFrame | None:
    """The longest window for every depth, a row for each panel; see `window_end`."""
    if boundaries.is_empty():
        return None
    rows = boundaries.with_columns(known=known()).sort(*_PANEL, "depth")
    ends = [window_end(each, _UNKNOWN) for each in rows.iter_rows(named=True)]
    rows = rows.with_columns(pl.Series("end", ends, dtype=pl.String))
    wide = rows.pivot("depth", index=_PANEL, values="end", maintain_order=True)
    depths = sorted(rows["depth"].unique())
    further = [words.further(each) for each in wide["extra"]]
    return wide.select(
        pl.Series("graphs", [on_off(each) for each in wide["graphs"]]),
        pl.col("utilization"),
        *([pl.Series("further", further)] if any(further) else []),
        *(pl.col(f"{each}").fill_null(NOT_IN_GRID).alias(f"depth {each}") for each in depths),
    )


def notes(boundaries: pl.DataFrame) -> Iterator[str]:
    """What must be known to read line and table right."""
    ends = boundaries.with_columns(known=known())
    told = [each for each in ends.iter_rows(named=True) if _is_known(each)]
    if any(each["max_context_works"] is not None for each in told):
        yield "The line stands behind the longest window of each depth that works."
    if not all(each["verified"] for each in told):
        yield "Dashed, that is not proven: windows in between are not known, or launches disagree."
    if not all(each["monotone"] for each in told):
        yield (
            "Where a longer window works than one that is refused, the line is behind the longer."
        )
    if len(told) < ends.height:
        yield "There is no line where neither what works nor what is refused is known."
    signs = list(marks(told))
    if signs:
        yield f"In the table: {'; '.join(signs)}."
