"""`compare` as a user types it, on sweeps of a described card that really ran."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "vllm_frontier")
GRID = ("grid.depth=[0,3]", "grid.graphs=[true]", "grid.context=[8192]", "grid.utilization=[0.9]")
SLOWER = 1.1


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=cwd, env=os.environ | {"COLUMNS": "80"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sweeps: a card, and one whose steps take a tenth longer; other noise on each."""
    from vllm_frontier.shipped import shipped

    root = tmp_path_factory.mktemp("compare")
    card = (shipped("conf") / "simulated" / "tiny-8gib.yaml").read_text()
    for fast, slow in (("{eager: 20.0, graphs: 10.0}", 11.0), ("{eager: 1.0, graphs: 1.0}", 1.1)):
        assert fast in card
        card = card.replace(fast, f"{{eager: {2 * slow}, graphs: {slow}}}")
    (root / "slower.yaml").write_text(card.replace("Simulated 8 GiB", "Simulated slow"))
    for name, file, seed in (("fast", "tiny-8gib", 0), ("slow", "slower.yaml", 1)):
        done = call(
            "run", "demo-cpu", "engine=simulated", f"engine.card_file={file}", "search=exhaustive",
            *GRID, f"engine.args.seed={seed}", "workload.reference=false", "--out", name, cwd=root,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return root


def files(root: Path) -> set[tuple[str, int]]:
    return {(str(each), each.stat().st_mtime_ns) for each in root.rglob("*")}


def test_the_true_ratio_of_two_cards_lies_in_the_intervals(folder: Path) -> None:
    before = files(folder)
    done = call("compare", "fast", "slow", "--json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(folder) == before
    found = json.loads(done.stdout)
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
    assert "one launch of a cell does not tell what launches differ by" in " ".join(
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
    words: tuple[str, ...], line: str, folder: Path
) -> None:
    done = call("compare", *words, cwd=folder)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stdout == ""
