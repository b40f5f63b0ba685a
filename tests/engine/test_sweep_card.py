"""A sweep on the NVIDIA card of this machine, with vLLM's CUDA build."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON", sys.executable)


def test_the_bundled_model_is_measured_on_the_card(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vllm_frontier", "run", "demo-gpu", "--out", "s"),
            "search=exhaustive",
            *(f"engine.python={PYTHON}", "grid.depth=[0,2]", "grid.context=[8192]"),
            *("grid.graphs=[false]", "grid.exclude=[{graphs: true}]"),
            *("grid.utilization=[0.9]", "workload.repeats=1"),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    assert trials["status"].to_list() == ["measured"] * 2
    assert trials["filled"].all()
    assert trials["driver"].null_count() == 0
    assert (trials["memory_used_peak_gib"] > 0).all()
    runs = pl.read_parquet(tmp_path / "s/runs.parquet").join(
        trials.select("cell_id", "depth"), on="cell_id"
    )
    drafted = runs.filter((pl.col("kind") == "decode") & (pl.col("depth") == 2))
    assert drafted["drafts"].min() > 0  # type: ignore[operator]
    assert drafted["accepted_tokens"].sum() > 0
