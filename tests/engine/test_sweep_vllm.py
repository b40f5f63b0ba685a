"""A sweep from end to end on real vLLM for CPU, with real speculation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.measure.pace import SLOWEST_ON_CPU

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON", sys.executable)
RUN = (
    "run",
    "demo-cpu",
    "search=exhaustive",
    f"engine.python={PYTHON}",
    "grid.depth=[0,3]",
    "grid.context=[8192,32768]",
    "grid.graphs=[false]",
    "grid.utilization=[0.9]",
    "grid.exclude=[{graphs: true}, {depth: 0, context: 32768}]",
    "workload.repeats=2",
    "--out",
    "sweep",
)


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_frontier", *words],
        cwd=cwd, capture_output=True, text=True, timeout=2200, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three launches: depth 0 and 3, and a window that does not fit."""
    folder = tmp_path_factory.mktemp("real")
    done = call(*RUN, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def runs(cwd: Path) -> pl.DataFrame:
    trials = pl.read_parquet(cwd / "sweep/trials.parquet").select("cell_id", "depth")
    return pl.read_parquet(cwd / "sweep/runs.parquet").join(trials, on="cell_id")


def test_the_refusal_is_a_row_with_its_memory(cwd: Path) -> None:
    trials = pl.read_parquet(cwd / "sweep/trials.parquet")
    assert dict(trials.group_by("status").len().rows()) == {"measured": 2, "infeasible": 1}
    row = trials.filter(pl.col("status") == "infeasible").row(0, named=True)
    assert (row["failure_class"], row["phase"]) == ("kv_too_small", "allocate_kv")
    # 14 layers and the head's, 2 KV heads of 32, keys and values of 4 bytes: 7680 bytes a token.
    assert row["kv_needed_gib"] == pytest.approx(32768 * 7680 / 2**30, abs=0.006)
    assert row["kv_available_gib"] == pytest.approx(0.9 * 0.3 - 0.067, abs=0.006)
    room = (0.9 * 0.3 - 0.067) * 2**30 / 7680
    assert row["max_context_estimate"] == pytest.approx(room, rel=0.02)
    assert not row["started"]


def test_a_full_window_was_served(runs: pl.DataFrame) -> None:
    fill = runs.filter(pl.col("kind") == "fill")
    assert fill.height == 2
    assert (fill["prompt_tokens"] + fill["completion_tokens"]).to_list() == [8192, 8192]


def test_prefill_is_uncached_and_of_the_length_that_was_asked(runs: pl.DataFrame) -> None:
    prefill = runs.filter(pl.col("kind") == "prefill")
    assert set(prefill["prompt_tokens"]) == {2048}
    assert set(prefill["cached_tokens"]) == {0}
    # Below this the sweep would not have waited for it.
    slowest = 2048 / SLOWEST_ON_CPU.limit_s(2048, 1)
    assert prefill["prefill_tok_s"].min() > slowest  # type: ignore[operator]


def test_greedy_output_is_the_same_with_and_without_speculation(runs: pl.DataFrame) -> None:
    decode = runs.filter(pl.col("kind") == "decode")
    texts = decode.pivot("depth", index=["task", "repeat"], values="output_sha256")
    assert texts.height == 6
    assert texts["0"].to_list() == texts["3"].to_list()


def test_the_head_is_good_at_what_it_was_trained_for(runs: pl.DataFrame) -> None:
    drafted = runs.filter((pl.col("kind") == "decode") & (pl.col("depth") == 3))
    assert drafted["completion_tokens"].min() >= 64  # type: ignore[operator]
    shares = {
        task: [
            sum(accepted[position] for accepted in rows["accepted_per_position"])
            / rows["drafts"].sum()
            for position in range(3)
        ]
        for (task,), rows in drafted.group_by("task")
    }
    assert shares["edit"][0] >= 0.6
    assert shares["code"][0] >= 0.6
    for task, share in shares.items():
        assert share[0] >= share[1] >= share[2], task
    assert len({round(share[0], 2) for share in shares.values()}) > 1
    # Accepted tokens and drafts must add up to what was written.
    for row in drafted.iter_rows(named=True):
        written = row["drafts"] + row["accepted_tokens"]
        assert abs(written + 1 - row["completion_tokens"]) <= 3
    plain = runs.filter((pl.col("kind") == "decode") & (pl.col("depth") == 0))
    assert not any(plain["drafts"].fill_null(0))


def test_the_table_and_the_command_are_printed(cwd: Path) -> None:
    text = (cwd / "stdout.txt").read_text()
    assert "kv_too_small" in text
    assert "--max-model-len 8192" in text
    advice = json.loads(call("recommend", "sweep", "--json", cwd=cwd).stdout)
    assert advice["choices"][0]["context"] == 8192


def test_nothing_of_a_launch_is_left(cwd: Path) -> None:
    for attempt in (cwd / "sweep/attempts").glob("*/*/attempt.json"):
        told = json.loads(attempt.read_text())
        supervisor = ProcessId(told["supervisor"]["pid"], told["supervisor"]["start_time"])
        assert not supervisor.alive()
        environment_mark = f"{told['supervisor']['pid']}@{told['supervisor']['start_time']}"
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_text(errors="replace")
            except OSError:
                continue
            assert environment_mark not in environment
