"""A checkpoint whose acceptance is known by construction, measured through a whole sweep."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from build_constructed_model import Constructed, build  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON", sys.executable)
DEPTH = 2
REPEATS = 2
TOKENS = 192


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Constructed:
    return build(tmp_path_factory.mktemp("constructed"), seed=3)


@pytest.fixture(scope="module")
def runs(model: Constructed, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """One launch without speculation and one with; each group of tokens is a task."""
    cwd = tmp_path_factory.mktemp("known")
    for name, group in model.groups.items():
        task = {
            "name": name,
            "max_tokens": TOKENS,
            "prompt_tokens_max": 256,
            "variants": list(group.prompts),
        }
        (cwd / f"{name}.yaml").write_text(yaml.safe_dump(task))
    tasks = ",".join(f"./{name}.yaml" for name in model.groups)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vllm_frontier", "run", "demo-cpu", "--out", "s"),
            "search=exhaustive",
            *(f"engine.python={PYTHON}", f"model.id={model.path}", f"workload.tasks=[{tasks}]"),
            *(f"grid.depth=[0,{DEPTH}]", "grid.context=[4096]", "grid.utilization=[0.9]"),
            *("grid.graphs=[false]", "grid.exclude=[{graphs: true}]"),
            *(f"workload.repeats={REPEATS}", "workload.prefill_tokens=512"),
        ],
        cwd=cwd, capture_output=True, text=True, timeout=2200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    trials = pl.read_parquet(cwd / "s/trials.parquet").select("cell_id", "depth", "status")
    assert trials["status"].to_list() == ["measured"] * 2
    return pl.read_parquet(cwd / "s/runs.parquet").join(trials, on="cell_id")


def test_every_position_is_accepted_as_often_as_arithmetic_says(
    model: Constructed, runs: pl.DataFrame
) -> None:
    measured = runs.filter((pl.col("kind") == "decode") & (pl.col("depth") == DEPTH))
    assert measured.height == len(model.groups) * REPEATS
    for row in measured.iter_rows(named=True):
        group = model.groups[row["task"].removesuffix(".yaml")]
        last = group.prompt_ids[row["repeat"]][-1]
        expected = model.expected_acceptance(last, row["completion_tokens"], DEPTH)
        shares = [accepted / row["drafts"] for accepted in row["accepted_per_position"]]
        # The draft at the end of a request may be cut short: one draft of them all.
        assert shares == pytest.approx(expected, abs=1.5 / row["drafts"]), row["task"]


def test_groups_differ_as_they_were_built_to(model: Constructed, runs: pl.DataFrame) -> None:
    share = {
        task: rows["accepted_per_position"].list.first().sum() / rows["drafts"].sum()
        for (task,), rows in runs.filter(
            (pl.col("kind") == "decode") & (pl.col("depth") == DEPTH)
        ).group_by("task")
    }
    for name, group in model.groups.items():
        assert share[name] == pytest.approx(group.agreement, abs=0.1), json.dumps(share)
    assert share["high"] > share["middle"] > share["low"]


def test_output_is_what_the_map_writes_at_every_depth(runs: pl.DataFrame) -> None:
    decode = runs.filter(pl.col("kind") == "decode")
    texts = decode.pivot("depth", index=["task", "repeat"], values="output_sha256")
    assert texts["0"].to_list() == texts[str(DEPTH)].to_list()


def test_speculation_helps_where_drafts_are_right_and_not_where_they_are_wrong(
    runs: pl.DataFrame,
) -> None:
    drafted = runs.filter((pl.col("kind") == "decode") & (pl.col("depth") == DEPTH))
    of = {task: rows for (task,), rows in drafted.group_by("task")}
    # Every step writes one token and what it accepts.
    steps = {
        task: (rows["completion_tokens"].sum() - rows["accepted_tokens"].sum())
        / rows["completion_tokens"].sum()
        for task, rows in of.items()
    }
    assert steps["high"] < 0.4
    assert steps["low"] > 0.8
    # That is 2.4 times the speed. Others at work may slow a run down that much, but hardly both of
    # one group and neither of the other, which they take turns with.
    best = {task: rows["decode_tok_s"].max() for task, rows in of.items()}
    assert best["high"] > best["low"]  # type: ignore[operator]
