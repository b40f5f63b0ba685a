"""What the gain over no speculation without graphs is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.gain_parts import CORNERS, STEPS
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.analyze.speed_groups import IDENTITY
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.groups import LUCK, identity, identity_lines, over, overall, star
from vllm_frontier.report.plots.setting import (
    drafted,
    factor,
    graphs,
    heading,
    panel_title,
    task_name,
)
from vllm_frontier.report.wording import titled

_STEP_HEIGHT = 24  # pixels
_COLOURS = {
    "graphs_first": "series-1",
    "then_speculation": "series-4",
    "speculation_first": "series-4",
    "then_graphs": "series-1",
    "total": "muted",
}
_NAMES = {
    "graphs_first": "graphs alone",
    "then_speculation": "speculation on top",
    "speculation_first": "speculation alone",
    "then_graphs": "graphs on top",
    "total": "both",
}
_AFTER = {"then_speculation": "graphs_first", "then_graphs": "speculation_first"}
_UNSURE = " ≈"
_TICKS = (0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50)
_MOST_TICKS = 6
_BROKEN = "output is broken"
_NEAR = 0.02  # interactions that are not worth a word
_BESIDE_IT = "times the speed with neither"
_BEFORE_IT = "times the speed without it"
_MOST_PANELS = 8


def gain(parts: pl.DataFrame, *, simulated: bool = False) -> Figure | None:
    """The gain at the fastest depth, step by step in both orders, a panel for each task.

    Args:
        parts: of `analyze.gain_parts`.
        simulated: nothing was measured on a card.

    Returns:
        The picture `gain`; None where nothing can be compared.
    """
    known = parts.filter(pl.any_horizontal(pl.col(name).is_not_null() for name in STEPS))
    if known.is_empty():
        return None
    best = _best(known)
    chosen = _chosen(known, best)
    domain = _domain(chosen)
    return Figure(
        name="gain",
        title=titled("What the gain is made of", simulated=simulated),
        question="How much of the gain is the graphs' and how much the speculation's?",
        summary=_summary(best, over(overall(known))),
        panels=tuple(_panel(row, domain) for row in chosen.iter_rows(named=True)),
        table=_table(known),
        legend=_legend(chosen),
        notes=_notes(known),
    )


def _best(known: pl.DataFrame) -> dict[str, Any]:
    """The fastest depth that drafts, over all tasks.

    Where it can be, one whose output is not broken, and with as many corners as there are.
    """
    of_all = known.filter(pl.col("task").is_null())
    sane = of_all.filter(~pl.col("broken"))
    of_all = of_all if sane.is_empty() else sane
    lacking = pl.col("missing").list.len()
    rows = of_all.filter(lacking == lacking.min())
    speed = pl.max_horizontal("both", "speculation_only")
    return rows.sort(speed, "depth", descending=[True, False]).row(0, named=True)


def _chosen(known: pl.DataFrame, best: Mapping[str, Any]) -> pl.DataFrame:
    """All tasks together and each of them, at the best depth."""
    rows = known.filter(depth=best["depth"], **{name: best[name] for name in IDENTITY})
    if rows.height == 2:  # one task is all there are
        return rows.filter(pl.col("task").is_not_null())
    return rows.head(_MOST_PANELS)


def _domain(chosen: pl.DataFrame) -> tuple[float, float]:
    """Ends of the axis, the same in every panel, with room for the figures."""
    ends = [end for row in chosen.iter_rows(named=True) for bar in _bars(row) for end in bar[1:]]
    return min([1.0, *ends]) * 0.92, max([1.0, *ends]) ** 1.35 * 1.12


def _bars(row: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Every step that is known: its name, and where its bar starts and ends.

    Where the speed with neither is not known, each starts at the speed without what it adds.
    """
    for name in STEPS:
        if row[name] is not None:
            start = row[_AFTER[name]] if name in _AFTER and row["plain"] is not None else 1.0
            yield name, start, start * row[name]


def _panel(row: Mapping[str, Any], domain: tuple[float, float]) -> Panel:
    bars = [
        {
            "step": _NAMES[name],
            "start": start,
            "end": end,
            "right": max(start, end),
            "colour": theme.colour(_COLOURS[name]),
            "figure": _figure(row, name),
            "words": _words(row, name),
        }
        for name, start, end in _bars(row)
    ]
    low, high = domain
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    ticks = ticks if len(ticks) <= _MOST_TICKS else [tick for tick in ticks if tick not in (7, 1.5)]
    base = alt.Chart(pl.DataFrame(bars)).encode(
        y=alt.Y("step:N", sort=list(_NAMES.values()), title=None, axis=alt.Axis(domain=False))
    )
    axis = alt.Axis(values=ticks, format="~r", labelExpr="'×' + datum.label")
    x = alt.X(
        "start:Q",
        title=_BEFORE_IT if row["plain"] is None else _BESIDE_IT,
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=axis,
    )
    layers = [
        base.mark_bar(height=14).encode(
            x=x,
            x2=alt.X2("end:Q"),
            color=alt.Color("colour:N", scale=None),
            description=alt.Description("words:N"),
        ),
        base.mark_text(align="left", dx=5, color=theme.colour("text"), aria=False).encode(
            x=alt.X("right:Q"), text=alt.Text("figure:N")
        ),
    ]
    where = f"{heading(row['task'])}, {drafted(row['depth'])}"
    return alt.LayerChart(layer=layers).properties(
        title=panel_title(where, *identity_lines(row)),
        width=theme.PANEL_WIDTH,
        height=_STEP_HEIGHT * len(bars) + 60,
    )


def _figure(row: Mapping[str, Any], name: str) -> str:
    """A factor with its signs, such as `×1.02 ≈ *`."""
    unsure = _UNSURE if _unsure(row, name) else ""
    return f"{factor(row[name])}{unsure}{star(row[f'{name}_basis'])}"


def _unsure(row: Mapping[str, Any], name: str) -> bool:
    return bool(row[f"{name}_verdict"] == Verdict.NO_CLEAR_DIFFERENCE)


def _corner(name: str, depth: int) -> str:
    on, deep = name in ("graphs_only", "both"), name in ("speculation_only", "both")
    return f"{drafted(depth if deep else 0)}, {graphs(on)}"


def _words(row: Mapping[str, Any], name: str) -> str:
    one, other = (_corner(each, row["depth"]) for each in STEPS[name])
    told = f"{task_name(row['task'])}, {_NAMES[name]}: {factor(row[name])} ({one}, over {other})"
    told += f", {row[f'{name}_verdict']}" if row[f"{name}_verdict"] else ""
    told += " (within launches)" if row[f"{name}_basis"] == RUNS else ""
    return f"{told}; {_BROKEN}" if row["broken"] else told


def _missing(row: Mapping[str, Any]) -> str:
    """Which launches are missing, in words; empty where none is."""
    return "; ".join(_corner(name, row["depth"]) for name in row["missing"])


def _summary(row: Mapping[str, Any], over_all: str) -> str:
    axes = identity(row)
    where = f"{over_all}, {drafted(row['depth'])}" + (f", {axes}" if axes else "")
    where = where[0].upper() + where[1:]
    if row["total"] is None:
        alone = [f"{_NAMES[name]} {_told(row, name)}" for name in STEPS if row[name] is not None]
        return (
            f"{where}: {', '.join(alone)}. How much of the gain is the graphs' cannot be told "
            f"without a speed of: {_missing(row)}.{_luck(row)}"
        )
    told = f"{where}, with graphs: {_told(row, 'total')} of no speculation without graphs"
    orders = []
    for first, second, names in (
        ("graphs_first", "then_speculation", ("graphs", "speculation")),
        ("speculation_first", "then_graphs", ("speculation", "graphs")),
    ):
        if row[first] is not None:
            orders.append(
                f"{names[0]} alone {_told(row, first)} and {names[1]} on top {_told(row, second)}"
            )
    told += f": {'; or the other way round, '.join(orders)}. " if orders else ". "
    if row["interaction"] is None:
        return f"{told}More cannot be told without a speed of: {_missing(row)}.{_luck(row)}"
    told += _interaction(row) + _luck(row)
    return f"{told} But its {_BROKEN}." if row["broken"] else told


def _told(row: Mapping[str, Any], name: str) -> str:
    """A factor, and whether it tells a difference."""
    return factor(row[name]) + (" (no clear difference)" if _unsure(row, name) else "")


def _luck(row: Mapping[str, Any]) -> str:
    """A sentence on what only runs within launches tell; empty where launches tell all."""
    bases = {row[f"{name}_basis"] for name in STEPS if row[name] is not None}
    if RUNS not in bases:
        return ""
    which = "All of this is" if bases == {RUNS} else "Some of this is"
    return f" {which} within launches, so that a difference may be luck."


def _interaction(row: Mapping[str, Any]) -> str:
    """How well both go together, where that is more than what the figures are unsure by."""
    ends = [row[f"interaction_{end}"] for end in ("low", "high")]
    if None in ends:
        return "How well they go together is not known: too few runs tell how sure that is."
    low, high = ends
    if max(high - 1, 1 - low) < _NEAR:
        return "Each is worth the same with and without the other."
    off = row["interaction"] - 1
    if low <= 1 <= high or abs(off) < _NEAR:
        return "Whether each is worth less with the other than alone is not clear."
    product = factor(row["graphs_first"] * row["speculation_first"])
    worth = f"{100 * abs(off):.0f} % {'less' if off < 0 else 'more'}"
    return f"Together they are worth {worth} than one would expect of each alone ({product})."


def _table(known: pl.DataFrame) -> pl.DataFrame:
    """A row for each depth, over all tasks."""
    rows = [
        {
            "tokens drafted": row["depth"],
            "further axes": identity(row),
            **{_NAMES[name]: "–" if row[name] is None else _figure(row, name) for name in STEPS},
            "both over the product (95 %)": _product(row),
            "beware": _BROKEN if row["broken"] else "",
        }
        for row in known.filter(pl.col("task").is_null()).iter_rows(named=True)
    ]
    table = pl.DataFrame(rows)
    return table.drop(name for name in ("further axes", "beware") if not any(table[name]))


def _product(row: Mapping[str, Any]) -> str:
    """The interaction with its interval."""
    if row["interaction"] is None:
        return "–"
    ends = [row[f"interaction_{end}"] for end in ("low", "high")]
    told = "not known" if None in ends else " to ".join(f"{end:.2f}" for end in ends)
    return f"{factor(row['interaction'])} ({told}){star(row['interaction_basis'])}"


def _legend(chosen: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    names = {name for row in chosen.iter_rows(named=True) for name, _, _ in _bars(row)}
    told = {"series-1": "what graphs give", "series-4": "what speculation gives", "muted": "both"}
    colours = {_COLOURS[name] for name in names}
    return tuple((colour, words) for colour, words in told.items() if colour in colours)


def _notes(known: pl.DataFrame) -> tuple[str, ...]:
    of_all = known.filter(pl.col("task").is_null())
    notes = [
        "The parts multiply. “On top” is what one gives where the other is there already, so "
        "that either order ends at the same total."
    ]
    if any(_unsure(row, name) for row in known.iter_rows(named=True) for name in STEPS):
        notes.append("≈: no clear difference between the two speeds.")
    if any(row[f"{name}_basis"] == RUNS for row in known.iter_rows(named=True) for name in STEPS):
        notes.append(LUCK)
    lacking = {
        _corner(name, row["depth"])
        for row in of_all.iter_rows(named=True)
        for name in CORNERS
        if name in row["missing"]
    }
    if lacking:
        notes.append(f"No speed is known of: {'; '.join(sorted(lacking))}.")
    return tuple(notes)
