"""The launches of a sweep in order, with clocks and temperature, so that drift can be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.checks import Verdict
from vllm_frontier.outcome import FailureClass, Status
from vllm_frontier.report.plan.durations import about
from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.groups import setting
from vllm_frontier.report.plots.setting import speed_words
from vllm_frontier.report.wording import several, titled

_OTHERS, _REFERENCE = "series-1", "series-2"
_WITHOUT_SPEED = "works"
_TICK = "M-0.18,-1L0.18,-1L0.18,1L-0.18,1Z"  # an upright dash, as a path that can be filled
_ABOVE_FREE = FailureClass.UTILIZATION_ABOVE_FREE.value
# By what became of a launch: its status, but for one reason that tells nothing of what fits.
_SIGNS = {
    Status.MEASURED.value: (
        _TICK,
        _WITHOUT_SPEED,
        "works, speed not measured",
        "without a measured speed",
    ),
    Status.INFEASIBLE.value: ("triangle-down", "refused", "does not fit", "that did not fit"),
    _ABOVE_FREE: (
        "triangle-up",
        "refused",
        "asks for a share of the card that is not free",
        "that asked for a share of the card that was not free",
    ),
    Status.INVALID.value: ("square", "invalid", "refused by vLLM on any card", "refused by vLLM"),
    Status.FAILED.value: ("cross", "failed", "failed", "failed"),
    Status.INTERRUPTED.value: ("diamond", "unknown", "interrupted", "interrupted"),
}
_SHAPE_WORDS = {
    _TICK: "dash",
    "triangle-down": "triangle upside down",
    "triangle-up": "triangle",
    "square": "square",
    "cross": "cross",
    "diamond": "diamond",
}
_TRACKS = (
    ("sm_clock_mhz", "clock, MHz", 50.0),
    ("cpu_mhz", "CPU, MHz", 50.0),
    ("temperature_c", "°C", 4.0),
    ("foreign_cores", "others, cores", 1.0),
)
_ONLY_WITHOUT_CARD = ("cpu_mhz", "foreign_cores")
_LABELS = 44  # pixels for the figures of every axis, so that all tracks stand below each other
_WIDTH = theme.PANEL_WIDTH - _LABELS - 36
_SPEED_HEIGHT, _STRIP_HEIGHT, _TRACK_HEIGHT = 150, 22, 58
_SIGNED = "format(datum.value, abs(datum.value) < 1e-9 ? '.0f' : '+.0f') + ' %'"
_MANY = 120  # launches from which marks are smaller
_LEAST = 3.0  # percent; what is less than this is not blown up
_AT_MOST = 12  # launches of the reference cell in the table


def timeline(
    launches: pl.DataFrame, checks: pl.DataFrame, *, simulated: bool = False
) -> Figure | None:
    """Each launch's speed against launches like it, in order, and what the card did.

    Args:
        launches: of `analyze.launch_order`.
        checks: the table `checks`, whose verdict on drift is told.
        simulated: nothing was measured on a card.

    Returns:
        The picture `timeline`; None before anything was launched.
    """
    if launches.is_empty():
        return None
    launches = launches.with_columns(kind=_kind())
    words = [_words(row) for row in launches.iter_rows(named=True)]
    rows = launches.with_columns(
        off=100 * (pl.col("relative") - 1), words=pl.Series(words, dtype=pl.String)
    )
    return Figure(
        name="timeline",
        title=titled("Over time", simulated=simulated),
        question="Did speed drift while the sweep ran?",
        summary=f"{_drift(checks)} {_counts(launches)}",
        panels=(_panel(rows),),
        table=_table(launches),
        legend=tuple(_legend(launches)),
        notes=tuple(_notes(launches)),
    )


def _kind() -> pl.Expr:
    """What became of a launch, as `_SIGNS` have it."""
    above = (pl.col("failure_class") == _ABOVE_FREE).fill_null(value=False)
    return pl.when(above).then(pl.lit(_ABOVE_FREE)).otherwise("status")


def _panel(rows: pl.DataFrame) -> Panel:
    count = rows.height
    scale = alt.Scale(domain=[0.5, count + 0.5], nice=False, zero=False)
    tracks: list[alt.Chart | alt.LayerChart] = []
    if rows["off"].count():
        tracks.append(_speeds(rows))
    if rows["off"].null_count():
        tracks.append(_strip(rows))
    tracks += [_track(rows, name, unit, least) for name, unit, least in _known(rows)]
    last = len(tracks) - 1
    whole = [_with_axis(track, scale, named=place == last) for place, track in enumerate(tracks)]
    return alt.VConcatChart(vconcat=whole, spacing=6)


def _known(rows: pl.DataFrame) -> list[tuple[str, str, float]]:
    """The conditions that get a track: those of the card, where there is one, else the CPU's."""
    told = [each for each in _TRACKS if rows[each[0]].count()]
    of_card = [each for each in told if each[0] not in _ONLY_WITHOUT_CARD]
    return of_card or told


def _with_axis(
    track: alt.Chart | alt.LayerChart, scale: alt.Scale, *, named: bool
) -> alt.Chart | alt.LayerChart:
    """A track with the axis of launches below it, or with the bare lines of that axis."""
    axis = (
        alt.Axis(title="launch, in order", grid=False, tickMinStep=1, format="d")
        if named
        else alt.Axis(title=None, labels=False, ticks=False, grid=False)
    )
    found = track.encode(x=alt.X("launch:Q", scale=scale, axis=axis))
    return found.properties(width=_WIDTH)


def _speeds(rows: pl.DataFrame) -> alt.LayerChart:
    known = rows.drop_nulls("off")
    ends = [-_LEAST, _LEAST, *known["off"]]
    low, high = min(ends), max(ends)
    pad = 0.08 * (high - low)
    y = alt.Y(
        "off:Q",
        title="speed against like launches",
        scale=alt.Scale(domain=[low - pad, high + pad], nice=False),
        axis=_axis(labelExpr=_SIGNED, tickCount=5),
    )
    told = known.select("launch", "off", "words", "reference", "alike")
    zero = alt.Chart(pl.DataFrame({"off": [0.0]})).encode(y=y)
    own, others = told.filter("reference"), told.filter(~pl.col("reference"))
    size = 14 if rows.height > _MANY else 40
    layers = [zero.mark_rule(color=theme.colour("muted"), aria=False)]
    base = alt.Chart(others).encode(y=y)
    layers.append(
        base.mark_point(shape="circle", size=size, color=theme.colour(_OTHERS), filled=True).encode(
            description=alt.Description("words:N"),
            opacity=alt.condition("datum.alike > 1", alt.value(0.85), alt.value(0.35)),
        )
    )
    if not own.is_empty():
        base = alt.Chart(own).encode(y=y)
        colour = theme.colour(_REFERENCE)
        layers += [
            base.mark_line(color=colour, strokeWidth=2, aria=False),
            base.mark_point(
                shape="diamond",
                size=30 if rows.height > _MANY else 90,
                color=colour,
                filled=True,
                opacity=1,
            ).encode(description=alt.Description("words:N")),
        ]
    return alt.LayerChart(layer=layers).properties(height=_SPEED_HEIGHT)


def _strip(rows: pl.DataFrame) -> alt.Chart:
    """A sign for each launch without a speed."""
    without = rows.filter(pl.col("off").is_null()).select("launch", "kind", "words")
    without = without.with_columns(
        shape=pl.col("kind").replace_strict({name: sign[0] for name, sign in _SIGNS.items()}),
        colour=pl.col("kind").replace_strict(
            {name: theme.colour(sign[1]) for name, sign in _SIGNS.items()}
        ),
        row=pl.lit("no speed"),
    )
    size = 18 if rows.height > _MANY else 45
    signs = alt.Chart(without, height=_STRIP_HEIGHT).mark_point(size=size, filled=True, opacity=1)
    strip: alt.Chart = signs.encode(
        y=alt.Y("row:N", title=None, axis=_axis(domain=False, ticks=False)),
        shape=alt.Shape("shape:N", scale=None),
        color=alt.Color("colour:N", scale=None),
        description=alt.Description("words:N"),
    )
    return strip


def _track(rows: pl.DataFrame, name: str, unit: str, least: float) -> alt.LayerChart:
    """One of the conditions over the launches that were measured; `least` is shown in any case."""
    known = rows.drop_nulls(name).select("launch", name)
    low, high = min(known[name]), max(known[name])
    room = max(0.1 * (high - low), (least - (high - low)) / 2)
    low = max(0.0, low - room)
    y = alt.Y(
        f"{name}:Q",
        title=unit,
        scale=alt.Scale(domain=[low, high + room], nice=False, zero=False),
        axis=_axis(tickCount=3, format=",~r"),
    )
    base = alt.Chart(known).encode(y=y)
    colour = theme.colour("muted")
    return alt.LayerChart(
        layer=[
            base.mark_line(color=colour, strokeWidth=1.2, aria=False),
            base.mark_circle(
                color=colour, size=6 if rows.height > _MANY else 14, opacity=1, aria=False
            ),
        ]
    ).properties(height=_TRACK_HEIGHT)


def _axis(**more: Any) -> alt.Axis:
    return alt.Axis(minExtent=_LABELS, maxExtent=_LABELS, **more)


def _words(row: Mapping[str, Any]) -> str:
    """What is read aloud of a launch."""
    told = [f"launch {row['launch']}{_when(row)}: {setting(row)}, window {row['context']:,}"]
    if row["decode_tok_s"] is not None:
        told.append(f"{speed_words(row['decode_tok_s'])} tokens/s")
        if row["alike"] > 1:
            off = f"{100 * (row['relative'] - 1):+.1f} %"
            told.append(f"{off} against the median of {row['alike']} like it")
        else:
            told.append("the only one of its kind")
    else:
        words = _SIGNS[row["kind"]][2]
        told.append(words + (f": {row['failure_class']}" if row["failure_class"] else ""))
    if row["reference"]:
        told.append("reference cell")
    return "; ".join([*told, *_conditions(row)])


def _when(row: Mapping[str, Any]) -> str:
    if row["started_at"] is None:
        return ""
    return f", {row['started_at']:%Y-%m-%d %H:%M} UTC"


def _conditions(row: Mapping[str, Any]) -> Iterator[str]:
    if row["sm_clock_mhz"] is not None:
        yield f"clock {row['sm_clock_mhz']:,.0f} MHz"
    elif row["cpu_mhz"] is not None:
        yield f"CPU {row['cpu_mhz']:,.0f} MHz"
    if row["temperature_c"] is not None:
        yield f"{row['temperature_c']:.0f} °C"
    if row["throttled_share"]:
        yield f"clocks held down in {100 * row['throttled_share']:.0f} % of the samples"
    if row["foreign_cores"] is not None and row["foreign_cores"] >= 0.1:
        yield f"others kept {row['foreign_cores']:.1f} cores busy"


def _drift(checks: pl.DataFrame) -> str:
    """The verdict of the check `drift`."""
    found = checks.filter(check="drift")
    if found.is_empty():
        return "Nothing tells whether speed drifted."
    row = found.row(0, named=True)
    detail = row["detail"] or ""
    if row["verdict"] == Verdict.UNKNOWN:
        return f"Whether speed drifted is not known: {detail}."
    return f"{'No drift' if row['verdict'] == Verdict.PASS else 'Drift'}: {detail}."


def _counts(launches: pl.DataFrame) -> str:
    """How many launches there were, in which time, and what became of them."""
    told = [several(launches.height, "launch", "launches")]
    minutes = launches["minutes"].drop_nulls()
    if launches.height > 1 and len(minutes):
        told[0] += f" began within {about(60 * max(minutes))}"
    parts = []
    if with_speed := launches["decode_tok_s"].count():
        parts.append(f"{with_speed} with a speed")
    kinds = Counter(launches.filter(pl.col("decode_tok_s").is_null())["kind"])
    parts += [f"{kinds[name]} {sign[3]}" for name, sign in _SIGNS.items() if kinds[name]]
    return f"{told[0]}: {', '.join(parts)}."


def _table(launches: pl.DataFrame) -> pl.DataFrame | None:
    """The launches of the reference cell, the last ones where there are many."""
    own = launches.filter(pl.col("reference") & pl.col("decode_tok_s").is_not_null())
    if own.height < 2:
        return None
    first = own["decode_tok_s"].item(0)
    rows = [
        {
            "launch of the reference cell": row["launch"],
            "began, UTC": f"{row['started_at']:%Y-%m-%d %H:%M}" if row["started_at"] else "–",
            "tokens/s": speed_words(row["decode_tok_s"]),
            "against the first": f"{100 * (row['decode_tok_s'] / first - 1):+.1f} %",
            "conditions": ", ".join(_conditions(row)) or "–",
        }
        for row in own.tail(_AT_MOST).iter_rows(named=True)
    ]
    return pl.DataFrame(rows)


def _legend(launches: pl.DataFrame) -> Iterator[tuple[str, str]]:
    with_speed = launches.drop_nulls("decode_tok_s")
    if with_speed["reference"].any():
        yield _REFERENCE, "diamond, joined by a line: the reference cell"
    if not with_speed["reference"].all():
        yield _OTHERS, "circle: other cells; pale: nothing like it was launched"
    kinds = launches.filter(pl.col("decode_tok_s").is_null())["kind"].to_list()
    for name, (shape, colour, words, _) in _SIGNS.items():
        if name in kinds:
            yield colour, f"{_SHAPE_WORDS[shape]}: {words}"


def _notes(launches: pl.DataFrame) -> Iterator[str]:
    yield (
        "Launches stand in the order in which they began, equally far apart, so that a pause "
        "leaves no gap; each mark says when it was."
    )
    if launches["relative"].count():
        yield (
            "Speed is that of the launch over the median of all with the same depth, graphs and "
            "further axes."
        )
    for change, first in _changes(launches):
        yield (
            f"From launch {first} on: {change}. Launches before and after that are not held "
            "against each other."
        )
    if _table(launches) is not None:
        yield (
            "The verdict on drift compares prompt by prompt, line and table compare medians. By "
            "few runs the two may differ, and even point to opposite sides."
        )
    if _known(launches):
        yield "Below: medians while it decoded, from the telemetry of each launch."
    elif launches["decode_tok_s"].count():
        yield "No telemetry tells of clocks or temperature."


def _changes(launches: pl.DataFrame) -> Iterator[tuple[str, int]]:
    """Where the sweep went on with something else: what changed, and the first such launch."""
    changed = launches.filter(pl.col("changed") != "")
    firsts = changed.group_by("changed").agg(pl.col("launch").min()).sort("launch")
    yield from firsts.select("changed", "launch").iter_rows()
