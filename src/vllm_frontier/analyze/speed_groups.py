"""How fast each depth is, with and without graphs, and how sure that is.

Decode speed of one request hardly depends on window and share of the card. So cells that differ
only in these are taken together, with all their launches. Where the sweep went on with another
engine, card or model, cells before and after that are apart.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from vllm_frontier.analyze.intervals import LAUNCHES, RUNS, VALUES, cell_figures, t_quantile
from vllm_frontier.analyze.latest import counted, works
from vllm_frontier.analyze.output import broken_cells
from vllm_frontier.analyze.verdicts import Verdict, verdicts

IDENTITY = ("extra", "changed")
"""What cells must have in common to be compared: further axes, and what was launched."""

GROUP = (*IDENTITY, "graphs", "depth")
"""What decides a cell's decode speed."""

_KEYS = (*GROUP, "task")
_WORST_FIRST = ("ineffective", "suspect", "working")
_SPREAD_DF = 2  # with less, what cells differ by is as good as unknown


def speed_groups(
    trials: pl.LazyFrame, runs: pl.LazyFrame, *, figures: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The speed of every depth, with and without graphs, for each task and for all.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        figures: of `cell_figures`, where they are known already.

    Returns:
        Rows of `GROUP` (`changed`: how the identity differs from the sweep's first, empty where
        it does not) and `task` (null, and first: all tasks). `cell_id` is a name of the group,
        and the columns of `cell_figures` are there, too, so that `verdicts` compares the rows.
        `decode_tok_s` is the median over cells, `low` and `high` its 95 % interval, as sure as
        all their launches make it; `launches` and `runs` are those of all. Where the basis is
        `runs`, the interval of several cells holds what these differ by, and each of their speeds.
        `cells` is how many are taken together, `broken` how many of them write what the model
        would not, `spec_state` the worst that was seen.
    """
    if figures is None:
        figures = cell_figures(trials, runs)
    cells = (
        counted(trials)
        .filter(works())
        .with_columns(pl.col("changed").fill_null(""))
        .select("cell_id", *GROUP, "spec_state")
    )
    broken = broken_cells(trials, runs).with_columns(_broken=True)
    rows = (
        figures.lazy()
        .drop("graphs")
        .join(cells, on="cell_id", how="inner")
        .join(broken, on="cell_id", how="left")
        .sort(pl.col("tasks").list.len(), "cell_id", descending=[True, False])
    )
    return _with_interval(rows.group_by(_KEYS, maintain_order=True).agg(_together()).collect())


def leading(groups: pl.DataFrame) -> pl.DataFrame:
    """The fastest setting over all tasks, and those from which it does not differ clearly.

    Args:
        groups: of `speed_groups`.

    Returns:
        Rows of `groups`, the fastest first and its equals after it, by speed: those with working
        output, unless there are none. `against` is the basis of the verdict (null for the first).
    """
    overall = groups.filter(pl.col("task").is_null())
    sane = overall.filter(pl.col("broken") == 0)
    order = (overall if sane.is_empty() else sane).sort(
        -pl.col("decode_tok_s"), "depth", "graphs", *IDENTITY
    )
    pairs = order.select(pl.col("cell_id").first(), "task", other_cell_id="cell_id").slice(1)
    equal = verdicts(order, pairs.lazy()).filter(
        pl.col("verdict") == Verdict.NO_CLEAR_DIFFERENCE.value
    )
    told = equal.select(cell_id="other_cell_id", against="basis", _equal=pl.lit(value=True))
    found = order.join(told.collect(), on="cell_id", how="left", maintain_order="left")
    first = pl.int_range(pl.len()) == 0
    return found.filter(first | pl.col("_equal").fill_null(value=False)).drop("_equal")


def _together() -> list[pl.Expr]:
    """What is told of the cells of a group; those of most tasks come first."""
    weight = pl.col("launches") / pl.col("launches").sum()
    own_half = (pl.col("high") / pl.col("low")).log() / 2
    speed = pl.col("decode_tok_s").log()
    rank = pl.col("spec_state").replace_strict(
        list(_WORST_FIRST), range(len(_WORST_FIRST)), default=None, return_dtype=pl.Int64
    )
    same = ("sweep", "tasks", "pool", "df", "spread", *(f"{name}_variance" for name in VALUES))
    pooled = (pl.col("basis") == LAUNCHES).any()
    return [
        pl.col("decode_tok_s").median(),
        pl.col("launches", "runs").sum(),
        pl.col(*same).first(),
        *((pl.col(name) * weight).sum() for name in (*VALUES, "at")),
        pl.when(pooled).then(pl.lit(LAUNCHES)).otherwise(pl.lit(RUNS)).alias("basis"),
        (own_half.pow(2).sum().sqrt() / own_half.count()).fill_nan(None).alias("_own_half"),
        (speed - speed.mean()).pow(2).sum().alias("_squares"),
        pl.col("decode_tok_s").min().alias("_least"),
        pl.col("decode_tok_s").max().alias("_most"),
        pl.len().cast(pl.Int64).alias("cells"),
        pl.col("_broken").sum().cast(pl.Int64).alias("broken"),
        pl.col("spec_state").sort_by(rank, nulls_last=True).first(),
    ]


def _with_interval(groups: pl.DataFrame) -> pl.DataFrame:
    """Adds `low` and `high`, which hold the speed in any case, and a name."""
    reach = t_quantile(groups["df"].cast(pl.Float64).to_numpy())
    drift = pl.col("at").pow(2) / pl.col("spread")
    between = (pl.col("headline_variance") * (1 / pl.col("launches") + drift)).sqrt()
    pooled = pl.col("basis") == LAUNCHES
    speed = pl.col("decode_tok_s")
    within = pl.max_horizontal("_own_half", _half_between(groups))
    half = pl.when(pooled).then(pl.Series(np.nan_to_num(reach)) * between).otherwise(within)
    middle = pl.when(pooled).then("headline").otherwise(speed.log())
    ends = groups.with_columns(low=(middle - half).exp(), high=(middle + half).exp())
    known = pl.col("low").is_not_null() & pl.col("high").is_finite()
    apart = ~pooled & (pl.col("cells") > 1)
    least, most = (pl.when(apart).then(name).otherwise(speed) for name in ("_least", "_most"))
    return (
        ends.with_columns(
            pl.when(known).then(pl.min_horizontal("low", least)),
            pl.when(known).then(pl.max_horizontal("high", most)).alias("high"),
            cell_id=pl.format("{}/{}/{}/{}", *GROUP),
        )
        .drop("_own_half", "_squares", "_least", "_most")
        .sort(*_KEYS, nulls_last=False)
    )


def _half_between(groups: pl.DataFrame) -> pl.Series:
    """Half an interval's width by what cells of a group differ by, each of them as one launch.

    That is learned from all groups of a task; null where too few groups have several cells.
    """
    spare = pl.col("cells") - 1
    told = groups.select(
        "cells",
        df=spare.sum().over("task"),
        variance=pl.col("_squares").sum().over("task") / spare.sum().over("task"),
    )
    reach = pl.Series(t_quantile(told["df"].cast(pl.Float64).to_numpy()))
    half = reach * (pl.col("variance") / pl.col("cells")).sqrt()
    enough = (pl.col("df") >= _SPREAD_DF) & (pl.col("cells") > 1)
    return told.select(pl.when(enough).then(half)).to_series()
