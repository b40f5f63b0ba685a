"""A sweep on a node with two NVIDIA cards: a fake driver library, a simulated server."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

CARD_FILE = Path(__file__).parents[2] / "conf/simulated/tiny-8gib.yaml"


@pytest.fixture
def driver(driver: dict[str, str]) -> dict[str, str]:
    """Two cards of one kind."""
    return driver | {"FAKE_NAME": "Fake"}


def test_two_cards_are_used_side_by_side_each_by_its_own_launches(
    driver: dict[str, str], tmp_path: Path
) -> None:
    server = f"{sys.executable} -m vllm_frontier.engine.simulated.server"
    command = f"{server} --simulated-card {CARD_FILE} --model {{model}} --port {{port}} {{args}}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vllm_frontier", "run", "demo-gpu"),
            *("--out", "s", f"engine.command='{command}'", "workload.repeats=4"),
            "search=exhaustive",
            *("grid.depth=[0,1,2]", "grid.context=[8192]", "grid.utilization=[0.9]"),
        ],
        cwd=tmp_path, env=driver, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    # Six cells, and one of them again in the middle and at the end.
    assert trials["status"].to_list() == ["measured"] * 8
    assert trials["cell_id"].n_unique() == 6
    assert sorted(trials["purpose"]) == ["proof"] * 6 + ["reference"] * 2
    assert set(trials["driver"]) == {"575.57.08"}
    assert trials["memory_used_peak_gib"].to_list() == pytest.approx([0.6] * 8)

    by_card: dict[str, list[tuple[float, float]]] = {}
    for row in trials.iter_rows(named=True):
        attempt = tmp_path / f"s/attempts/{row['cell_id']}/{row['attempt']}/attempt.json"
        environment = json.loads(attempt.read_text())["environment"]
        assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        span = (row["started_at"].timestamp(), row["ended_at"].timestamp())
        by_card.setdefault(environment["CUDA_VISIBLE_DEVICES"], []).append(span)
    assert len(by_card) == 2
    assert all(card.startswith("GPU-") for card in by_card)
    for spans in by_card.values():  # one attempt per card at a time
        spans.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    one, other = by_card.values()
    assert any(a[0] < b[1] and b[0] < a[1] for a in one for b in other)


WORDS = (
    *("--out", "s", "workload.repeats=1", "grid.depth=[0]", "grid.context=[8192]"),
    *("grid.utilization=[0.8,0.85,0.9,0.95]", "grid.graphs=[true]"),
    *("card.drain_timeout_s=0.5", "schedule.retries=0", "workload.reference=false"),
)


def command(*more: str) -> list[str]:
    server = f"{sys.executable} -m vllm_frontier.engine.simulated.server"
    engine = f"{server} --simulated-card {CARD_FILE} --model {{model}} --port {{port}} {{args}}"
    words = [f"engine.command='{engine}'", "search=exhaustive", *WORDS, *more]
    return [sys.executable, "-m", "vllm_frontier", "run", "demo-gpu", *words]


def test_a_card_whose_memory_does_not_come_back_is_set_aside(
    driver: dict[str, str], tmp_path: Path
) -> None:
    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*more), cwd=tmp_path, env=driver,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert run("search.max_launches=1").returncode == 0
    # Held by something that nobody could end: it is no baseline either.
    (tmp_path / "used").write_text("5.0")
    done = run()
    assert done.returncode == 3, done.stderr
    trials = pl.read_parquet(tmp_path / "s/trials.parquet").sort("started_at")
    # One attempt found out for each of the two cards, and nothing more was tried.
    assert trials["status"].to_list() == ["measured", "failed", "failed"]
    for row in trials.rows(named=True)[1:]:
        assert (row["failure_class"], row["phase"]) == ("memory_contended", "spawn")
        assert row["evidence"].startswith("4.40 GiB more were in use on a card after")
    aside = [line for line in done.stdout.splitlines() if line.startswith("Card GPU-")]
    assert len(aside) == 2
    assert all("is set aside: 4.40 GiB more were in use on a card" in line for line in aside)
    left = 8 - 3
    assert f"{left} cells were not reached, for want of a card. Go on with: " in done.stdout

    (tmp_path / "used").write_text("0.6")
    done = run("schedule.retries=1")
    assert done.returncode == 0, done.stderr
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    assert trials.filter(pl.col("status") == "measured").height == 8


def test_a_card_that_was_set_aside_is_used_again_when_its_memory_is_back(
    driver: dict[str, str], tmp_path: Path
) -> None:
    used = tmp_path / "used"
    with subprocess.Popen(
        command("schedule.retries=1"), cwd=tmp_path, env=driver,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as sweep:  # fmt: skip
        assert sweep.stdout is not None
        lines = []
        for line in sweep.stdout:
            lines.append(line.strip())
            if "tok/s" in line and used.read_text() == "0.6" and len(lines) < 6:
                used.write_text("5.0")
            if "is set aside" in line:
                used.write_text("0.6")
        assert sweep.wait(120) == 0, lines
    back = [line for line in lines if line.endswith("is used again: the memory is back")]
    assert 1 <= len(back) <= 2
    assert {line.split()[1] for line in back} == {
        line.split()[1] for line in lines if "is set aside: " in line
    }
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    assert trials.filter(pl.col("status") == "measured").height == 8


def test_a_card_that_is_lost_is_set_aside_and_the_other_one_goes_on(
    driver: dict[str, str], tmp_path: Path
) -> None:
    counters = tmp_path / "counters"
    counters.touch()
    words = command("schedule.retries=1", "grid.utilization=[0.85,0.9,0.95]")
    with subprocess.Popen(
        words, cwd=tmp_path, env=driver | {"FAKE_COUNTERS": str(counters)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as sweep:  # fmt: skip
        assert sweep.stdout is not None
        lines = []
        for line in sweep.stdout:
            lines.append(line.strip())
            if "tok/s" in line:
                counters.write_text("card@0 lost\n")
        assert sweep.wait(120) == 0, lines
    (aside,) = [line for line in lines if "is set aside: " in line]
    assert aside.startswith("Card GPU-00000000 is set aside: card GPU-00000000: a GPU is lost")
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    assert trials.filter(pl.col("status") == "measured").height == 6
    # The one attempt that it cost: its cell was tried again, on the other card.
    (lost,) = trials.filter(pl.col("status") != "measured").iter_rows(named=True)
    assert (lost["status"], lost["failure_class"]) == ("failed", "gpu_lost")
    assert lost["evidence"].startswith("card GPU-00000000: a GPU is lost or needs a reset")
    runs = pl.read_parquet(tmp_path / "s/runs.parquet")
    assert runs["sm_clock_mhz"].drop_nulls().unique().to_list() == [2400.0]


def test_a_card_that_is_not_there_is_one_line(driver: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vllm_frontier", "run", "rtx5090-qwen3.8-27b-nvfp4"),
            *("model.id=some/model", "engine.command='serve {args}'", "--out", "s"),
        ],
        cwd=tmp_path, env=driver, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "this sweep is for NVIDIA GeForce RTX 5090, but this machine has" in done.stderr
    assert "card=auto" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "s").exists()


def test_cards_that_are_hidden_are_left_alone(driver: dict[str, str], tmp_path: Path) -> None:
    code = "from vllm_frontier.cards import first_card; print(first_card()[2])"

    def uuids(visible: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], env=driver | {"CUDA_VISIBLE_DEVICES": visible},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        ).stdout.strip()  # fmt: skip

    by_index = {index: uuids(index) for index in ("0", "1")}
    assert by_index["0"] != by_index["1"]
    assert all(told.count("GPU-") == 1 for told in by_index.values())
    assert uuids("0,1").count("GPU-") == 2
    one = by_index["1"].strip("(),'")
    assert uuids(one) == by_index["1"]
