"""What fits: windows against depths, and why the rest does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.cell_states import CellState, Reason
from vllm_frontier.report.plots import fits_ends as ends
from vllm_frontier.report.plots import fits_words as told
from vllm_frontier.report.plots import theme, words
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.windows import Windows
from vllm_frontier.report.wording import titled

_PANEL = ("extra", "graphs", "utilization")
_PANELS = 36
_MARGIN = 46  # pixels beside the cells: the depths and the axis' title
_ROWS = (15, 30)  # pixels of a row, least and most
_AROUND, _HEADING = 52, 16  # pixels of the axis below, and of a line of the heading
_TALL = 240  # pixels of all rows
_FAINT = 0.15  # of the colour in cells that were not launched
_GAP = 1.0  # pixels around a cell

_COLOURS = {
    CellState.WORKS: "works",
    CellState.INFERRED_WORKS: "works",
    CellState.FAILED: "failed",
    CellState.INTERRUPTED: "unknown",
    CellState.RUNNING: "running",
    CellState.NOT_TRIED: "unknown",
}
_REASONS = {
    Reason.CACHE: "refused",
    Reason.OUT_OF_MEMORY: "refused",
    Reason.SHARE: "refused",
    Reason.INVALID: "invalid",
    Reason.BROKE: "failed",
}
_FILLED = (CellState.WORKS, CellState.REFUSED, CellState.FAILED)


def fits(cells: pl.DataFrame, boundaries: pl.DataFrame, *, simulated: bool) -> Figure | None:
    """Which cells start and serve a full window, one panel for graphs and utilization.

    Args:
        cells: of `cell_states`, with all cells of the grid.
        boundaries: the table `boundaries`.
        simulated: whether the card is a described one.

    Returns:
        None where there are no cells.
    """
    if cells.is_empty():
        return None
    drawn = _drawn(cells)
    scale = Windows(sorted(cells["context"].unique()), theme.PANEL_WIDTH - _MARGIN)
    groups = drawn.partition_by(_PANEL, maintain_order=True)
    panels = tuple(_panel(group, boundaries, scale) for group in _shown(groups))
    return Figure(
        name="fits",
        title=titled("What fits", simulated=simulated),
        question="Which windows start and serve a full request, and why do the others not?",
        summary=told.summary(cells, boundaries),
        panels=panels,
        table=ends.table(boundaries),
        legend=told.legend(drawn),
        notes=(*ends.notes(boundaries), *_notes(scale, len(groups))),
    )


# Cells


def _drawn(cells: pl.DataFrame) -> pl.DataFrame:
    """The cells with what is drawn of them: `colour`, `filled`, `sign` and `description`."""
    rows = cells.to_dicts()
    return cells.with_columns(
        pl.Series("colour", [_colour(row) for row in rows], dtype=pl.String),
        pl.Series("filled", [row["state"] in _FILLED for row in rows], dtype=pl.Boolean),
        pl.Series("sign", [_sign(row) for row in rows], dtype=pl.String),
        pl.Series("description", [told.description(row) for row in rows], dtype=pl.String),
    )


def _colour(row: Mapping[str, Any]) -> str:
    state = CellState(row["state"])
    return _COLOURS[state] if state in _COLOURS else _REASONS[Reason(row["reason"])]


def _sign(row: Mapping[str, Any]) -> str | None:
    sign = row["reason"] or row["state"]
    return sign if sign in told.SIGNS else None


# Panels


def _shown(groups: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """As many as there is room for: of all other settings alike those with the largest shares."""
    heads = pl.concat(group.select(_PANEL).head(1) for group in groups).with_row_index("place")
    rank = pl.col("utilization").rank("ordinal", descending=True).over("graphs", "extra")
    kept = heads.with_columns(rank=rank).sort("rank", "place").head(_PANELS)
    return [groups[place] for place in sorted(kept["place"])]


def _panel(cells: pl.DataFrame, boundaries: pl.DataFrame, scale: Windows) -> Panel:
    depths = sorted(cells["depth"].unique())
    step = max(_ROWS[0], min(_ROWS[1], _TALL // len(depths)))
    row = {depth: place for place, depth in enumerate(depths)}
    data = cells.select(
        _placed(scale.contexts, scale.left).alias("x") + _GAP,
        _placed(scale.contexts, scale.right).alias("x2") - _GAP,
        pl.col("depth").replace_strict(row, return_dtype=pl.Int64).alias("y"),
        pl.concat_str(pl.lit("var(--"), "colour", pl.lit(")")).alias("colour"),
        "filled",
        "sign",
        "description",
        opacity=pl.when("filled")
        .then(1.0)
        .when(pl.col("state") == CellState.NOT_TRIED.value)
        .then(0.0)
        .otherwise(_FAINT),
    )
    half = 0.5 - _GAP / step
    data = data.with_columns(y=pl.col("y") - half, y2=pl.col("y") + half)
    names = ",".join(str(depth) for depth in depths)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, scale.width], nice=False), axis=scale.axis())
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(domain=[-0.5, len(depths) - 0.5], nice=False),
        axis=alt.Axis(
            values=list(range(len(depths))),
            labelExpr=f"[{names}][datum.value]",
            labelOverlap=False,
            grid=False,
            domain=False,
            ticks=False,
            title="depth",
        ),
    )
    panel = cells.row(0, named=True)
    layers = [
        _squares(data, x, y),
        _signs(data, x, y),
        *ends.lines(boundaries, panel, row, scale),
    ]
    heading = words.lines(words.panel(panel))
    return alt.LayerChart(
        layer=layers,
        width=theme.PANEL_WIDTH,
        height=step * len(depths) + _AROUND + _HEADING * len(heading),
        title=heading,
    )


def _placed(contexts: Sequence[int], edge: Callable[[int], float]) -> pl.Expr:
    places = {context: edge(context) for context in contexts}
    return pl.col("context").replace_strict(places, return_dtype=pl.Float64)


def _squares(data: pl.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(data.drop("sign", "filled"))
        .mark_rect(strokeWidth=1, ariaRoleDescription="cell")
        .encode(
            x=x,
            x2=alt.X2("x2:Q"),
            y=y,
            y2=alt.Y2("y2:Q"),
            fill=alt.Fill("colour:N", scale=None),
            fillOpacity=alt.FillOpacity("opacity:Q", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
            description=alt.Description("description:N"),
        )
    )
    return chart


def _signs(data: pl.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    signs = data.filter(pl.col("sign").is_not_null())
    signs = signs.select(
        x=(pl.col("x") + pl.col("x2")) / 2,
        y=(pl.col("y") + pl.col("y2")) / 2,
        shape=pl.col("sign").replace_strict(
            {name: path for name, (path, _) in told.SIGNS.items()}, return_dtype=pl.String
        ),
        colour=pl.when("filled").then(pl.lit(theme.colour("page"))).otherwise("colour"),
    )
    chart: alt.Chart = (
        alt.Chart(signs)
        .mark_point(filled=False, size=64, strokeWidth=1.5, opacity=1, aria=False)
        .encode(
            x=x,
            y=y,
            shape=alt.Shape("shape:N", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
        )
    )
    return chart


def _notes(scale: Windows, panels: int) -> Iterator[str]:
    if not scale.true_to_scale:
        yield "Windows stand at their distance, but that none is too narrow to be pointed at."
    if panels > _PANELS:
        left_out = f"{panels - _PANELS} more panels are left out here"
        yield f"{left_out}, those of the smallest shares first; all tables have them."
