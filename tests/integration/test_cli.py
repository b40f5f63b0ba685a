"""The command as a user types it: words in any order, wrong words, pipes, odd terminals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "vllm_frontier")


def call(
    *words: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=cwd, env=os.environ | (env or {}),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "demo-cpu", "grid.depth=[1]", "--json"),
        ("plan", "grid.depth=[1]", "demo-cpu", "--json"),
        ("plan", "--json", "grid.depth=[1]", "demo-cpu"),
    ],
)
def test_words_may_stand_in_any_order(words: tuple[str, ...], tmp_path: Path) -> None:
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["axes"]["depth"] == [0, 1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("run",), "Missing argument 'SWEEP'"),
        (("rum", "demo-cpu"), "No such command 'rum'"),
        (("plan", "demo-cup"), "did you mean 'demo-cpu'?"),
        (("plan", "demo-cpu", "grid.dept=[1]"), "did you mean 'grid.depth'?"),
        (("plan", "demo-cpu", "--quick"), "No such option"),
        (("show", "nowhere"), "nowhere is no sweep: there is no sweep.yaml in it"),
        (("run", "demo-cpu", "model.id=./none"), "there is no such folder"),
        (("run", "demo-cpu", "engine.python=/none/python"), "there is no interpreter /none/python"),
        (("recommend", ".", "--min-context", "0"), "--min-context"),
    ],
)
def test_a_wrong_word_gets_one_line_and_exit_2(
    words: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_without_words_it_shows_its_help(tmp_path: Path) -> None:
    done = call(cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    line = " ".join((*COMMAND, "plan", "demo-cpu"))
    script = f"set -o pipefail; {line} | head -1"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_utf_8_loses_only_marks(tmp_path: Path) -> None:
    done = call("doctor", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "python" in done.stdout


def test_doctor_examines_the_machine_even_where_the_sweep_cannot_be_read(tmp_path: Path) -> None:
    done = call("doctor", "rtx4090-qwen3-14b-awq", "grid.depth=[]", "--json", cwd=tmp_path)
    assert done.returncode == 3
    findings = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert findings["sweep"]["verdict"] == "missing"
    assert "grid.depth is empty" in findings["sweep"]["found"]
    assert findings["python"]["verdict"] == "ok"


def test_a_relative_model_folder_is_found_by_launches_elsewhere(tmp_path: Path) -> None:
    from vllm_frontier.shipped import shipped

    (tmp_path / "mine").symlink_to(shipped("models") / "demo-mtp")
    done = call(
        "run", "demo-cpu", "engine=simulated", "engine.card_file=tiny-8gib", "model.id=mine",
        "search=exhaustive", "grid.depth=[0]", "grid.context=[8192]", "grid.utilization=[0.9]",
        "--json", cwd=tmp_path, env={"RAY_ADDRESS": "192.0.2.1:6379"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cells"] == {"measured": 2}
    attempt = next((tmp_path / "outputs/demo-cpu/attempts").glob("*/*/attempt.json"))
    argv = json.loads(attempt.read_text())["argv"]
    assert argv[argv.index("--model") + 1] == str(tmp_path / "mine")


def test_the_help_answers_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vllm_frontier", "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    # Loading modules is what takes time; how much is a matter of the machine.
    modules = [line for line in done.stderr.splitlines()[1:] if "|" in line]
    assert 50 < len(modules) < 300
