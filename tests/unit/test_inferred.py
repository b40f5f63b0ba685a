"""Rows of cells that were not launched: what they name, and what they leave out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from vllm_frontier.grid import Cell, Grid
from vllm_frontier.inferred import inferred_rows
from vllm_frontier.outcome import Failure, FailureClass, Outcome, Phase, StartupFacts, Status
from vllm_frontier.search.proof import DISAGREEMENT
from vllm_frontier.spec import (
    CardSpec,
    EngineSpec,
    ModelSpec,
    ScheduleSpec,
    SearchSpec,
    SweepIdentity,
    SweepSpec,
    WorkloadSpec,
)
from vllm_frontier.store.rows import run_rows, trial_row
from vllm_frontier.store.sweep_store import SweepStore

WINDOWS = (8192, 16384, 32768, 65536)
SPEC = SweepSpec(
    name="demo",
    model=ModelSpec(name="tiny", id="org/tiny"),
    card=CardSpec(kind="nvidia", name="A card", memory_gib=24.0),
    engine=EngineSpec(kind="vllm"),
    grid=Grid((2,), WINDOWS, (False,), (0.9,)),
    workload=WorkloadSpec(),
    search=SearchSpec("boundary"),
    schedule=ScheduleSpec(),
)
OLD = SweepIdentity({"engine": {"version": "0.31.0"}}, "w")
NEW = SweepIdentity({"engine": {"version": "0.32.0"}}, "w")
CHANGED = "engine.version 0.31.0 -> 0.32.0"
WORKS = Outcome(Status.MEASURED, Phase.STOP, started=True, filled=True, started_at=1e9)
REFUSED = Outcome(
    Status.INFEASIBLE,
    Phase.ALLOCATE_KV,
    Failure(FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, "ValueError: To serve at least one", 81),
    facts=StartupFacts(kv_needed_gib=2.0, kv_available_gib=1.5, max_context_estimate=24000),
    started_at=2e9,
)


def cell(context: int, depth: int = 2) -> Cell:
    return Cell(depth, context, False, 0.9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    SweepStore.create_or_open(tmp_path / "s", {"name": "demo"}, OLD)[0].close()
    opened, _ = SweepStore.create_or_open(tmp_path / "s", {"name": "demo"}, NEW, allow_changed=True)
    with opened:
        yield opened


def write(store: SweepStore, one: Cell, outcome: Outcome, identity: SweepIdentity = NEW) -> None:
    attempt = store.new_attempt(identity.cell_id(one))
    changed = None if identity is OLD else CHANGED
    version = str(identity.cell_part["engine"]["version"])
    row = trial_row(
        SPEC, identity, one, attempt.number, outcome, engine_version=version, changed=changed
    )
    store.write_attempt(attempt, row, {})
    store.write_outcome(attempt, row, run_rows(SPEC, identity, one, attempt.number, outcome))


def test_every_row_names_a_launch_and_repeats_its_words(store: SweepStore) -> None:
    write(store, cell(16384), WORKS, OLD)
    write(store, cell(32768), REFUSED)
    rows = inferred_rows(SPEC, store.identities, store.outcomes())
    # Depth 0 is always in the grid, with and without graphs, and without asks for less.
    assert {(row["depth"], row["context"], row["graphs"]) for row in rows} == {
        *((0, 8192, False), (0, 16384, False), (2, 8192, False), (2, 65536, False)),
    }
    works, fails = (next(row for row in rows if row["context"] == each) for each in (8192, 65536))
    assert works["evidence_cell"] == OLD.cell_id(cell(16384))
    assert works["evidence"] == (
        "works: depth=2 context=16384 graphs=off util=0.9 works and asks for at least as much"
    )
    assert (works["failure_class"], works["phase"]) == (None, "stop")
    assert works["doubt"] == "follows from a launch with another engine.version"
    assert (works["engine_version"], works["changed"]) == ("0.31.0", CHANGED)
    assert fails["cell_id"] == NEW.cell_id(cell(65536))
    assert fails["evidence_cell"] == NEW.cell_id(cell(32768))
    assert fails["evidence"] == "ValueError: To serve at least one"
    assert (fails["failure_class"], fails["phase"]) == ("kv_too_small", "allocate_kv")
    assert fails["doubt"] is None
    assert fails["changed"] == CHANGED
    assert {(row["status"], row["attempt"]) for row in rows} == {("inferred", 0)}


def test_what_follows_from_another_version_is_in_doubt_even_if_it_is_arithmetic(
    store: SweepStore,
) -> None:
    write(store, cell(8192), WORKS, OLD)
    write(store, cell(32768), REFUSED, OLD)
    known = store.outcomes()
    (refused,) = [r for r in inferred_rows(SPEC, store.identities, known) if r["failure_class"]]
    assert refused["cell_id"] == OLD.cell_id(cell(65536))  # as long as nothing ran otherwise
    assert (refused["doubt"], refused["changed"]) == (None, None)
    found = inferred_rows(SPEC, store.identities, known, now=store.identity)
    (refused,) = [row for row in found if row["failure_class"]]
    assert refused["cell_id"] == NEW.cell_id(cell(65536))
    assert refused["doubt"] == "follows from a launch with another engine.version"
    assert (refused["engine_version"], refused["changed"]) == ("0.31.0", CHANGED)
    # The same launch under the version of now: firm.
    write(store, cell(32768), REFUSED)
    found = inferred_rows(SPEC, store.identities, store.outcomes())
    (refused,) = [row for row in found if row["failure_class"]]
    assert (refused["doubt"], refused["engine_version"]) == (None, "0.32.0")


def test_launches_that_disagree_say_so_whatever_changed(store: SweepStore) -> None:
    write(store, cell(16384), REFUSED, OLD)
    write(store, cell(65536), WORKS)
    rows = inferred_rows(SPEC, store.identities, store.outcomes())
    told = {row["context"]: row["doubt"] for row in rows if row["depth"] == 2}
    assert told[32768] == DISAGREEMENT


def test_a_later_launch_overrules_what_was_inferred(store: SweepStore) -> None:
    write(store, cell(32768), REFUSED)
    write(store, cell(65536), WORKS)
    rows = inferred_rows(SPEC, store.identities, store.outcomes())
    assert [row["context"] for row in rows if row["depth"] == 2] == [8192, 16384]
    assert {row["failure_class"] for row in rows} == {None}


def test_cells_that_the_grid_no_longer_has_are_evidence_and_no_rows(store: SweepStore) -> None:
    write(store, cell(49152), WORKS)
    rows = inferred_rows(SPEC, store.identities, store.outcomes())
    inside = [row for row in rows if row["depth"] == 2]
    assert [row["context"] for row in inside] == [8192, 16384, 32768]
    assert {row["evidence_cell"] for row in inside} == {NEW.cell_id(cell(49152))}


def test_the_table_has_them_once_and_other_searches_have_none(store: SweepStore) -> None:
    write(store, cell(16384), WORKS)
    known = store.outcomes()
    trials, _ = store.tables(inferred_rows(SPEC, store.identities, known), known)
    assert trials["cell_id"].n_unique() == trials.height
    assert trials.filter(pl.col("attempt") == 0)["started"].null_count() == trials.height - 1
    every = replace(SPEC, search=SearchSpec("exhaustive"))
    assert inferred_rows(every, store.identities, known) == []
