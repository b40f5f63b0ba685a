"""How often drafts are accepted, and where the next token drafted stops paying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.analyze.speed_groups import IDENTITY
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.report.plots import positions as by_position
from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Figure, Panel
from vllm_frontier.report.plots.groups import LUCK, identity, identity_lines, star
from vllm_frontier.report.plots.setting import (
    GRAPHS,
    drafted,
    graphs,
    heading,
    panel_title,
    task_name,
)
from vllm_frontier.report.wording import on_off, titled

_SIGNS = {
    Verdict.FASTER.value: "triangle-up",
    Verdict.NO_CLEAR_DIFFERENCE.value: "circle",
    Verdict.SLOWER.value: "triangle-down",
}
_MOST_PANELS = 11
_DODGE = 0.012
_SIGNED = "format(datum.value * 100, abs(datum.value) < 1e-9 ? '.0f' : '+.0f') + ' %'"
_ALL_LABELS = 10  # depths whose figures stand beside each other without overlap
_SUBTITLE_HEIGHT = 30  # pixels
_BESIDE = 0.12  # of a step; signs with and without graphs stand beside each other


def acceptance(
    positions: pl.DataFrame, steps: pl.DataFrame, ends: pl.DataFrame, *, simulated: bool = False
) -> Figure | None:
    """Acceptance by position and task, and what each further token drafted gains.

    Args:
        positions: of `analyze.acceptance_by_position`.
        steps: of `analyze.depth_steps`.
        ends: of `analyze.pays_up_to`.
        simulated: nothing was measured on a card.

    Returns:
        The picture `acceptance`; None where nothing was drafted and no depths can be compared.
    """
    if positions.is_empty() and steps.is_empty():
        return None
    chosen = _chosen(steps)
    range_ = _range(chosen)
    parts = chosen.partition_by(*IDENTITY, "task", maintain_order=True)
    return Figure(
        name="acceptance",
        title=titled("Acceptance, and where the next token stops paying", simulated=simulated),
        question="How often are drafts accepted, and from which depth on does one more token not "
        "pay?",
        summary=_summary(positions, ends),
        panels=(*by_position.panels(positions), *(_gains(part, ends, range_) for part in parts)),
        table=_table(ends),
        legend=_legend(positions, chosen),
        notes=_notes(positions, chosen, ends),
    )


def _chosen(steps: pl.DataFrame) -> pl.DataFrame:
    """What gets a panel: every task, and all together where there are several."""
    several = steps["task"].n_unique() > 2
    found = steps if several else steps.filter(pl.col("task").is_not_null())
    if found.select(*IDENTITY, "task").n_unique() > _MOST_PANELS:
        found = steps.filter(pl.col("task").is_null())
    return found.sort(*IDENTITY, "task", "graphs", "depth", nulls_last=False)


def _range(steps: pl.DataFrame) -> tuple[float, float]:
    """Ends of the axis of gains, the same in every panel."""
    found = steps["per_token"].to_list()
    low, high = min([0.0, *found]), max([0.05, *found])
    return low - 0.08 * (high - low), high + 0.1 * (high - low)


def _gains(part: pl.DataFrame, ends: pl.DataFrame, range_: tuple[float, float]) -> Panel:
    """What each further token gains on a task, and where it ends."""
    row = part.row(0, named=True)
    own = ends.filter(
        *(pl.col(name) == row[name] for name in IDENTITY),
        pl.col("task").eq_missing(pl.lit(row["task"], dtype=pl.String)),
    )
    depths = sorted({*part["depth"], *part["next_depth"]})
    pad = 0.06 * (depths[-1] - depths[0])
    span = depths[-1] - depths[0]
    x_scale = alt.Scale(domain=[depths[0] - pad, depths[-1] + pad], nice=False, zero=False)
    y_scale = alt.Scale(domain=list(range_), nice=False, zero=True)
    x, start, at = (
        alt.X(
            f"{name}:Q",
            title="tokens drafted per step",
            axis=alt.Axis(
                values=depths, format="d", grid=False, labelOverlap=len(depths) > _ALL_LABELS
            ),
            scale=x_scale,
        )
        for name in ("middle", "depth", "at")
    )
    y = alt.Y(
        "per_token:Q",
        title="gain of one more token",
        scale=y_scale,
        axis=alt.Axis(tickCount=5, labelExpr=_SIGNED),
    )
    both = part["graphs"].n_unique() > 1
    layers: list[alt.Chart] = [_zero(y_scale)]
    for on in (False, True):
        last = own.filter(pl.col("graphs") == on)
        steps = part.filter(pl.col("graphs") == on)
        if steps.is_empty():
            continue
        place = 0.5 + (_BESIDE if on else -_BESIDE) * both
        layers += _steps(steps, on, place, (x, start, y))
        if not last.is_empty():
            shift = (_DODGE if on else -_DODGE) * span * both
            layers.append(_end(last.row(0, named=True), on, shift, at))
    return alt.LayerChart(layer=layers).properties(
        title=panel_title(heading(row["task"]), *_ends_words(own), *identity_lines(row)),
        width=theme.PANEL_WIDTH,
        height=theme.PANEL_HEIGHT + _SUBTITLE_HEIGHT,
    )


def _zero(scale: alt.Scale) -> alt.Chart:
    rule = alt.Chart(pl.DataFrame({"zero": [0.0]})).mark_rule(
        color=theme.colour("muted"), aria=False
    )
    zero: alt.Chart = rule.encode(y=alt.Y("zero:Q", scale=scale))
    return zero


def _steps(
    steps: pl.DataFrame, on: bool, place: float, axes: tuple[alt.X, alt.X, alt.Y]
) -> list[alt.Chart]:
    """Each step as a line from depth to depth, with the sign of its verdict in the middle."""
    x, start, y = axes
    colour = theme.colour(GRAPHS[on])
    rows = steps.with_columns(
        middle=pl.col("depth") + (pl.col("next_depth") - pl.col("depth")) * place,
        sign=pl.col("verdict").replace_strict(_SIGNS),
        words=pl.Series([_step_words(row) for row in steps.iter_rows(named=True)]),
        star=pl.Series([star(basis).strip() for basis in steps["basis"]]),
    ).drop(*IDENTITY, "graphs", "task")
    base = alt.Chart(rows)
    return [
        base.mark_rule(
            color=colour, strokeWidth=1.5, strokeDash=[1, 0] if on else [5, 3], aria=False
        ).encode(x=start, x2=alt.X2("next_depth:Q"), y=y),
        base.mark_point(
            size=60,
            fill=colour if on else theme.colour("page"),
            stroke=colour,
            strokeWidth=1.8,
            opacity=1,
        ).encode(
            x=x,
            y=y,
            shape=alt.Shape("sign:N", scale=None),
            description=alt.Description("words:N"),
        ),
        base.mark_text(color=colour, dx=9, dy=-3, fontSize=12, aria=False).encode(
            x=x, y=y, text=alt.Text("star:N")
        ),
    ]


def _step_words(row: Mapping[str, Any]) -> str:
    tokens = row["next_depth"] - row["depth"]
    each = "" if tokens == 1 else " a token"
    told = f"{task_name(row['task'])}, {graphs(row['graphs'])}, from {row['depth']} to "
    told += f"{row['next_depth']} tokens drafted: {100 * row['per_token']:+.1f} %{each}"
    told += f", {row['verdict']}"
    return told + (" (within launches)" if row["basis"] == RUNS else "")


def _end(end: Mapping[str, Any], on: bool, shift: float, at: alt.X) -> alt.Chart:
    """A line across the panel at the last depth that pays."""
    words = f"{graphs(on)}: {_end_words(end)}"
    words += " (within launches)" if end["basis"] == RUNS else ""
    told = pl.DataFrame({"at": [end["pays_up_to"] + shift], "words": [words]})
    rule = alt.Chart(told).mark_rule(
        color=theme.colour(GRAPHS[on]),
        strokeWidth=5,
        opacity=0.35,
        strokeDash=[1, 0] if on else [5, 3],
    )
    end_rule: alt.Chart = rule.encode(x=at, description=alt.Description("words:N"))
    return end_rule


def _end_words(end: Mapping[str, Any]) -> str:
    if end["still_gains"]:
        return f"still gains at {end['deepest']}, the deepest"
    if end["pays_up_to"] == 0:
        return "drafting does not pay"
    return f"pays up to {end['pays_up_to']}"


def _ends_words(own: pl.DataFrame) -> list[str]:
    """A line for graphs on and off, one where both are alike."""
    told = {
        row["graphs"]: _end_words(row) + star(row["basis"]) for row in own.iter_rows(named=True)
    }
    if len(set(told.values())) == 1 and len(told) == 2:
        return list(set(told.values()))
    return [f"{graphs(on)}: {told[on]}" for on in (True, False) if on in told]


def _summary(positions: pl.DataFrame, ends: pl.DataFrame) -> str:
    return " ".join([*by_position.summary(positions), *_ends_summary(ends)])


def _ends_summary(ends: pl.DataFrame) -> Iterator[str]:
    """Where it ends, for all tasks together and for those where it ends elsewhere.

    What is told alike of several settings is told once.
    """
    several = ends["task"].n_unique() > 2
    overall = ends.filter(pl.col("task").is_null()) if several else ends.drop_nulls("task")
    within = set(overall["basis"]) == {RUNS}
    alike: dict[str, list[str]] = {}
    for row in overall.iter_rows(named=True):
        others = ends.filter(
            pl.col("task").is_not_null(),
            pl.col("pays_up_to") != row["pays_up_to"],
            graphs=row["graphs"],
            **{name: row[name] for name in IDENTITY},
        )
        told = _long_end(row)
        if several and not others.is_empty():
            each = (f"{one['task']} {_end_words(one)}" for one in others.iter_rows(named=True))
            told += f" (but {', '.join(each)})"
        if row["basis"] == RUNS and not within:
            told += "; this is within launches and may be luck"
        alike.setdefault(told, []).append(_where(row))
    for told, where in alike.items():
        settings = " and ".join(where)
        yield f"{settings[0].upper()}{settings[1:]}: {told}."
    if within:
        yield "Depths are compared within launches, so that a difference may be luck."


def _where(row: Mapping[str, Any]) -> str:
    words = (task_name(row["task"]) if row["task"] else "", graphs(row["graphs"]), identity(row))
    return ", ".join(each for each in words if each)


def _long_end(end: Mapping[str, Any]) -> str:
    if end["still_gains"]:
        return f"the last token still gains at {end['deepest']}; deeper was not measured"
    beyond = "is slower" if end["after"] == Verdict.SLOWER else "gains nothing that is clear"
    if end["pays_up_to"] == 0:
        return f"drafting does not pay, more {beyond}"
    return f"it pays up to {drafted(end['pays_up_to'])}, more {beyond}"


def _table(ends: pl.DataFrame) -> pl.DataFrame | None:
    if ends.is_empty():
        return None
    several = ends["task"].n_unique() > 2
    rows = [
        {
            "task": task_name(row["task"]),
            "graphs": on_off(row["graphs"]),
            "further axes": identity(row),
            "pays up to": f"{row['pays_up_to']}{star(row['basis'])}",
            "measured up to": row["deepest"],
            "beyond": "not measured" if row["still_gains"] else row["after"],
        }
        for row in ends.iter_rows(named=True)
        if several or row["task"] is not None
    ]
    table = pl.DataFrame(rows)
    return table if any(table["further axes"]) else table.drop("further axes")


def _legend(positions: pl.DataFrame, steps: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    found = by_position.legend(positions)
    told = {True: "gain with graphs: filled, solid", False: "gain without graphs: open, dashed"}
    found += [(GRAPHS[on], told[on]) for on in (True, False) if on in steps["graphs"].to_list()]
    return tuple(found)


def _notes(positions: pl.DataFrame, steps: pl.DataFrame, ends: pl.DataFrame) -> tuple[str, ...]:
    notes = []
    if not positions.is_empty():
        notes.append(
            "Accepted up to here: the share of drafts whose first tokens, up to this position, "
            "were all accepted; small dots are single depths."
        )
    if not steps.is_empty():
        notes.append(
            "Signs of a gain: ▲ faster, ● no clear difference, ▼ slower than the depth before. "
            "The broad upright line is the last depth that pays: no deeper one that was measured "
            "is faster."
        )
    if RUNS in {*steps["basis"], *ends["basis"]}:
        notes.append(LUCK)
    if any(ends["still_gains"]):
        notes.append("Where the deepest still gains, the end was not measured.")
    return tuple(notes)
