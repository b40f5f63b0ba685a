"""What is odd about the numbers of a sweep: each check with a verdict and figures.

Pure functions over the tables `trials` and `runs`; a module per subject.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from vllm_frontier.analyze.checks.counters import (
    cache_leak,
    clock_gap,
    depth_applied,
    spec_state,
)
from vllm_frontier.analyze.checks.evidence import Evidence
from vllm_frontier.analyze.checks.far_off import far_off
from vllm_frontier.analyze.checks.gains import acceptance_explains, speedup_bound
from vllm_frontier.analyze.checks.judgement import Judgement, Verdict, unknown
from vllm_frontier.analyze.checks.launches import drift, series_gap
from vllm_frontier.analyze.checks.lossless import lossless
from vllm_frontier.analyze.checks.narrow import precision as within_precision
from vllm_frontier.analyze.checks.output import output_sane
from vllm_frontier.analyze.checks.repeats import repeat_launches
from vllm_frontier.analyze.checks.silent import with_silent
from vllm_frontier.analyze.checks.telemetry import foreign_load, throttled
from vllm_frontier.analyze.digest import Digest
from vllm_frontier.analyze.latest import AXES

__all__ = ["NAMES", "Verdict", "checks"]

_BY_LAUNCHES: Mapping[str, Callable[[Evidence], Judgement]] = {
    "speedup_bound": speedup_bound,
    "acceptance_explains": acceptance_explains,
    "clock_gap": clock_gap,
    "drift": drift,
    "series_gap": series_gap,
    "lossless": lossless,
    "spec_state": spec_state,
    "depth_applied": depth_applied,
    "cache_leak": cache_leak,
    "throttled": throttled,
    "foreign_load": foreign_load,
}
_LEADING = ("sweep", "check", "verdict", "cell_id", "attempt", *AXES)

PRECISION = "precision"
"""The check that is only made where a precision was asked for."""

NAMES = (
    *list(_BY_LAUNCHES)[:5],
    "repeat_launches",
    PRECISION,
    "outliers",
    "lossless",
    "output_sane",
    *list(_BY_LAUNCHES)[6:],
)
"""Every check, in the order of the table."""


def checks(
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    *,
    method: str | None = None,
    precision: float | None = None,
    evidence: Evidence | None = None,
) -> pl.LazyFrame:
    """The table `checks`.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        method: how tokens are drafted, such as `mtp` or `ngram`; None: not known.
        precision: half of the interval of a task's speed within a launch that was asked for, as a
            share (`workload.precision`); None: none was, and that check has no row.
        evidence: in both tables, where it is there already.

    Returns:
        The columns of the table. A row for everything that was judged, and of a check that had
        nothing to judge one with the verdict `unknown`, which says why and names no cell. Where it
        had nothing to judge of some cells only, such a row tells how many.
    """
    evidence = evidence or Evidence(Digest(trials, runs), method)
    evidence.digest.read_texts()
    judgements = {"repeat_launches": repeat_launches(trials), "outliers": far_off(evidence)}
    if precision is not None:
        judgements[PRECISION] = within_precision(evidence, precision)
    # What needs texts comes last.
    for name in sorted(_BY_LAUNCHES, key="lossless".__eq__):
        judgements[name] = with_silent(name, _BY_LAUNCHES[name](evidence), evidence)
    judgements["output_sane"] = output_sane(evidence.rated, evidence.digest)
    if evidence.launches.is_empty():
        judgements = dict.fromkeys(judgements, "no cell is measured yet")
    told = pl.concat(_named(name, judgements[name]) for name in NAMES if name in judgements)
    cells = evidence.launches.select("cell_id", *AXES, "engine").unique("cell_id", keep="last")
    whole = trials.select(pl.col("sweep", "engine").drop_nulls().first().name.prefix("_")).collect()
    found = told.join(cells, on="cell_id", how="left", maintain_order="left").with_columns(
        sweep=pl.lit(whole["_sweep"].item(), dtype=pl.String),
        engine=pl.coalesce("engine", pl.lit(whole["_engine"].item(), dtype=pl.String)),
    )
    return found.select(*_LEADING, "task", "value", "expected", "unit", "detail", "engine").lazy()


def _named(name: str, judgement: Judgement) -> pl.DataFrame:
    found = unknown(judgement) if isinstance(judgement, str) else judgement
    return found.with_columns(check=pl.lit(name))
