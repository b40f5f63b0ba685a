"""`recommend` as a user types it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml
from demo_sweep import demo_sweep

from vllm_frontier import cli
from vllm_frontier.grid import Cell

Call: TypeAlias = Callable[..., tuple[int, str, str]]

LONG = Cell(0, 32768, False, 0.9)
SHORT = Cell(3, 8192, True, 0.6)


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recommend")
    demo_sweep(folder / "sweep", {LONG: 40.0, SHORT: 200.0})
    return folder


@pytest.fixture
def call(cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process: its exit code and what it printed."""
    monkeypatch.chdir(cwd)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vllm-frontier", "recommend", "sweep", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return call


def test_the_text_has_every_form_and_can_be_pasted(cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_frontier", "recommend", "sweep"],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("# fastest, balanced: depth 3, context 8192")
    titles = [line for line in done.stdout.splitlines() if line.startswith("# as ")]
    assert titles == ["# as a command:", "# as a config file:", "# as a container:"] * 2
    assert "\x1b" not in done.stdout
    checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False)
    assert checked.returncode == 0


def test_windows_are_read_as_vllm_reads_them(call: Call) -> None:
    _, out, _ = call("--min-context", "33k", "--json")
    told = json.loads(out)
    assert (told["state"], told["known"], told["planned"]) == ("finished", 36, 36)
    assert told["choices"] == []
    (missing,) = told["nearest"][0]["missing"]
    assert (missing["wanted"], missing["by"]) == (33000, 33000 - 32768)


def test_config_files_are_written_where_they_are_wanted(cwd: Path, call: Call) -> None:
    words = ("--max-utilization", "0.6", "--write", "configs", "--as", "config")
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    (file,) = (cwd / "configs").iterdir()
    assert file.name == "demo-cpu-fastest.yaml"
    assert yaml.safe_load(file.read_text())["max-model-len"] == 8192
    assert "--config configs/demo-cpu-fastest.yaml" in out
    file.write_text("model: mine\n")
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert "demo-cpu-fastest.yaml is there with other content" in err
    assert len(err.splitlines()) == 1
    assert file.read_text() == "model: mine\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--min-context", "many"), "'many' is no number of tokens, such as 130000 or 130k"),
        (("--max-utilization", "1.2"), "1.2 is not in the range 0<x<=1"),
        (("--as", "podman"), "'command', 'config', 'docker'"),
    ],
)
def test_what_cannot_be_meant_gets_one_line(call: Call, words: tuple[str, ...], told: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
