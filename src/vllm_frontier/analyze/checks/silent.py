"""Measured cells that a check could not judge, though it judged others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from vllm_frontier.analyze.checks.evidence import Evidence
from vllm_frontier.analyze.checks.judgement import Judgement, unknown


def with_silent(check: str, judgement: Judgement, evidence: Evidence) -> Judgement:
    """What a check found, and one row more where cells are missing that it should have judged.

    Args:
        check: its name.
        judgement: what it found.
        evidence: of the sweep.
    """
    if isinstance(judgement, str) or check not in _EXPECTED:
        return judgement
    wanted, lacking = _EXPECTED[check]
    cells = wanted(evidence).unique()
    missing = cells.filter(~cells.is_in(judgement["cell_id"].implode()))
    if missing.is_empty():
        return judgement
    told = unknown(f"{len(missing)} of {len(cells)} measured cells could not be judged: {lacking}")
    if len(missing) == 1:
        told = told.with_columns(cell_id=pl.lit(missing.item()))
    return pl.concat([judgement, told])


def _measured(evidence: Evidence) -> pl.Series:
    return evidence.by_cell["cell_id"]


def _drafting(evidence: Evidence) -> pl.Series:
    return evidence.by_cell.filter(pl.col("depth") > 0)["cell_id"]


def _greedy(evidence: Evidence) -> pl.Series:
    greedy = evidence.digest.compared.select("launch").unique()
    cells = evidence.launches.join(greedy, on="launch", how="semi")
    return cells.filter(pl.col("depth") > 0)["cell_id"]


def _real(evidence: Evidence) -> pl.Series:
    real = evidence.real().select("cell_id")
    return evidence.by_cell.join(real, on="cell_id", how="semi")["cell_id"]


_EXPECTED: Mapping[str, tuple[Callable[[Evidence], pl.Series], str]] = {
    "speedup_bound": (_drafting, "nothing was measured at depth 0 that compares"),
    "acceptance_explains": (_drafting, "their runs do not tell how many drafts were accepted"),
    "clock_gap": (_real, "no run of theirs was timed by both clocks"),
    "lossless": (_greedy, "their greedy output has no counterpart without speculation"),
    "spec_state": (_drafting, "their launches do not tell whether speculation took place"),
    "depth_applied": (_drafting, "their launches do not tell how much they drafted"),
    "throttled": (_measured, "their runs do not tell whether clocks were held down"),
    "foreign_load": (_real, "their runs do not tell what others did meanwhile"),
}
"""Checks that every cell of some kind should have data for: which, and what is missing if not."""
