"""What fits: for every combination of the other axes, where the window ends."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.latest import AXES, counted, does_not_work, is_inferred, works
from vllm_frontier.analyze.monotony import contested

OTHER_AXES = ("depth", "graphs", "utilization", "extra")


def boundaries(trials: pl.LazyFrame, planned: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """The longest window that works and the shortest that does not.

    Args:
        trials: the table `trials`.
        planned: cells of the grid that may not have been tried yet, with the axis columns of
            `trials`; they count as cells about which nothing is known.

    Returns:
        The columns of the table `boundaries`, a row for every combination of the other axes.
        Windows are values of the grid, null where none works or none is refused. What vLLM
        refuses whatever the card (`invalid`) is refused, too; `failure_class` tells it.
        `verified` is true when both sides are proven: each was launched or follows from another
        cell's launch without one that says otherwise, and no window is left between them about
        which nothing is known. Where nothing works or nothing is refused, that holds for all
        windows on that side. `launched` is true when the sides that are known were launched
        themselves, and one is. Where a longer window works than one that is refused, `monotone`
        is false.
    """
    cells = counted(trials)
    if planned is not None:
        untried = planned.select(AXES).join(cells, on=AXES, how="anti")
        cells = pl.concat([cells, untried], how="diagonal")
    doubted = contested(trials).with_columns(_doubted=True)
    cells = cells.join(doubted, on="cell_id", how="left", maintain_order="left")
    context = pl.col("context")
    longest = context.filter(works()).max()
    shortest = context.filter(does_not_work()).min()
    # Where nothing works or nothing is refused, the comparison is null and does not count.
    at_a_side = (works() & (context == longest)) | (does_not_work() & (context == shortest))
    unknown = ~works() & ~does_not_work()
    between = (context > longest).fill_null(True) & (context < shortest).fill_null(True)
    return (
        cells.group_by(OTHER_AXES)
        .agg(
            pl.col("sweep").drop_nulls().first(),
            pl.col("engine").drop_nulls().first(),
            longest.alias("max_context_works"),
            shortest.alias("min_context_fails"),
            pl.col("failure_class")
            .filter(does_not_work())
            .sort_by(context.filter(does_not_work()))
            .first(),
            pl.len().cast(pl.Int64).alias("cells"),
            _inferred=(is_inferred() & at_a_side).any(),
            _open=(unknown.fill_null(True) & between).any(),
            _doubted=(pl.col("_doubted").fill_null(False) & at_a_side).any(),
        )
        .with_columns(
            _known=pl.any_horizontal(
                pl.col("max_context_works", "min_context_fails").is_not_null()
            ),
            monotone=(pl.col("max_context_works") < pl.col("min_context_fails")).fill_null(True),
        )
        .with_columns(
            verified=pl.col("_known") & ~pl.col("_open") & ~pl.col("_doubted"),
            launched=pl.col("_known") & ~pl.col("_inferred"),
        )
        .select(
            "sweep",
            *OTHER_AXES,
            "max_context_works",
            "min_context_fails",
            "verified",
            "failure_class",
            "cells",
            "monotone",
            "engine",
            "launched",
        )
        .sort("extra", "depth", "graphs", "utilization")
    )
