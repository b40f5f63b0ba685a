"""How fast each depth is, with and without graphs, and how sure that is.

Decode speed of one request hardly depends on window and share of the card. So cells that differ
only in these are taken together, with all their launches.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from vllm_frontier.analyze.intervals import LAUNCHES, RUNS, VALUES, cell_figures, t_quantile
from vllm_frontier.analyze.latest import counted, works
from vllm_frontier.analyze.output import broken_cells

GROUP = ("extra", "graphs", "depth")
"""The axes that decide a cell's decode speed."""

_KEYS = (*GROUP, "task")
_WORST_FIRST = ("ineffective", "suspect", "working")


def speed_groups(
    trials: pl.LazyFrame, runs: pl.LazyFrame, *, figures: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The speed of every depth, with and without graphs, for each task and for all.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        figures: of `cell_figures`, where they are known already.

    Returns:
        Rows of `GROUP` and `task` (null, and first: all tasks). `cell_id` is a name of the group,
        and the columns of `cell_figures` are there, too, so that `verdicts` compares the rows.
        `decode_tok_s` is the median over cells, `low` and `high` its 95 % interval, as sure as
        all their launches make it; `launches` and `runs` are those of all. `cells` is how many
        are taken together, `broken` how many of them write what the model would not, `spec_state`
        the worst that was seen.
    """
    if figures is None:
        figures = cell_figures(trials, runs)
    cells = counted(trials).filter(works()).select("cell_id", *GROUP, "spec_state")
    broken = broken_cells(trials, runs).with_columns(_broken=True)
    rows = (
        figures.lazy()
        .drop("graphs")
        .join(cells, on="cell_id", how="inner")
        .join(broken, on="cell_id", how="left")
        .sort(pl.col("tasks").list.len(), "cell_id", descending=[True, False])
    )
    return _with_interval(rows.group_by(_KEYS, maintain_order=True).agg(_together()).collect())


def _together() -> list[pl.Expr]:
    """What is told of the cells of a group; those of most tasks come first."""
    weight = pl.col("launches") / pl.col("launches").sum()
    own_half = (pl.col("high") / pl.col("low")).log() / 2
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
    half = pl.when(pooled).then(pl.Series(np.nan_to_num(reach)) * between).otherwise("_own_half")
    middle = pl.when(pooled).then("headline").otherwise(speed.log())
    ends = groups.with_columns(low=(middle - half).exp(), high=(middle + half).exp())
    known = pl.col("low").is_not_null() & pl.col("high").is_finite()
    return (
        ends.with_columns(
            pl.when(known).then(pl.min_horizontal("low", speed)),
            pl.when(known).then(pl.max_horizontal("high", speed)).alias("high"),
            cell_id=pl.format("{}/{}/{}", "extra", "graphs", "depth"),
        )
        .drop("_own_half")
        .sort(*_KEYS, nulls_last=False)
    )
