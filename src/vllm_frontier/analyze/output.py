"""Which cells write what the model would not: their output is broken.

A text that a cell wrote is rated by the model itself, in a request in which nothing is drafted
(runs of kind `probe`). What is right is about as probable as what the model writes without
speculation; random tokens are not.
"""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.latest import CELL
from vllm_frontier.outcome import Status

MARGIN = 1.0
"""Nats a token by which a text may be less probable than it should be."""

_SURE = 4.0  # standard errors
_KEYS = ("extra", "changed", "workload", "task", "temperature")


def likelihoods(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.DataFrame:
    """How probable the texts of each cell are, and whether its output is broken.

    Texts are held against those of depth 0 at the same task and temperature, with the same further
    axes; where there are none, against what the model would expect of its own text. Of sampled
    text both must say that it is broken: another text may be less probable and yet right.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.

    Returns:
        One row per cell and temperature: cell_id, `temperature`, `texts` (how many), `value` and
        `expected` (mean log-probability of a token, nats), `broken`, `measured` (whether the
        workload has this temperature) and `greedy` (whether the workload has temperature 0).
    """
    probes = _probes(trials, runs).collect()
    alone = probes.with_columns(_against=pl.col("output_logprob_expected"))
    without = _judged(alone.filter(pl.col("depth") == 0))
    sane = without.filter(~pl.col("broken"))
    # A baseline that is broken itself is none.
    base = (
        probes.filter(pl.col("depth") == 0)
        .join(sane, on=["cell_id", "temperature"], how="semi")
        .group_by(_KEYS)
        .agg(
            pl.col("output_logprob").mean().alias("_base"),
            pl.col("output_logprob").var().alias("_variance"),
            pl.len().cast(pl.Int64).alias("_texts"),
        )
    )
    drafted = probes.filter(pl.col("depth") > 0).join(
        base, on=list(_KEYS), how="left", nulls_equal=True
    )
    drafted = drafted.with_columns(
        _against=pl.coalesce("_base", "output_logprob_expected"),
        _own=pl.when(pl.col("_base").is_not_null() & (pl.col("temperature") > 0)).then(
            "output_logprob_expected"
        ),
    )
    told = pl.concat([without, _judged(drafted)])
    measured = pl.col("_workload") == pl.col("temperature")
    return (
        told.join(_workload(trials, runs).collect(), on="cell_id", how="left")
        .with_columns(
            measured=measured.fill_null(False), greedy=(pl.col("_workload") == 0).fill_null(False)
        )
        .drop("_workload")
        .sort("cell_id", "temperature")
    )


def broken_cells(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.LazyFrame:
    """The cells whose output is broken at the temperature of their workload: column cell_id."""
    found = likelihoods(trials, runs)
    return found.filter("broken", "measured").select("cell_id").unique(maintain_order=True).lazy()


def _probes(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.LazyFrame:
    columns = ("output_logprob", "output_logprob_expected", "task", "temperature")
    launches = _launches(trials).select(*CELL, "depth", *_KEYS[:3])
    return (
        runs.filter(pl.col("kind") == "probe", pl.col("output_logprob").is_finite())
        .filter(pl.col("temperature").is_not_null())
        .select(*CELL, *columns)
        .join(launches, on=CELL, how="inner")
        .filter(pl.col("depth").is_not_null())
    )


def _launches(trials: pl.LazyFrame) -> pl.LazyFrame:
    return trials.filter(pl.col("status") == Status.MEASURED.value, pl.col("attempt") > 0).unique(
        CELL, keep="last", maintain_order=True
    )


def _judged(probes: pl.DataFrame) -> pl.DataFrame:
    """Means over the texts of a cell and temperature, against `_against`.

    With `_own`, also against what the model expects of these texts; `_variance` and `_texts` of the
    baseline make the margin larger where its texts differ much.
    """
    for name in ("_own", "_variance"):
        if name not in probes.columns:
            probes = probes.with_columns(pl.lit(None, dtype=pl.Float64).alias(name))
    if "_texts" not in probes.columns:
        probes = probes.with_columns(pl.lit(None, dtype=pl.Int64).alias("_texts"))
    n = pl.len().cast(pl.Int64)
    error = (pl.col("_variance").mean() * (1 / pl.len() + 1 / pl.col("_texts").sum())).sqrt()
    below = pl.col("_against") - pl.col("value")
    margin = pl.max_horizontal(pl.lit(MARGIN), _SURE * pl.col("_error").fill_null(0.0))
    by_own = (pl.col("_own") - pl.col("value") > MARGIN).fill_null(True)
    return (
        probes.filter(pl.col("_against").is_finite())
        .group_by("cell_id", "temperature")
        .agg(
            n.alias("texts"),
            pl.col("output_logprob").mean().alias("value"),
            pl.col("_against", "_own").mean(),
            error.alias("_error"),
        )
        .select(
            "cell_id",
            "temperature",
            "texts",
            "value",
            pl.col("_against").alias("expected"),
            ((below > margin) & by_own).alias("broken"),
        )
        .sort("cell_id", "temperature")
    )


def _workload(trials: pl.LazyFrame, runs: pl.LazyFrame) -> pl.LazyFrame:
    """The temperature of the decode runs of every cell."""
    return (
        runs.filter(pl.col("kind") == "decode", pl.col("temperature").is_not_null())
        .join(_launches(trials).select(CELL), on=CELL, how="semi")
        .group_by("cell_id")
        .agg(pl.col("temperature").median().alias("_workload"))
    )
