"""What fits: for every combination of the other axes, where the window ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from vllm_frontier.analyze.latest import AXES, counted, does_not_work, is_inferred, works
from vllm_frontier.analyze.monotony import contested
from vllm_frontier.window_end import window_end

OTHER_AXES = ("depth", "graphs", "utilization", "extra")
_COLUMNS = (
    *("sweep", *OTHER_AXES, "max_context_works", "min_context_fails", "verified"),
    *("failure_class", "cells", "monotone", "engine", "launched"),
)
_KINDS = {
    **dict.fromkeys(("max_context_works", "min_context_fails", "cells"), pl.Int64()),
    **dict.fromkeys(("verified", "monotone", "launched"), pl.Boolean()),
}


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
        `verified` and `monotone` are those of `window_end`: a side that was not launched is
        known where it follows from another cell's launch, and disputed where launches say both.
        `launched` is true when the sides that are known were launched themselves, and one is.
    """
    cells = counted(trials)
    if planned is not None:
        untried = planned.select(AXES).join(cells, on=AXES, how="anti")
        cells = pl.concat([cells, untried], how="diagonal")
    doubted = contested(trials).with_columns(_disputed=True)
    cells = cells.join(doubted, on="cell_id", how="left", maintain_order="left")
    context = pl.col("context")
    grouped = cells.group_by(OTHER_AXES).agg(
        pl.col("sweep").drop_nulls().first(),
        pl.col("engine").drop_nulls().first(),
        pl.len().cast(pl.Int64).alias("cells"),
        _windows=context,
        _answers=pl.when(works()).then(True).when(does_not_work()).then(False),
        _disputed=context.filter(pl.col("_disputed").fill_null(False)),
        _inferred=context.filter(is_inferred()),
        _reasons=pl.struct("context", "failure_class").filter(does_not_work()),
    )
    told = [_row(each) for each in grouped.collect().iter_rows(named=True)]
    kinds = cells.collect_schema()
    schema = {name: _KINDS.get(name) or kinds[name] for name in _COLUMNS}
    found = pl.LazyFrame(told, schema=schema)
    return found.sort("extra", "depth", "graphs", "utilization")


def _row(group: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table for the cells of one combination of the other axes."""
    answers = dict(zip(group["_windows"], group["_answers"], strict=True))
    end = window_end(answers, group["_disputed"])
    sides = {each for each in (end.longest, end.shortest) if each is not None}
    reasons = {each["context"]: each["failure_class"] for each in group["_reasons"]}
    return {
        **{name: group[name] for name in ("sweep", *OTHER_AXES, "cells", "engine")},
        "max_context_works": end.longest,
        "min_context_fails": end.shortest,
        "verified": end.verified,
        "failure_class": reasons.get(end.shortest),
        "monotone": end.monotone,
        "launched": bool(sides) and sides.isdisjoint(group["_inferred"]),
    }
