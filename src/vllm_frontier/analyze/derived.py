"""The tables that follow from `trials` and `runs`."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.checks import checks
from vllm_frontier.analyze.checks.evidence import Evidence
from vllm_frontier.analyze.digest import Digest
from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.dominance import TIE


def derived_tables(
    trials: pl.LazyFrame,
    runs: pl.LazyFrame,
    *,
    planned: pl.LazyFrame | None = None,
    tie: float = TIE,
    method: str | None = None,
    precision: float | None = None,
) -> dict[str, pl.LazyFrame]:
    """The tables `frontier`, `boundaries` and `checks` by name.

    Args:
        trials: the table `trials`.
        runs: the table `runs`.
        planned: cells of the grid that may not have been tried; see `boundaries`.
        tie: speeds that differ by less than this share count as equal.
        method: how tokens are drafted; see `checks`.
        precision: that was asked for; see `checks`.
    """
    digest = Digest(trials, runs)
    # Texts are read meanwhile, and what needs them is made last.
    digest.read_texts()
    figures = cell_figures(trials, runs, digest=digest)
    evidence = Evidence(digest, method)
    judged = checks(trials, runs, method=method, precision=precision, evidence=evidence)
    return {
        "frontier": frontier(trials, runs, tie=tie, figures=figures, rated=evidence.rated),
        "boundaries": boundaries(trials, planned),
        "checks": judged,
    }
