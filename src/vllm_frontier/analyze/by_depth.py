"""How fast each depth is on each task, and how often its drafts are accepted."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.latest import CELL, counted, works
from vllm_frontier.analyze.speed import is_speed
from vllm_frontier.outcome import Status

GROUP = ("extra", "depth", "task")


def by_depth(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.LazyFrame:
    """Speed and acceptance by depth and task, all cells that work taken together.

    Decode speed of one request hardly depends on window and share of the card, so cells that
    differ only in these are pooled.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.

    Returns:
        One row per `extra`, `depth` and `task`: `eager` and `graphs` (tokens/s, median over
        cells of the median over launches of their medians over repeats, null where nothing was
        measured), `acceptance` (list; share of drafts whose first n tokens were all accepted,
        over all runs; null at depth 0).
    """
    cells = counted(trials).filter(works()).select("cell_id")
    launches = (
        trials.filter(pl.col("status") == Status.MEASURED.value)
        .join(cells, on="cell_id", how="semi")
        .select(*CELL, "extra", "depth", "graphs")
    )
    decode = (
        runs.filter(pl.col("kind") == "decode")
        .with_columns(pl.when(is_speed("decode_tok_s")).then("decode_tok_s"))
        .join(launches, on=CELL, how="inner")
    )
    medians = (
        decode.group_by(*GROUP, "graphs", *CELL)
        .agg(pl.col("decode_tok_s").median())
        .group_by(*GROUP, "graphs", "cell_id")
        .agg(pl.col("decode_tok_s").median())
        .group_by(GROUP)
        .agg(
            pl.col("decode_tok_s").filter(~pl.col("graphs")).median().alias("eager"),
            pl.col("decode_tok_s").filter(pl.col("graphs")).median().alias("graphs"),
        )
    )
    return (
        medians.join(_acceptance(decode), on=list(GROUP), how="left")
        .sort(GROUP)
        .select(*GROUP, "eager", "graphs", "acceptance")
    )


def _acceptance(decode: pl.LazyFrame) -> pl.LazyFrame:
    """Accepted over drafts by position, pooled over runs."""
    accepted = pl.col("accepted_per_position")
    told = (accepted.list.len() > 0) & (
        accepted.list.drop_nulls().list.len() == accepted.list.len()
    )
    drafting = decode.filter(pl.col("drafts") > 0, told)
    return (
        drafting.select(
            *GROUP,
            "drafts",
            accepted.alias("accepted"),
            pl.int_ranges(0, accepted.list.len()).alias("position"),
        )
        .explode("accepted", "position")
        .group_by(*GROUP, "position")
        .agg(pl.col("accepted").sum() / pl.col("drafts").sum())
        .sort(*GROUP, "position")
        .group_by(GROUP, maintain_order=True)
        .agg(pl.col("accepted").alias("acceptance"))
    )
