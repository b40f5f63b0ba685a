"""A sweep that searches for boundaries, interrupted twice: it comes to what it would have.

In this process, as `in_one_process` does it, so that a launch takes a third of a second.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from in_one_process import one_after_another
from rich.console import Console
from table_comparison import differences

from vllm_frontier.config import compose_sweep, spec_from_document
from vllm_frontier.engine.simulated.card import simulate_start
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.errors import Interrupted
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Phase
from vllm_frontier.report.terminal.progress import ProgressDisplay
from vllm_frontier.search import Search
from vllm_frontier.signals import Signals
from vllm_frontier.store.sweep_store import SweepStore
from vllm_frontier.sweep import Finished, run_sweep
from vllm_frontier.trial import Progress
from vllm_frontier.trial.plan import Listener, Plan, Schedule

CARD = "tiny-8gib"
WINDOWS = "8192,16384,24576,32768,36864,40960,45056,49152,57344,65536"
WORDS = (
    *("engine=simulated", f"engine.card_file={CARD}", "search=boundary", "search.audit=1"),
    *("grid.depth=[0,2]", f"grid.context=[{WINDOWS}]", "grid.utilization=[0.95]"),
    *("workload.repeats=1", "workload.tasks=[prose]"),
)
CELLS = 40


def sweep(folder: Path, schedule: Schedule = one_after_another, *more: str) -> Finished:
    composed = compose_sweep("rtx5090-qwen3.8-27b-nvfp4", [*WORDS, *more])
    display = ProgressDisplay(Console(file=io.StringIO()))
    with Signals() as signals:
        return run_sweep(
            composed.spec, composed.document, folder, display, signals=signals, schedule=schedule
        )


class Breaking:
    """Passes everything on, until a launch fills its window or is about to begin."""

    def __init__(self, listener: Listener, launch: int, phase: Phase) -> None:
        self._listener = listener
        self._left = launch
        self._phase = phase

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)

    def prepared(self, cell: Cell, attempt: int, launch: Mapping[str, Any]) -> None:
        self._left -= 1
        self._listener.prepared(cell, attempt, launch)
        if self._left <= 0 and self._phase is Phase.SPAWN:
            raise Interrupted("SIGINT")

    def progress(self, cell: Cell, progress: Progress) -> None:
        if self._left <= 0 and progress.phase is self._phase:
            raise Interrupted("SIGINT")
        self._listener.progress(cell, progress)


def interrupted_in(launch: int, phase: Phase) -> Schedule:
    """Runs a search as far as a launch, or the first one after it that comes to the phase."""

    def schedule(search: Search, plan: Plan, listener: Listener) -> None:
        one_after_another(search, plan, Breaking(listener, launch, phase))

    return schedule


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boundary") / "s"
    finished = sweep(folder)
    assert (finished.planned, finished.left, finished.failed) == (CELLS, 0, 0)
    assert not finished.out_of_budget
    assert len(finished.cells) + len(finished.inferred) == CELLS
    return folder


def test_few_launches_tell_the_truth_about_every_cell(whole: Path) -> None:
    trials = pl.read_parquet(whole / "trials.parquet")
    launched = trials.filter(pl.col("attempt") > 0)
    inferred = trials.filter(pl.col("status") == "inferred")
    launched_cells = set(launched["cell_id"])
    assert trials["cell_id"].n_unique() == len(launched_cells) + inferred.height == CELLS
    assert launched.height <= CELLS // 2
    assert inferred["attempt"].to_list() == [0] * inferred.height
    assert set(inferred["evidence_cell"]) <= launched_cells
    folders = {each.name for each in (whole / "attempts").iterdir()}
    assert folders == launched_cells
    for column in ("started_at", "ended_at", "wall_s", "started", "kv_tokens", "purpose"):
        assert inferred[column].null_count() == inferred.height, column
    assert (launched["purpose"] == "audit").sum() == 1
    # Who was asked for a speed and works has one, the others were done once they had filled.
    working = launched.filter(pl.col("status") == "measured")
    asked = working["with_speed"].to_list()
    assert working["decode_tok_s"].is_not_null().to_list() == asked
    runs = pl.read_parquet(whole / "runs.parquet").group_by("cell_id", "attempt").len()
    by_attempt = {row[:2]: row[2] for row in runs.rows()}
    counts = [by_attempt[key] for key in working.select("cell_id", "attempt").rows()]
    # The fill; prefill, a run of the task, and two texts of it that are scored.
    assert counts == [5 if speed else 1 for speed in asked]
    groups = working.filter("with_speed").select("depth", "graphs").unique()
    assert groups.height == 4
    card = load_card(CARD)
    for row in trials.iter_rows(named=True):
        cell = Cell(row["depth"], row["context"], row["graphs"], row["utilization"])
        start = simulate_start(card, cell)
        told = None if row["failure_class"] is None else row["failure_class"]
        truth = None if start.failure is None else start.failure.failure_class.value
        assert (told is None) == (truth is None), cell.label()
        if row["status"] == "infeasible":
            assert told == truth


def test_an_interrupted_search_comes_to_the_same_tables(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with pytest.raises(Interrupted):
        sweep(folder, interrupted_in(3, Phase.FILL))
    early = pl.read_parquet(folder / "trials.parquet")
    assert early.filter(pl.col("status") == "interrupted").height == 1
    assert early.filter(pl.col("status") == "inferred").height > 0
    with pytest.raises(Interrupted):
        sweep(folder, interrupted_in(2, Phase.SPAWN))
    finished = sweep(folder)
    assert finished.left == 0
    assert differences(folder, whole) == []
    trials = pl.read_parquet(folder / "trials.parquet")
    assert trials.filter(pl.col("status") == "interrupted").height == 2
    before = sorted((folder / "attempts").glob("*/*"))
    assert sweep(folder).left == 0
    assert sorted((folder / "attempts").glob("*/*")) == before


def test_a_budget_leaves_cells_open(tmp_path: Path) -> None:
    finished = sweep(tmp_path / "s", one_after_another, "search.max_launches=2")
    assert len(finished.cells) == 2
    assert finished.out_of_budget
    assert 0 < finished.left < CELLS - 2
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    assert trials.height == CELLS - finished.left
    spec = spec_from_document(SweepStore.open(tmp_path / "s").config)
    assert spec.search.max_launches == 2


def test_without_time_nothing_is_launched_and_all_is_left(tmp_path: Path) -> None:
    finished = sweep(tmp_path / "s", one_after_another, "search.max_hours=1e-9")
    assert (len(finished.cells), finished.left, finished.out_of_budget) == (0, CELLS, True)
    assert pl.read_parquet(tmp_path / "s/trials.parquet").height == 0
