"""`vllm-frontier report` as a user calls it."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import golden_sweeps as golden

from vllm_frontier.cli import main
from vllm_frontier.report.pages import sweep_report


def report(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_frontier", "report", *map(str, words)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


Called: TypeAlias = Callable[..., tuple[object, str, str]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """The command in this process: exit code, output, complaint."""

    def call(*words: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["vllm-frontier", "report", *map(str, words)])
        with pytest.raises(SystemExit) as done:
            main()
        return (done.value.code, *capsys.readouterr())

    return call


def page_of(folder: Path) -> str:
    return sweep_report.make(folder, folder).html()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.every_outcome(tmp_path_factory.mktemp("report") / "a sweep")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.one_cell(tmp_path_factory.mktemp("small") / "s")


def test_a_report_is_written_into_the_sweep(sweep: Path) -> None:
    done = report(sweep)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "every-outcome: finished, 54 of 64 cells known"
    assert lines[1:3] == [str(sweep / "report.html"), str(sweep / "report.md")]
    plots = {path.name for path in (sweep / "plots").iterdir()}
    names = {Path(name).stem for name in plots}
    assert {"fits", "frontier", "speed", "acceptance", "memory"} <= names
    assert plots == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    told = (sweep / "report.md").read_text()
    pictures = re.findall(r"^!\[[^\]]*\]\(([^)]+)\)$", told, re.MULTILINE)
    assert sorted(pictures) == sorted(f"plots/{name}.svg" for name in names)
    for link in re.findall(r"\[log\]\(<([^>]+)>\)", told):
        assert (sweep / link).is_file()
    # Every reason has its line, as code: nothing of it is markup.
    without_code = re.sub(r"(`+)(?:(?!\1).)+\1(?!`)", "", told)
    assert "<img" in told
    without_code = re.sub(
        r"^(`{3,})[^`]*^\1$|^</?details>$|^<summary>.*", "", without_code, flags=re.M
    )
    assert "<" not in without_code.replace("](<", "")
    for line in ("The same as a file or a container", "- Passed: ", "```yaml"):
        assert line in told


def test_a_report_elsewhere_links_back_and_leaves_the_sweep_alone(
    sweep: Path, tmp_path: Path, called: Called
) -> None:
    before = sorted(path.name for path in sweep.iterdir())
    earlier = tmp_path / "new/out/plots"
    earlier.mkdir(parents=True)
    for name in ("gain.svg", "gain.png", "mine.svg"):
        (earlier / name).write_text("x")
    code, out, complaint = called(sweep, "--out", earlier.parent, "--json")
    assert (code, complaint) == (0, "")
    written = json.loads(out)
    # Of the pictures of an earlier report those go that are no longer drawn; the rest stays.
    names = {each["name"] for each in written["plots"]}
    assert (earlier / "mine.svg").read_text() == "x"
    kinds = {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert {path.name for path in earlier.iterdir()} == kinds | {"mine.svg"}
    assert (written["state"], written["reason"]) == ("finished", None)
    assert (written["done"], written["planned"], written["simulated"]) == (54, 64, False)
    assert written["html"] == str(tmp_path / "new/out/report.html")
    files = [written["html"], written["markdown"]]
    files += [each[kind] for each in written["plots"] for kind in ("svg", "png")]
    assert all(Path(file).stat().st_size > 500 for file in files)
    assert sorted(path.name for path in sweep.iterdir()) == before
    link = re.search(r'href="([^"]+/server\.log)"', Path(written["html"]).read_text())
    assert link is not None
    assert (tmp_path / "new/out" / link[1].replace("%20", " ")).is_file()


def test_a_running_sweep_says_so(tmp_path: Path) -> None:
    with golden.running(tmp_path / "s") as folder:
        page = page_of(folder)
    assert ">Running</span>" in page
    assert f"pid {os.getpid()}" in page
    assert re.search(r'class="answer">So far, with \d+ of 96 cells known: ', page)


def test_where_nothing_was_launched_the_page_says_so(tmp_path: Path) -> None:
    page = page_of(golden.nothing_launched(tmp_path / "s"))
    assert "Nothing was launched yet." in page
    assert "NVIDIA GeForce RTX 5090" in page
    assert 'id="choices"' not in page


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{sweep}", "--out", "{tmp}/file"], "is a file"),
        (["{sweep}", "--out", "{tmp}/file/x"], "cannot be written: "),
        (["{sweep}", "--out", "/proc/x"], "cannot be written: "),
        (["{sweep}", "--out", "{tmp}/folder"], "report.html"),
        (["{tmp}/full"], "is no sweep"),
        (["{tmp}/none"], "is no sweep"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(
    words: list[str], told: str, small: Path, tmp_path: Path, called: Called
) -> None:
    (tmp_path / "folder/report.html").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/y").write_text("x")
    code, out, complaint = called(*(word.format(sweep=small, tmp=tmp_path) for word in words))
    assert (code, out) == (2, "")
    assert len(complaint.splitlines()) == 1
    assert told in complaint
    assert sorted(each.name for each in (tmp_path / "folder").iterdir()) == ["report.html"]


def test_two_thousand_cells_are_soon_drawn() -> None:
    folder = golden.shared_large()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = report(folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "2000 of 2000 cells known" in done.stdout
    page = folder / "report.html"
    assert page.stat().st_size < 5_000_000
    assert len(re.findall(r'aria-label="[\d,]+ tokens, depth', page.read_text())) >= 2000
    # A busy machine makes everything wait, and work somewhat longer, where two share a core.
    busy_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert busy_s < 30


def begun_and_ended(sweep: Path, out: Path, number: signal.Signals, after_s: float) -> str:
    """Send a report that draws a signal or, as a terminal does, SIGINT to all of it; its stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_frontier", "report", str(sweep), "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(after_s)
    with suppress(ProcessLookupError):  # it was quicker
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    # Both pipes end when no process is left that holds them.
    return process.communicate(timeout=120)[1]


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.5, 1.0])
def test_whoever_ends_it_nothing_of_a_report_is_left(
    small: Path, tmp_path: Path, after_s: float
) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        begun_and_ended(small, tmp_path / "out", number, after_s)
    assert "Traceback" not in begun_and_ended(small, tmp_path / "out", signal.SIGINT, after_s)
