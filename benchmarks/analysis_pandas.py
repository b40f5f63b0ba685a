"""The tables of a sweep by pandas, as far as they are made of runs: for comparison only.

What is decided by few figures (which cells lead, where a window ends, whether two cells differ) is
left to the package itself: it takes the same time on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
from scipy.special import stdtrit

from vllm_frontier.analyze.checks.counters import CLOCKS_AGREE, DEPTH_OFF
from vllm_frontier.analyze.checks.telemetry import BUSY_CORES, GROWN_GIB, RESIDENT_GIB, SERIOUS
from vllm_frontier.analyze.outliers import DEVIATIONS
from vllm_frontier.analyze.verdicts import Differences
from vllm_frontier.dominance import TIE, Point, leaders_by
from vllm_frontier.window_end import window_end

LAUNCH = ["cell_id", "attempt"]
LINE = ["depth", "graphs", "utilization", "extra"]
VALUES = ["headline", "level", "contrast"]
_OF_A_TRIAL = [
    *("sweep", "cell_id", "attempt", "depth", "context", "graphs", "utilization", "extra"),
    *("status", "failure_class", "started_at", "spec_state", "card"),
]
_OF_A_RUN = [
    *("cell_id", "attempt", "task", "repeat", "kind", "concurrency", "variant"),
    *("decode_tok_s", "decode_tok_s_server", "decode_tok_s_client", "prefill_tok_s"),
    *("completion_tokens", "cached_tokens", "drafts", "draft_tokens", "accepted_tokens"),
    *("accepted_per_position", "throttle_reasons", "throttled_share"),
    *("foreign_processes", "foreign_gib", "foreign_cores"),
]


@dataclass
class Tables:
    """Both tables, and what several figures are made of."""

    trials: pd.DataFrame
    runs: pd.DataFrame

    @classmethod
    def read(cls, folder: Path) -> Tables:
        """Only the columns that are used."""
        trials = pd.read_parquet(folder / "trials.parquet", columns=_OF_A_TRIAL)
        runs = pd.read_parquet(folder / "runs.parquet", columns=_OF_A_RUN)
        words = ["cell_id", "task", "kind"]
        runs[words] = runs[words].astype("category")
        return cls(trials, runs)

    @cached_property
    def launches(self) -> pd.DataFrame:
        """Those that were measured."""
        return self.trials[self.trials["status"] == "measured"].copy()

    @cached_property
    def decode(self) -> pd.DataFrame:
        """Decode runs of one request at a time that tell a speed."""
        runs = self.runs
        speed = runs["decode_tok_s"]
        alone = (runs["kind"] == "decode") & (runs["concurrency"] == 1)
        found = runs[alone & np.isfinite(speed) & (speed > 0)]
        return found.assign(log=np.log(found["decode_tok_s"]))


def frontier(tables: Tables) -> pd.DataFrame:
    """Which cells lead for which tasks, with their speeds and intervals."""
    figures = _figures(tables)
    overall = figures[figures["task"].isna()].set_index("cell_id")
    axes = tables.launches.drop_duplicates("cell_id").set_index("cell_id")
    leads: dict[str, list[str]] = {}
    told = pl.from_pandas(figures)
    for name in [None, *sorted(figures["task"].dropna().unique())]:
        rows = figures[figures["task"].isna() if name is None else figures["task"] == name]
        rows = rows.join(axes[["context", "utilization", "depth"]], on="cell_id")
        columns = ["cell_id", "context", "utilization", "decode_tok_s", "depth"]
        points = [Point(*row) for row in rows[columns].itertuples(index=False)]
        differences = Differences(told, name)
        faster = lambda one, other, of=differences: of.faster(one.cell_id, other.cell_id)  # noqa: E731
        for cell_id in leaders_by(points, faster):
            leads.setdefault(cell_id, []).append(name or "all")
    found = overall.loc[list(leads)].assign(on_frontier_for=list(leads.values()))
    ends = {"low": "decode_tok_s_low", "high": "decode_tok_s_high"}
    return found.reset_index().rename(columns=ends)


def _figures(tables: Tables) -> pd.DataFrame:
    """The speed of every cell and task, and how sure it is."""
    launches = tables.launches.assign(
        at=tables.launches["started_at"].astype("datetime64[us, UTC]").astype("int64") / 1e6
    )[["sweep", "graphs", *LAUNCH, "at"]]
    groups = tables.decode.groupby([*LAUNCH, "task"], observed=True)["decode_tok_s"]
    by_task = groups.agg(decode_tok_s="median", runs="size").reset_index()
    by_task = by_task.astype({"cell_id": "object", "task": "object"}).merge(launches, on=LAUNCH)
    by_task["headline"] = by_task["level"] = np.log(by_task["decode_tok_s"])
    by_task["unit_variance"] = np.pi / 2 / (by_task["runs"] + np.pi / 2 - 1)
    each = pd.concat([by_task, _over_tasks(by_task)], ignore_index=True)
    each["contrast"] = each["headline"] - each["level"]
    keys = ["cell_id", "task"]
    each["at"] -= each.groupby(["sweep", "task"], dropna=False)["at"].transform("mean")
    cells = each.groupby(keys, dropna=False).agg(
        sweep=("sweep", "first"),
        graphs=("graphs", "first"),
        decode_tok_s=("decode_tok_s", "median"),
        runs=("runs", "sum"),
        launches=("runs", "size"),
        headline=("headline", "mean"),
        level=("level", "mean"),
        contrast=("contrast", "mean"),
        at=("at", "mean"),
        unit_variance=("unit_variance", "sum"),
    )
    cells["unit_variance"] /= cells["launches"] ** 2
    cells = cells.reset_index()
    tasks = by_task.groupby("cell_id")["task"].agg(lambda names: sorted(set(names)))
    cells["tasks"] = cells["cell_id"].map(tasks)
    cells = cells.merge(_pools(each), on=["sweep", "task", "graphs"], how="left")
    enough = np.where(cells["launches"] > 1, 2, 4)
    differ = cells["headline_variance"] >= 1e-18
    cells["basis"] = np.where((cells["df"] >= enough) & differ, "launches", "runs")
    for name in VALUES:
        cells[name] -= cells[f"{name}_slope"].fillna(0.0) * cells["at"]
    cells = cells.merge(_run_noise(cells, tables.decode), on="cell_id", how="left")
    return _with_interval(cells).merge(_prefill(tables), on="cell_id", how="left")


def _over_tasks(by_task: pd.DataFrame) -> pd.DataFrame:
    """The same for all tasks of a launch together."""
    of_task = by_task.groupby(["cell_id", "task"])["level"].transform("mean")
    typical = by_task.groupby(["cell_id", "task"])["level"].mean().groupby("cell_id").mean()
    ordered = by_task.assign(ahead=by_task["level"] - of_task).sort_values(["decode_tok_s", "task"])
    groups = ordered.groupby(["sweep", "graphs", *LAUNCH, "at"])
    found = groups.agg(
        decode_tok_s=("decode_tok_s", "median"),
        runs=("runs", "sum"),
        ahead=("ahead", "mean"),
        n=("runs", "size"),
    )
    place = groups.cumcount()
    n = ordered.groupby(LAUNCH)["runs"].transform("size")
    middle = ordered[(place == (n - 1) // 2) | (place == n // 2)]
    sums = middle.groupby(["sweep", "graphs", *LAUNCH, "at"])["unit_variance"].sum()
    found["unit_variance"] = np.where(found["n"] % 2 == 1, sums, sums / 4)
    found = found.reset_index().assign(task=None)
    found["headline"] = np.log(found["decode_tok_s"])
    found["level"] = found["ahead"] + found["cell_id"].map(typical)
    return found.drop(columns=["ahead", "n"])


def _pools(each: pd.DataFrame) -> pd.DataFrame:
    """What launches of a cell differ by; with and without graphs together or apart."""
    from scipy.special import fdtr, fdtrc

    pool = ["sweep", "task"]
    together = _variances(each, pool)
    apart = _variances(each, [*pool, "graphs"])
    other = apart.assign(graphs=~apart["graphs"])[[*pool, "graphs", "df", "level_variance"]]
    apart = apart.merge(other, on=[*pool, "graphs"], how="left", suffixes=("", "_other"))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = apart["level_variance"] / apart["level_variance_other"]
        sides = [side(apart["df"], apart["df_other"], ratio) for side in (fdtr, fdtrc)]
    at = np.where(ratio > 1, 0.25, 0.05)
    enough = (apart["df"] >= 4) & (apart["df_other"] >= 4)
    own = enough & (2 * np.minimum(*sides) < at)
    shared = apart.loc[~own, [*pool, "graphs"]].merge(together, on=pool, how="left")
    both = pd.concat([apart[own].assign(group=apart["graphs"]), shared.assign(group=None)])
    both["pool"] = both.groupby([*pool, "group"], dropna=False).ngroup()
    return both.drop(columns=["group", "df_other", "level_variance_other"])


def _variances(each: pd.DataFrame, pool: list[str]) -> pd.DataFrame:
    names = [*VALUES, "at"]
    means = each.groupby(["cell_id", "task"], dropna=False)[names].transform("mean")
    off = each[names] - means
    rows = each.assign(**off.where(off.abs() > 1e-12, 0.0).add_prefix("off_"))
    rows["off_at2"] = rows["off_at"] ** 2
    for name in VALUES:
        rows[f"{name}_slope"] = rows["off_at"] * rows[f"off_{name}"]
    groups = rows.groupby(pool, dropna=False)
    found = groups.agg(
        n=("cell_id", "size"),
        cells=("cell_id", "nunique"),
        spread=("off_at2", "sum"),
        total=("at", lambda at: ((at - at.mean()) ** 2).sum()),
        **{f"{name}_slope": (f"{name}_slope", "sum") for name in VALUES},
    ).reset_index()
    found["df"] = found["n"] - found["cells"]
    drifts = (found["spread"] > 0.05 * found["total"]) & (found["df"] >= 6)
    found["df"] -= drifts.astype(int)
    for name in VALUES:
        slope = found[f"{name}_slope"] / found["spread"].where(found["spread"] > 0)
        found[f"{name}_slope"] = slope.where(drifts, 0.0)
    found["spread"] = found["spread"].where(drifts, np.inf)
    slopes = [f"{name}_slope" for name in VALUES]
    rest = rows.drop(columns=slopes).merge(found, on=pool, how="left")
    for name in VALUES:
        rest[name] = (rest[f"off_{name}"] - rest[f"{name}_slope"] * rest["off_at"]) ** 2
    sums = rest.groupby(pool, dropna=False)[VALUES].sum().reset_index()
    found = found.merge(sums, on=pool)
    for name in VALUES:
        found[f"{name}_variance"] = found[name] / found["df"].where(found["df"] > 0)
    return found.drop(columns=["n", "cells", "total", *VALUES])


def _run_noise(cells: pd.DataFrame, decode: pd.DataFrame) -> pd.DataFrame:
    """What runs of one launch differ by: of the same prompt, where one was asked twice."""
    unsure = cells.loc[cells["basis"] == "runs", "cell_id"].unique()
    runs = decode[decode["cell_id"].isin(unsure)]

    def within(keys: list[str]) -> pd.DataFrame:
        spread = runs.groupby([*LAUNCH, "task", *keys], observed=True)["log"].agg(["var", "size"])
        spread["df"] = spread["size"] - 1
        spread["squares"] = spread["var"].fillna(0.0) * spread["df"]
        return spread.groupby("cell_id", observed=True)[["squares", "df"]].sum()

    alike = within([])
    same = within(["variant"]).reindex(alike.index)
    chosen = same.where(same["df"] > 0, alike)
    chosen = chosen[chosen["df"] > 0]
    noise = pd.DataFrame(
        {"run_variance": chosen["squares"] / chosen["df"], "run_df": chosen["df"]}
    ).reset_index()
    return noise.astype({"cell_id": "object"})


def _with_interval(cells: pd.DataFrame) -> pd.DataFrame:
    pooled = cells["basis"] == "launches"
    cells["spread"] = cells["spread"].fillna(np.inf)
    time = cells["at"] ** 2 / cells["spread"]
    by_launches = cells["headline_variance"] * (1 / cells["launches"] + time)
    variance = by_launches.where(pooled, cells["run_variance"] * cells["unit_variance"])
    df = cells["df"].where(pooled, cells["run_df"]).astype(float)
    half = stdtrit(df.where(df > 0), 0.975) * np.sqrt(variance)
    speed = cells["decode_tok_s"]
    middle = (cells["headline"] - np.log(speed)).where(pooled, 0.0)
    cells["low"] = np.minimum(speed * np.exp(middle - half), speed)
    cells["high"] = np.maximum(speed * np.exp(middle + half), speed)
    return cells


def _prefill(tables: Tables) -> pd.DataFrame:
    runs = tables.runs
    uncached = runs[(runs["kind"] == "prefill") & (runs["cached_tokens"].fillna(0) <= 0)]
    by_launch = uncached.groupby(LAUNCH, observed=True)["prefill_tok_s"].median()
    found = by_launch.groupby("cell_id", observed=True).median().reset_index()
    return found.astype({"cell_id": "object"})


def boundaries(tables: Tables) -> pd.DataFrame:
    """Where the window ends, for every combination of the other axes."""
    axes = [*LINE, "context"]
    cells = tables.trials.sort_values("started_at", kind="stable").drop_duplicates(
        axes, keep="last"
    )
    works, inferred = cells["status"] == "measured", cells["status"] == "inferred"
    refused = cells["status"].isin(["infeasible", "invalid"]) | inferred
    cells = cells.assign(answer=np.where(works, True, np.where(refused, False, None)))
    told = []
    for line, group in cells.groupby(LINE):
        end = window_end(dict(zip(group["context"], group["answer"], strict=True)))
        told.append((*line, end.longest, end.shortest, end.verified, len(group)))
    names = ["max_context_works", "min_context_fails", "verified", "cells"]
    return pd.DataFrame(told, columns=[*LINE, *names])


def clock_gap(tables: Tables) -> pd.DataFrame:
    """By launch the share of runs in which the clocks of client and server disagree."""
    decode = tables.decode
    ratio = decode["decode_tok_s_client"] / decode["decode_tok_s_server"]
    off = ((ratio - 1).abs() > CLOCKS_AGREE).groupby([decode[key] for key in LAUNCH], observed=True)
    return _judged(off.mean(), lambda share: share > 0.05)


def spec_state(tables: Tables) -> pd.DataFrame:
    """By launch the share of the drafted tokens that were accepted."""
    sums = tables.decode.groupby(LAUNCH, observed=True)[["accepted_tokens", "draft_tokens"]].sum()
    share = (sums["accepted_tokens"] / sums["draft_tokens"]).rename("value").reset_index()
    state = tables.launches[tables.launches["spec_state"].notna()]
    found = state.merge(share, on=LAUNCH, how="left")
    found["verdict"] = np.where(found["spec_state"] == "working", "pass", "warn")
    return found[[*LAUNCH, "verdict", "value"]]


def depth_applied(tables: Tables) -> pd.DataFrame:
    """By launch the tokens of a mean draft against the depth."""
    decode = tables.decode.assign(positions=tables.decode["accepted_per_position"].str.len())
    groups = decode.groupby(LAUNCH, observed=True)
    sums = groups[["drafts", "draft_tokens"]].sum().join(groups["positions"].max()).reset_index()
    found = tables.launches.merge(sums, on=LAUNCH)
    depth, drafted = found["depth"], found["drafts"] > 0
    found["value"] = (found["draft_tokens"] / found["drafts"]).where(drafted, 0.0)
    off = found["value"] - depth
    positions = drafted & (found["positions"] > 0) & (found["positions"] != depth)
    few = off < -DEPTH_OFF * depth
    wrong = ((depth == 0) & drafted) | (off > DEPTH_OFF * depth) | positions | (few & (off <= -0.5))
    wrong |= (depth > 0) & ~drafted
    found["verdict"] = np.where(wrong, "fail", np.where(few, "warn", "pass"))
    return found[[*LAUNCH, "verdict", "value"]]


def cache_leak(tables: Tables) -> pd.DataFrame:
    """By launch the most tokens that a prefill found in the prefix cache."""
    runs = tables.runs
    told = runs[runs["kind"].isin(["prefill", "fill"]) & runs["cached_tokens"].notna()]
    most = told.groupby(LAUNCH, observed=True)["cached_tokens"].max()
    return _judged(most, lambda cached: cached > 0)


def throttled(tables: Tables) -> pd.DataFrame:
    """By launch the share of runs in which clocks were held down seriously."""
    runs = tables.runs[tables.runs["kind"].isin(["decode", "prefill"])]
    reasons = runs["throttle_reasons"]
    serious = reasons.map(lambda each: each is not None and any(one in SERIOUS for one in each))
    serious |= reasons.isna() & (runs["throttled_share"] > 0)
    told = reasons.notna() | runs["throttled_share"].notna()
    share = serious[told].groupby([runs.loc[told, key] for key in LAUNCH], observed=True).mean()
    return _judged(share, lambda each: each > 0)


def foreign_load(tables: Tables) -> pd.DataFrame:
    """By launch what others did meanwhile."""
    runs = tables.runs[tables.runs["kind"].isin(["decode", "prefill"])]
    found = runs.groupby(LAUNCH, observed=True).agg(
        most=("foreign_gib", "max"),
        always=("foreign_gib", "min"),
        processes=("foreign_processes", "max"),
        fewest=("foreign_processes", "min"),
        value=("foreign_cores", "mean"),
    )
    found = found.reset_index().astype({"cell_id": "object"})
    found = found.merge(tables.launches[[*LAUNCH, "card"]], on=LAUNCH)
    least = found.groupby("card")["always"].transform("min")
    grown = found["most"] - found["always"] > GROWN_GIB
    grown |= (found["most"] > RESIDENT_GIB) & (found["always"] - least > GROWN_GIB)
    noticed = grown | (found["value"] > BUSY_CORES) | (found["processes"] > found["fewest"])
    found["verdict"] = np.where(noticed, "warn", "pass")
    return found[[*LAUNCH, "verdict", "value"]]


def outliers(tables: Tables) -> pd.DataFrame:
    """Runs far off from those that were asked the same, counted by launch."""
    runs = tables.runs
    prefill = runs["kind"] == "prefill"
    speed = runs["prefill_tok_s"].where(prefill, runs["decode_tok_s"])
    timed = runs["kind"].isin(["decode", "prefill"]) & (runs["concurrency"].fillna(1) == 1)
    timed &= np.isfinite(speed) & (speed > 0)
    told = runs.loc[timed, [*LAUNCH, "kind", "task", "variant"]].assign(log=np.log(speed[timed]))
    told["asked"] = told["variant"].where(~prefill[timed], 0)
    cell, launch = ["cell_id", "kind", "task"], [*LAUNCH, "kind", "task"]
    alike = told.groupby([*cell, "asked"], observed=True)["log"].transform("size") >= 3
    parts = [(told[alike], [*cell, "asked"], cell), (told[~alike], launch, launch)]
    far = pd.concat(_far_off(part, asked, keys) for part, asked, keys in parts if len(part))
    counts = far.groupby(LAUNCH, observed=True).size().rename("far").reset_index()
    n = told.groupby(LAUNCH, observed=True).size().rename("n").reset_index()
    found = counts.merge(n, on=LAUNCH).astype({"cell_id": "object"})
    found["value"] = found["far"] / found["n"]
    found["verdict"] = np.where((found["value"] > 0.05) & (found["far"] > 1), "warn", "pass")
    return found[[*LAUNCH, "verdict", "value"]]


def _far_off(told: pd.DataFrame, asked: list[str], alike: list[str]) -> pd.DataFrame:
    groups = told.groupby(asked, observed=True)["log"]
    off = told["log"] - groups.transform("median")
    odd = groups.transform("size") % 2 == 1
    # The middle of an odd number is the median itself: one zero of each such group is left out.
    zeros = told[(off == 0) & odd].drop_duplicates(asked).index
    rest = off.abs().drop(zeros)
    keys = [told[key] for key in alike]
    medians = rest.groupby([key.loc[rest.index] for key in keys], observed=True).median()
    scale = 1.4826 * told[alike].join(medians.rename("scale"), on=alike)["scale"]
    runs = told.groupby(alike, observed=True)["log"].transform("size")
    far = (runs >= 5) & (off.abs() > DEVIATIONS * scale) & (off.abs() > -np.log1p(-TIE))
    return told[far]


def _judged(value: pd.Series, warns: Callable[[pd.Series], pd.Series]) -> pd.DataFrame:
    found = value.rename("value").reset_index().astype({"cell_id": "object"})
    found["verdict"] = np.where(warns(found["value"]), "warn", "pass")
    return found[[*LAUNCH, "verdict", "value"]]


CHECKS: dict[str, Callable[[Tables], pd.DataFrame]] = {
    each.__name__: each
    for each in (
        *(clock_gap, spec_state, depth_applied, cache_leak, throttled, foreign_load),
        outliers,
    )
}
"""The checks that are made of sums and medians over runs."""
