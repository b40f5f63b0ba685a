"""Where the memory goes: the parts of the chosen cells, and why the next window does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.memory_split import BEYOND, Part, Source
from vllm_frontier.grid import shortest
from vllm_frontier.report.plots import memory_words as told
from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.memory_bars import Bar, bars
from vllm_frontier.report.wording import titled

_LINE, _BAR, _SPACE = 14, 22, 12  # pixels: of a line of words, a bar, and between bars
_AROUND = 62  # pixels above and below the bars
_LETTERS = 52  # of a line of words above a bar
_BESIDE = 4  # pixels of a part on either side of its name, together
_LETTER = 6.3  # pixels of one letter in a bar
_WIDTH = 300  # pixels of the longest bar, about
_FONT = 10
_SMALL_GIB = 8.0  # of a card whose parts are told to two decimals

_OPEN = (Part.LEFT, Part.NOT_KNOWN, *BEYOND)


def memory(
    split: pl.DataFrame, chosen: pl.DataFrame, boundaries: pl.DataFrame, *, simulated: bool
) -> Figure | None:
    """The parts of each chosen cell and of the next window, which is refused.

    Where none of them is refused for a longer window, that which is refused and misses least is
    there as well.

    Args:
        split: of `memory_split`.
        chosen: of `choices`; where there are none, the longest window that works is shown.
        boundaries: the table `boundaries`.
        simulated: whether the card is a described one.

    Returns:
        None where nothing is known of any such cell's memory.
    """
    found = bars(split, chosen, boundaries)
    if all(set(bar.parts["part"]) == {Part.NOT_KNOWN.value} for bar in found):
        return None
    whole = _panel("The whole card", found, tuple(Part), lines=True)
    room = (Part.STATE, Part.CACHE, Part.LEFT, Part.MISSING)
    panels = [whole]
    if any(set(bar.parts["part"]) & set(room) for bar in found):
        panels.append(_panel("Only what is left for the KV cache", found, room, lines=False))
    return Figure(
        name="memory",
        title=titled("Where the memory goes", simulated=simulated),
        question="What takes the card's memory, and what would the next window need?",
        summary=" ".join(told.summary(bar) for bar in found),
        panels=tuple(panels),
        table=told.table(found),
        legend=told.legend(found),
        notes=tuple(told.notes(found)),
    )


# Panels


def _panel(title: str, shown: Sequence[Bar], parts: Sequence[Part], *, lines: bool) -> Panel:
    segments, texts, shares = [], [], []
    down = 0.0
    wanted = [each.value for each in parts]
    rows = [bar.parts.filter(pl.col("part").is_in(wanted), pl.col("gib") > 0) for bar in shown]
    end = max((float(each["gib"].sum()) for each in rows), default=0.0)
    if lines:
        end = max(end, *(bar.row["card_gib"] for bar in shown))
    for bar, its in zip(shown, rows, strict=True):
        for line in bar.lines:
            text = line if len(line) <= _LETTERS else f"{line[: _LETTERS - 1]}…"
            texts.append({"x": 0.0, "y": down + _LINE / 2, "text": text})
            down += _LINE
        segments += list(_segments(bar, its, down, _WIDTH / end if end else 0.0))
        shares.append(_line(bar, down, lines=lines))
        down += _BAR + _SPACE
    size = f"{shown[0].row['card_gib']:.2f}"
    share = f"GiB; thick: the share, dashed: the card, {size}"
    ground = share if lines else "GiB; thick: what is left"
    layers = [
        _rectangles(segments, end, down, ground),
        _letters(segments),
        _texts(texts),
        _marks([each for each in shares if each]),
    ]
    if lines:
        layers.append(_card(shown[0].row["card_gib"], down))
    return alt.LayerChart(
        layer=layers,
        width=theme.PANEL_WIDTH,
        height=round(down) + _AROUND,
        title=title,
        view=alt.ViewConfig(stroke=None),
    )


def _segments(bar: Bar, parts: pl.DataFrame, top: float, pixels: float) -> Iterator[dict[str, Any]]:
    x = 0.0
    digits = 1 if bar.row["card_gib"] > _SMALL_GIB else 2
    for row in parts.iter_rows(named=True):
        part, size = Part(row["part"]), row["gib"]
        is_open = part in _OPEN
        colour = theme.colour(told.COLOURS[part])
        yield {
            "x": x,
            "x2": x + size,
            "middle": x + size / 2,
            "y": top,
            "y2": top + _BAR,
            "colour": colour,
            "filled": not is_open,
            "ink": colour if is_open else theme.colour("page"),
            "label": _label(part, size, size * pixels, digits),
            "description": (
                f"{bar.lines[0]}: {told.meaning(part, bar)}, {size:.2f} GiB "
                f"({told.SOURCES[Source(row['source'])]})"
            ),
        }
        x += size


def _label(part: Part, size: float, width: float, digits: int) -> str:
    for text in (f"{part.value} {size:.{digits}f}", part.value, told.SHORT[part]):
        if len(text) * _LETTER + _BESIDE <= width:
            return text
    return ""


def _rectangles(
    segments: Sequence[dict[str, Any]], end: float, down: float, title: str
) -> alt.Chart:
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[0, end * 1.02 or 1.0], nice=False),
        axis=alt.Axis(title=title, grid=False, tickCount=6, domain=False),
    )
    y = alt.Y("y:Q", scale=alt.Scale(domain=[down, 0], nice=False), axis=None)
    data = pl.DataFrame(list(segments), infer_schema_length=None)
    chart: alt.Chart = (
        alt.Chart(data.drop("middle", "label", "ink"))
        .mark_rect(strokeWidth=1, ariaRoleDescription="part")
        .encode(
            x=x,
            x2=alt.X2("x2:Q"),
            y=y,
            y2=alt.Y2("y2:Q"),
            fill=alt.Fill("colour:N", scale=None),
            fillOpacity=alt.condition("datum.filled", alt.value(1), alt.value(0.12)),
            stroke=alt.condition(
                "datum.filled",
                alt.value(theme.colour("page")),
                alt.Stroke("colour:N", scale=None),
            ),
            description=alt.Description("description:N"),
        )
    )
    return chart


def _letters(segments: Sequence[dict[str, Any]]) -> alt.Chart:
    labelled = [
        {"x": each["middle"], "y": each["y"] + _BAR / 2, "text": each["label"], "ink": each["ink"]}
        for each in segments
        if each["label"]
    ]
    chart: alt.Chart = (
        alt.Chart(_rows(labelled, "x", "y", "text", "ink"))
        .mark_text(fontSize=_FONT, aria=False)
        .encode(
            x=alt.X("x:Q"),
            y=alt.Y("y:Q"),
            text=alt.Text("text:N"),
            color=alt.Color("ink:N", scale=None),
        )
    )
    return chart


def _texts(texts: Sequence[dict[str, Any]]) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(_rows(texts, "x", "y", "text"))
        .mark_text(fontSize=11, align="left", aria=False)
        .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), text=alt.Text("text:N"))
    )
    return chart


def _line(bar: Bar, top: float, *, lines: bool) -> dict[str, Any] | None:
    """The end of what vLLM may take, across a bar."""
    row = bar.row
    if lines:
        share = f"utilization {shortest(row['utilization'])}"
        at, what = row["budget_gib"], f"{share}: {row['budget_gib']:.2f} GiB of the card"
    elif row["available_gib"] is not None and row["available_gib"] > 0:
        at = row["available_gib"]
        what = f"left for the KV cache: {at:.2f} GiB"
    else:
        return None
    described = f"{bar.lines[0]}: {what}"
    return {"x": at, "y": top - 3, "y2": top + _BAR + 3, "description": described}


def _marks(shares: Sequence[dict[str, Any]]) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(_rows(shares, "x", "y", "y2", "description"))
        .mark_rule(strokeWidth=2.5, color=theme.colour("text"), ariaRoleDescription="line")
        .encode(
            x=alt.X("x:Q"),
            y=alt.Y("y:Q"),
            y2=alt.Y2("y2:Q"),
            description=alt.Description("description:N"),
        )
    )
    return chart


def _card(size: float, down: float) -> alt.Chart:
    described = f"the whole card: {size:.2f} GiB"
    chart: alt.Chart = (
        alt.Chart(_rows([{"x": size, "y": 0.0, "y2": down, "description": described}]))
        .mark_rule(
            strokeWidth=1.5,
            strokeDash=[4, 3],
            color=theme.colour("muted"),
            ariaRoleDescription="line",
        )
        .encode(
            x=alt.X("x:Q"),
            y=alt.Y("y:Q"),
            y2=alt.Y2("y2:Q"),
            description=alt.Description("description:N"),
        )
    )
    return chart


def _rows(rows: Sequence[dict[str, Any]], *names: str) -> pl.DataFrame:
    if rows:
        return pl.DataFrame(list(rows), infer_schema_length=None)
    return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
