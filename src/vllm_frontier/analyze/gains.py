"""What speculation and graphs are worth, and how often drafts are accepted."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.borrowed import with_speeds
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.analyze.latest import AXES, CELL, counted, works
from vllm_frontier.analyze.task_speeds import of_task

_PLACE = ("context", "utilization")


def gains(
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    *,
    figures: pl.DataFrame | None = None,
    task: str | None = None,
) -> pl.LazyFrame:
    """The speed of every cell that was measured over the speed without speculation.

    Speeds are those over all launches of a cell.

    The baseline is depth 0 with the cell's own window, share of the card and further axes. Where
    that has no speed (it need not have been launched), it is the median of the baselines with this
    window and other shares; where these have none either, with other windows, and `gain_basis`
    says so.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        figures: of `cell_figures`, where they are known already.
        task: whose speeds they are; None for the median over tasks.

    Returns:
        One row per cell: cell_id, `gain_same_graphs` (over depth 0 with the same graphs),
        `gain_no_graphs` (over depth 0 without graphs), `gain_basis` (of the first: `same
        window` or `other windows`). Ratios are null where there is no baseline.
    """
    if figures is None:
        figures = cell_figures(trials, runs)
    speeds = of_task(with_speeds(counted(trials).filter(works()), figures), task).select(
        "cell_id", *AXES, "decode_tok_s"
    )
    base = speeds.filter(pl.col("depth") == 0)
    # Without the cell's own share that of its window, and without that of any window.
    steps = ((*_PLACE, "extra"), ("context", "extra"), ("extra",))
    found = speeds
    for number, keys in enumerate(steps):
        own = base.group_by(*keys, "graphs").agg(
            pl.col("decode_tok_s").median().alias(f"_same_{number}")
        )
        off = own.filter(~pl.col("graphs")).select(
            *keys, pl.col(f"_same_{number}").alias(f"_off_{number}")
        )
        found = found.join(own, on=[*keys, "graphs"], how="left")
        found = found.join(off, on=keys, how="left")
    speed = pl.col("decode_tok_s")
    same, off_speed = (
        [pl.col(f"_{name}_{number}") for number in range(len(steps))] for name in ("same", "off")
    )
    return found.select(
        "cell_id",
        (speed / pl.coalesce(same)).alias("gain_same_graphs"),
        (speed / pl.coalesce(off_speed)).alias("gain_no_graphs"),
        pl.when(pl.coalesce(same[:-1]).is_not_null())
        .then(pl.lit("same window"))
        .when(same[-1].is_not_null())
        .then(pl.lit("other windows"))
        .alias("gain_basis"),
    ).sort("cell_id")


def with_gains_of_task(
    cells: pl.LazyFrame,
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    *,
    figures: pl.DataFrame,
    task: str | None,
) -> pl.LazyFrame:
    """Cells with the gains of one task in place of those of the median over tasks.

    Args:
        cells: with the columns of the frontier.
        trials: the table `trials`.
        runs: the table `runs`.
        figures: of `cell_figures`.
        task: whose speeds count; None: the cells stay as they are.
    """
    if task is None:
        return cells
    own = gains(trials, runs, figures=figures, task=task)
    names = cells.collect_schema().names()
    # Gains are of the cell whose speed it is.
    return (
        cells.drop("gain_same_graphs", "gain_no_graphs", "gain_basis")
        .join(own, left_on="speed_cell", right_on="cell_id", how="left", maintain_order="left")
        .select(names)
    )


def acceptance(runs: pl.LazyFrame) -> pl.LazyFrame:
    """How often drafts are accepted, by attempt and task.

    Returns:
        One row per cell_id, attempt and task that drafted: `acceptance` (list; the share of
        drafts whose first n tokens were all accepted) and `tokens_per_step` (1 and their sum).
    """
    accepted = pl.col("accepted_per_position")
    drafting = runs.filter(
        pl.col("kind") == "decode",
        pl.col("drafts") > 0,
        accepted.list.len() > 0,
        accepted.list.drop_nulls().list.len() == accepted.list.len(),
    )
    counts = (
        drafting.select(
            *CELL,
            "task",
            "drafts",
            pl.col("accepted_per_position").alias("accepted"),
            pl.int_ranges(0, pl.col("accepted_per_position").list.len()).alias("position"),
        )
        .explode("accepted", "position")
        .group_by(*CELL, "task", "position")
        .agg(pl.col("accepted").sum() / pl.col("drafts").sum())
        .sort(*CELL, "task", "position")
    )
    share = pl.col("acceptance")
    return (
        counts.group_by(*CELL, "task", maintain_order=True)
        .agg(pl.col("accepted").alias("acceptance"))
        .with_columns(
            tokens_per_step=1 + share.list.sum(),
        )
    )
