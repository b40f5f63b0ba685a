"""Sweeps whose names act on what prints them, as nobody can begin one now, stay readable."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import golden_sweeps as golden

from vllm_frontier import cli, config_checks
from vllm_frontier.characters import REPLACEMENT, unprintable
from vllm_frontier.config import compose_sweep
from vllm_frontier.outcome import FailureClass, Outcome
from vllm_frontier.search import Ask
from vllm_frontier.store.rows import run_rows

ACTS = "\x1b[31m\a\r\x7f\x9b\u2028\u202e\u2066\ufffe"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every text of it acts: model, axes, arguments, variables, tasks, evidence."""
    root = tmp_path_factory.mktemp("hostile")
    document = {
        "defaults": [
            "base",
            {"override model": "qwen3.8-27b-nvfp4"},
            {"override card": "rtx5090"},
            "_self_",
        ],
        "name": "hostile",
        "model": {"id": f"m{ACTS}", "name": f"n{ACTS}", "args": {"x": f"y{ACTS}'"}},
        "engine": {"env": {"A": f"b{ACTS}"}},
        "grid": {
            "depth": [0, 2],
            "context": [65536, 80000],
            "utilization": [0.95],
            "extra": {f"kv{ACTS}": [f"one{ACTS}", "two\nlines"]},
        },
        "search": {"strategy": "exhaustive", "measure": "all"},
    }
    file = root / "mine.yaml"
    file.write_text(yaml.safe_dump(document))
    with patch.object(config_checks, "check_texts"):
        composed = compose_sweep(str(file))
    tasks = composed.document["workload"]["tasks"]
    tasks[:] = [f"{each}{ACTS}" for each in tasks]
    failing = composed.spec.grid.cells()[3]

    def answer(ask: Ask) -> Outcome:
        if ask.cell == failing:
            return golden.refused(FailureClass.KV_NONE, f"ValueError: none{ACTS}")
        return golden.on_card(ask)

    def rows(*made: Any) -> list[dict[str, Any]]:
        return [{**row, "task": f"{row['task']}{ACTS}"} for row in run_rows(*made)]

    with patch.object(golden, "run_rows", rows):
        return golden.build(root / "sweep", composed, answer)


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("status", "--json"),
        ("show",),
        ("show", "--json"),
        ("recommend",),
        ("recommend", "--json"),
        ("recommend", "--min-context", "1000000000"),
        ("report", "--out", "out"),
        ("compare", "--html", "c.html", "--md", "c.md"),
    ],
)
def test_nothing_acts_on_a_terminal_or_in_a_file(
    sweep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    command, *options = words
    monkeypatch.chdir(tmp_path)
    folders = [sweep]
    if command == "compare":
        folders.append(shutil.copytree(sweep, tmp_path / "copy"))
    monkeypatch.setattr(sys, "argv", ["vllm-frontier", command, *map(str, folders), *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    assert unprintable(told.out, lines=True) is None
    if "--json" in options:
        assert json.loads(told.out)
    written = [each for each in tmp_path.rglob("*") if each.suffix in (".html", ".md", ".svg")]
    assert all(unprintable(each.read_text(), lines=True) is None for each in written)
    if command == "report":
        assert {"fits.svg", "speed.svg", "memory.svg"} <= {each.name for each in written}


def test_commands_and_config_files_have_the_names_as_they_are(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["vllm-frontier", "recommend", str(sweep), "--write", str(tmp_path / "out")]
    )
    with pytest.raises(SystemExit):
        cli.main()
    files = list((tmp_path / "out").iterdir())
    assert files
    for file in files:
        assert unprintable(file.read_text(), lines=True) is None
        values = yaml.safe_load(file.read_text())
        assert (values["model"], values["x"]) == (f"m{ACTS}", f"y{ACTS}'")


# Terminals and pipes


def run(words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words.replace('vllm-frontier', _PROGRAM)}"],
        env=os.environ | environment, capture_output=True, timeout=240, check=False,
    )  # fmt: skip


_PROGRAM = f"{sys.executable} -m vllm_frontier"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.one_cell(tmp_path_factory.mktemp("small") / "s")


@pytest.mark.parametrize("words", ["report {} --out {}/o", "show {} --json", "status {}"])
def test_a_reader_that_has_gone_is_no_error(small: Path, tmp_path: Path, words: str) -> None:
    done = run(f"vllm-frontier {words.format(small, tmp_path)} | true")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["show", "status", "recommend"])
def test_no_columns_are_80(small: Path, command: str) -> None:
    without, with_80 = (
        run(f"vllm-frontier {command} {small}", COLUMNS=each) for each in ("0", "80")
    )
    assert with_80.stdout
    assert without.stdout == with_80.stdout


def test_a_command_is_pasted_in_utf_8_from_an_output_of_ascii(tmp_path: Path) -> None:
    composed = golden.compose("name=umlaut", "model.id='/models/größe'", "grid.depth=[0]")
    sweep = golden.build(tmp_path / "s", composed, at_most=2)
    done = run(f"vllm-frontier recommend {sweep} --as command", PYTHONIOENCODING="ascii")
    assert "'/models/größe'" in done.stdout.decode()
    found = run(f"vllm-frontier recommend {sweep} --json", PYTHONIOENCODING="ascii")
    assert "größe" in json.loads(found.stdout.decode("ascii"))["choices"][0]["command"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "a\nb\x1b"], f"vllm-frontier: a{REPLACEMENT}b{REPLACEMENT} is no sweep"),
        (["show", "--jsno"], "No such option"),
        (["recommend", "x", "--min-context", "999999999999999M"], "more than 1000000000 tokens. T"),
    ],
)
def test_an_error_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["vllm-frontier", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(err.splitlines()) == 1
    assert told in err
    said, _, hint = err.partition(" Try `")
    assert not hint or said.endswith((".", "?"))


@pytest.mark.parametrize("command", ["show", "status", "recommend", "report", "resume"])
def test_a_typo_in_a_sweep_names_the_file(
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    text = (small / "sweep.yaml").read_text()
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.yaml").write_text(text.replace("  repeats:", "  repaets:"))
    monkeypatch.setattr(sys, "argv", ["vllm-frontier", command, str(tmp_path / "s")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"vllm-frontier: {tmp_path}/s/sweep.yaml: unknown key 'workload.repaets': "
        "did you mean 'workload.repeats'?\n"
    )
