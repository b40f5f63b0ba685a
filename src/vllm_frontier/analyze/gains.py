"""What speculation and graphs are worth, and how often drafts are accepted."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.borrowed import with_speeds
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.analyze.latest import AXES, CELL, counted, works
from vllm_frontier.analyze.task_speeds import of_task

_PLACE = ("context", "utilization", "extra")


def gains(
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    *,
    figures: pl.DataFrame | None = None,
    task: str | None = None,
) -> pl.LazyFrame:
    """The speed of every cell that was measured over the speed without speculation.

    Speeds are those over all launches of a cell.

    The baseline is depth 0 with the cell's own window, share of the card and further axes;
    where that has no speed (it need not have been launched), the median of the baselines with
    other windows and shares, and `gain_basis` says so.

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
    exact = base.select(*_PLACE, "graphs", pl.col("decode_tok_s").alias("_same"))
    exact_off = base.filter(~pl.col("graphs")).select(*_PLACE, pl.col("decode_tok_s").alias("_off"))
    wide = base.group_by("graphs", "extra").agg(pl.col("decode_tok_s").median().alias("_same_any"))
    wide_off = (
        base.filter(~pl.col("graphs"))
        .group_by("extra")
        .agg(pl.col("decode_tok_s").median().alias("_off_any"))
    )
    speed = pl.col("decode_tok_s")
    return (
        speeds.join(exact, on=[*_PLACE, "graphs"], how="left")
        .join(exact_off, on=_PLACE, how="left")
        .join(wide, on=["graphs", "extra"], how="left")
        .join(wide_off, on="extra", how="left")
        .select(
            "cell_id",
            (speed / pl.coalesce("_same", "_same_any")).alias("gain_same_graphs"),
            (speed / pl.coalesce("_off", "_off_any")).alias("gain_no_graphs"),
            pl.when(pl.col("_same").is_not_null())
            .then(pl.lit("same window"))
            .when(pl.col("_same_any").is_not_null())
            .then(pl.lit("other windows"))
            .alias("gain_basis"),
        )
        .sort("cell_id")
    )


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
