"""The frontier: windows against speeds, what leads and what is beaten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.memory_split import Part
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.grid import shortest
from vllm_frontier.report.plots import frontier_places as places
from vllm_frontier.report.plots import frontier_words as told
from vllm_frontier.report.plots import theme, words
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.frontier_places import HEIGHT, LINE, WIDTH, Ground
from vllm_frontier.report.plots.windows import Windows
from vllm_frontier.report.wording import listed, titled

_AROUND = 52  # pixels of axes and their titles below and above
_SIZES = (36.0, 260.0)  # square pixels of a mark: no memory left, and most
_NO_SIZE = 60.0
_LETTER = 7.2  # pixels
_LINES = 4  # shares of the card with a line of their own
_ROOM = 1.2  # of the ground above the highest mark: a name, and the sign of a tie below it
_TIE = 14.0  # pixels from the middle of a mark to that of the sign of a tie


def frontier(
    standing: pl.DataFrame,
    split: pl.DataFrame | None = None,
    *,
    simulated: bool,
    grid: Iterable[int] | None = None,
) -> Figure | None:
    """Window and speed of every cell that works, and which of them lead.

    Args:
        standing: of `standing`.
        split: of `memory_split`; tells what memory is left where a cell's launch does not.
        simulated: whether the card is a described one.
        grid: all windows of the grid, by which those that work are named; None: these alone.

    Returns:
        None where nothing leads.
    """
    cells = _with_room(standing, split)
    leading = cells.filter(pl.col("leads"))
    if leading.is_empty():
        return None
    return Figure(
        name="frontier",
        title=titled("The frontier", simulated=simulated),
        question="How fast does each window get, and what is the best of both?",
        summary=told.summary(leading),
        panels=(_panel(cells, grid),),
        table=told.table(leading),
        legend=told.legend(cells),
        notes=told.notes(leading, len(_best_by_share(leading))),
    )


def _with_room(standing: pl.DataFrame, split: pl.DataFrame | None) -> pl.DataFrame:
    """The cells with `room`: memory left beyond one full window, GiB."""
    if split is None:
        return standing.with_columns(room=pl.col("kv_headroom_gib"))
    left = (pl.col("available_gib") - pl.col("needed_gib")).alias("_left")
    # Of a cell that leaves nothing there is no such part.
    known = split.filter(pl.col("part") != Part.NOT_KNOWN.value).select("cell_id", left)
    known = known.unique("cell_id")
    return standing.join(known, on="cell_id", how="left", maintain_order="left").with_columns(
        room=pl.coalesce("kv_headroom_gib", pl.col("_left").clip(lower_bound=0.0))
    )


# The panel


def _panel(cells: pl.DataFrame, grid: Iterable[int] | None) -> Panel:
    leading = cells.filter(pl.col("leads"))
    high = cells.select(
        pl.max_horizontal(
            pl.col("decode_tok_s").max(), pl.col("decode_tok_s_high").filter("leads").max()
        )
    ).item()
    windows = Windows(sorted(cells["context"].unique()), WIDTH, grid)
    ground = Ground(windows, float(high) * _ROOM)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, WIDTH], nice=False), axis=windows.axis())
    y = alt.Y(
        "decode_tok_s:Q",
        scale=alt.Scale(domain=[0, ground.fastest], nice=False),
        axis=alt.Axis(title="tokens/s", grid=True, tickCount=5, domain=False),
    )
    layers = [
        _beaten(cells, ground, x, y),
        *_lines(leading, ground),
        _intervals(leading, ground),
        *_names(leading, ground),
        _points(leading, ground, x, y),
        *_shares(leading, ground),
        *_signs(leading, ground),
    ]
    return alt.LayerChart(layer=layers, width=theme.PANEL_WIDTH, height=round(HEIGHT) + _AROUND)


def _beaten(cells: pl.DataFrame, ground: Ground, x: alt.X, y: alt.Y) -> alt.Chart:
    """What others beat; cells that differ in the share alone are one mark."""
    alike = ("context", "depth", "graphs", "extra")
    beaten = cells.filter(~pl.col("leads")).sort("utilization")
    beaten = beaten.unique(alike, keep="first", maintain_order=True)
    rows = [
        {
            "x": ground.x(row["context"]),
            "decode_tok_s": row["decode_tok_s"],
            "description": f"{told.described(row)}; beaten",
        }
        for row in beaten.iter_rows(named=True)
    ]
    chart: alt.Chart = (
        alt.Chart(_frame(rows, "x", "decode_tok_s", "description"))
        .mark_point(
            shape="circle",
            size=14,
            filled=True,
            opacity=0.55,
            color=theme.colour("unknown"),
            ariaRoleDescription="cell",
        )
        .encode(x=x, y=y, description=alt.Description("description:N"))
    )
    return chart


def _lines(leading: pl.DataFrame, ground: Ground) -> Iterator[alt.Chart]:
    """For each share of the card the best that can be had with at most that share."""
    lines = _best_by_share(leading)
    for share, best in lines:
        corners: list[tuple[float, float]] = [(0.0, best[0][1])]
        for place, (context, speed) in enumerate(best):
            corners.append((ground.x(context), speed))
            below = best[place + 1][1] if place + 1 < len(best) else 0.0
            corners.append((ground.x(context), below))
        best_of = "; ".join(
            f"{words.tokens(context)} tokens at {speed:.1f} tokens/s" for context, speed in best
        )
        rows = [
            {"x": at, "decode_tok_s": speed, "order": place}
            for place, (at, speed) in enumerate(corners)
        ]
        last = share == lines[-1][0]
        chart: alt.Chart = (
            alt.Chart(_frame(rows))
            .mark_line(
                strokeWidth=2 if last else 1,
                strokeDash=[1, 0] if last else [4, 3],
                stroke=theme.colour("text" if last else "muted"),
                description=f"Best with utilization {shortest(share)} or less: {best_of}",
                ariaRoleDescription="line",
            )
            .encode(x=alt.X("x:Q"), y=alt.Y("decode_tok_s:Q"), order=alt.Order("order:Q"))
        )
        yield chart


def _shares(leading: pl.DataFrame, ground: Ground) -> Iterator[alt.Chart]:
    """The share of the card beside each line: where it ends, or where it leaves the others."""
    lines = _best_by_share(leading)
    ends = {best[-1][0] for _, best in lines}
    turns = {best[0][0] for _, best in lines}
    if len(lines) < 2 or len(lines) > max(len(ends), len(turns)):
        return
    at_end = len(ends) == len(lines)
    for share, best in lines:
        context, speed = best[-1] if at_end else best[0]
        at = ground.x(context)
        to_left = at_end or at > WIDTH - 40
        rows = [{"x": at, "decode_tok_s": 0.0 if at_end else speed, "text": shortest(share)}]
        yield from _haloed(
            rows,
            align="right" if to_left else "left",
            dx=-4 if to_left else 4,
            dy=-8 if at_end else 17,
            fontSize=10,
        )


def _best_by_share(leading: pl.DataFrame) -> list[tuple[float, list[tuple[int, float]]]]:
    """The best with at most each share of the card that changes it; only the largest of many."""
    shares = sorted(leading["utilization"].unique())
    if len(shares) > _LINES:
        shares = shares[-1:]
    found: list[tuple[float, list[tuple[int, float]]]] = []
    for share in shares:
        best = _best(leading.filter(pl.col("utilization") <= share))
        if not found or best != found[-1][1]:
            found.append((share, best))
    return found


def _best(cells: pl.DataFrame) -> list[tuple[int, float]]:
    """Window and speed of the cells that none beats on both, shortest window first."""
    ordered = cells.sort("context", "decode_tok_s", descending=True)
    found: list[tuple[int, float]] = []
    for context, speed in ordered.select("context", "decode_tok_s").iter_rows():
        if not found or speed > found[-1][1]:
            found.append((context, speed))
    return found[::-1]


def _intervals(leading: pl.DataFrame, ground: Ground) -> alt.Chart:
    known = leading.drop_nulls(["decode_tok_s_low", "decode_tok_s_high"])
    known = known.unique(["context", "speed_cell"], maintain_order=True)
    rows = [
        {
            "x": ground.x(row["context"]),
            "low": row["decode_tok_s_low"],
            "high": row["decode_tok_s_high"],
            "colour": _colour(row),
        }
        for row in known.iter_rows(named=True)
    ]
    chart: alt.Chart = (
        alt.Chart(_frame(rows, "x", "low", "high", "colour"))
        .mark_rule(strokeWidth=1.5, aria=False)
        .encode(
            x=alt.X("x:Q"),
            y=alt.Y("low:Q"),
            y2=alt.Y2("high:Q"),
            color=alt.Color("colour:N", scale=None),
        )
    )
    return chart


def _points(leading: pl.DataFrame, ground: Ground, x: alt.X, y: alt.Y) -> alt.Chart:
    most = leading["room"].max()
    rows = [
        {
            "x": ground.x(row["context"]),
            "decode_tok_s": row["decode_tok_s"],
            "colour": _colour(row),
            "fill": theme.colour("page") if told.inferred(row) else _colour(row),
            "shape": "circle" if row["graphs"] else "square",
            "size": _size(row["room"], most if isinstance(most, float) else None),
            "width": 2.0,
            "description": told.described(row),
        }
        # Large ones first, so that they hide none.
        for row in leading.sort("room", descending=True, nulls_last=True).iter_rows(named=True)
    ]
    chart: alt.Chart = (
        alt.Chart(_frame(rows))
        .mark_point(opacity=1, strokeWidth=2, ariaRoleDescription="cell")
        .encode(
            x=x,
            y=y,
            shape=alt.Shape("shape:N", scale=None),
            size=alt.Size("size:Q", scale=None),
            fill=alt.Fill("fill:N", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
            description=alt.Description("description:N"),
        )
    )
    return chart


def _size(room: float | None, most: float | None) -> float:
    if room is None or not most:
        return _NO_SIZE
    least, widest = _SIZES
    return round(least + (widest - least) * max(room, 0.0) / most, 1)


def _signs(leading: pl.DataFrame, ground: Ground) -> Iterator[alt.Chart]:
    """`=` above cells that are as fast as the fastest."""
    rows = [
        {"x": ground.x(row["context"]), "decode_tok_s": row["decode_tok_s"]}
        for row in _tied(leading).iter_rows(named=True)
    ]
    if rows:
        chart: alt.Chart = (
            alt.Chart(_frame(rows))
            .mark_text(
                text="=",
                dy=-_TIE,
                baseline="middle",
                fontSize=13,
                fontWeight="bold",
                aria=False,
            )
            .encode(x=alt.X("x:Q"), y=alt.Y("decode_tok_s:Q"))
        )
        yield chart


def _tied(leading: pl.DataFrame) -> pl.DataFrame:
    return leading.filter(pl.col("against_fastest") == Verdict.NO_CLEAR_DIFFERENCE.value)


# Names of the choices


def _names(leading: pl.DataFrame, ground: Ground) -> Iterator[alt.Chart]:
    """What the choices are called, beside their marks and not over each other or other signs."""
    placed: list[tuple[float, float, float]] = []  # left, right and middle of each
    curve = list(places.parts(_best_by_share(leading)[-1][1], ground))
    for row in _tied(leading).iter_rows(named=True):
        x = ground.x(row["context"])
        placed.append((x - _LETTER, x + _LETTER, ground.y(row["decode_tok_s"]) - _TIE))
    chosen = leading.filter(pl.col("choices").is_not_null())
    for row in chosen.sort("decode_tok_s", "context", descending=True).iter_rows(named=True):
        text = listed(row["choices"])
        x, y = ground.x(row["context"]), ground.y(row["decode_tok_s"])
        width = len(text) * _LETTER
        to_left = x + 12 + width > WIDTH
        left = max(x - 12 - width, 0.0) if to_left else x + 12
        free = [
            at
            for at in places.around(y)
            if all(
                left >= other_right or left + width <= other_left or abs(at - other) >= LINE
                for other_left, other_right, other in placed
            )
        ]
        middle = next((at for at in free if not places.covers(curve, left, width, at)), free[0])
        placed.append((left, left + width, middle))
        end = {
            "x": left + width if to_left else left,
            "decode_tok_s": ground.fastest * (1 - middle / HEIGHT),
        }
        rows = [{**end, "text": text}]
        leader: alt.Chart = (
            alt.Chart(_frame([{"x": x, "decode_tok_s": row["decode_tok_s"]}, end]))
            .mark_line(strokeWidth=1, stroke=theme.colour("text"), aria=False)
            .encode(x=alt.X("x:Q"), y=alt.Y("decode_tok_s:Q"))
        )
        yield leader
        yield from _haloed(
            rows,
            align="right" if to_left else "left",
            baseline="middle",
            fontSize=11,
            fontWeight="bold",
        )


def _haloed(rows: Sequence[dict[str, Any]], **style: Any) -> Iterator[alt.Chart]:
    """Words that can be read where they stand over lines."""
    for halo in (True, False):
        ground = theme.colour("page") if halo else None
        chart: alt.Chart = (
            alt.Chart(_frame(rows))
            .mark_text(aria=False, stroke=ground, strokeWidth=3 if halo else 0, **style)
            .encode(x=alt.X("x:Q"), y=alt.Y("decode_tok_s:Q"), text=alt.Text("text:N"))
        )
        yield chart


def _colour(row: Mapping[str, Any]) -> str:
    return theme.series(0 if row["graphs"] else 1)


def _frame(rows: Sequence[dict[str, Any]], *names: str) -> pl.DataFrame:
    if rows:
        return pl.DataFrame(list(rows), infer_schema_length=None)
    return pl.DataFrame(schema=dict.fromkeys(names, pl.Float64))
