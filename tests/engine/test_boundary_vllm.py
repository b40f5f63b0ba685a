"""The boundary search on real vLLM for CPU: few launches, and the answers are true."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON", sys.executable)
SWEEP = (
    "demo-cpu",
    "search=boundary",
    f"engine.python={PYTHON}",
    "grid.depth=[0,3]",
    "grid.context=[8192,16384,32768]",
    "grid.graphs=[false]",
    "grid.utilization=[0.9]",
    "grid.exclude=[{graphs: true}]",
    "search.audit=0",
    "workload.reference=false",  # comes in where many cells are launched again
    "workload.repeats=3",  # whose ranges overlap, so that fewer cells are launched again
    "workload.tasks=[code]",
)


def call(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_frontier", *words],
        cwd=cwd, capture_output=True, text=True, timeout=2200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six cells, of which two decide: what asks most and works, what asks least and does not.

    Four launches, and five more at most where the machine is busy.
    """
    folder = tmp_path_factory.mktemp("boundary")
    (folder / "plan.json").write_text(call("plan", *SWEEP, "--json", cwd=folder))
    (folder / "run.json").write_text(call("run", *SWEEP, "--out", "sweep", "--json", cwd=folder))
    return folder


@pytest.fixture(scope="module")
def trials(cwd: Path) -> pl.DataFrame:
    return pl.read_parquet(cwd / "sweep/trials.parquet")


def test_the_checkpoint_alone_tells_what_fits(cwd: Path) -> None:
    cells = json.loads((cwd / "plan.json").read_text())["cells"]
    fits = {(cell["depth"], cell["context"]): cell["predicted"] == "works" for cell in cells}
    assert fits == {(depth, context): context < 32768 for depth, context in fits}
    assert len(fits) == 6


def test_both_sides_of_every_boundary_are_proven(cwd: Path) -> None:
    boundaries = pl.read_parquet(cwd / "sweep/boundaries.parquet")
    rows = boundaries.select("depth", "max_context_works", "min_context_fails", "verified").rows()
    assert sorted(rows) == [(0, 16384, 32768, True), (3, 16384, 32768, True)]


def test_what_was_not_launched_follows_from_what_was(trials: pl.DataFrame) -> None:
    launched = trials.filter(pl.col("attempt") > 0)
    cells = set(launched.select("depth", "context").rows())
    # Two proofs, the speed of depth 0, and one second window for the check of that assumption.
    proofs = launched.filter(pl.col("purpose") == "proof").select("depth", "context").rows()
    assert sorted(proofs) == [(0, 32768), (3, 16384)]
    assert set(launched["purpose"]) == {"proof", "speed", "speed_check"}
    assert cells >= {*proofs, (0, 16384)}
    second = cells - {*proofs, (0, 16384)}
    assert 1 <= len(second) <= 2
    assert second <= {(0, 8192), (3, 8192)}
    # Where a busy machine makes two windows differ, both are launched again, and where they still
    # do, the other depth has its second window measured, too, and is doubted in turn.
    again = launched.height - len(cells)
    assert again <= 4
    assert len(second) == 1 or again >= 2
    inferred = trials.filter(pl.col("status") == "inferred")
    assert inferred.height == 6 - len(cells)
    assert set(inferred["evidence_cell"]) <= set(launched["cell_id"])
    refused = inferred.filter(pl.col("failure_class").is_not_null()).row(0, named=True)
    assert (refused["depth"], refused["context"]) == (3, 32768)
    assert refused["failure_class"] == "kv_too_small"
    assert refused["doubt"] is None


def test_the_frontier_has_a_speed_for_every_cell_on_it(cwd: Path, trials: pl.DataFrame) -> None:
    frontier = pl.read_parquet(cwd / "sweep/frontier.parquet")
    # Where both windows were measured, the shorter one may be the faster on a busy machine.
    assert frontier["context"].max() == 16384
    assert set(frontier["context"]) <= {8192, 16384}
    assert frontier["decode_tok_s"].null_count() == 0
    assert set(frontier["speed_cell"]) <= set(trials.filter(pl.col("with_speed"))["cell_id"])
