"""The speed of cells that were not measured themselves.

Decode speed of one request hardly depends on window and share of the card, so a cell that works
has the speed of the measured cell with the same depth, graphs and further axes.
"""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.intervals import cell_figures, pooled_speeds
from vllm_frontier.analyze.latest import AXES, CELL, counted, works
from vllm_frontier.analyze.speed import SPEEDS
from vllm_frontier.search.speeds import lenders
from vllm_frontier.store.rows import cell_of

SAME_SPEED = ("depth", "graphs", "extra")
"""The axes that decide a cell's decode speed."""

_OF_SPEED = ("launches", "runs", "interval_basis")


def working_speeds(
    trials: pl.LazyFrame, runs: pl.LazyFrame, *, figures: pl.DataFrame | None = None
) -> pl.LazyFrame:
    """Every cell that works and has a speed, its own or a borrowed one.

    Its own is that over all its launches that were measured. A speed is borrowed from the
    measured cell that lends its own to those of the same depth, graphs and further axes.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        figures: of `cell_figures`, where they are known already.

    Returns:
        The row of `trials` that counts of each such cell, with the columns of `pooled_speeds` and
        `speed_cell`, the cell_id whose speed it is. `spec_state` is that of the speed.
    """
    if figures is None:
        figures = cell_figures(trials, runs)
    cells = counted(trials).filter(works())
    measured = with_speeds(cells, figures).with_columns(speed_cell=pl.col("cell_id"))
    names = measured.collect_schema().names()
    lent = [*SPEEDS, *_OF_SPEED, "speed_cell", "spec_state"]
    # The one that lends has the longest window.
    longest = pl.col("context") == pl.col("context").max().over(SAME_SPEED)
    axes = measured.filter(longest).select("cell_id", *AXES).collect()
    ids = {cell_of(row): row["cell_id"] for row in axes.iter_rows(named=True)}
    lending = [ids[cell] for cell in lenders(ids).values()]
    lent_speeds = measured.filter(pl.col("cell_id").is_in(lending)).select(*SAME_SPEED, *lent)
    borrowed = (
        cells.drop(lent, strict=False)
        .join(measured, on=CELL, how="anti")
        .join(lent_speeds, on=SAME_SPEED, how="inner")
    )
    return pl.concat([measured, borrowed.select(names)])


def with_speeds(cells: pl.LazyFrame, figures: pl.DataFrame) -> pl.LazyFrame:
    """Those of some rows of `trials` that have a speed of their own, with `pooled_speeds`.

    The speed that `trials` itself keeps of an attempt, without that of its tasks, gives way.

    Args:
        cells: one row per cell.
        figures: of `cell_figures`.
    """
    return cells.drop(SPEEDS, strict=False).join(pooled_speeds(figures), on="cell_id", how="inner")
