"""What a sweep came to, read from its folder: for `show`, `recommend` and the end of `run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from vllm_frontier.analyze.checks import Verdict
from vllm_frontier.analyze.derived import derived_tables
from vllm_frontier.analyze.latest import AXES
from vllm_frontier.config import spec_from_document
from vllm_frontier.identity import without_secrets
from vllm_frontier.inferred import inferred_rows
from vllm_frontier.report import checks, documents
from vllm_frontier.report.nothing import why_nothing
from vllm_frontier.report.terminal import tables as terminal
from vllm_frontier.report.underway import under_way
from vllm_frontier.report.wording import several
from vllm_frontier.store import tables
from vllm_frontier.store.sweep_store import SweepStore
from vllm_frontier.store.vanished import read_again


@dataclass(frozen=True, slots=True)
class Result:
    """The tables of a sweep, made from the attempts that are there now and what follows.

    `running` are the rows of attempts that run now; `trials` has them once they have ended.
    `damaged` is a path for each attempt that cannot be read and counts as interrupted, from the
    sweep's folder on.
    """

    name: str
    config: Mapping[str, Any]
    trials: pl.DataFrame
    runs: pl.DataFrame
    frontier: pl.DataFrame
    boundaries: pl.DataFrame
    checks: pl.DataFrame
    running: pl.DataFrame
    damaged: Sequence[str] = ()

    @property
    def simulated(self) -> bool:
        """Whether its card is a described one, also before anything was launched."""
        configured = self.config["engine"]["kind"] == documents.SIMULATED
        return configured or documents.is_simulated(self.trials)

    def nothing(self) -> str:
        """Why it has no frontier; only where it has none."""
        broken = self.checks.filter(check=checks.OUTPUT, verdict=Verdict.FAIL.value)
        if not broken.is_empty():
            cells = several(broken["cell_id"].n_unique(), "cell", "cells")
            return f"what is written is broken in {cells} that would lead (check {checks.OUTPUT})"
        known = self.trials.select(AXES).unique().height
        return why_nothing(self.trials, int(self.boundaries["cells"].sum()) - known)


def load(folder: Path) -> Result:
    """Read a sweep, also while it runs.

    Raises:
        StoreError: the folder is no sweep.
    """
    return read_again(partial(_load, folder))


def _load(folder: Path) -> Result:
    store = SweepStore.open(folder)
    spec = spec_from_document(store.config, secrets=False, file=store.paths.sweep_yaml)
    found, damaged = store.look_through()
    running, known = under_way(store.writer(), found)
    trials, runs = store.tables(inferred_rows(spec, store.identities, known), known)
    planned = tables.planned(spec.grid.cells())
    derived = derived_tables(
        trials.lazy(),
        runs.lazy(),
        planned=planned.lazy(),
        method=spec.model.speculation.method,
        precision=spec.workload.precision,
    )
    return Result(
        name=str(store.config["name"]),
        config=without_secrets(store.config),
        trials=trials,
        runs=runs,
        frontier=derived["frontier"].collect(),
        boundaries=derived["boundaries"].collect(),
        checks=derived["checks"].collect(),
        running=tables.frame("trials", [each.row for each in running]),
        damaged=damaged,
    )


def document(result: Result) -> dict[str, Any]:
    """What `show --json` prints: `documents.show_document`, and `damaged` of the result."""
    found = documents.show_document(
        result.name,
        result.trials.lazy(),
        result.runs.lazy(),
        result.frontier.lazy(),
        result.boundaries.lazy(),
        checks=result.checks.lazy(),
        running=result.running,
        simulated=result.simulated,
        reason=result.nothing() if result.frontier.is_empty() else None,
    )
    return {**found, "damaged": list(result.damaged)}


def show(result: Result, console: Console, *, short: bool = False) -> None:
    """Print the grid and the frontier; then boundaries, speeds, checks and failures.

    Args:
        result: the sweep.
        console: where to.
        short: only the first two, in a screen.
    """
    cells = spec_from_document(result.config, secrets=False).grid.cells()
    terminal.print_show(document(result), console, [cell.axes() for cell in cells], short=short)


def findings(result: Result) -> str:
    """How many findings the checks have, in a line; empty where nothing was judged."""
    told = checks.summary(documents.objects(result.checks.lazy()))
    return f"{told}\n" if told else ""
