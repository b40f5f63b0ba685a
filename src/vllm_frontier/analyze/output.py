"""Which cells write what the model would not: their output is broken.

A text that a cell wrote is rated by the model itself, in a request in which nothing is drafted
(runs of kind `probe`). What is right is about as probable as what the model writes without
speculation; random tokens are not.
"""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.digest import Digest

MARGIN = 1.0
"""Nats a token by which a text may be less probable than it should be, or sampled text more."""

_SURE = 4.0  # standard errors
_IMPOSSIBLE = -100.0  # nats a token; what stands for the logarithm of 0, of which there is no mean
_KEYS = ("extra", "changed", "workload", "task", "temperature")
_LOOKED_AT = 64  # first tokens of a text
_LOOPS = 8  # different tokens of these; a text that makes sense has three times as many


def likelihoods(digest: Digest) -> pl.DataFrame:
    """How probable the texts of each cell are, and whether its output is broken.

    Texts are held against those of depth 0 at the same task and temperature, with the same further
    axes; where there are none, against what the model would expect of its own text. Of sampled
    text both must say that it is broken: another text may be less probable and yet right. Sampled
    text that is far too probable is broken, too, and so is text that turns in circles where that of
    depth 0 does not.

    Depth 0 itself is only held against what is expected of it. What that says may as well be due
    to how it was sampled, so that it is in `doubt` then, and so are the cells that write alike.

    Args:
        digest: of the sweep.

    Returns:
        One row per cell and temperature: cell_id, `temperature`, `texts` (how many), `value` and
        `expected` (mean log-probability of a token, nats), `broken`, `doubt` (not broken for all
        that is known, but not as expected either), `loops` (most of its texts turn in circles),
        `measured` (whether the workload has this temperature) and `greedy` (whether the workload
        has temperature 0).
    """
    probes = _probes(digest)
    base = (
        probes.filter(pl.col("depth") == 0)
        .group_by(_KEYS)
        .agg(
            pl.col("output_logprob").mean().alias("_base"),
            pl.col("output_logprob").var().alias("_variance"),
            pl.len().cast(pl.Int64).alias("_texts"),
            pl.col("loops").fill_null(False).mean().alias("_loops"),
            (pl.col("output_logprob") - pl.col("output_logprob_expected")).mean().alias("_off"),
        )
    )
    told = _judged(probes.join(base, on=list(_KEYS), how="left", nulls_equal=True))
    measured = pl.col("_workload") == pl.col("temperature")
    return (
        told.join(_workload(digest), on="cell_id", how="left")
        .with_columns(
            measured=measured.fill_null(False), greedy=(pl.col("_workload") == 0).fill_null(False)
        )
        .drop("_workload")
        .sort("cell_id", "temperature")
    )


def unrated(rated: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """The cells that were measured and whose texts nothing rated: cell_id and `temperature`.

    Args:
        rated: of `likelihoods`.
        digest: of the sweep.
    """
    measured = _workload(digest).rename({"_workload": "temperature"})
    return measured.join(rated, on=["cell_id", "temperature"], how="anti").sort("cell_id")


def broken_cells(
    trials: pl.LazyFrame, runs: pl.LazyFrame, *, rated: pl.DataFrame | None = None
) -> pl.LazyFrame:
    """The cells whose output is broken at the temperature of their workload: column cell_id.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        rated: of `likelihoods`, where they are known already.
    """
    found = likelihoods(Digest(trials, runs)) if rated is None else rated
    return found.filter("broken", "measured").select("cell_id").unique(maintain_order=True).lazy()


def _probes(digest: Digest) -> pl.DataFrame:
    tokens = pl.col("output_token_ids")
    # What is there again among so few is looked at twice; most texts are not.
    few = tokens.list.head(_LOOPS + 1).list.n_unique() <= _LOOPS
    repeats = tokens.list.head(_LOOKED_AT).list.n_unique() <= _LOOPS
    launches = digest.launches.select("launch", "cell_id", "depth", *_KEYS[:3])
    told = pl.col("output_logprob").is_not_nan() & (pl.col("output_logprob") < float("inf"))
    found = digest.probes.filter(told, pl.col("temperature").is_not_null())
    texts = digest.texts.filter(pl.col("row").is_in(found["text"].implode()))
    looping = texts.filter(tokens.list.len() >= _LOOKED_AT, few).filter(repeats)["row"]
    loops = pl.when(tokens.is_not_null()).then(pl.col("row").is_in(looping.implode()))
    texts = texts.select(text="row", loops=loops)
    return (
        found.with_columns(
            pl.col("output_logprob").clip(lower_bound=_IMPOSSIBLE), pl.col("task").cast(pl.String)
        )
        .join(texts, on="text", how="left", maintain_order="left")
        .join(launches, on="launch", how="inner", maintain_order="left")
        .filter(pl.col("depth").is_not_null())
    )


def _judged(probes: pl.DataFrame) -> pl.DataFrame:
    """Means over the texts of a cell and temperature, against those of depth 0 where there are any.

    The margin is larger where the texts of depth 0 differ much.
    """
    alone = pl.col("_base").is_null() | (pl.col("depth") == 0)
    own = pl.col("output_logprob_expected")
    against = pl.when(alone).then(own).otherwise("_base")
    error = (pl.col("_variance").mean() * (1 / pl.len() + 1 / pl.col("_texts").sum())).sqrt()
    means = (
        probes.with_columns(
            _against=against, _own=own, _alone=alone, _variance=pl.when(~alone).then("_variance")
        )
        .filter(pl.col("_against").is_finite())
        .group_by("cell_id", "temperature")
        .agg(
            pl.col("depth").first(),
            pl.len().cast(pl.Int64).alias("texts"),
            pl.col("output_logprob").mean().alias("value"),
            pl.col("_against").mean().alias("expected"),
            pl.col("_own", "_loops", "_off").mean(),
            pl.col("_alone").all(),
            (pl.col("loops").fill_null(False).mean() >= 0.5).alias("loops"),
            error.fill_null(0.0).alias("_error"),
        )
    )
    sampled, is_base = pl.col("temperature") > 0, pl.col("depth") == 0
    margin = pl.max_horizontal(pl.lit(MARGIN), _SURE * pl.col("_error"))
    above, above_own = (pl.col("value") - pl.col(name) for name in ("expected", "_own"))
    # Text that turns in circles is as probable as its own beginning makes it.
    low = (above < -margin) & ((above_own < -MARGIN).fill_null(True) | ~sampled | pl.col("_alone"))
    high = sampled & (above > margin) & ((above_own > MARGIN).fill_null(True) | pl.col("loops"))
    circles = sampled & pl.col("loops") & (pl.col("_loops") < 0.5) & (pl.col("texts") > 1)
    off = low | high
    base_off = (pl.col("_off") < -MARGIN) | (sampled & (pl.col("_off") > MARGIN))
    broken = (~is_base & (off | circles)).fill_null(False)
    return means.select(
        *("cell_id", "temperature", "texts", "value", "expected"),
        broken=broken,
        doubt=((is_base & off) | (~is_base & base_off & ~broken)).fill_null(False),
        loops=pl.col("loops"),
    ).sort("cell_id", "temperature")


def _workload(digest: Digest) -> pl.DataFrame:
    """The temperature of the decode runs of every cell."""
    found = (
        digest.measured.lazy()
        .filter(pl.col("kind") == "decode", pl.col("temperature").is_not_null())
        .group_by("cell")
        .agg(pl.col("temperature").median().alias("_workload"))
        .collect()
    )
    cells = digest.launches.select("cell", "cell_id").unique("cell")
    return found.join(cells, on="cell", how="inner").select("cell_id", "_workload")
