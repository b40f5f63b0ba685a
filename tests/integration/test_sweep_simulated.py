"""Whole sweeps through Ray on the simulated card, as a user starts them."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

SWEEP = (
    "rtx5090-qwen3.8-27b-nvfp4",
    "engine=simulated",
    "engine.card_file=tiny-8gib",
    "search=exhaustive",
    "workload.repeats=2",
    "grid.utilization=[0.9]",
)
COMMAND = (sys.executable, "-m", "vllm_frontier")


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with cells that work, and some that do not fit."""
    cwd = tmp_path_factory.mktemp("finished")
    done = call(
        "run", *SWEEP, "grid.depth=[0,2]", "grid.context=[8192,65536]", "--out", "s", cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (cwd / "stdout.txt").write_text(done.stdout)
    return cwd


def test_every_cell_has_its_row_and_its_runs(finished: Path) -> None:
    trials = pl.read_parquet(finished / "s/trials.parquet")
    runs = pl.read_parquet(finished / "s/runs.parquet")
    assert trials.height == 8
    assert set(trials["status"]) == {"measured", "infeasible"}
    measured = trials.filter(pl.col("status") == "measured")
    assert set(measured["context"]) == {8192}
    assert measured["started"].all()
    assert measured["filled"].all()
    # per measured cell: one fill, two prefills, two repeats of three tasks, and of each task with
    # short prompts (not edit) a text that was written and one that was sampled, to be scored
    assert runs.height == measured.height * (1 + 2 + 2 * 3 + 2 * 2)
    assert set(runs["kind"]) == {"fill", "prefill", "decode", "probe"}


def test_a_window_too_long_is_told_with_its_memory(finished: Path) -> None:
    trials = pl.read_parquet(finished / "s/trials.parquet")
    refused = trials.filter(pl.col("failure_class") == "kv_too_small")
    assert refused.height > 0
    for row in refused.iter_rows(named=True):
        assert row["kv_needed_gib"] > row["kv_available_gib"] > 0
        assert 8192 <= row["max_context_estimate"] < 65536
        assert row["phase"] == "allocate_kv"
        log = finished / f"s/attempts/{row['cell_id']}/{row['attempt']}/server.log"
        line = log.read_text().splitlines()[row["evidence_line"] - 1]
        assert row["evidence"][:60] in line


def test_the_measured_speed_is_the_cards(finished: Path) -> None:
    """The card's own formula: step time and acceptance, no noise beyond its 2 %."""
    from vllm_frontier.engine.simulated.card import decode_speed
    from vllm_frontier.engine.simulated.card_file import load_card
    from vllm_frontier.grid import Cell

    card = load_card("tiny-8gib")
    runs = pl.read_parquet(finished / "s/runs.parquet")
    trials = pl.read_parquet(finished / "s/trials.parquet")
    joined = runs.filter(pl.col("kind") == "decode").join(
        trials.select("cell_id", "depth", "graphs", "context"), on="cell_id"
    )
    for row in joined.iter_rows(named=True):
        cell = Cell(row["depth"], row["context"], row["graphs"], 0.9)
        expected = decode_speed(card, cell, row["task"])
        assert row["decode_tok_s"] == pytest.approx(expected, rel=0.1)
        assert row["decode_tok_s"] == row["decode_tok_s_server"]


def test_boundaries_and_frontier_follow(finished: Path) -> None:
    boundaries = pl.read_parquet(finished / "s/boundaries.parquet")
    assert boundaries.height == 4
    assert set(boundaries["max_context_works"]) == {8192}
    assert set(boundaries["min_context_fails"]) == {65536}
    assert boundaries["verified"].all()
    frontier = pl.read_parquet(finished / "s/frontier.parquet")
    best = frontier.filter(pl.col("on_frontier_for").list.contains("all"))
    assert best.select("depth", "graphs").rows() == [(2, True)]


def test_the_terminal_says_what_fits_and_what_to_run(finished: Path) -> None:
    text = (finished / "stdout.txt").read_text()
    assert "[8/8" in text
    assert "vllm serve" in text
    assert "(simulated)" in text
    assert text.splitlines()[-2:] == [
        "Boundaries, speeds, checks, failures: vllm-frontier show s",
        "Everything with pictures: vllm-frontier report s",
    ]
    tables = text.split("Frontier (simulated)")[1].split("To serve")[0]
    assert max(len(line) for line in tables.splitlines()) <= 80


def test_show_status_and_recommend_print_one_document(finished: Path) -> None:
    shown = json.loads(call("show", "s", "--json", cwd=finished).stdout)
    assert shown["cells"] == {"infeasible": 4, "measured": 4}
    state = json.loads(call("status", "--json", "s", cwd=finished).stdout)
    assert (state["state"], state["done"], state["planned"]) == ("finished", 8, 8)
    advice = json.loads(
        call("recommend", "s", "--json", "--min-context", "8000", cwd=finished).stdout
    )
    assert "--max-model-len 8192" in advice["choices"][0]["command"]
    nothing = json.loads(
        call("recommend", "s", "--min-context", "9000", "--json", cwd=finished).stdout
    )
    assert nothing["choices"] == []
    assert "8192" in nothing["reason"]


def test_running_again_launches_nothing_and_says_so(finished: Path) -> None:
    before = sorted((finished / "s/attempts").glob("*/*"))
    again = call(
        "run", *SWEEP, "grid.depth=[0,2]", "grid.context=[8192,65536]", "--out", "s", cwd=finished
    )
    assert again.returncode == 0, again.stderr
    assert "8 of them done already" in again.stdout
    assert sorted((finished / "s/attempts").glob("*/*")) == before


def test_another_sweep_is_refused(finished: Path) -> None:
    before = (finished / "s/sweep.yaml").read_bytes()
    other = call(
        "run", *SWEEP, "grid.context=[8192]", "engine.args.max_num_seqs=4", "--out", "s",
        cwd=finished,
    )  # fmt: skip
    assert other.returncode == 2
    assert "holds another sweep's results" in other.stderr
    assert len(other.stderr.strip().splitlines()) == 1
    assert (finished / "s/sweep.yaml").read_bytes() == before


def test_a_cell_that_fails_is_tried_again_and_the_exit_code_says_so(tmp_path: Path) -> None:
    card = tmp_path / "card.yaml"
    card.write_text(
        (Path(__file__).parents[2] / "conf/simulated/tiny-8gib.yaml").read_text() + "\nfaults:\n"
        "  - {when: {graphs: true}, at: load, kind: crash, times: 1}\n"
        "  - {when: {graphs: false}, at: load, kind: crash, times: 9}\n"
    )
    done = call(
        "run", *SWEEP, f"engine.card_file={card}", "grid.depth=[0]", "grid.context=[8192]",
        "schedule.retries=1", "--out", "s", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    trials = pl.read_parquet(tmp_path / "s/trials.parquet").sort("graphs", "attempt")
    assert trials.select("graphs", "attempt", "status").rows() == [
        (False, 1, "failed"),
        (False, 2, "failed"),
        (True, 1, "failed"),
        (True, 2, "measured"),
    ]
    # Nothing is left to try, so the sweep is finished, not interrupted.
    state = json.loads(call("status", "s", "--json", cwd=tmp_path).stdout)
    assert (state["state"], state["done"], state["planned"]) == ("finished", 1, 2)
