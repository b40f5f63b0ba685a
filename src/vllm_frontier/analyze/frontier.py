"""The frontier: what no other cell beats on window, speed and memory at once."""

from __future__ import annotations

from functools import partial

import polars as pl

from vllm_frontier.analyze.borrowed import working_speeds
from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.digest import Digest
from vllm_frontier.analyze.gains import gains
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.analyze.latest import AXES, CELL
from vllm_frontier.analyze.output import broken_cells, likelihoods
from vllm_frontier.analyze.verdicts import Differences
from vllm_frontier.dominance import TIE, Point, leaders_by

ALL = "all"
"""The word in `on_frontier_for` for the median over tasks."""


_BEFORE = (
    "sweep",
    *CELL,
    *AXES,
    "decode_tok_s",
    "decode_tok_s_low",
    "decode_tok_s_high",
    "task_decode_tok_s",
    "prefill_tok_s",
    "max_context",
    "kv_headroom_gib",
)
_AFTER = (
    "kv_tokens",
    "memory_used_peak_gib",
    "gain_same_graphs",
    "gain_no_graphs",
    "gain_basis",
    "engine",
    "engine_version",
    "model",
    "card",
    "spec_state",
    "changed",
    "status",
    "speed_cell",
    "launches",
    "runs",
    "interval_basis",
)


def frontier(
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    *,
    tie: float = TIE,
    task: str | None = None,
    min_context: int | None = None,
    min_decode: float | None = None,
    max_utilization: float | None = None,
    figures: pl.DataFrame | None = None,
    rated: pl.DataFrame | None = None,
) -> pl.LazyFrame:
    """The cells that lead for the median over tasks or for one of the tasks.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        tie: speeds that differ by less than this share count as equal in any case; see
            `verdicts`.
        task: whose speed `min_decode` is about; None for the median over tasks.
        min_context: only cells with at least this window, tokens.
        min_decode: only cells that decode at least this fast, tokens/s.
        max_utilization: only cells with at most this share of the card's memory.
        figures: of `cell_figures`, where they are known already.
        rated: of `likelihoods`, where they are known already.

    Returns:
        The columns of the table `frontier`, longest window first. `on_frontier_for` names the
        tasks for whose speed the cell leads, and `all` where it leads for the median; cells
        without a clear difference in that speed count as equally fast. Cells that were not
        measured are here with the speed of `speed_cell`, see `working_speeds`.
    """
    digest = Digest(trials, runs)
    if figures is None:
        figures = cell_figures(trials, runs, digest=digest)
    if rated is None:
        rated = likelihoods(digest)
    works = candidates(trials, runs, figures=figures, rated=rated).collect()
    if max_utilization is not None:
        works = works.filter(pl.col("utilization") <= max_utilization)
    found = _at_least(works, task, min_context, min_decode)
    lender = dict(found.select("cell_id", "speed_cell").iter_rows())
    leads: dict[str, list[str]] = {}
    for name, points in _measures(found):
        differences = Differences(figures, None if name == ALL else name, tie=tie)
        for cell_id in leaders_by(points, partial(_faster, differences, lender)):
            leads.setdefault(cell_id, []).append(name)
    names = pl.DataFrame(
        {"cell_id": list(leads), "on_frontier_for": list(leads.values())},
        schema={"cell_id": pl.String, "on_frontier_for": pl.List(pl.String)},
    )
    return (
        found.lazy()
        .join(names.lazy(), on="cell_id", how="inner")
        .select(*_BEFORE, "on_frontier_for", *_AFTER)
        .sort(
            ["context", "decode_tok_s", "utilization", "cell_id"],
            descending=[True, True, False, False],
        )
    )


def candidates(
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    *,
    figures: pl.DataFrame | None = None,
    rated: pl.DataFrame | None = None,
) -> pl.LazyFrame:
    """Every cell that works and has a decode speed, with the columns of the frontier but one.

    A cell whose output is broken, or that of the cell whose speed it has, is none of them.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        figures: of `cell_figures`, where they are known already.
        rated: of `likelihoods`, where they are known already.
    """
    if figures is None:
        figures = cell_figures(trials, runs)
    limits = boundaries(trials).select(
        "depth", "graphs", "utilization", "extra", pl.col("max_context_works").alias("max_context")
    )
    # What one window needs is logged only when it does not fit; else it is the window's part of
    # the cache.
    needed = pl.col("kv_needed_gib").fill_null(
        pl.col("kv_available_gib") * pl.col("context") / pl.col("kv_tokens")
    )
    return (
        working_speeds(trials, runs, figures=figures)
        .join(
            broken_cells(trials, runs, rated=rated),
            left_on="speed_cell",
            right_on="cell_id",
            how="anti",
        )
        .join(limits, on=["depth", "graphs", "utilization", "extra"], how="left")
        # Both speeds of a gain come from launches: those of the cell whose speed it is.
        .join(
            gains(trials, runs, figures=figures),
            left_on="speed_cell",
            right_on="cell_id",
            how="left",
        )
        .with_columns(kv_headroom_gib=pl.col("kv_available_gib") - needed)
        .select(_BEFORE + _AFTER)
    )


def _at_least(
    found: pl.DataFrame, task: str | None, min_context: int | None, min_decode: float | None
) -> pl.DataFrame:
    """The cells that satisfy what is asked for, before any of them is beaten by another."""
    if min_context is not None:
        found = found.filter(pl.col("context") >= min_context)
    if min_decode is not None:
        named = dict(_measures(found)).get(task or ALL, [])
        fast = [point.cell_id for point in named if point.speed >= min_decode]
        found = found.filter(pl.col("cell_id").is_in(fast))
    return found


def _faster(
    differences: Differences, lender: dict[str, str], one: Point[str], other: Point[str]
) -> bool:
    """Whether a cell is faster than another, by the cells whose speeds they have."""
    return differences.faster(lender[one.cell_id], lender[other.cell_id])


def _measures(found: pl.DataFrame) -> list[tuple[str, list[Point[str]]]]:
    """The speeds by which cells are ranked: the median over tasks, and each task's."""
    columns = ["cell_id", "context", "utilization", "decode_tok_s", "depth"]
    by_task = (
        found.select("cell_id", "context", "utilization", "depth", "task_decode_tok_s")
        .explode("task_decode_tok_s")
        .unnest("task_decode_tok_s")
        .filter(pl.col("decode_tok_s").is_not_null())
    )
    overall = [Point(*row) for row in found.select(columns).iter_rows()]
    measures = [(ALL, overall)]
    for (task,), rows in sorted(by_task.group_by("task"), key=lambda each: str(each[0][0])):
        measures.append((str(task), [Point(*row) for row in rows.select(columns).iter_rows()]))
    return measures
