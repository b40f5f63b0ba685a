"""`recommend` as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from demo_sweep import demo_sweep

from vllm_frontier.grid import Cell

LONG = Cell(0, 32768, False, 0.9)
SHORT = Cell(3, 8192, True, 0.6)


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_frontier", "recommend", "sweep", *words],
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False, env=os.environ,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recommend")
    demo_sweep(folder / "sweep", {LONG: 40.0, SHORT: 200.0})
    return folder


def test_the_text_has_every_form_and_can_be_pasted(cwd: Path) -> None:
    done = call(cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("# fastest, balanced: depth 3, context 8192")
    titles = [line for line in done.stdout.splitlines() if line.startswith("# as ")]
    assert titles == ["# as a command:", "# as a config file:", "# as a container:"] * 2
    assert "\x1b" not in done.stdout
    checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False)
    assert checked.returncode == 0


def test_windows_are_read_as_vllm_reads_them(cwd: Path) -> None:
    told = json.loads(call("--min-context", "33k", "--json", cwd=cwd).stdout)
    assert told["choices"] == []
    (missing,) = told["nearest"][0]["missing"]
    assert (missing["wanted"], missing["by"]) == (33000, 33000 - 32768)


def test_config_files_are_written_where_they_are_wanted(cwd: Path) -> None:
    words = ("--max-utilization", "0.6", "--write", "configs", "--as", "config")
    done = call(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    (file,) = (cwd / "configs").iterdir()
    assert file.name == "demo-cpu-fastest.yaml"
    assert yaml.safe_load(file.read_text())["max-model-len"] == 8192
    assert "--config configs/demo-cpu-fastest.yaml" in done.stdout
    file.write_text("model: mine\n")
    refused = call(*words, cwd=cwd)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "demo-cpu-fastest.yaml is there with other content" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert file.read_text() == "model: mine\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--min-context", "many"), "'many' is no number of tokens, such as 130000 or 130k"),
        (("--max-utilization", "1.2"), "1.2 is not in the range 0<x<=1"),
        (("--as", "podman"), "'command', 'config', 'docker'"),
    ],
)
def test_what_cannot_be_meant_gets_one_line(cwd: Path, words: tuple[str, ...], told: str) -> None:
    done = call(*words, cwd=cwd)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
