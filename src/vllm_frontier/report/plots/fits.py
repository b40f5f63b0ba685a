"""What fits: windows against depths, and why the rest does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.cell_states import CellState, Reason
from vllm_frontier.grid import shortest
from vllm_frontier.report.plots import theme, words
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.windows import Windows
from vllm_frontier.report.wording import listed, on_off, several, titled

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
# Drawn in a cell and told in the legend, so that no colour has to be seen.
_SIGNS = {
    Reason.CACHE.value: ("M-.6,-.6L.6,.6M-.6,.6L.6,-.6", "×"),
    Reason.OUT_OF_MEMORY.value: ("M-.7,.55L0,-.65L.7,.55Z", "△"),
    Reason.SHARE.value: ("M-.7,0L.7,0", "–"),
    Reason.INVALID.value: ("M0,-.75L.75,0L0,.75L-.75,0Z", "◇"),
    Reason.BROKE.value: ("M0,-.8L0,.25M0,.6L0,.8", "!"),
    CellState.INTERRUPTED.value: ("M-.5,-.35A.5,.5,0,1,1,0,.15L0,.3M0,.65L0,.8", "?"),
    CellState.RUNNING.value: ("M-.45,-.65L.65,0L-.45,.65Z", "▷"),
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
    panels = tuple(_panel(group, boundaries, scale) for group in groups[:_PANELS])
    return Figure(
        name="fits",
        title=titled("What fits", simulated=simulated),
        question="Which windows start and serve a full request, and why do the others not?",
        summary=_summary(cells, boundaries),
        panels=panels,
        table=_table(boundaries),
        legend=_legend(drawn),
        notes=_notes(cells, scale, len(groups)),
    )


# Cells


def _drawn(cells: pl.DataFrame) -> pl.DataFrame:
    """The cells with what is drawn of them: `colour`, `filled`, `sign` and `description`."""
    rows = cells.to_dicts()
    return cells.with_columns(
        pl.Series("colour", [_colour(row) for row in rows], dtype=pl.String),
        pl.Series("filled", [row["state"] in _FILLED for row in rows], dtype=pl.Boolean),
        pl.Series("sign", [_sign(row) for row in rows], dtype=pl.String),
        pl.Series("description", [_description(row) for row in rows], dtype=pl.String),
    )


def _colour(row: Mapping[str, Any]) -> str:
    state = CellState(row["state"])
    return _COLOURS[state] if state in _COLOURS else _REASONS[Reason(row["reason"])]


def _sign(row: Mapping[str, Any]) -> str | None:
    sign = row["reason"] or row["state"]
    return sign if sign in _SIGNS else None


def _description(row: Mapping[str, Any]) -> str:
    """What is read aloud and shown of a cell."""
    place = f"{words.tokens(row['context'])} tokens, {words.settings(row)}"
    state = row["state"]
    if row["failure_class"]:
        state += f": {row['failure_class']}"
    told = [f"{place}: {state}"]
    if row["evidence_cell"] is not None:
        told += _follows(row)
    told += _figures(row)
    if row["spec_state"] not in (None, "working"):
        told.append(f"speculation {row['spec_state']}")
    return "; ".join(told)


def _follows(row: Mapping[str, Any]) -> list[str]:
    if row["from_context"] is None:
        return [f"follows from cell {row['evidence_cell']}"]
    origin = {name: row[f"from_{name}"] for name in ("depth", *_PANEL)}
    differs = [f"{words.tokens(row['from_context'])} tokens", f"depth {origin['depth']}"]
    if any(origin[name] != row[name] for name in _PANEL):
        differs.append(words.panel(origin))
    figures = _figures({name: row[f"from_{name}"] for name in _FIGURES})
    told = f"follows from {', '.join(differs)}"
    return [f"{told} ({', '.join(figures)})" if figures else told]


_FIGURES = ("kv_needed_gib", "kv_available_gib", "max_context_estimate")


def _figures(row: Mapping[str, Any]) -> list[str]:
    """What vLLM's log told of a launch's memory."""
    needed, available, longest = (row[name] for name in _FIGURES)
    told = []
    if needed is not None:
        told.append(f"needs {needed:.2f} GiB of KV cache")
    if available is not None:
        told.append(f"has {available:.2f} GiB" + ("" if needed else " of KV cache"))
    if longest is not None:
        told.append(f"{words.tokens(longest)} tokens would fit")
    return told


# Panels


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
    layers = [_squares(data, x, y), _signs(data, x, y)]
    line = _boundary(boundaries, cells, row, scale, y)
    if line is not None:
        layers.append(line)
    heading = words.lines(words.panel(cells.row(0, named=True)))
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
            x2="x2:Q",
            y=y,
            y2="y2:Q",
            fill=alt.Fill("colour:N", scale=None),
            fillOpacity=alt.FillOpacity("opacity:Q", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
            description="description:N",
        )
    )
    return chart


def _signs(data: pl.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    signs = data.filter(pl.col("sign").is_not_null())
    signs = signs.select(
        x=(pl.col("x") + pl.col("x2")) / 2,
        y=(pl.col("y") + pl.col("y2")) / 2,
        shape=pl.col("sign").replace_strict(
            {name: path for name, (path, _) in _SIGNS.items()}, return_dtype=pl.String
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


def _boundary(
    boundaries: pl.DataFrame,
    cells: pl.DataFrame,
    row: Mapping[int, int],
    scale: Windows,
    y: alt.Y,
) -> alt.Chart | None:
    """The line behind the longest window that works, from one depth to the next."""
    here = boundaries.join(cells.select(_PANEL).head(1), on=_PANEL).sort("depth")
    here = here.filter(
        pl.col("max_context_works").is_not_null() | pl.col("min_context_fails").is_not_null()
    )
    if here.is_empty():
        return None
    points = []
    ends = here.select("depth", "max_context_works", "min_context_fails")
    told = []
    for depth, longest, refused in ends.iter_rows():
        at = 0.0 if longest is None else scale.right(longest)
        points += [(at, row[depth] - 0.5), (at, row[depth] + 0.5)]
        told.append(f"depth {depth} {_ends(longest, refused)}")
    frame = pl.DataFrame(
        {
            "x": [each[0] for each in points],
            "y": [float(each[1]) for each in points],
            "order": list(range(len(points))),
        }
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_line(
            strokeWidth=3,
            stroke=theme.colour("text"),
            strokeCap="butt",
            description=f"Boundary: {'; '.join(told)}",
            ariaRoleDescription="line",
        )
        .encode(x="x:Q", y=y, order="order:Q")
    )
    return chart


def _ends(longest: int | None, refused: int | None) -> str:
    works = "works nowhere" if longest is None else f"works up to {words.tokens(longest)}"
    return works if refused is None else f"{works}, refused from {words.tokens(refused)}"


# Words


def _summary(cells: pl.DataFrame, boundaries: pl.DataFrame) -> str:
    states = cells["state"].value_counts()
    counts = dict(states.iter_rows())
    works = counts.get(CellState.WORKS, 0) + counts.get(CellState.INFERRED_WORKS, 0)
    refused = counts.get(CellState.REFUSED, 0) + counts.get(CellState.INFERRED_REFUSED, 0)
    text = [f"{works} of {several(cells.height, 'cell works', 'cells work')}"]
    if refused:
        text[0] += f", {refused} {'does' if refused == 1 else 'do'} not ({_because(cells)})"
    others = [
        f"{counts[state]} {state.value}"
        for state in (
            CellState.FAILED,
            CellState.INTERRUPTED,
            CellState.RUNNING,
            CellState.NOT_TRIED,
        )
        if state in counts
    ]
    text[0] += f"; {listed(others)}" if others else ""
    longest = boundaries["max_context_works"].max()
    if isinstance(longest, int):
        text.append(_longest(boundaries, longest))
    inferred = counts.get(CellState.INFERRED_WORKS, 0) + counts.get(CellState.INFERRED_REFUSED, 0)
    if inferred:
        text.append(f"{several(inferred, 'cell follows', 'cells follow')} from launches of others")
    return " ".join(words.sentence(each) for each in text)


def _because(cells: pl.DataFrame) -> str:
    refused = cells.filter(pl.col("state").is_in([CellState.REFUSED, CellState.INFERRED_REFUSED]))
    reasons = refused["reason"].drop_nulls().value_counts(sort=True)
    if reasons.height == 1:
        return str(reasons["reason"].item())
    return ", ".join(f"{count}: {reason}" for reason, count in reasons.iter_rows())


def _longest(boundaries: pl.DataFrame, longest: int) -> str:
    """The longest window that works, and what it takes."""
    where = boundaries.filter(pl.col("max_context_works") == longest)
    text = f"the longest window that works is {words.tokens(longest)} tokens"
    if where.height == boundaries.height:
        return f"{text}, with all other settings"
    deepest = int(where.select(pl.col("depth").max()).item())
    least = float(where.select(pl.col("utilization").min()).item())
    return f"{text}, up to depth {deepest} and from utilization {shortest(least)} on"


def _table(boundaries: pl.DataFrame) -> pl.DataFrame | None:
    """The longest window for every depth, a row for each panel."""
    if boundaries.is_empty():
        return None
    longest = pl.col("max_context_works").cast(pl.String).fill_null("none")
    rows = boundaries.sort(*_PANEL, "depth").with_columns(longest=longest)
    wide = rows.pivot("depth", index=_PANEL, values="longest", maintain_order=True)
    depths = [name for name in wide.columns if name not in _PANEL]
    return wide.select(
        pl.Series("graphs", [on_off(each) for each in wide["graphs"]]),
        pl.col("utilization"),
        *([pl.Series("further", map(words.further, wide["extra"]))] if _more(wide) else []),
        *(pl.col(name).fill_null("").alias(f"depth {name}") for name in depths),
    )


def _more(rows: pl.DataFrame) -> bool:
    return any(words.further(extra) for extra in rows["extra"].unique())


def _legend(drawn: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    """What is in the picture, what works first."""
    states = list(CellState)
    kinds = drawn.select("state", "reason", "colour").unique()
    order = sorted(kinds.rows(), key=lambda each: (states.index(CellState(each[0])), str(each[1])))
    return tuple(
        dict.fromkeys((colour, _meaning(state, reason)) for state, reason, colour in order)
    )


def _meaning(state: str, reason: str | None) -> str:
    sign = _SIGNS.get(reason or state, ("", ""))[1]
    if state == CellState.WORKS:
        return "■ works, launched"
    if state == CellState.INFERRED_WORKS:
        return "□ works, follows from a launch"
    if state == CellState.REFUSED:
        return f"{sign} filled: {reason}, launched"
    if state == CellState.INFERRED_REFUSED:
        return f"{sign} open: {reason}, follows from a launch"
    return f"{sign or '□'} {reason or state}"


def _notes(cells: pl.DataFrame, scale: Windows, panels: int) -> tuple[str, ...]:
    works = [CellState.WORKS, CellState.INFERRED_WORKS]
    notes = []
    if cells["state"].is_in(works).any():
        notes.append("The line stands behind the longest window of each depth that works.")
    if not scale.true_to_scale:
        notes.append(
            "Windows stand at their distance, but that none is too narrow to be pointed at."
        )
    if panels > _PANELS:
        notes.append(f"{panels - _PANELS} more panels are left out here; all tables have them.")
    return tuple(notes)
