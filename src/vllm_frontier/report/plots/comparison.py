"""Sweeps side by side: how far windows reach, how fast cells decode, where the memory goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.comparison.memory import FOR_CACHE
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.analyze.memory_split import Part
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.grid import shortest
from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.words import tokens
from vllm_frontier.report.wording import on_off, titled

Row = Mapping[str, Any]

_STEP = 22  # pixels of a row
_BESIDE = 60  # pixels above and below the rows
_PANELS = 24
_BESIDE_MARK = 0.04  # of the longest window, so that no mark stands on an axis
_LEAST_GIB = 0.005  # what is less cannot be seen
_PAD = 0.01  # of ratios, beside the outermost
_SIZE, _RING = 30, 110  # square pixels of the innermost mark, and more for each ring around it
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_SIGNS = ("○", "□", "△", "◇", "✚", "▽")
_SOLID = ("●", "■", "▲", "◆", "✚", "▼")
_VERDICTS = {
    Verdict.FASTER.value: "works",
    Verdict.SLOWER.value: "refused",
    Verdict.NO_CLEAR_DIFFERENCE.value: "unknown",
}
_PARTS = {
    Part.WEIGHTS.value: "series-1",
    Part.WEIGHTS_AND_HEAD.value: "series-1",
    Part.HEAD.value: "series-4",
    Part.ACTIVATION.value: "series-2",
    Part.GRAPHS.value: "series-7",
    Part.RESERVED.value: "series-1",
    Part.OTHER.value: "series-8",
    Part.NOT_KNOWN.value: "unknown",
    FOR_CACHE: "series-3",
    Part.OUTSIDE.value: "series-6",
}


def windows(rows: Sequence[Row], names: Sequence[str], summary: str, *, simulated: bool) -> Figure:
    """The longest window that works of every sweep, for every combination of the other axes.

    Args:
        rows: `windows` of the document of `compare`, at least one.
        names: of the sweeps, the base first.
        summary: the answer in words.
        simulated: whether all of them are.
    """
    ends = list(_ends(rows, names))
    groups = _grouped(ends, ("graphs", "utilization"))
    most = max((each["context"] for each in ends), default=1)
    panels = [
        _dumbbells(heading, group, names, most) for heading, group in list(groups.items())[:_PANELS]
    ]
    notes = ["A mark stands at the longest window that works; at 0 where none does."]
    if len(groups) > _PANELS:
        notes.append(f"{len(groups) - _PANELS} more panels are left out; the table has them.")
    return Figure(
        name="windows",
        title=titled("How far the window reaches", simulated=simulated),
        question="Which window works in each sweep, with all other settings alike?",
        summary=summary,
        panels=tuple(panels),
        legend=tuple(
            (
                f"series-{place % 8 + 1}",
                f"{(_SOLID if name == names[-1] else _SIGNS)[place % len(_SIGNS)]} {name}",
            )
            for place, name in enumerate(names)
        ),
        notes=tuple(notes),
    )


def _ends(rows: Sequence[Row], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each sweep and combination that it has."""
    seen = set()
    for row in rows:
        for name, side in ((names[0], row["base"]), (row["against"], row["other"])):
            key = (name, *_settings(row))
            if side is None or key in seen:
                continue
            seen.add(key)
            if side["max_context_works"] is None and side["min_context_fails"] is None:
                continue
            longest, refused = side["max_context_works"], side["min_context_fails"]
            told = "no window works" if longest is None else f"works up to {tokens(longest)}"
            told += "" if refused is None else f", refused from {tokens(refused)}"
            place = f"depth {row['depth']}, {_heading(row, ('graphs', 'utilization'))}"
            yield {
                **row,
                "sweep": name,
                "context": longest or 0,
                "description": f"{name}: {place}: {told} ({side['known']})",
            }


def _dumbbells(heading: str, ends: Sequence[Row], names: Sequence[str], most: int) -> Panel:
    depths = sorted({each["depth"] for each in ends})
    frame = pl.DataFrame(
        [
            {
                "depth": str(each["depth"]),
                "context": each["context"],
                "sweep": each["sweep"],
                "description": each["description"],
            }
            for each in ends
        ]
    )
    spans = frame.group_by("depth").agg(low=pl.col("context").min(), high=pl.col("context").max())
    y = alt.Y("depth:N", title="depth", sort=[str(depth) for depth in depths])
    scale = alt.Scale(domain=[-_BESIDE_MARK * most, (1 + _BESIDE_MARK) * most], nice=False)
    axis = alt.Axis(title="longest window, tokens", format="~s", tickCount=5)
    x = alt.X("context:Q", scale=scale, axis=axis)
    lines = (
        alt.Chart(spans)
        .mark_rule(stroke=theme.colour("muted"), strokeWidth=2, aria=False)
        .encode(x=alt.X("low:Q", scale=scale, axis=axis), x2=alt.X2("high:Q"), y=y)
    )
    # Rings around what comes later, so that equal windows of all sweeps are seen.
    marks = [
        alt.Chart(frame.filter(pl.col("sweep") == name))
        .mark_point(
            shape=_SHAPES[place % len(_SHAPES)],
            size=_SIZE if place == len(names) - 1 else _RING * (len(names) - 1 - place) + _SIZE,
            stroke=theme.series(place),
            fill=theme.series(place) if place == len(names) - 1 else theme.colour("page"),
            fillOpacity=1,
            strokeWidth=2,
            opacity=1,
            ariaRoleDescription="window",
        )
        .encode(x=x, y=y, description=alt.Description("description:N"))
        for place, name in enumerate(names)
    ]
    return _laid([lines, *marks], heading, len(depths))


def ratios(speeds: Row, base: str, summary: str, *, simulated: bool) -> Figure | None:
    """How fast one sweep decodes over the base, cell by cell, with intervals.

    Args:
        speeds: one of `speeds` of the document of `compare`.
        base: name of the base.
        summary: the answer in words.
        simulated: whether all sweeps are.

    Returns:
        None where nothing can be compared.
    """
    rows = speeds["rows"]
    if not rows:
        return None
    name = speeds["against"]
    ends = [row[end] or row["ratio"] for row in rows for end in ("ratio_low", "ratio_high")]
    domain = (min(0.98, *ends) * (1 - _PAD), max(1.02, *ends) * (1 + _PAD))
    groups = _grouped(rows, ("graphs",))
    panels = [_ratio_panel(heading, group, base, name, domain) for heading, group in groups.items()]
    return Figure(
        name=f"speed-{_slug(name)}",
        title=titled(f'Decode speed: "{name}" against "{base}"', simulated=simulated),
        question=f'Where is "{name}" faster than "{base}", and how sure is that?',
        summary=summary,
        panels=tuple(panels),
        legend=(
            ("works", f"{name} is faster"),
            ("refused", f"{base} is faster"),
            ("unknown", "no clear difference"),
        ),
        notes=(
            "Filled: measured in the same cell. Open: in cells with another window or share.",
            *speeds["notes"],
        ),
    )


def _ratio_panel(
    heading: str, rows: Sequence[Row], base: str, name: str, domain: tuple[float, float]
) -> Panel:
    data = [
        {
            "row": f"{place}",
            "label": f"{row['depth']}",
            "ratio": row["ratio"],
            "low": row["ratio_low"] or row["ratio"],
            "high": row["ratio_high"] or row["ratio"],
            "colour": theme.colour(_VERDICTS[row["verdict"]]),
            "same": row["same_cell"],
            "description": _ratio_words(row, base, name),
        }
        for place, row in enumerate(rows)
    ]
    frame = pl.DataFrame(data)
    names = "{" + ",".join(f"'{each['row']}':'{each['label']}'" for each in data) + "}"
    y = alt.Y(
        "row:N",
        title="depth",
        sort=[str(each["row"]) for each in data],
        axis=alt.Axis(labelExpr=f"({names})[datum.value]"),
    )
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    axis = alt.Axis(
        title=f"◂ {base} faster  |  {name} faster ▸", format=".2~f", tickCount=5, labelOverlap=True
    )
    bars = (
        alt.Chart(frame)
        .mark_rule(strokeWidth=2, aria=False)
        .encode(
            x=alt.X("low:Q", scale=scale, axis=axis),
            x2=alt.X2("high:Q"),
            y=y,
            stroke=alt.Stroke("colour:N", scale=None),
        )
    )
    one = (
        alt.Chart(pl.DataFrame({"one": [1.0]}))
        .mark_rule(stroke=theme.colour("text"), strokeDash=[4, 3], aria=False)
        .encode(x=alt.X("one:Q", scale=scale, axis=axis))
    )
    marks = (
        alt.Chart(frame)
        .mark_point(size=64, strokeWidth=2, opacity=1, ariaRoleDescription="cell")
        .encode(
            x=alt.X("ratio:Q", scale=scale, axis=axis),
            y=y,
            stroke=alt.Stroke("colour:N", scale=None),
            fill=alt.condition(
                "datum.same",
                alt.Fill("colour:N", scale=None, legend=None),
                alt.value(theme.colour("page")),
            ),
            description=alt.Description("description:N"),
        )
    )
    return _laid([one, bars, marks], heading, len(data))


def _ratio_words(row: Row, base: str, name: str) -> str:
    own, others = row["base"], row["other"]
    place = f"depth {row['depth']}, {_heading(row, ('graphs',))}"
    window = _measured(own)
    if not row["same_cell"]:
        window += f" in {base}, {_measured(others)} in {name}"
    interval = ""
    if row["ratio_low"] is not None:
        within = ", within launches" if row["basis"] == RUNS else ""
        interval = f" (95 %: {row['ratio_low']:.3f} to {row['ratio_high']:.3f}{within})"
    return (
        f"{place}, measured at {window}: {base} {own['decode_tok_s']:.1f}, "
        f"{name} {others['decode_tok_s']:.1f} tokens/s; ratio {row['ratio']:.3f}{interval}: "
        f"{row['verdict']}"
    )


def _measured(side: Row) -> str:
    return f"{tokens(side['context'])} tokens and utilization {shortest(side['utilization'])}"


def memory(
    rows: Sequence[Row], base: str, name: str, summary: str, *, simulated: bool
) -> Figure | None:
    """Where the memory goes in both sweeps, a pair of bars for each depth.

    Args:
        rows: of `memory` of the document of `compare`, one of each depth and graphs.
        base: name of the base.
        name: of the other sweep.
        summary: the answer in words.
        simulated: whether both are.

    Returns:
        None where nothing is known of both.
    """
    if not rows:
        return None
    most = max(sum(max(p[s] or 0.0, 0.0) for p in r["parts"]) for r in rows for s in _SIDES)
    groups = _grouped(rows, ("graphs",))
    panels = [_bars(heading, group, base, name, most) for heading, group in groups.items()]
    told = {
        part["part"]
        for row in rows
        for part in row["parts"]
        if max(part[side] or 0.0 for side in _SIDES) >= _LEAST_GIB
    }
    return Figure(
        name=f"memory-{_slug(name)}",
        title=titled(f'Memory: "{name}" against "{base}"', simulated=simulated),
        question="What takes the memory in each, and what is left for the KV cache?",
        summary=summary,
        panels=tuple(panels),
        legend=tuple((colour, part) for part, colour in _PARTS.items() if part in told),
        notes=(f'Of each pair of bars the upper is "{base}", the lower "{name}".',),
    )


_SIDES = ("base", "other")


def _bars(heading: str, rows: Sequence[Row], base: str, name: str, most: float) -> Panel:
    data = []
    for row in rows:
        for place, (side, sweep) in enumerate(zip(_SIDES, (base, name), strict=True)):
            end = 0.0
            for part in row["parts"]:
                gib = part[side]
                if gib is None or gib <= 0:
                    continue
                share = shortest(row["utilization"])
                data.append(
                    {
                        "row": f"{row['depth']}",
                        "side": str(place),
                        "start": end,
                        "end": end + gib,
                        "colour": theme.colour(_PARTS[part["part"]]),
                        "description": (
                            f"{sweep}: depth {row['depth']}, graphs {on_off(row['graphs'])}, "
                            f"utilization {share}: {part['part']} {gib:.2f} GiB "
                            f"({part[f'{side}_source']})"
                        ),
                    }
                )
                end += gib
    frame = pl.DataFrame(data)
    order = list(dict.fromkeys(each["row"] for each in data))
    chart = (
        alt.Chart(frame)
        .mark_bar(stroke=theme.colour("page"), strokeWidth=1, ariaRoleDescription="part")
        .encode(
            x=alt.X(
                "start:Q",
                scale=alt.Scale(domain=[0, most], nice=False),
                axis=alt.Axis(title="GiB", tickCount=6),
            ),
            x2=alt.X2("end:Q"),
            y=alt.Y("row:N", title="depth", sort=order, scale=alt.Scale(paddingInner=0.3)),
            yOffset=alt.YOffset("side:N", sort=["0", "1"], scale=alt.Scale(paddingInner=0.1)),
            fill=alt.Fill("colour:N", scale=None),
            description=alt.Description("description:N"),
        )
    )
    return _laid([chart], heading, len(order), step=30)


# What all share


def _grouped(rows: Sequence[Row], axes: Sequence[str]) -> dict[str, list[Row]]:
    """Rows by what stands above their panel."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_heading(row, axes), []).append(row)
    return found


def _heading(row: Row, axes: Sequence[str]) -> str:
    told = [f"graphs {on_off(row['graphs'])}"]
    if "utilization" in axes:
        told.append(f"utilization {shortest(row['utilization'])}")
    return ", ".join([*told, *(f"{name} {row[name]}" for name in row["extra_axes"])])


def _settings(row: Row) -> tuple[Any, ...]:
    further = tuple((name, row[name]) for name in row["extra_axes"])
    return row["depth"], row["graphs"], row["utilization"], further


def _laid(layers: Sequence[Any], heading: str, rows: int, *, step: int = _STEP) -> Panel:
    return alt.LayerChart(
        layer=list(layers),
        width=theme.PANEL_WIDTH,
        height=_BESIDE + step * rows,
        title=heading,
    )


def _slug(name: str) -> str:
    """A name for a file and a fragment of a page."""
    return "-".join(
        "".join(letter if letter.isalnum() and letter.isascii() else " " for letter in name).split()
    ).lower()
