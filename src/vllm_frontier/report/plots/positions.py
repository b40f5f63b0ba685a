"""How often drafts are accepted, position by position: a part of the picture of acceptance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt
import polars as pl

from vllm_frontier.analyze.speed_groups import IDENTITY
from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.figure import Panel
from vllm_frontier.report.plots.groups import identity, identity_lines
from vllm_frontier.report.plots.setting import panel_title

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_SHAPE_NAMES = ("circle", "square", "triangle", "diamond", "cross", "triangle upside down")
_FIRST = 2  # series that stand for tasks; those before stand for graphs
_SHARE = "format(datum.value * 100, '.0f') + ' %'"
_TOP = 1.03
_LINE_APART = 0.085  # of a share: two names at the lines' ends that do not touch
_LETTERS = 12  # of a name at a line's end
_LETTER = 0.025  # of the panel's width
_MOST_TOLD = 3  # identities of which the summary tells each


def panels(positions: pl.DataFrame) -> Iterator[Panel]:
    """A panel for each identity: a line for each task.

    Args:
        positions: of `analyze.acceptance_by_position`.
    """
    of_tasks = positions.filter(pl.col("task").is_not_null())
    tasks = _tasks(positions)
    for part in of_tasks.partition_by(IDENTITY, maintain_order=True):
        yield _panel(part, tasks)


def summary(positions: pl.DataFrame) -> Iterator[str]:
    """Of the most and the least accepted task, at the first and the last position.

    Identities of which the same is told are told once.
    """
    rows = positions.filter(pl.col("task").is_not_null(), pl.col("depth").is_null())
    alike: dict[str, list[str]] = {}
    for part in rows.partition_by(IDENTITY, maintain_order=True):
        alike.setdefault(_extremes(part), []).append(identity(part.row(0, named=True)))
    for told, where in list(alike.items())[:_MOST_TOLD]:
        names = "; ".join(each for each in where if each) if len(alike) > 1 else ""
        yield f"Accepted {f'with {names}, ' if names else ''}{told} of the drafts."
    if len(alike) > _MOST_TOLD:
        yield f"{len(alike) - _MOST_TOLD} more settings of other axes have panels of their own."


def legend(positions: pl.DataFrame) -> list[tuple[str, str]]:
    """Colour and sign of each task."""
    return [
        (
            f"series-{(_FIRST + number) % 8 + 1}",
            f"accepted: {task} ({_SHAPE_NAMES[number % len(SHAPES)]})",
        )
        for number, task in enumerate(_tasks(positions))
    ]


def _tasks(positions: pl.DataFrame) -> list[str]:
    return positions["task"].drop_nulls().unique().sort().to_list()


def _panel(part: pl.DataFrame, tasks: list[str]) -> Panel:
    pooled = part.filter(pl.col("depth").is_null())
    by_depth = part.filter(pl.col("depth").is_not_null())
    words = [_words(row, by_depth) for row in pooled.iter_rows(named=True)]
    names = _names(pooled)
    last = max(pooled["position"])
    beside = _LETTER * (max((len(each["name"]) for each in names), default=0) + 1)
    x = alt.X(
        "position:Q",
        title="position in the draft",
        axis=alt.Axis(values=sorted(set(pooled["position"])), format="d", grid=False),
        scale=alt.Scale(
            domain=[0.7, max(last + 0.3, 0.7 + (last - 0.7) / (1 - beside))], nice=False, zero=False
        ),
    )
    scale = alt.Scale(domain=[0, _TOP], nice=False)
    y = alt.Y(
        "accepted:Q",
        title="accepted up to here",
        axis=alt.Axis(tickCount=5, labelExpr=_SHARE),
        scale=scale,
    )
    layers: list[alt.Chart] = []
    rows = pooled.with_columns(pl.Series("words", words, dtype=pl.String))
    for number, task in enumerate(tasks):
        colour = theme.series(_FIRST + number)
        base = alt.Chart(rows.filter(task=task).drop(*IDENTITY, "depth")).encode(x=x, y=y)
        dots = alt.Chart(by_depth.filter(task=task).drop(IDENTITY)).encode(x=x, y=y)
        layers += [
            dots.mark_circle(color=colour, size=12, opacity=0.45, aria=False),
            base.mark_line(color=colour, strokeWidth=1.5, aria=False),
            base.mark_point(
                shape=SHAPES[number % len(SHAPES)], size=55, color=colour, filled=True, opacity=1
            ).encode(description=alt.Description("words:N")),
        ]
        told = alt.Chart(pl.DataFrame([each for each in names if each["task"] == task]))
        if any(each["task"] == task for each in names):
            mark = told.mark_text(align="left", dx=8, fontSize=11, color=colour, aria=False)
            layers.append(
                mark.encode(x=x, y=alt.Y("place:Q", scale=scale), text=alt.Text("name:N"))
            )
    return alt.LayerChart(layer=layers).properties(
        title=panel_title("accepted, by task", *identity_lines(part.row(0, named=True))),
        width=theme.PANEL_WIDTH,
        height=theme.PANEL_HEIGHT,
    )


def _names(pooled: pl.DataFrame) -> list[dict[str, Any]]:
    """The tasks' names at the ends of their lines, moved apart; none where there is no room."""
    ends = (
        pooled.sort("position")
        .group_by("task")
        .agg(pl.col("position", "accepted").last())
        .sort("accepted", "task", descending=[True, False])
        .to_dicts()
    )
    if len(ends) * _LINE_APART > _TOP:
        return []
    above = _TOP + _LINE_APART
    for end in ends:
        end["place"] = above = min(end["accepted"], above - _LINE_APART)
    below = -_LINE_APART / 2
    for end in reversed(ends):
        end["place"] = below = max(end["place"], below + _LINE_APART)
    return [{**end, "name": _short(end["task"])} for end in ends]


def _short(task: str) -> str:
    return task if len(task) <= _LETTERS else f"{task[: _LETTERS - 1]}…"


def _words(row: Mapping[str, Any], by_depth: pl.DataFrame) -> str:
    own = by_depth.filter(task=row["task"], position=row["position"]).sort("depth")
    told = f"{row['task']}, position {row['position']}: {percent(row['accepted'])} of "
    told += f"{row['drafts']:,} drafts accepted up to here"
    if own.height > 1:
        each = (f"{percent(one['accepted'])} at depth {one['depth']}" for one in own.to_dicts())
        told += f"; {', '.join(each)}"
    return told


def _extremes(rows: pl.DataFrame) -> str:
    """The most and the least accepted task of one identity, in words."""
    last = max(rows["position"])
    order = rows.filter(position=last).sort("accepted", "task", descending=[True, False])
    told = []
    for task in dict.fromkeys((order["task"].item(0), order["task"].item(-1))):
        own = {row["position"]: row["accepted"] for row in rows.filter(task=task).to_dicts()}
        shares = [percent(own[place]) for place in dict.fromkeys((min(own), last))]
        told.append(f"{task} {' and '.join(shares)}")
    where = "at the first position" + (f" and up to position {last}" if last > 1 else "")
    return f"{where}: {', '.join(told)}"


def percent(share: float) -> str:
    """A share as `81 %`."""
    return f"{100 * share:.0f} %"
