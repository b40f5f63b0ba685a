"""How sure the speeds of cells are: t intervals over launches.

Launches of one cell differ by more than their runs do, and two or three of them say little about
how much. So that is learned from all cells of a sweep that were launched more than once: the
logarithms of speed, less the mean of their cell and less a linear drift over the time of the
sweep, have one variance.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import fdtr, fdtrc, stdtrit

from vllm_frontier.analyze.digest import Digest
from vllm_frontier.analyze.latest import CELL
from vllm_frontier.analyze.launches import launch_figures
from vllm_frontier.analyze.packed import packed
from vllm_frontier.analyze.speed import prefill_speeds

Floats: TypeAlias = NDArray[np.float64]

CONFIDENCE = 0.95
LAUNCHES = "launches"
"""The basis of an interval that holds what launches differ by."""
RUNS = "runs"
"""The basis of an interval that only holds what runs within a launch differ by."""

VALUES = ("headline", "level", "contrast")
"""What is told of a launch, as logarithms; `contrast` is the first less the second."""

_POOL_DF = 2  # with less the variance between launches is as good as unknown
# What two or three launches of other cells tell is no better than what a single launch of this one
# says of itself: an interval four deviations wide would call nothing.
_LENT_DF = 4
_DRIFT_DF = 6
# With and without graphs are pooled unless an F test speaks against it. A test that comes before
# the figures that count must seldom miss a difference. But the noise that came out smaller did so
# partly by luck: it counts for itself only where that is surer.
_SPLIT_DF = 4
_LARGER_AT = 0.25
_SMALLER_AT = 0.05
# Launches of a cell that follow each other at once do not tell a drift from the cell's speed.
_SPREAD_SHARE = 0.05
_ROUNDING = 1e-12
# Launches that differ by less than this (as variance of logarithms) do not differ at all, as on a
# simulated card. Then only their runs tell how sure a speed is, and those of all but one launch are
# copies.
_SAME = 1e-18
_OF_POOL = ("sweep", "task")
_OF_CELL = ("cell", "task")


def cell_figures(
    trials: pl.LazyFrame, runs: pl.LazyFrame, *, digest: Digest | None = None
) -> pl.DataFrame:
    """The speed of every cell that was measured, over its launches, and how sure it is.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        digest: of both, where it is there already.

    Returns:
        A row for each cell_id and task, and one with `task` null for all tasks:

        - `decode_tok_s`: median over launches of the launch's speed, tokens/s; `low` and `high`:
          its 95 % interval, null where nothing tells it; `prefill_tok_s`: median over launches.
        - `launches`, `runs`: how many there are. `basis`: `launches` or `runs`, the latter also
          where launches do not differ at all.
        - `tasks`: the tasks of the cell.
        - For verdicts: `headline`, `level` and `contrast` (means over launches at the sweep's mean
          drift), `headline_variance` and so on (of one launch), `df`, `at` (mean time, seconds
          after that of the sweep), `spread` (sum of squared times within cells, seconds^2;
          infinite without a drift) and `pool`, a number of those that share a variance.
    """
    digest = digest or Digest(trials, runs)
    figures = launch_figures(trials, runs, digest=digest).collect()
    figures = figures.with_columns(contrast=pl.col("headline") - pl.col("level"))
    enough = pl.when(pl.col("launches") > 1).then(_POOL_DF).otherwise(_LENT_DF)
    differ = pl.col("headline_variance") >= _SAME
    cells = (
        _means(figures)
        .join(_pools(figures), on=[*_OF_POOL, "graphs"], how="left", nulls_equal=True)
        .with_columns(
            pl.col("df").fill_null(0),
            pl.col("spread").fill_null(float("inf")),
            basis=pl.when((pl.col("df") >= enough) & differ)
            .then(pl.lit(LAUNCHES))
            .otherwise(pl.lit(RUNS)),
            _copies=pl.when(~differ & (pl.col("df") > 0)).then("launches").otherwise(1),
        )
    )
    at_mean = [
        pl.col(name) - pl.col(f"{name}_slope").fill_null(0.0) * pl.col("at") for name in VALUES
    ]
    cells = cells.with_columns(at_mean).join(_run_noise(cells, digest), on="cell_id", how="left")
    return (
        _with_interval(cells)
        .join(_prefill(figures, digest), on="cell_id", how="left")
        .drop("cell")
        .sort("cell_id", "task", nulls_last=False)
    )


def pooled_speeds(figures: pl.DataFrame) -> pl.LazyFrame:
    """The speed of every cell that was measured, over all its launches.

    Args:
        figures: of `cell_figures`.

    Returns:
        One row per cell_id: the columns `SPEEDS`, of which `decode_tok_s_low` and `_high` are the
        95 % interval, `launches`, `runs` (decode runs in these) and `interval_basis`.
    """
    by_task = (
        figures.lazy()
        .filter(pl.col("task").is_not_null())
        .group_by("cell_id", maintain_order=True)
        .agg(pl.struct("task", "decode_tok_s").alias("task_decode_tok_s"))
    )
    overall = figures.lazy().filter(pl.col("task").is_null())
    return overall.join(by_task, on="cell_id", how="left", maintain_order="left").select(
        "cell_id",
        "decode_tok_s",
        pl.col("low").alias("decode_tok_s_low"),
        pl.col("high").alias("decode_tok_s_high"),
        "task_decode_tok_s",
        "prefill_tok_s",
        "launches",
        "runs",
        pl.col("basis").alias("interval_basis"),
    )


def t_quantile(df: Floats, confidence: float = CONFIDENCE) -> Floats:
    """How many standard errors an interval reaches to either side; NaN without freedom."""
    return np.asarray(stdtrit(np.where(df > 0, df, np.nan), (1 + confidence) / 2))


def _means(figures: pl.DataFrame) -> pl.DataFrame:
    """The launches of each cell and task taken together."""
    centred = figures.with_columns(pl.col("at") - pl.col("at").mean().over(_OF_POOL))
    return (
        centred.group_by(_OF_CELL)
        .agg(
            pl.col("cell_id", "sweep", "graphs").first(),
            pl.col("decode_tok_s").median(),
            pl.col("runs").sum(),
            pl.len().cast(pl.Int64).alias("launches"),
            pl.col(*VALUES).mean(),
            pl.col("at").mean().fill_null(0.0),
            pl.col("unit_variance").sum() / pl.len() ** 2,
        )
        .join(
            figures.drop_nulls("task")
            .group_by("cell")
            .agg(pl.col("task").unique().sort().alias("tasks")),
            on="cell",
            how="left",
        )
    )


def _pools(figures: pl.DataFrame) -> pl.DataFrame:
    """What launches differ by, for each sweep, task and graphs.

    With and without graphs have one variance, unless both are known by themselves and may well
    differ. Then the larger one is its own, and the smaller where that is beyond doubt; else it
    stays with that of both.
    """
    known = figures.filter(pl.col("level").is_finite())
    together = _variances(known, _OF_POOL)
    apart = _variances(known, (*_OF_POOL, "graphs"))
    other = apart.select(*_OF_POOL, ~pl.col("graphs"), _df="df", _variance="level_variance")
    apart = apart.join(other, on=[*_OF_POOL, "graphs"], how="left", nulls_equal=True)
    enough = (pl.col("df") >= _SPLIT_DF) & (pl.col("_df") >= _SPLIT_DF)
    split = apart.filter(enough)
    own, others = split["level_variance"].to_numpy(), split["_variance"].to_numpy()
    own_df, others_df = split["df"].to_numpy(), split["_df"].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = own / others
        chance = 2 * np.minimum(fdtr(own_df, others_df, ratio), fdtrc(own_df, others_df, ratio))
    apart_at = np.where(own > others, _LARGER_AT, _SMALLER_AT)
    split = split.filter(pl.Series(chance < apart_at)).drop("_df", "_variance")
    keys = apart.select(*_OF_POOL, "graphs")
    shared = keys.join(split, on=keys.columns, how="anti", nulls_equal=True).join(
        together, on=_OF_POOL, how="left", nulls_equal=True
    )
    shared = shared.with_columns(_group=pl.lit(None, dtype=pl.Boolean))
    both = pl.concat([split.with_columns(_group="graphs"), shared.select(*split.columns, "_group")])
    pool = pl.struct(*_OF_POOL, "_group").rank("dense").cast(pl.Int64)
    return both.with_columns(pool=pool).drop("_group")


def _variances(figures: pl.DataFrame, pool: tuple[str, ...]) -> pl.DataFrame:
    """The variance between launches of a cell, pooled: one row for each group.

    Returns:
        The keys, `df`, `spread`, `headline_slope` and so on (drift, 1/s) and `headline_variance`
        and so on.
    """
    names = (*VALUES, "at")
    off = {name: pl.col(name) - pl.col(name).mean().over(_OF_CELL) for name in names}
    # What rounding leaves of equal figures would differ from one sweep to the next.
    rows = figures.with_columns(
        pl.when(each.abs() > _ROUNDING).then(each).otherwise(each * 0.0).alias(f"_{name}")
        for name, each in off.items()
    )
    groups = rows.group_by(pool).agg(
        (pl.len() - pl.col("cell").n_unique()).cast(pl.Int64).alias("df"),
        pl.col("_at").pow(2).sum().alias("spread"),
        (pl.col("at") - pl.col("at").mean()).pow(2).sum().alias("_total"),
        pl.col("at").is_not_null().all().alias("_timed"),
        *((pl.col("_at") * pl.col(f"_{name}")).sum().alias(f"{name}_slope") for name in VALUES),
    )
    told = pl.col("spread") > _SPREAD_SHARE * pl.col("_total")
    drifts = pl.col("_timed") & told & (pl.col("df") >= _DRIFT_DF)
    groups = groups.with_columns(
        pl.col("df") - drifts.cast(pl.Int64),
        pl.when(drifts).then("spread").otherwise(float("inf")),
        *(
            pl.when(drifts)
            .then(pl.col(f"{name}_slope") / pl.col("spread"))
            .otherwise(0.0)
            .alias(f"{name}_slope")
            for name in VALUES
        ),
    )
    rest = {
        name: pl.col(f"_{name}") - pl.col(f"{name}_slope") * pl.col("_at").fill_null(0.0)
        for name in VALUES
    }
    left = (
        rows.join(groups, on=list(pool), how="left", nulls_equal=True, maintain_order="left")
        .group_by(pool)
        .agg(
            pl.when(pl.col("df").first() > 0)
            .then(value.pow(2).sum() / pl.col("df").first())
            .alias(f"{name}_variance")
            for name, value in rest.items()
        )
    )
    return groups.drop("_total", "_timed").join(left, on=list(pool), nulls_equal=True)


def _prefill(figures: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """The prefill speed of each cell: median over launches that have a decode speed, too."""
    launched = figures.lazy().filter(pl.col("task").is_null()).select(CELL)
    return (
        prefill_speeds(digest.measured.lazy(), by=("launch",))
        .join(digest.launches.lazy().select("launch", *CELL), on="launch", how="inner")
        .join(launched, on=CELL, how="semi")
        .group_by("cell_id")
        .agg(pl.col("prefill_tok_s").median())
        .collect()
    )


def _run_noise(cells: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """What runs of one launch differ by, for cells of which nothing better is known.

    By runs that were asked the same, where there are some; else by runs of a task, whose
    prompts differ.

    Returns:
        cell_id, `run_variance` (of the logarithm of one run) and `run_df`.
    """
    unsure = cells.filter(pl.col("basis") == RUNS)
    names = digest.launches.join(unsure, on="cell_id", how="semi").select("launch", "cell_id")
    chosen = [
        pl.when(pl.col("df") > 0).then(name).otherwise(other).alias(name)
        for name, other in (("squares", "squares_of_task"), ("df", "freedom_of_task"))
    ]
    of_task = (
        digest.by_launch.sort("launch", "task")
        .group_by("launch")
        .agg(pl.col("squares", "freedom").sum().name.suffix("_of_task"))
    )
    return (
        names.join(of_task, on="launch", how="inner")
        .join(_of_prompts(digest, names), on="launch", how="left")
        .sort("launch")
        .group_by("cell_id")
        .agg(pl.col("squares", "df", "squares_of_task", "freedom_of_task").sum())
        .select("cell_id", *chosen)
        .filter(pl.col("df") > 0)
        .select("cell_id", run_variance=pl.col("squares") / pl.col("df"), run_df=pl.col("df"))
    )


def _of_prompts(digest: Digest, names: pl.DataFrame) -> pl.DataFrame:
    """By launch `squares` around the means of runs that were asked the same, and their `df`."""
    speeds = digest.decode.select("launch", "task", "variant", "log_speed")
    if names.height < digest.launches.height:
        speeds = speeds.join(names, on="launch", how="semi")
    asked = speeds.select(
        "launch", "variant", "log_speed", _key=packed("launch", "task", "variant")
    )
    return (
        asked.filter(pl.col("variant").is_not_null())
        .group_by("_key")
        .agg(pl.col("launch").first(), _variance=pl.col("log_speed").var(), _n=pl.len())
        .sort("_key")
        .group_by("launch")
        .agg(
            squares=(pl.col("_variance").fill_null(0.0) * (pl.col("_n") - 1)).sum(),
            df=(pl.col("_n") - 1).cast(pl.Int64).sum(),
        )
    )


def _with_interval(cells: pl.DataFrame) -> pl.DataFrame:
    """Adds `low` and `high`, which hold the speed in any case."""
    pooled = pl.col("basis") == LAUNCHES
    time = pl.col("at").pow(2) / pl.col("spread")
    variance = (
        pl.when(pooled)
        .then(pl.col("headline_variance") * (1 / pl.col("launches") + time))
        .otherwise(pl.col("run_variance") * pl.col("unit_variance") * pl.col("_copies"))
    )
    of_runs = pl.col("run_df") / pl.col("_copies")
    df = cells.select(pl.when(pooled).then("df").otherwise(of_runs).cast(pl.Float64))
    half = pl.Series(t_quantile(df.to_series().to_numpy()), nan_to_null=True) * variance.sqrt()
    # Within launches the figure itself is the middle; over several their mean, which is surer.
    speed = pl.col("decode_tok_s")
    middle = pl.when(pooled).then(pl.col("headline") - speed.log()).otherwise(0.0)
    return (
        cells.with_columns(low=speed * (middle - half).exp(), high=speed * (middle + half).exp())
        .with_columns(pl.col("low", "high").fill_nan(None))
        .with_columns(
            pl.when(pl.col("low").is_not_null()).then(pl.min_horizontal("low", "decode_tok_s")),
            pl.when(pl.col("high").is_not_null())
            .then(pl.max_horizontal("high", "decode_tok_s"))
            .alias("high"),
        )
        .drop("run_variance", "run_df", "unit_variance", "_copies")
    )
