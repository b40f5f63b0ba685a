"""`compare` as a user types it: a sweep of a described card that really ran, and one as it were."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from compared_sweeps import on_card, sweep

from vllm_frontier import cli
from vllm_frontier.engine.simulated.card_file import load_card

GRID = ("grid.depth=[0,3]", "grid.graphs=[true]", "grid.context=[8192]", "grid.utilization=[0.9]")
SLOWER = 1.1


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_frontier", *words],
        cwd=cwd, env=os.environ | {"COLUMNS": "80"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sweeps: a card, and one whose steps take a tenth longer; other noise on each.

    The second is what such a run would have written, without its processes.
    """
    from vllm_frontier.shipped import shipped

    root = tmp_path_factory.mktemp("compare")
    card = (shipped("conf") / "simulated" / "tiny-8gib.yaml").read_text()
    for fast, slow in (("{eager: 20.0, graphs: 10.0}", 11.0), ("{eager: 1.0, graphs: 1.0}", 1.1)):
        assert fast in card
        card = card.replace(fast, f"{{eager: {2 * slow}, graphs: {slow}}}")
    file = root / "slower.yaml"
    file.write_text(card.replace("Simulated 8 GiB", "Simulated slow"))
    same = ("search=exhaustive", *GRID, "workload.reference=false")
    done = call(
        "run", "demo-cpu", "engine=simulated", "engine.card_file=tiny-8gib", *same,
        "engine.args.seed=0", "--out", "fast", cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    slower = load_card(str(file))
    sweep(
        root / "slow", *same, f"engine.card_file={file}", "engine.args.seed=1",
        launch=lambda cell, number: on_card(slower, cell, 1, number),
    )  # fmt: skip
    return root


def files(root: Path) -> set[tuple[str, int]]:
    return {(str(each), each.stat().st_mtime_ns) for each in root.rglob("*")}


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    return folder


def test_the_true_ratio_of_two_cards_lies_in_the_intervals(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(here)
    assert cli.cli.main(["compare", "fast", "slow", "--json"], standalone_mode=False) == 0
    assert files(here) == before
    found = json.loads(capsys.readouterr().out)
    rows = found["speeds"][0]["rows"]
    assert len(rows) == 3
    for row in rows:
        assert row["ratio_low"] < 1 / SLOWER < row["ratio_high"]
        assert row["verdict"] == "slower"
        assert row["basis"] == "runs"
        assert row["base"]["launches"] == 1
    assert {each["key"] for each in found["differences"]} >= {"card.name", "arguments.engine.seed"}
    assert all(each["simulated"] for each in found["sweeps"])
    assert {row["reach"] for row in found["windows"]} == {"both to the end"}
    for row in found["memory"]:
        assert all(abs(part["difference"]) < 0.02 for part in row["parts"])


def test_tables_and_files_are_written_where_the_user_says(folder: Path, tmp_path: Path) -> None:
    page, markdown = tmp_path / "c.html", tmp_path / "c.md"
    done = call(
        "compare", "fast", "slow", "--html", str(page), "--markdown", str(markdown), cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= max(80, len(f"Written: {page}"))
    assert 'one launch of a cell of "8 GiB" and "slow" does not tell what launches' in " ".join(
        done.stdout.split()
    )
    assert page.read_text().startswith("<!doctype html>")
    assert markdown.read_text().startswith("# ")
    assert f"Written: {page}" in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "compare takes two folders of sweeps or more"),
        (("fast",), "compare takes two folders of sweeps or more"),
        (("fast", "fast"), "fast is given twice"),
        (("fast", "nowhere"), "nowhere is no sweep: there is no sweep.yaml in it"),
        (("fast", "slow", "--html", "none/c.html"), "none/c.html cannot be written"),
        (("fast", "slow", "--html", "fast"), "is a directory"),
    ],
)
def test_what_cannot_be_compared_gets_one_line_and_exit_2(
    words: tuple[str, ...],
    line: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["vllm-frontier", "compare", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert line in told.err
    assert len(told.err.strip().splitlines()) == 1, told.err
    assert told.out == ""
