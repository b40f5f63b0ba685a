"""What a server's counters and clocks say of each launch."""

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
from vllm_frontier.analyze.speed import decode_runs, is_speed
from vllm_frontier.outcome import SpecState

CLOCKS_AGREE = 0.10
"""Share by which the client's clock may differ from the server's."""

DEPTH_OFF = 0.05
"""Share by which the tokens of a mean draft may differ from the depth."""

_OFTEN = 0.05


def clock_gap(evidence: Evidence) -> Judgement:
    """Runs of which the client's clock says something else than the server's.

    A client that is starved reads several pieces of a stream at once, or all of them, so that it
    sees no time pass. The speed that counts is the server's, so that it stands.
    """
    real = evidence.real()
    if real.is_empty():
        return "a simulated server scales its time, so that the client's clock says nothing"
    server, client = pl.col("decode_tok_s_server"), pl.col("decode_tok_s_client")
    told = is_speed("decode_tok_s_server") & (client / server).is_finite()
    both = is_speed("decode_tok_s_client") & told.fill_null(False)
    # A single token takes no time by any clock.
    alone = is_speed("decode_tok_s_server") & ~is_speed("decode_tok_s_client")
    alone &= (pl.col("completion_tokens") > 1).fill_null(False)
    ratio = pl.when(both).then(client / server).alias("_ratio")
    off = (pl.col("_ratio") - 1).abs() > CLOCKS_AGREE
    farthest = pl.col("_ratio").drop_nulls()
    by_launch = (
        decode_runs(evidence.runs.lazy())
        .filter(both | alone)
        .select("launch", ratio)
        .group_by("launch")
        .agg(
            pl.len().cast(pl.Int64).alias("n"),
            (off | pl.col("_ratio").is_null()).sum().cast(pl.Int64).alias("_off"),
            pl.col("_ratio").is_null().sum().cast(pl.Int64).alias("_alone"),
            farthest.get(farthest.log().abs().arg_max()).alias("_worst"),
        )
        .collect()
    )
    found = by_launch.join(real, on="launch", how="inner").sort("launch")
    found = found.with_columns(value=pl.col("_off") / pl.col("n"), expected=0.0).with_columns(
        verdict=when(pl.col("value") > _OFTEN, Verdict.WARN, Verdict.PASS),
        detail=pl.concat_str(
            pl.format(
                "the clocks of client and server disagree by more than 10 % in {} of {}",
                *("_off", counted(pl.col("n"), "run", "runs")),
            ),
            pl.when(pl.col("_alone") > 0).then(
                pl.format("in {} of them that of the client tells nothing", "_alone")
            ),
            pl.when(pl.col("_worst").is_not_null()).then(
                pl.format(
                    "at worst the client saw {} times the speed of the server, whose clock counts",
                    figure(pl.col("_worst"), 2),
                )
            ),
            separator="; ",
            ignore_nulls=True,
        ),
    )
    return rows(found, "share of runs", nothing="no run was timed by both clocks")


def spec_state(evidence: Evidence) -> Judgement:
    """Whether speculation took place, as the attempt itself found."""
    shares = evidence.by_launch.group_by("launch").agg(
        (pl.col("all_accepted").sum() / pl.col("draft_tokens").sum()).alias("value")
    )
    state = pl.col("spec_state")
    found = evidence.launches.filter(state.is_not_null()).join(shares, on="launch", how="left")
    words = {
        SpecState.WORKING.value: "speculation works",
        SpecState.INEFFECTIVE.value: "next to nothing of what is drafted is accepted",
        SpecState.SUSPECT.value: "the counters are too good to be true, or contradict each other",
    }
    known = pl.col("value").is_finite().fill_null(False)
    of_all = pl.format("; {} of the drafted tokens were accepted", percent(pl.col("value")))
    found = found.sort("launch").with_columns(
        expected=pl.lit(None, dtype=pl.Float64),
        verdict=when(state == SpecState.WORKING.value, Verdict.PASS, Verdict.WARN),
        detail=pl.concat_str(
            state.replace_strict(words, default=state),
            pl.when(known).then(of_all).otherwise(pl.lit("")),
        ),
    )
    return rows(found, "share accepted", nothing="no launch tells whether speculation took place")


def depth_applied(evidence: Evidence) -> Judgement:
    """Whether as many tokens were drafted as the cell says, and none without speculation."""
    counters = evidence.by_launch.group_by("launch").agg(
        pl.col("says_made").any().alias("_told"),
        pl.col("made").sum().alias("drafts"),
        pl.col("draft_tokens").sum(),
        pl.col("positions").max().alias("_positions"),
    )
    depth = pl.col("depth")
    found = evidence.launches.join(counters, on="launch", how="inner").filter(
        depth.is_not_null(), (depth == 0) | pl.col("_told")
    )
    drafted = pl.col("drafts") > 0
    mean = pl.when(drafted).then(pl.col("draft_tokens") / pl.col("drafts")).otherwise(0.0)
    found = found.sort("launch").with_columns(value=mean, expected=depth.cast(pl.Float64))
    off = pl.col("value") - depth
    positions = drafted & (pl.col("_positions").fill_null(0) > 0) & (pl.col("_positions") != depth)
    few = pl.lit(False) if evidence.drafts_now_and_then else off < -DEPTH_OFF * depth
    none = (depth > 0) & ~drafted
    if evidence.drafts_now_and_then:
        positions = drafted & (pl.col("_positions") > depth)
    wrong = ((depth == 0) & drafted) | (off > DEPTH_OFF * depth) | positions | (few & (off <= -0.5))
    detail = (
        pl.when((depth == 0) & ~drafted)
        .then(pl.lit("nothing was drafted, as it should be"))
        .when(depth == 0)
        .then(
            pl.format(
                "{} were made without speculation", counted(pl.col("drafts"), "draft", "drafts")
            )
        )
        .when(none)
        .then(pl.lit("nothing was drafted"))
        .when(positions.fill_null(False))
        .then(pl.format("{} positions are counted at depth {}", "_positions", depth))
        .otherwise(
            pl.format("a draft has {} tokens at depth {}", figure(pl.col("value"), 2), depth)
        )
    )
    if evidence.drafts_now_and_then:
        wrong = wrong & ~none
        verdict = when(wrong, Verdict.FAIL, when(none, Verdict.WARN, Verdict.PASS))
    else:
        verdict = when(wrong | none, Verdict.FAIL, when(few, Verdict.WARN, Verdict.PASS))
    return rows(
        found.with_columns(verdict=verdict, detail=detail),
        "tokens",
        nothing="no launch tells how much it drafted",
    )


def cache_leak(evidence: Evidence) -> Judgement:
    """Prefill and fill runs that found some of their prompt in the prefix cache."""
    cached = pl.col("cached_tokens")
    prefills = pl.col("kind").is_in(["prefill", "fill"])
    told = evidence.runs.lazy().filter(prefills, cached.is_not_null())
    by_launch = told.group_by("launch").agg(
        pl.len().cast(pl.Int64).alias("n"),
        (cached > 0).sum().cast(pl.Int64).alias("_hit"),
        cached.max().alias("_most"),
        ((pl.col("kind") == "prefill") & (cached <= 0)).sum().alias("_clean"),
    )
    found = by_launch.collect().join(evidence.launches, on="launch", how="inner").sort("launch")
    found = found.with_columns(
        value=pl.col("_most").cast(pl.Float64),
        expected=0.0,
        verdict=when(pl.col("_hit") > 0, Verdict.WARN, Verdict.PASS),
        detail=pl.when(pl.col("_hit") > 0)
        .then(
            pl.format(
                "{} of {} hit the prefix cache, with up to {} tokens: {}",
                *("_hit", counted(pl.col("n"), "prefill", "prefills"), "_most"),
                pl.when(pl.col("_clean") > 0)
                .then(pl.lit("the prefill speed is that of the others"))
                .otherwise(pl.lit("the launch has no prefill speed")),
            )
        )
        .otherwise(pl.lit("no prefill hit the prefix cache")),
    )
    return rows(found, "tokens", nothing="no prefill tells what it found in the prefix cache")
