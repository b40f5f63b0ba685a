"""How fast each depth is, for each task, with and without graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.intervals import LAUNCHES, RUNS
from vllm_frontier.analyze.speed_groups import IDENTITY, leading
from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.groups import (
    identity,
    identity_lines,
    over,
    overall,
    setting,
    some,
    star,
)
from vllm_frontier.report.plots.setting import (
    GRAPHS,
    doubts,
    drafted,
    factor,
    graphs,
    heading,
    interval_words,
    panel_title,
    speed_words,
    task_name,
)
from vllm_frontier.report.wording import listed, on_off, titled

MOST_PANELS = 12
_DODGE = 0.012  # of the width, so that intervals with and without graphs do not lie on each other
_HEADROOM = 1.08
_DEPTHS = "tokens drafted per step (0: no speculation)"
_DOUBT = "!"
_MOST_EQUALS = 3  # settings as fast as the fastest that the summary names
_PANEL = (*IDENTITY, "task")


def speed(groups: pl.DataFrame, *, simulated: bool = False) -> Figure | None:
    """Speed by depth, a panel for each task.

    Args:
        groups: of `analyze.speed_groups`.
        simulated: nothing was measured on a card.

    Returns:
        The picture `speed`; None where no speed is known.
    """
    if groups.is_empty():
        return None
    chosen = _chosen(groups)
    places = _placed(chosen)
    top = _top(places)
    parts = places.partition_by(_PANEL, maintain_order=True)
    return Figure(
        name="speed",
        title=titled("How fast", simulated=simulated),
        question="How fast is each depth on each task, with and without graphs?",
        summary=_summary(groups),
        panels=tuple(_panel(part, top) for part in parts),
        table=_table(groups),
        legend=_legend(groups),
        notes=_notes(groups),
    )


def _chosen(groups: pl.DataFrame) -> pl.DataFrame:
    """What gets a panel: every task, and all together where there are several.

    Where further axes would make too many panels, only all tasks together.
    """
    several = groups["task"].n_unique() > 2
    found = groups if several else groups.filter(pl.col("task").is_not_null())
    if found.select(_PANEL).n_unique() > MOST_PANELS:
        found = groups.filter(pl.col("task").is_null())
    return found.sort(*_PANEL, "graphs", "depth", nulls_last=False)


def _placed(chosen: pl.DataFrame) -> pl.DataFrame:
    """Adds where each mark stands (`x`), its words, and the baseline of its panel."""
    span = max(1, *chosen["depth"])
    both = chosen["graphs"].n_unique() > 1
    shift = _DODGE * span if both else 0.0
    plain = chosen.filter(~pl.col("graphs"), depth=0).select(*_PANEL, base="decode_tok_s")
    own = chosen.join(plain, on=list(_PANEL), how="left", nulls_equal=True)
    own = own.with_columns(
        x=pl.col("depth") + pl.when("graphs").then(shift).otherwise(-shift),
        between=pl.col("basis") == LAUNCHES,
    )
    words = [_words(row) for row in own.iter_rows(named=True)]
    doubt = [_DOUBT if doubts(row) else "" for row in own.iter_rows(named=True)]
    return own.with_columns(pl.Series("words", words), pl.Series("doubt", doubt, dtype=pl.String))


def _words(row: Mapping[str, Any]) -> str:
    """What is read aloud of a mark."""
    over = " over launches" if row["basis"] == LAUNCHES else " within launches only"
    over = "" if row["low"] is None else over
    launches = f"{row['launches']} {'launch' if row['launches'] == 1 else 'launches'}"
    told = [
        f"{task_name(row['task'])}, {setting(row)}: {speed_words(row['decode_tok_s'])} tokens/s",
        f"95 % interval {interval_words(row['low'], row['high'])}{over}, {launches}",
    ]
    if row["base"] is not None and (row["depth"] > 0 or row["graphs"]):
        ratio = row["decode_tok_s"] / row["base"]
        told.append(f"{factor(ratio)} of no speculation without graphs")
    return "; ".join([*told, *doubts(row)])


def _top(places: pl.DataFrame) -> float:
    """The upper end of the axis, the same in every panel; a very wide interval is cut."""
    fast = max(places["decode_tok_s"])
    high = max([fast, *places["high"].drop_nulls()])
    return float(min(high, 1.6 * fast) * _HEADROOM)


def _panel(part: pl.DataFrame, top: float) -> Panel:
    depths = sorted(part["depth"].unique())
    first, last = min(depths[0], 0), max(depths[-1], 1)
    pad = 0.06 * (last - first)
    x = alt.X(
        "x:Q",
        title=_DEPTHS,
        axis=alt.Axis(values=depths, format="d", grid=False, labelOverlap=len(depths) > 10),
        scale=alt.Scale(domain=[first - pad, last + pad], nice=False, zero=False),
    )
    y_scale = alt.Scale(domain=[0, top], nice=False, zero=True)
    y, low = (
        alt.Y(f"{name}:Q", title="tokens/s", scale=y_scale) for name in ("decode_tok_s", "low")
    )
    layers: list[alt.Chart] = []
    layers += _baseline(part, y_scale)
    for on in (False, True):
        rows = part.filter(pl.col("graphs") == on)
        if not rows.is_empty():
            layers += _series(rows, on, x, y, low)
    row = part.row(0, named=True)
    chart = alt.LayerChart(layer=layers)
    return chart.properties(
        title=panel_title(heading(row["task"]), *identity_lines(row)),
        width=theme.PANEL_WIDTH,
        height=theme.PANEL_HEIGHT,
    )


def _baseline(part: pl.DataFrame, scale: alt.Scale) -> list[alt.Chart]:
    """A line across the panel at the speed without speculation and graphs."""
    known = part.filter(pl.col("base").is_not_null()).head(1)
    if known.is_empty():
        return []
    rule = alt.Chart(known.select("base")).mark_rule(
        color=theme.colour("muted"), strokeDash=[2, 3], aria=False
    )
    return [rule.encode(y=alt.Y("base:Q", scale=scale))]


def _series(rows: pl.DataFrame, on: bool, x: alt.X, y: alt.Y, low: alt.Y) -> list[alt.Chart]:
    """Line, intervals and points of the cells with or without graphs."""
    colour = theme.colour(GRAPHS[on])
    base = alt.Chart(
        rows.select("x", "depth", "decode_tok_s", "low", "high", "between", "words", "doubt")
    ).encode(x=x)
    line = base.mark_line(
        color=colour, strokeDash=[1, 0] if on else [5, 3], strokeWidth=1.5, aria=False
    ).encode(y=y)
    opacity = alt.condition("datum.between", alt.value(0.9), alt.value(0.4))
    bars = base.mark_rule(color=colour, strokeWidth=3, clip=True, aria=False).encode(
        y=low, y2=alt.Y2("high:Q"), opacity=opacity
    )
    points = base.mark_point(
        shape="circle",
        size=55,
        filled=False,
        fill=colour if on else theme.colour("page"),
        stroke=colour,
        strokeWidth=1.8,
        opacity=1,
    ).encode(y=y, description=alt.Description("words:N"))
    signs = base.mark_text(
        color=theme.colour("refused"), fontWeight="bold", fontSize=14, dy=-12, aria=False
    ).encode(y=y, text=alt.Text("doubt:N"))
    return [line, bars, points, signs]


def _legend(groups: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    told = {
        True: "with graphs: filled, solid line",
        False: "without graphs: open, dashed line",
    }
    found = [(GRAPHS[on], told[on]) for on in (True, False) if on in groups["graphs"].to_list()]
    if not groups.filter(~pl.col("graphs"), depth=0).is_empty():
        found.append(("muted", "dotted line: no speculation, without graphs (the baseline)"))
    if any(doubts(row) for row in groups.iter_rows(named=True)):
        found.append(("refused", "!: its output is broken, or speculation does not work"))
    return tuple(found)


def _summary(groups: pl.DataFrame) -> str:
    leaders = leading(groups)
    best = leaders.row(0, named=True)
    within = ", within launches" if best["basis"] == RUNS and best["low"] is not None else ""
    told = (
        f"Fastest {over(overall(groups))}: {setting(best)}, {speed_words(best['decode_tok_s'])} "
        f"tokens/s (95 % interval {interval_words(best['low'], best['high'])}{within})"
    )
    like = groups.filter(**{name: best[name] for name in IDENTITY})
    same = like.filter(pl.col("task").is_null(), depth=0)
    for on in (False, True):
        base = same.filter(pl.col("graphs") == on)
        if not base.is_empty() and (best["depth"] > 0 or best["graphs"] != on):
            speed_ = float(base["decode_tok_s"].item(0))
            told += f", {factor(best['decode_tok_s'] / speed_)} of the {speed_words(speed_)} of "
            told += f"{drafted(0)} {graphs(on)}"
            break
    told += f".{_equals(leaders)}"
    by_task = like.filter(
        pl.col("task").is_not_null(), graphs=best["graphs"], depth=best["depth"]
    ).sort("decode_tok_s", descending=True)
    if by_task.height > 1:
        each = (f"{row['task']} {speed_words(row['decode_tok_s'])}" for row in by_task.to_dicts())
        told += f" By task: {', '.join(each)}."
    wrong = doubts(best)
    return f"{told} But {' and '.join(wrong)}." if wrong else told


def _equals(leaders: pl.DataFrame) -> str:
    """Those from which the fastest does not differ, as a sentence; empty where there is none."""
    rows = leaders.slice(1)
    if rows.is_empty():
        return ""
    each = [
        f"{setting(row)} ({speed_words(row['decode_tok_s'])})" for row in rows.iter_rows(named=True)
    ]
    return f" No clear difference to {listed(some(each, _MOST_EQUALS))}."


def _table(groups: pl.DataFrame) -> pl.DataFrame:
    """A row for each setting: speed of every task, interval over all."""
    name = overall(groups)
    tasks = groups["task"].drop_nulls().unique().sort().to_list()
    tasks = tasks if len(tasks) > 1 else []
    rows = []
    for part in groups.partition_by(*IDENTITY, "graphs", "depth", maintain_order=True):
        by_task = {row["task"]: row for row in part.iter_rows(named=True)}
        whole = by_task[None]
        interval = interval_words(whole["low"], whole["high"])
        rows.append(
            {
                "tokens drafted": whole["depth"],
                "graphs": on_off(whole["graphs"]),
                "further axes": identity(whole),
                **{
                    task: speed_words(by_task[task]["decode_tok_s"]) if task in by_task else "–"
                    for task in tasks
                },
                f"{name}, tokens/s": speed_words(whole["decode_tok_s"]),
                "95 % interval": interval + ("" if whole["low"] is None else star(whole["basis"])),
                "launches": whole["launches"],
                "beware": "; ".join(doubts(whole)),
            }
        )
    table = pl.DataFrame(rows)
    empty = [name for name in ("further axes", "beware") if not any(table[name])]
    return table.drop(empty)


def _notes(groups: pl.DataFrame) -> tuple[str, ...]:
    rows = groups.filter(pl.col("task").is_null())
    between = (rows["basis"] == LAUNCHES).to_list()
    notes = [
        "A speed is the median over cells that differ only in window and share of the card, of "
        "which the speed of one request hardly depends."
    ]
    if any(between):
        notes.append(
            "Bars are 95 % intervals of where a speed lies, differences between launches included."
        )
    if not all(between):
        several = any(rows.filter(basis=RUNS)["cells"] > 1)
        cells = ", and what such cells differ by" if several else ""
        notes.append(
            f"Pale bars (* in the table) are 95 % intervals within launches{cells}: they do not "
            "hold what launches of one cell differ by, so the next one may lie outside."
        )
    if any(rows["changed"] != ""):
        notes.append(
            "The sweep went on with something else: what was measured before and after that is "
            "apart."
        )
    if len(_chosen(groups)["task"].unique()) == 1 and groups["task"].n_unique() > 2:
        notes.append("There are too many combinations to draw every task.")
    return tuple(notes)
