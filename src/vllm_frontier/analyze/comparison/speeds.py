"""How fast one sweep decodes against another, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from vllm_frontier.analyze.borrowed import working_speeds
from vllm_frontier.analyze.comparison.matching import matchable
from vllm_frontier.analyze.comparison.paired import paired_noise
from vllm_frontier.analyze.intervals import LAUNCHES, RUNS, cell_figures, t_quantile
from vllm_frontier.analyze.latest import AXES
from vllm_frontier.analyze.output import broken_cells
from vllm_frontier.analyze.verdicts import Verdict, verdicts
from vllm_frontier.dominance import TIE

_PAIR = ("speed_cell", "speed_cell_other")
_OWN = ("context", "utilization", "launches", "interval_basis", "prefill_tok_s", "spec_state")
_FIGURES = ("decode_tok_s", "low", "high")


@dataclass(frozen=True, slots=True)
class Measured:
    """The tables `trials` and `runs` of a sweep."""

    trials: pl.LazyFrame
    runs: pl.LazyFrame


def shared_prompts(base: Measured, other: Measured) -> tuple[Measured, Measured]:
    """Both sweeps with only those decode runs whose prompt the other asked, too."""
    asked = [
        each.runs.filter(pl.col("kind") == "decode").select("task", _prompt()).unique()
        for each in (base, other)
    ]
    both = asked[0].join(asked[1], on=["task", "_prompt"], how="semi", nulls_equal=True)
    found = [
        Measured(
            each.trials,
            pl.concat(
                [
                    each.runs.filter(pl.col("kind") != "decode"),
                    each.runs.filter(pl.col("kind") == "decode")
                    .with_columns(_prompt())
                    .join(both, on=["task", "_prompt"], how="semi", nulls_equal=True)
                    .drop("_prompt"),
                ]
            ),
        )
        for each in (base, other)
    ]
    return found[0], found[1]


def matched_speeds(base: Measured, other: Measured, *, tie: float = TIE) -> pl.DataFrame:
    """The speed of every cell that works in both sweeps, of the other over the base.

    Cells are matched by their axes. The speed of a cell that was not measured itself is that which
    its own sweep gives it (see `working_speeds`), so that many cells share a pair of measured
    ones: each pair is told once.

    Two cells differ as within a sweep (see `verdicts`), each with the variance that its own sweep
    knows. Where a sweep does not show how much its launches differ (`basis` is `runs`), the ratio
    has an interval of the runs that were asked the same and of what launches of the other sweep
    differ by, where that one shows it, and 1 must lie outside of it, too: that does not hold what
    launches of the first differ by, and no interval holds what two days differ by.

    Args:
        base: the sweep that is compared with.
        other: the sweep that is compared, of the same workload.
        tie: speeds that differ by less than this share count as equal.

    Returns:
        A row per pair and `task` (null: all tasks): `depth`, `graphs`, `extra`; `cells` (how many
        cells of both sweeps have these speeds) and `same_cell` (both were measured in the same
        cell); of the base `context` and `utilization` of the cell that was measured,
        `decode_tok_s`, `low` and `high` (95 %), `launches`, `interval_basis`, `prefill_tok_s`,
        `spec_state`, `broken` (what it writes is broken); the same of the other with `_other`;
        `ratio` (other over base), `ratio_low` and `ratio_high` (its 95 % interval; null where
        nothing tells it), `verdict` (of the other) and `basis`.
    """
    sides = [_numbered(each, number) for number, each in enumerate((base, other))]
    trials = pl.concat([each.trials for each in sides])
    runs = pl.concat([each.runs for each in sides])
    figures = cell_figures(trials, runs)
    pairs = _pairs(*(_speeds(each, figures) for each in sides))
    tasks = figures.select("cell_id", "task")
    wanted = pairs.join(tasks, left_on="speed_cell", right_on="cell_id", how="inner")
    asked = wanted.select(
        pl.col("speed_cell_other").alias("cell_id"),
        pl.col("speed_cell").alias("other_cell_id"),
        "task",
    )
    told = verdicts(figures, asked.lazy(), tie=tie).collect()
    told = told.rename({"cell_id": "speed_cell_other", "other_cell_id": "speed_cell"})
    told = _with_run_intervals(told, runs, figures)
    found = wanted.join(told, on=[*_PAIR, "task"], how="inner", nulls_equal=True)
    for name, suffix in zip(_PAIR, ("", "_other"), strict=True):
        own = figures.select(
            pl.col("cell_id").alias(name),
            "task",
            *(pl.col(each).alias(f"{each}{suffix}") for each in _FIGURES),
        )
        found = found.join(own, on=[name, "task"], how="left", nulls_equal=True)
    return found.sort(
        *("extra", "depth", "graphs", "utilization", "context"),
        *("utilization_other", "context_other", "task"),
        nulls_last=False,
    ).drop(_PAIR)


def _numbered(side: Measured, number: int) -> Measured:
    """A sweep whose cells cannot be taken for those of another."""
    prefix = pl.concat_str(pl.lit(f"{number}/"), "cell_id").alias("cell_id")
    trials = matchable(side.trials).with_columns(prefix, sweep=pl.lit(str(number)))
    return Measured(trials, side.runs.with_columns(prefix))


def _speeds(side: Measured, figures: pl.DataFrame) -> pl.DataFrame:
    """Every cell that works and has a speed, and what is to be known of the measured one."""
    working = working_speeds(side.trials, side.runs, figures=figures).collect()
    broken = broken_cells(side.trials, side.runs).collect()["cell_id"]
    measured = working.filter(pl.col("cell_id") == pl.col("speed_cell"))
    own = measured.select("speed_cell", *_OWN).with_columns(
        broken=pl.col("speed_cell").is_in(broken.implode())
    )
    return working.select(*AXES, "speed_cell").join(
        own.rename({"context": "context_own", "utilization": "utilization_own"}),
        on="speed_cell",
        how="left",
    )


def _pairs(base: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """The pairs of measured cells whose speeds some matched cells have."""
    matched = base.join(other, on=AXES, how="inner", suffix="_other")
    axes = ("depth", "graphs", "extra")
    rest = [name for name in matched.columns if name not in (*AXES, *_PAIR)]
    pairs = matched.group_by(_PAIR, maintain_order=True).agg(
        pl.col(*axes, *rest).first(), pl.len().cast(pl.Int64).alias("cells")
    )
    places = [
        pl.col(f"{name}_own{suffix}").alias(f"{name}{suffix}")
        for name in ("context", "utilization")
        for suffix in ("", "_other")
    ]
    same = pl.col("context_own") == pl.col("context_own_other")
    same &= pl.col("utilization_own") == pl.col("utilization_own_other")
    return pairs.with_columns(*places, same_cell=same).drop("^.*_own(_other)?$")


def _with_run_intervals(
    told: pl.DataFrame, runs: pl.LazyFrame, figures: pl.DataFrame
) -> pl.DataFrame:
    """Verdicts whose basis is `runs`, each with the interval of its ratio that can be told."""
    within = told.filter(pl.col("basis") == RUNS)
    noise = paired_noise(within.select(*_PAIR, "task"), runs)
    found = within.join(noise, on=[*_PAIR, "task"], how="left", nulls_equal=True)
    for name in _PAIR:
        found = _with_launches(found, name, figures)
    width = t_quantile(found["df"].fill_null(0).cast(pl.Float64).to_numpy())
    half = pl.Series(width, nan_to_null=True) * found["variance"].sqrt()
    found = found.with_columns(
        ratio_low=pl.col("ratio") * (-half).exp(), ratio_high=pl.col("ratio") * half.exp()
    )
    unsure = (pl.col("ratio_low") <= 1.0) & (pl.col("ratio_high") >= 1.0)
    found = found.with_columns(
        pl.when(unsure.fill_null(False))
        .then(pl.lit(Verdict.NO_CLEAR_DIFFERENCE.value))
        .otherwise("verdict")
        .alias("verdict")
    )
    return pl.concat([told.filter(pl.col("basis") != RUNS), found.select(told.columns)])


def _with_launches(found: pl.DataFrame, side: str, figures: pl.DataFrame) -> pl.DataFrame:
    """Adds to `variance` what launches of one side differ by, where its sweep shows that.

    `df` becomes that of the sum (Welch-Satterthwaite). What only launches tell of stays unknown
    where runs tell nothing.
    """
    drift = pl.col("at").pow(2) / pl.col("spread")
    own = figures.filter(pl.col("basis") == LAUNCHES).select(
        pl.col("cell_id").alias(side),
        "task",
        _own=pl.col("headline_variance") * (1 / pl.col("launches") + drift),
        _own_df=pl.col("df").cast(pl.Float64),
    )
    joined = found.join(own, on=[side, "task"], how="left", nulls_equal=True, maintain_order="left")
    total = pl.col("variance") + pl.col("_own")
    parts = pl.col("variance").pow(2) / pl.col("df") + pl.col("_own").pow(2) / pl.col("_own_df")
    added = pl.col("_own") > 0
    return joined.with_columns(
        variance=pl.when(added).then(total).otherwise("variance"),
        df=pl.when(added).then(total.pow(2) / parts).otherwise(pl.col("df").cast(pl.Float64)),
    ).drop("_own", "_own_df")


def _prompt() -> pl.Expr:
    return pl.coalesce("variant", "repeat").alias("_prompt")
