"""Where a command stands, and names of folders that are no text."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import golden_sweeps as golden

from vllm_frontier import cli

Called: TypeAlias = Callable[..., tuple[object, str, str]]

PLAIN = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
NO_TEXT = os.fsdecode(b"gr\xf6\xdfe")  # as in a locale that is not UTF-8


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same sweep twice, in folders whose names are no text."""
    one = golden.one_cell(tmp_path_factory.mktemp("places") / NO_TEXT)
    return one, shutil.copytree(one, one.with_name(f"{NO_TEXT}2"))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """A command in this process: exit code, output, complaint."""

    def call(*words: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["vllm-frontier", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code, *capsys.readouterr())

    return call


@pytest.mark.parametrize("command", ["status", "show", "report", "recommend", "compare"])
def test_a_sweep_is_read_whatever_its_folder_is_called(
    command: str, sweeps: tuple[Path, Path], called: Called
) -> None:
    read = sweeps if command == "compare" else sweeps[:1]
    code, told, complaint = called(command, *read)
    assert (code, complaint) == (0, "")
    name = "gr\\xf6\\xdfe" if command == "compare" else "one-cell"
    assert name in told


@pytest.mark.parametrize(
    "words",
    [
        (["run", "demo-cpu", "engine=simulated", "--out", NO_TEXT], "the folder "),
        (["resume", "{sweep}"], "the folder "),
        (["plan", "demo-cpu", f"name={NO_TEXT}"], "name="),
    ],
)
def test_what_is_no_text_is_told_before_anything_is_made(
    words: tuple[list[str], str],
    sweeps: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    called: Called,
) -> None:
    monkeypatch.chdir(tmp_path)
    given, told = words
    code, _, complaint = called(*(word.format(sweep=sweeps[0]) for word in given))
    assert code == 2
    assert complaint.startswith(f"vllm-frontier: {told}")
    assert "set a locale that is, such as LC_ALL=C.UTF-8" in complaint
    assert complaint.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_locale_names_of_other_letters_are_read(sweeps: tuple[Path, Path]) -> None:
    folder = shutil.copytree(sweeps[0], sweeps[0].with_name("größe"))
    done = subprocess.run(
        [sys.executable, "-m", "vllm_frontier", "recommend", str(folder), "--as", "config"],
        env={**os.environ, **PLAIN}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"max-model-len: " in done.stdout


@pytest.mark.parametrize("words", [["doctor"], ["plan", "demo-cpu"], ["report", "s"]])
def test_a_folder_that_is_gone_is_told_in_a_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: Called
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert called(*words) == (
        2,
        "",
        "vllm-frontier: there is no current folder (No such file or directory): "
        "change into one that is there\n",
    )
