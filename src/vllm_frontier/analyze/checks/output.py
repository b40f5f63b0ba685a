"""Whether what was written is as probable as it should be."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.checks.judgement import Judgement, Verdict, counted, figure, rows, when
from vllm_frontier.analyze.output import likelihoods

BROKEN_ALL_THE_SAME = "temperature 0 is right, do not use this with sampling on this engine version"


def output_sane(trials: pl.LazyFrame, runs: pl.LazyFrame) -> Judgement:
    """Texts of every cell against what the model writes without speculation.

    Broken at the temperature that was measured, a cell fails; broken at another one only, it is
    a warning.
    """
    found = likelihoods(trials, runs)
    broken, measured = pl.col("broken"), pl.col("measured")
    right = (~broken & measured).any().over("cell_id")
    against = pl.format(
        "{} at temperature {} have a mean log-probability of {} a token, where {} is expected",
        counted(pl.col("texts"), "text", "texts"),
        figure(pl.col("temperature"), 1),
        figure(pl.col("value"), 2),
        figure(pl.col("expected"), 2),
    ).str.replace(r"^1 text at temperature (\S+) have", "1 text at temperature $1 has")
    says = (
        pl.when(~broken)
        .then(against)
        .when(measured)
        .then(pl.format("{}: the output is broken", against))
        .when(pl.col("greedy") & right)
        .then(pl.format("{}: the output is broken; " + BROKEN_ALL_THE_SAME, against))
        .otherwise(pl.format("{}: the output is broken at this temperature", against))
    )
    found = found.with_columns(
        verdict=when(broken & measured, Verdict.FAIL, when(broken, Verdict.WARN, Verdict.PASS)),
        detail=says,
    )
    return rows(found, "nat a token", nothing="no text was rated by the model")
