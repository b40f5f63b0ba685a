"""Where the next token drafted stops paying, and how often drafts are accepted.

Depths are compared by `verdicts`, and only those that were measured.
"""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.latest import CELL, counted, works
from vllm_frontier.analyze.verdicts import Verdict, verdicts
from vllm_frontier.outcome import Status

_SERIES = ("extra", "graphs", "task")
_POSITION = ("extra", "task", "depth", "position")


def depth_steps(groups: pl.DataFrame) -> pl.DataFrame:
    """What every further token drafted gains, from each depth that was measured to the next.

    Args:
        groups: of `speed_groups`.

    Returns:
        Rows of `extra`, `graphs`, `task` (null: all tasks), `depth` and `next_depth`: `ratio` (of
        the deeper one's speed to the other's), `per_token` (gain of each of the tokens between
        them, as a share, compounded) and `verdict` (of the deeper one).
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
    )


def pays_up_to(groups: pl.DataFrame) -> pl.DataFrame:
    """The depth after which no deeper one that was measured is faster beyond doubt.

    Steps that are each too small to tell count together: a depth is only the last that pays when
    none beyond it is `faster`.

    Args:
        groups: of `speed_groups`.

    Returns:
        A row for each `extra`, `graphs` and `task` (null: all tasks) with at least two depths:
        `pays_up_to`, `deepest` (both tokens), `still_gains` (they are the same, so that nothing
        tells where it ends) and `after` (what the next depth is against `pays_up_to`: `no clear
        difference` or `slower`; null where none was measured).
    """
    cells = _cells(groups)
    pairs = cells.join(
        cells.select(*_SERIES, next_depth="depth", _next="cell_id"),
        on=list(_SERIES),
        how="inner",
        nulls_equal=True,
    ).filter(pl.col("next_depth") > pl.col("depth"))
    judged = _judged(groups, pairs)
    gains = (pl.col("verdict") == Verdict.FASTER.value).any()
    beaten = judged.group_by(*_SERIES, "depth").agg(gains.alias("_beaten"))
    last = (
        cells.with_columns(deepest=pl.col("depth").max().over(_SERIES))
        .filter(pl.len().over(_SERIES) > 1)
        .join(beaten, on=[*_SERIES, "depth"], how="left", nulls_equal=True)
        .filter(~pl.col("_beaten").fill_null(False))
        .sort(*_SERIES, "depth", nulls_last=False)
        .group_by(_SERIES, maintain_order=True)
        .agg(pl.col("depth").first().alias("pays_up_to"), pl.col("deepest").first())
    )
    after = judged.sort("next_depth").group_by(*_SERIES, "depth").agg(pl.col("verdict").first())
    return (
        last.join(
            after,
            left_on=[*_SERIES, "pays_up_to"],
            right_on=[*_SERIES, "depth"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .rename({"verdict": "after"})
        .with_columns(still_gains=pl.col("pays_up_to") == pl.col("deepest"))
        .select(*_SERIES, "pays_up_to", "deepest", "still_gains", "after")
    )


def acceptance_by_position(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.DataFrame:
    """How often drafted tokens are accepted, by their position in the draft.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.

    Returns:
        Rows of `extra`, `task` (null: all tasks), `depth` (null: all depths that have the position)
        and `position` (from 1): `accepted` (share of drafts whose first so many tokens were all
        accepted) and `drafts`.
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
        .select(*CELL, "extra", "depth")
    )
    accepted = pl.col("accepted_per_position")
    told = accepted.list.drop_nulls().list.len() == accepted.list.len()
    return (
        runs.filter(pl.col("kind") == "decode", pl.col("drafts") > 0, accepted.list.len() > 0, told)
        .join(launches, on=CELL, how="inner")
        .select(
            "extra",
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
    """Adds the `verdict` of `_next` against `cell_id`."""
    wanted = pairs.select(pl.col("_next").alias("cell_id"), "task", other_cell_id="cell_id")
    told = verdicts(groups, wanted.lazy()).collect()
    return pairs.with_columns(told["verdict"])
