"""Where the next token drafted stops paying, and how often drafts are accepted.

Depths are compared by `verdicts`, and only those that were measured.
"""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.intervals import LAUNCHES, RUNS
from vllm_frontier.analyze.latest import CELL, counted, works
from vllm_frontier.analyze.speed_groups import IDENTITY
from vllm_frontier.analyze.verdicts import Verdict, verdicts
from vllm_frontier.outcome import Status

_SERIES = (*IDENTITY, "graphs", "task")
_POSITION = (*IDENTITY, "task", "depth", "position")


def depth_steps(groups: pl.DataFrame) -> pl.DataFrame:
    """What every further token drafted gains, from each depth that was measured to the next.

    Args:
        groups: of `speed_groups`.

    Returns:
        Rows of `IDENTITY`, `graphs`, `task` (null: all tasks), `depth` and `next_depth`: `ratio`
        (of the deeper one's speed to the other's), `per_token` (gain of each of the tokens between
        them, as a share, compounded), `verdict` (of the deeper one) and its `basis`.
    """
    cells = _cells(groups)
    deeper = pl.col("depth").shift(-1).over(_SERIES)
    steps = cells.sort(*_SERIES, "depth", nulls_last=False).with_columns(
        next_depth=deeper,
        ratio=pl.col("decode_tok_s").shift(-1).over(_SERIES) / pl.col("decode_tok_s"),
        _next=pl.col("cell_id").shift(-1).over(_SERIES),
    )
    steps = steps.drop_nulls("next_depth")
    tokens = pl.col("next_depth") - pl.col("depth")
    return _judged(groups, steps).select(
        *_SERIES,
        "depth",
        "next_depth",
        "ratio",
        (pl.col("ratio").pow(1 / tokens) - 1).alias("per_token"),
        "verdict",
        "basis",
    )


def pays_up_to(groups: pl.DataFrame) -> pl.DataFrame:
    """The depth after which no deeper one that was measured is `faster`.

    Steps that are each too small to tell count together: a depth is only the last that pays when
    none beyond it is `faster`.

    Args:
        groups: of `speed_groups`.

    Returns:
        A row for each `IDENTITY`, `graphs` and `task` (null: all tasks) with at least two depths:
        `pays_up_to`, `deepest` (both tokens), `still_gains` (they are the same, so that nothing
        tells where it ends), `after` (what the next depth is against `pays_up_to`: `no clear
        difference` or `slower`; null where none was measured) and `basis` (`runs` where any of the
        verdicts is of runs within launches, since it rests on all).
    """
    cells = _cells(groups)
    pairs = cells.join(
        cells.select(*_SERIES, next_depth="depth", _next="cell_id"),
        on=list(_SERIES),
        how="inner",
        nulls_equal=True,
    ).filter(pl.col("next_depth") > pl.col("depth"))
    judged = _judged(groups, pairs).sort("next_depth")
    against = judged.group_by(*_SERIES, "depth").agg(
        (pl.col("verdict") == Verdict.FASTER.value).any().alias("_beaten"),
        pl.col("verdict").first().alias("_after"),
        (pl.col("basis") == RUNS).any().alias("_within"),
    )
    rows = (
        cells.join(against, on=[*_SERIES, "depth"], how="left", nulls_equal=True)
        .filter(pl.len().over(_SERIES) > 1)
        .sort(*_SERIES, "depth", nulls_last=False)
    )
    last = pl.col("depth").filter(~pl.col("_beaten").fill_null(value=False)).first()
    return (
        rows.group_by(_SERIES, maintain_order=True)
        .agg(
            last.alias("pays_up_to"),
            pl.col("depth").max().alias("deepest"),
            pl.col("_after").filter(pl.col("depth") == last).first().alias("after"),
            pl.col("_within").any(),
        )
        .select(
            *_SERIES,
            "pays_up_to",
            "deepest",
            (pl.col("pays_up_to") == pl.col("deepest")).alias("still_gains"),
            "after",
            pl.when("_within").then(pl.lit(RUNS)).otherwise(pl.lit(LAUNCHES)).alias("basis"),
        )
    )


def acceptance_by_position(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.DataFrame:
    """How often drafted tokens are accepted, by their position in the draft.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.

    Returns:
        Rows of `IDENTITY`, `task` (null: all tasks), `depth` (null: all depths that have the
        position) and `position` (from 1): `accepted` (share of drafts whose first so many tokens
        were all accepted) and `drafts`.
    """
    counts = _counts(trials, runs).collect()
    wider = [
        counts,
        counts.with_columns(depth=pl.lit(None, dtype=pl.Int64)),
        counts.with_columns(task=pl.lit(None, dtype=pl.String)),
        counts.with_columns(depth=pl.lit(None, dtype=pl.Int64), task=pl.lit(None, dtype=pl.String)),
    ]
    return (
        pl.concat(wider)
        .group_by(_POSITION)
        .agg(
            (pl.col("accepted").sum() / pl.col("drafts").sum()).alias("accepted"),
            pl.col("drafts").sum(),
        )
        .sort(_POSITION, nulls_last=False)
        .select(*_POSITION, "accepted", "drafts")
    )


def _counts(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.LazyFrame:
    """Drafts and what was accepted of them, of every run and position."""
    cells = counted(trials).filter(works()).select("cell_id")
    launches = (
        trials.filter(pl.col("status") == Status.MEASURED.value)
        .join(cells, on="cell_id", how="semi")
        .with_columns(pl.col("changed").fill_null(""))
        .select(*CELL, *IDENTITY, "depth")
    )
    accepted = pl.col("accepted_per_position")
    told = accepted.list.drop_nulls().list.len() == accepted.list.len()
    return (
        runs.filter(pl.col("kind") == "decode", pl.col("drafts") > 0, accepted.list.len() > 0, told)
        .join(launches, on=CELL, how="inner")
        .select(
            *IDENTITY,
            "task",
            "depth",
            "drafts",
            accepted.alias("accepted"),
            pl.int_ranges(1, accepted.list.len() + 1).alias("position"),
        )
        .explode("accepted", "position")
    )


def _cells(groups: pl.DataFrame) -> pl.DataFrame:
    return groups.select(*_SERIES, "depth", "decode_tok_s", "cell_id")


def _judged(groups: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Adds the `verdict` of `_next` against `cell_id`, and its `basis`."""
    wanted = pairs.select(pl.col("_next").alias("cell_id"), "task", other_cell_id="cell_id")
    told = verdicts(groups, wanted.lazy()).collect()
    return pairs.with_columns(told["verdict"], told["basis"])
