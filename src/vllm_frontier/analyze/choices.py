"""Which cell of the frontier to take."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.frontier import ALL
from vllm_frontier.analyze.task_speeds import of_task

CHOICES = ("fastest", "longest", "balanced")


def choices(
    frontier: pl.LazyFrame,
    *,
    task: str | None = None,
) -> pl.LazyFrame:
    """The frontier's ends and its middle.

    Args:
        frontier: the table `frontier`.
        task: whose speed counts; None for the median over tasks.

    Returns:
        The columns of `frontier` and, first, `choices` (list): `fastest` (highest speed),
        `longest` (longest window) and `balanced` (largest product of both). A cell that is
        several of them is one row. `decode_tok_s` is the speed that counts, so the task's
        where one is given; ranges are null then, and gains still those of the median (see
        `with_gains_of_task`). No row where nothing will do.
    """
    found = _eligible(frontier, task)
    found = found.with_columns(_product=pl.col("context") * pl.col("decode_tok_s"))
    orders = {
        "fastest": ["decode_tok_s", "context", "_memory"],
        "longest": ["context", "decode_tok_s", "_memory"],
        "balanced": ["_product", "context", "_memory"],
    }
    ordered = found.with_columns(_memory=-pl.col("utilization"))
    picks = [
        # The last key is there so that the same table always gives the same answer.
        ordered.sort([*orders[name], "cell_id"], descending=[True, True, True, False])
        .head(1)
        .select("cell_id", pl.lit(name).alias("choices"))
        for name in CHOICES
    ]
    named = pl.concat(picks).group_by("cell_id", maintain_order=True).agg("choices")
    return named.join(
        found.drop("_product"), on="cell_id", how="left", maintain_order="left"
    ).select("choices", *frontier.collect_schema().names())


def _eligible(frontier: pl.LazyFrame, task: str | None) -> pl.LazyFrame:
    """The rows that lead for the task, with the speed that counts."""
    leading = frontier.filter(pl.col("on_frontier_for").list.contains(task or ALL))
    return of_task(leading, task)
