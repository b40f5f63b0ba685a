"""A sweep on a node with two NVIDIA cards: a fake driver library, a simulated server."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

CARD_FILE = Path(__file__).parents[2] / "conf/simulated/tiny-8gib.yaml"
SERVER = (
    f"{sys.executable} -m vllm_frontier.engine.simulated.server --simulated-card {CARD_FILE} "
    "--model {model} --port {port} {args}"
)


def gated(folder: Path, gate: str) -> str:
    """A command of a server that is executed once a piece of shell has ended."""
    script = folder / "gate"
    script.write_text(f'#!/bin/sh\n{gate}\nexec "$@"\n')
    script.chmod(0o755)
    return f"{script} {SERVER}"


@pytest.fixture
def driver(driver: dict[str, str]) -> dict[str, str]:
    """Two cards of one kind."""
    return driver | {"FAKE_NAME": "Fake"}


def test_two_cards_are_used_side_by_side_each_by_its_own_launches(
    driver: dict[str, str], tmp_path: Path
) -> None:
    # Neither card's first server begins before the other's does.
    gate = 'touch "$0.$CUDA_VISIBLE_DEVICES"; until [ $(ls "$0".GPU-* | wc -l) = 2 ]; do'
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vllm_frontier", "run", "demo-gpu"),
            *("--out", "s", f"engine.command='{gated(tmp_path, f'{gate} sleep 0.1; done')}'"),
            *("search=exhaustive", "workload.repeats=4"),
            *("grid.depth=[0,1,2]", "grid.context=[8192]", "grid.utilization=[0.9]"),
        ],
        cwd=tmp_path, env=driver, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    # Six cells, and one of them again in the middle and at the end; where the one in the middle
    # ends last, it is the one at the end.
    launches = trials.height
    assert trials["status"].to_list() == ["measured"] * launches
    assert trials["cell_id"].n_unique() == 6
    again = trials.filter(pl.col("purpose") == "reference")
    assert sorted(trials["purpose"]) == ["proof"] * 6 + ["reference"] * again.height
    assert 1 <= again.height <= 2
    assert again["cell_id"].n_unique() == 1
    ended = [line for line in done.stdout.splitlines() if " tok/s" in line]
    assert len(ended) == launches
    first, last = (
        line.partition("util=0.9")[0].split("depth=")[1] for line in ended[:: launches - 1]
    )
    assert first == last
    assert set(trials["driver"]) == {"575.57.08"}
    assert trials["memory_used_peak_gib"].to_list() == pytest.approx([0.6] * launches)

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


def command(*more: str, engine: str = SERVER) -> list[str]:
    words = [f"engine.command='{engine}'", "search=exhaustive", *WORDS, *more]
    return [sys.executable, "-m", "vllm_frontier", "run", "demo-gpu", *words]


def test_a_card_whose_memory_does_not_come_back_is_set_aside(
    driver: dict[str, str], tmp_path: Path
) -> None:
    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*more), cwd=tmp_path, env=driver,
            capture_output=True, text=True, timeout=240, check=False,
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


# The first card serves once, and again when something has befallen it; the other one begins when
# that is over. So it is known which launches it befalls.
TURNS = """
case $CUDA_VISIBLE_DEVICES in
    GPU-00000000) mkdir "$0.first" 2>/dev/null || wanted=befallen;;
    *) wanted=over;;
esac
until [ -z "$wanted" ] || [ -e "$0.$wanted" ]; do sleep 0.1; done
"""


@contextmanager
def in_turns(
    driver: dict[str, str], folder: Path, *more: str
) -> Iterator[tuple[subprocess.Popen[str], Callable[[str], None]]]:
    """A sweep on two cards that serve in turns, and what opens the gate for them."""
    counters, engine = folder / "counters", gated(folder, TURNS)
    counters.touch()
    with subprocess.Popen(
        command("schedule.retries=1", "engine.ready_timeout_s=200", *more, engine=engine),
        cwd=folder, env=driver | {"FAKE_COUNTERS": str(counters)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as sweep:  # fmt: skip
        yield sweep, lambda name: (folder / f"gate.{name}").touch()


def book(folder: Path, text: str) -> None:
    """What the cards tell from now on; never read half written."""
    (folder / "next").write_text(text)
    (folder / "next").replace(folder / "counters")


def test_a_card_that_was_set_aside_is_used_again_when_its_memory_is_back(
    driver: dict[str, str], tmp_path: Path
) -> None:
    lines = []
    with in_turns(driver, tmp_path) as (sweep, let):
        assert sweep.stdout is not None
        for line in sweep.stdout:
            lines.append(line.strip())
            if "tok/s" in line and not (tmp_path / "gate.befallen").exists():
                book(tmp_path, "memory_gib@0 5.0\n")
                let("befallen")
            if "is set aside" in line:
                book(tmp_path, "")
            if "is used again" in line:
                let("over")
        assert sweep.wait(120) == 0, lines
    (aside,) = [line for line in lines if "is set aside: " in line]
    assert aside.startswith("Card GPU-00000000 is set aside: 4.40 GiB more were in use on a card")
    (back,) = [line for line in lines if "is used again" in line]
    assert back == "Card GPU-00000000 is used again: the memory is back"
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    assert trials.filter(pl.col("status") == "measured").height == 8
    (failed,) = trials.filter(pl.col("status") != "measured").iter_rows(named=True)
    assert (failed["status"], failed["failure_class"]) == ("failed", "memory_contended")


def test_a_card_that_is_lost_is_set_aside_and_the_other_one_goes_on(
    driver: dict[str, str], tmp_path: Path
) -> None:
    lines = []
    with in_turns(driver, tmp_path, "grid.utilization=[0.85,0.9,0.95]") as (sweep, let):
        assert sweep.stdout is not None
        for line in sweep.stdout:
            lines.append(line.strip())
            if "tok/s" in line and not (tmp_path / "gate.befallen").exists():
                book(tmp_path, "card@0 lost\n")
                let("befallen")
            if "is set aside" in line:
                let("over")
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
