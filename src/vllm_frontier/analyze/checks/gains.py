"""Whether gains over no speculation are possible, and whether acceptance explains them."""

from __future__ import annotations

import numpy as np
import polars as pl

from vllm_frontier.analyze.checks.evidence import LAUNCHES_DIFFER, Evidence
from vllm_frontier.analyze.checks.judgement import (
    Judgement,
    Verdict,
    counted,
    figure,
    percent,
    rows,
    together,
    when,
)
from vllm_frontier.analyze.checks.paired import with_baseline
from vllm_frontier.analyze.digest import SETTING

OFF_THE_LINE = 0.10
"""Share by which the step of a depth may lie off the line through the others, that line's own
uncertainty aside."""

UNEXPLAINED = 0.05
"""Share of the tokens that drafts and counters may leave open."""

BEYOND_NOISE = 0.10
"""Share beyond depth + 1 that runs, however much they differ, do not excuse."""

TOO_SHORT = 16
"""Tokens of a run below which the draft that its end cuts short weighs too much."""

_EVEN = 1e-9
_OTHERS = 3


def speedup_bound(evidence: Evidence) -> Judgement:
    """Speed over depth 0 against depth + 1, and against 1 + the accepted tokens of a draft.

    What the runs and launches of the two cells are known to differ by is granted, pair by pair: no
    other cell, and no difference between prompts, excuses them. Of a cell that was launched once
    the next launch may differ: a small excess is a warning only. So is a large one that could be
    noise, since runs that differ so much tell no gain.
    """
    found = with_baseline(evidence.by_cell.filter(pl.col("depth") > 0), evidence)
    if found.is_empty():
        return _nothing_to_compare(evidence)
    short, found = found.filter(_is_short()), found.filter(~_is_short())
    by_depth = (pl.col("depth") + 1).cast(pl.Float64)
    by_drafts = 1 + pl.col("accepted") / pl.col("drafts")
    tight = pl.when(pl.col("drafts") > 0).then(pl.min_horizontal(by_drafts, by_depth))
    excess = pl.col("gain") - tight.otherwise(by_depth).log()
    # What no draft can do is the firmer word, where even that is exceeded.
    firm = (pl.col("gain") > by_depth.log() + pl.col("_granted") + _EVEN) | (
        tight.otherwise(by_depth) == by_depth
    )
    found = found.with_columns(
        value=pl.col("gain").exp(),
        expected=pl.when(firm).then(by_depth).otherwise(by_drafts),
        _why=pl.when(firm)
        .then(pl.lit("depth + 1"))
        .otherwise(pl.lit("1 + the accepted tokens of a draft")),
        _above=excess > _EVEN,
        verdict=_beyond(excess),
        _far=pl.col("gain") - by_depth.log() > np.log1p(BEYOND_NOISE) + _EVEN,
    )
    noisy = pl.col("_far") & (pl.col("verdict") == Verdict.PASS.value)
    found = found.with_columns(_noisy=noisy, verdict=when(noisy, Verdict.WARN, pl.col("verdict")))
    figures = (figure(pl.col("value"), 2), figure(pl.col("expected"), 2), "_why")
    fine = pl.format("{} times the speed of depth 0, of {} that are possible ({})", *figures)
    within = pl.format("{}, within what runs and launches differ by", fine)
    beyond = pl.format(
        "{} times the speed of depth 0, where {} is the most that is possible ({}): the baseline "
        "or a clock is wrong",
        *figures,
    )
    passed = pl.col("verdict") == Verdict.PASS.value
    lucky = pl.col("verdict") == Verdict.WARN.value
    found = found.with_columns(
        detail=pl.when(passed & pl.col("_above"))
        .then(within)
        .when(passed)
        .then(fine)
        .when("_noisy")
        .then(pl.format("{}, or runs differ too much to tell", beyond))
        .when(lucky)
        .then(pl.format("{}, or it is the luck of one launch", beyond))
        .otherwise(beyond)
    )
    return together(rows(found, "x", nothing=""), _too_short(short), nothing="")


def acceptance_explains(evidence: Evidence) -> Judgement:
    """Whether accepted tokens and the time of a step make up the speed.

    Three things can be wrong: counters and tokens do not tally; a step would have to be shorter
    than one without speculation; the step of one depth lies far from the line through the others.
    """
    drafting = evidence.by_cell.filter(pl.col("depth") > 0, pl.col("drafts") > 0)
    if drafting.is_empty():
        return "no run tells how many of its drafts were accepted"
    short = _too_short(drafting.filter(_is_short()))
    found = with_baseline(drafting.filter(~_is_short()), evidence, how="left")
    per_draft = 1 + pl.col("accepted") / pl.col("drafts")
    undrafted = pl.col("told_tokens") - pl.col("told_accepted")
    steps = pl.max_horizontal("told_drafts", undrafted)
    tokens = pl.when(steps > 0).then(pl.col("told_tokens") / steps).otherwise(per_draft)
    found = found.with_columns(
        _tokens=tokens, _step=tokens.log() - pl.col("log_speed"), _open=_left_open()
    )
    found = found.join(_lines(found), on=[SETTING, "graphs", "depth"], how="left")
    own = pl.col("_line").fill_null(pl.col("_step"))
    told = pl.col("_tokens") if evidence.drafts_now_and_then else per_draft
    found = found.with_columns(
        value=pl.col("gain").exp(),
        expected=(told.log() - own - pl.col("_base")).exp(),
        _short=pl.col("_base").neg() - pl.col("_step"),
    )
    found = found.with_columns(_verdicts(evidence))
    found = found.with_columns(verdict=_worst(), detail=_explained())
    return together(rows(found, "x", nothing=""), short, nothing="")


def _is_short() -> pl.Expr:
    return (pl.col("shortest") < TOO_SHORT).fill_null(False)


def _too_short(cells: pl.DataFrame) -> Judgement:
    """Rows for cells and tasks of which a run is too short to be judged."""
    nothing = pl.lit(None, dtype=pl.Float64)
    tokens = counted(pl.col("shortest"), "token", "tokens")
    found = cells.with_columns(
        verdict=pl.lit(Verdict.UNKNOWN.value),
        value=nothing,
        expected=nothing,
        detail=pl.format("a run has {} only, of which its last draft takes too many", tokens),
    )
    return rows(found, "x", nothing="")


def _nothing_to_compare(evidence: Evidence) -> str:
    if evidence.by_cell.filter(pl.col("depth") > 0).is_empty():
        return "no cell with speculation has a speed"
    return "no cell without speculation has a speed at the same task, graphs and further axes"


def _beyond(excess: pl.Expr) -> pl.Expr:
    """The verdict on something that cannot be above 0, by logarithm."""
    once = pl.min_horizontal("launches", "_base_launches") < 2
    lucky = once & (excess <= np.log1p(LAUNCHES_DIFFER))
    beyond = excess > pl.col("_granted") + _EVEN
    return when(beyond & ~lucky, Verdict.FAIL, when(beyond, Verdict.WARN, Verdict.PASS))


def _left_open() -> pl.Expr:
    """Share of the tokens that the counters miss; negative where they have too many.

    The last draft of a run may be cut short by its end, and the first step may go without one.
    """
    surplus = pl.col("told_drafts") + pl.col("told_accepted") - pl.col("told_tokens")
    over = (surplus - pl.col("told_runs") * (pl.col("depth") + 1)).clip(lower_bound=0)
    under = (-surplus - pl.col("told_runs")).clip(lower_bound=0)
    known = pl.col("told_tokens") > 0
    return pl.when(known).then((under - over) / pl.col("told_tokens"))


def _verdicts(evidence: Evidence) -> list[pl.Expr]:
    missing = pl.lit(False) if evidence.drafts_now_and_then else pl.col("_open") > UNEXPLAINED
    off = (pl.col("_step").exp() / pl.col("_line").exp() - 1).alias("_off")
    return [
        (missing | (pl.col("_open") < -UNEXPLAINED)).fill_null(False).alias("_untold"),
        _beyond(pl.col("_short")).alias("_shorter"),
        off,
    ]


def _worst() -> pl.Expr:
    other = pl.col("_untold") | pl.col("_strayed").fill_null(False)
    warned = other & (pl.col("_shorter") == Verdict.PASS.value)
    return when(warned, Verdict.WARN, pl.col("_shorter"))


def _explained() -> pl.Expr:
    step, base = figure(1000 * pl.col("_step").exp(), 2), figure(1000 * (-pl.col("_base")).exp(), 2)
    tokens = figure(pl.col("_tokens"), 2)
    short = pl.format(
        "with {} tokens a step, a step would take {} ms, where one without speculation takes "
        "{} ms: the baseline, a clock or a counter is wrong",
        *(tokens, step, base),
    )
    untold = pl.format(
        "{} drafts and {} accepted tokens do not make up the {} tokens that were written after "
        "the first",
        *("told_drafts", "told_accepted", "told_tokens"),
    )
    strayed = pl.format(
        "a step at this depth takes {} ms, {} {} than by the line through the other depths",
        step,
        percent(pl.col("_off")),
        pl.when(pl.col("_off") > 0).then(pl.lit("more")).otherwise(pl.lit("less")),
    )
    known = pl.format("{} tokens a step of {} ms; without speculation {} ms", tokens, step, base)
    alone = pl.format("{} tokens a step of {} ms", tokens, step)
    return (
        pl.when(pl.col("_shorter") != Verdict.PASS.value)
        .then(short)
        .when(pl.col("_untold"))
        .then(untold)
        .when(pl.col("_strayed").fill_null(False))
        .then(strayed)
        .when(pl.col("_base").is_not_null())
        .then(known)
        .otherwise(alone)
    )


def _lines(found: pl.DataFrame) -> pl.DataFrame:
    """For each depth the step by the line through the others (log), and whether it strays."""
    steps = (
        found.filter(pl.col("_step").is_finite())
        .group_by(SETTING, "graphs", "depth")
        .agg(pl.col("_step").median())
        .sort(SETTING, "graphs", "depth")
    )
    told = []
    for (setting, graphs), group in steps.group_by(SETTING, "graphs", maintain_order=True):
        depths = group["depth"].to_numpy().astype(float)
        line, strays = _off_the_line(depths, np.exp(group["_step"].to_numpy()))
        told += [
            (setting, graphs, int(depth), float(each), bool(stray))
            for depth, each, stray in zip(depths, line, strays, strict=True)
            if np.isfinite(each)
        ]
    kinds = {name: found.schema[name] for name in (SETTING, "graphs", "depth")}
    return pl.DataFrame(
        told, schema={**kinds, "_line": pl.Float64, "_strayed": pl.Boolean}, orient="row"
    )


def _off_the_line(depths: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the straight line through all other depths: the log step, and which depth strays.

    One depth that strays bends the lines by which its neighbours are judged. So only that one may
    stray without which the others lie best on theirs.
    """
    line, strays = np.full(len(depths), np.nan), np.zeros(len(depths), dtype=bool)
    if len(depths) <= _OTHERS:
        return line, strays
    left = np.full(len(depths), np.inf)  # how far the others lie off their own line
    for place, depth in enumerate(depths):
        x, y = np.delete(depths, place), np.delete(steps, place)
        spread = ((x - x.mean()) ** 2).sum()
        slope = ((x - x.mean()) * (y - y.mean())).sum() / spread
        fitted = y.mean() + slope * (x - x.mean())
        expected = y.mean() + slope * (depth - x.mean())
        if expected <= 0 or (fitted <= 0).any():
            continue
        line[place] = np.log(expected)
        left[place] = np.abs(y / fitted - 1).max()
        unsure = np.sqrt(1 + 1 / len(x) + (depth - x.mean()) ** 2 / spread)
        off = abs(steps[place] / expected - 1)
        strays[place] = off > OFF_THE_LINE * unsure and left[place] < off / 3
    strays &= left == left.min()
    return line, strays
