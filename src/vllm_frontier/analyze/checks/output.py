"""Whether what was written is as probable as it should be."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.checks.judgement import (
    Judgement,
    Verdict,
    counted,
    figure,
    rows,
    together,
    when,
)
from vllm_frontier.analyze.digest import Digest
from vllm_frontier.analyze.output import unrated

BROKEN_ALL_THE_SAME = "temperature 0 is right, do not use this with sampling on this engine version"
NOT_RATED = (
    "no text was rated by the model: `workload.score` is off, or the server does not tell tokens"
)

_UNIT = "nat a token"


def output_sane(rated: pl.DataFrame, digest: Digest) -> Judgement:
    """Texts of every cell against what the model writes without speculation.

    Broken at the temperature that was measured, a cell fails; broken at another one only, or in
    doubt, it is a warning. Of a measured cell whose text nothing rated a row says so.

    Args:
        rated: of `likelihoods`.
        digest: of the sweep.
    """
    found = rated
    if found.is_empty():
        return NOT_RATED
    broken, doubt, measured = pl.col("broken"), pl.col("doubt"), pl.col("measured")
    right = (~broken & ~doubt & measured).any().over("cell_id")
    against = pl.format(
        "{} at temperature {} have a mean log-probability of {} a token, where {} is expected{}",
        counted(pl.col("texts"), "text", "texts"),
        figure(pl.col("temperature"), 1),
        figure(pl.col("value"), 2),
        figure(pl.col("expected"), 2),
        pl.when("loops").then(pl.lit(", and turn in circles")).otherwise(pl.lit("")),
    ).str.replace(r"^1 text at temperature (\S+) have", "1 text at temperature $1 has")
    says = (
        pl.when(doubt)
        .then(
            pl.format(
                "{}: depth 0 does not write as expected, so that the output is broken or the "
                "expectation wrong",
                against,
            )
        )
        .when(~broken)
        .then(against)
        .when(measured)
        .then(pl.format("{}: the output is broken", against))
        .when(pl.col("greedy") & right)
        .then(pl.format("{}: the output is broken; " + BROKEN_ALL_THE_SAME, against))
        .otherwise(pl.format("{}: the output is broken at this temperature", against))
    )
    warned = when(broken | doubt, Verdict.WARN, Verdict.PASS)
    found = found.with_columns(verdict=when(broken & measured, Verdict.FAIL, warned), detail=says)
    silent = rows(_silent(rated, digest), _UNIT, nothing="")
    return together(rows(found, _UNIT, nothing=""), silent, nothing=NOT_RATED)


def _silent(rated: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """A row for each measured cell of which no text was rated at its temperature."""
    return unrated(rated, digest).with_columns(
        verdict=pl.lit(Verdict.UNKNOWN.value),
        value=pl.lit(None, dtype=pl.Float64),
        expected=pl.lit(None, dtype=pl.Float64),
        detail=pl.format(
            "no text of this cell was rated at temperature {}, which was measured, though texts of "
            "others were: its output may be broken",
            figure(pl.col("temperature"), 1),
        ),
    )
