"""Whether greedy output with speculation is that without."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.checks.evidence import Evidence
from vllm_frontier.analyze.checks.judgement import (
    Judgement,
    Verdict,
    counted,
    figure,
    percent,
    rows,
    when,
)
from vllm_frontier.analyze.digest import SETTING

OFTEN = 1 / 60
"""Divergences per token from which on rounding no longer explains them."""

SOME_AGREE = 6
"""Outputs of which at least one should be that of depth 0."""

_AT_ONCE = 20_000  # pairs of texts, so that they need little memory
_PROMPT = (SETTING, "task", "variant", "repeat")


def lossless(evidence: Evidence) -> Judgement:
    """Greedy output of every cell with speculation against that of depth 0, token by token.

    Rounding differs with the number of tokens that are computed at once, so that once in some
    hundred tokens another one wins, and the texts part. Where they part all the time, or none of
    several agrees, it is not rounding.
    """
    pairs = _pairs(evidence)
    if pairs.is_empty():
        return "no greedy output with speculation has a counterpart without"
    tokens, diverged = pl.col("tokens").sum(), pl.col("diverged").sum()
    found = (
        pairs.sort("launch", "task", "repeat")
        .group_by("cell_id", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("n"),
            pl.col("diverged").sum().cast(pl.Int64).alias("_diverged"),
            (diverged / tokens).alias("value"),
            pl.col("same").filter("diverged").min().alias("_first"),
            pl.col("_by_tokens").all(),
        )
        .sort("cell_id")
    )
    # One text may part early by chance.
    often = (pl.col("value") >= OFTEN) & (pl.col("_diverged") > 1)
    none = (pl.col("_diverged") == pl.col("n")) & (pl.col("n") >= SOME_AGREE)
    alike = 1 - pl.col("_diverged") / pl.col("n")
    same = pl.format("all of {} are those of depth 0", counted(pl.col("n"), "output", "outputs"))
    tokens_between = figure(1 / pl.col("value"), 0).str.strip_suffix(".0")
    every = (
        pl.when(tokens_between == "1")
        .then(pl.lit("at every token"))
        .otherwise(pl.format("once in {} tokens", tokens_between))
    )
    what = pl.when("_by_tokens").then(pl.lit("token")).otherwise(pl.lit("character"))
    part = pl.format(
        "{} of {} those of depth 0; they part {}, first at {} {}: {}",
        percent(alike),
        counted(pl.col("n"), "output is", "outputs are"),
        every,
        what,
        pl.col("_first") + 1,
        pl.when(often)
        .then(pl.lit("more than rounding explains"))
        .when(none)
        .then(pl.lit("none agrees, which rounding does not explain"))
        .otherwise(pl.lit("as rounding does")),
    )
    found = found.with_columns(
        verdict=when(often | none, Verdict.WARN, Verdict.PASS),
        expected=OFTEN,
        detail=pl.when(pl.col("_diverged") == 0).then(same).otherwise(part),
    )
    return rows(found, "per token", nothing="")


def _pairs(evidence: Evidence) -> pl.DataFrame:
    """Greedy runs with speculation, held against their counterparts.

    Columns: cell_id, launch, task, repeat, `same` (first place where they part, from 0),
    `diverged`, `tokens` (that were compared) and whether `_by_tokens`.
    """
    pairs = _greedy(evidence)
    different = pairs.select("text", "_base", "completion_tokens").unique(["text", "_base"])
    ids, base = pl.col("output_token_ids"), pl.col("output_token_ids_base")
    by_tokens = (ids.is_not_null() & base.is_not_null() & (ids.list.len() > 0)).fill_null(False)
    told, rest = [], [different.clear()]
    for some in different.iter_slices(_AT_ONCE):
        found = _with_both(some, evidence.digest.texts)
        told.append(_by_tokens(found.filter(by_tokens)))
        rest.append(found.filter(~by_tokens).select(different.columns))
    untold = pl.concat(rest)
    rows = pl.concat([untold["text"], untold["_base"]]).unique()
    told.append(_by_characters(_with_both(untold, evidence.digest.more(rows, "output"))))
    return pairs.join(pl.concat(told), on=["text", "_base"], how="inner")


def _with_both(pairs: pl.DataFrame, texts: pl.DataFrame) -> pl.DataFrame:
    """With what both runs wrote."""
    return pairs.join(texts, left_on="text", right_on="row", how="left").join(
        texts, left_on="_base", right_on="row", how="left", suffix="_base"
    )


def _greedy(evidence: Evidence) -> pl.DataFrame:
    """The runs to compare: their `text`, and `_base`, that of the counterpart at depth 0."""
    axes = evidence.launches.select("launch", "cell_id", "depth", "graphs", SETTING)
    greedy = evidence.digest.compared.join(axes, on="launch", how="inner", maintain_order="left")
    base = greedy.filter(pl.col("depth") == 0).sort("launch")
    same = base.unique([*_PROMPT, "graphs"], keep="first", maintain_order=True)
    wide = base.unique(_PROMPT, keep="first", maintain_order=True)
    told = ["text", "prompt_tokens"]
    keys = list(_PROMPT)
    found = (
        greedy.filter(pl.col("depth") > 0)
        .join(
            same.select(*keys, "graphs", *told),
            on=[*keys, "graphs"],
            how="left",
            nulls_equal=True,
            suffix="_same",
        )
        .join(wide.select(*keys, *told), on=keys, how="left", nulls_equal=True, suffix="_wide")
        .with_columns(
            _base=pl.coalesce("text_same", "text_wide"),
            _prompt=pl.coalesce("prompt_tokens_same", "prompt_tokens_wide"),
        )
    )
    other_prompt = (pl.col("prompt_tokens") != pl.col("_prompt")).fill_null(False)
    return found.filter(pl.col("_base").is_not_null(), ~other_prompt).select(
        "launch", "task", "repeat", "cell_id", "completion_tokens", "text", "_base"
    )


_COMPARED = ("text", "_base", "same", "diverged", "tokens", "_by_tokens")


def _by_tokens(found: pl.DataFrame) -> pl.DataFrame:
    ids, base = pl.col("output_token_ids"), pl.col("output_token_ids_base")
    shorter = pl.min_horizontal(ids.list.len(), base.list.len())
    differ = (ids.list.head(shorter) - base.list.head(shorter)).list.eval(pl.element() != 0)
    return (
        found.with_columns(_differ=differ, _shorter=shorter.cast(pl.Int64))
        .with_columns(
            same=pl.when(pl.col("_differ").list.any())
            .then(pl.col("_differ").list.arg_max().cast(pl.Int64))
            .otherwise("_shorter"),
            diverged=pl.col("_differ").list.any() | (ids.list.len() != base.list.len()),
        )
        .with_columns(
            tokens=pl.when("diverged")
            .then(pl.col("same") + 1)
            .otherwise(pl.col("same"))
            .cast(pl.Float64),
            _by_tokens=True,
        )
        .select(_COMPARED)
    )


def _by_characters(found: pl.DataFrame) -> pl.DataFrame:
    """Where no ids are told: characters, and their share of the tokens."""
    both = found.filter(pl.col("output").is_not_null(), pl.col("output_base").is_not_null())
    texts = zip(both["output"], both["output_base"], strict=True)
    same = [_common(one, other) for one, other in texts]
    length = pl.col("output").str.len_chars().cast(pl.Int64)
    share = pl.col("same") / pl.max_horizontal(length, 1)
    return (
        both.with_columns(
            same=pl.Series(same, dtype=pl.Int64), diverged=pl.col("output") != pl.col("output_base")
        )
        .with_columns(
            tokens=(share * pl.col("completion_tokens").fill_null(length / 4)).cast(pl.Float64)
            + pl.col("diverged").cast(pl.Float64),
            _by_tokens=False,
        )
        .select(_COMPARED)
    )


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with together."""
    if one == other:
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:  # by halves: whole pieces are compared at once
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
