"""What stands where a command is told to write: replaced, followed, written into, or left alone."""

import os
import resource
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import golden_sweeps as golden

from vllm_frontier import cli
from vllm_frontier.errors import StoreError
from vllm_frontier.report.comparison import page
from vllm_frontier.report.pages import sweep_report
from vllm_frontier.store import named

Call: TypeAlias = Callable[..., tuple[int, str]]
OWN = ("sweep.yaml", "trials.parquet", "lock", "lock.json", "attempts/x.html")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.one_cell(tmp_path_factory.mktemp("made") / "s")


@pytest.fixture
def sweep(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of its own for every test; pictures are not what is tested here."""
    monkeypatch.setattr(sweep_report, "pictures", lambda _: [])
    monkeypatch.setattr(page, "figures_of", lambda _: [])
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made, tmp_path / "s")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A command in this process: its exit code, and what it complained of."""

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["vllm-frontier", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return call


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in sorted(folder.rglob("*"))
        if each.is_file()
    }


# Every command that writes, and what it writes first


def compared(option: str) -> Callable[[Path, Path], list[object]]:
    return lambda sweep, file: ["compare", sweep, sweep.parent / "other", option, file]


def reported(sweep: Path, file: Path) -> list[object]:
    return ["report", sweep, "--out", file.parent]


def recommended(sweep: Path, file: Path) -> list[object]:
    return ["recommend", sweep, "--write", file.parent]


WRITING: dict[str, tuple[Callable[[Path, Path], list[object]], str, str]] = {
    "compare --html": (compared("--html"), "page.html", "<!doctype html>"),
    "compare --md": (compared("--md"), "page.md", "# "),
    "report": (reported, "report.html", "<!doctype html>"),
    "report, Markdown": (reported, "report.md", "# "),
    "recommend --write": (recommended, "one-cell-fastest.yaml", "# one-cell"),
}
every_command = pytest.mark.parametrize("command", WRITING)


@pytest.fixture
def other(sweep: Path) -> Path:
    other = shutil.copytree(sweep, sweep.parent / "other")
    text = (other / "sweep.yaml").read_text()
    (other / "sweep.yaml").write_text(text.replace("name: one-cell", "name: other"))
    return other


@pytest.fixture
def before(sweep: Path, other: Path) -> Iterator[None]:
    """Whatever is told to be written, the sweeps are as they were."""
    was = content(sweep), content(other)
    yield
    assert (content(sweep), content(other)) == was


def written(command: str, sweep: Path, folder: Path) -> tuple[list[object], Path, str]:
    words, name, begins = WRITING[command]
    folder.mkdir(exist_ok=True)
    return words(sweep, folder / name), folder / name, begins


@every_command
@pytest.mark.usefixtures("before")
def test_nothing_is_filled_and_a_link_is_followed(
    sweep: Path, tmp_path: Path, call: Call, command: str
) -> None:
    words, file, begins = written(command, sweep, tmp_path / "out")
    target = tmp_path / "target"
    file.symlink_to(target)
    assert call(*words) == (0, "")
    assert file.is_symlink()
    assert target.read_text().lower().startswith(begins)
    assert stat.S_ISREG(target.lstat().st_mode)
    assert not list(tmp_path.glob("**/.*.tmp"))


@every_command
@pytest.mark.usefixtures("before")
def test_a_folder_is_left_and_nothing_else_is_written(
    sweep: Path, tmp_path: Path, call: Call, command: str
) -> None:
    words, file, _ = written(command, sweep, tmp_path / "out")
    file.mkdir()
    code, told = call(*words)
    assert code == 2
    assert str(file) in told
    assert len(told.splitlines()) == 1
    assert content(tmp_path / "out") == {}


@pytest.mark.parametrize("command", ["compare --html", "report"])
@pytest.mark.usefixtures("before")
def test_a_pipe_is_written_into(sweep: Path, tmp_path: Path, call: Call, command: str) -> None:
    words, file, begins = written(command, sweep, tmp_path / "out")
    os.mkfifo(file)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(file.read_text()), daemon=True)
    reader.start()
    assert call(*words) == (0, "")
    reader.join(20)
    assert read[0].lower().startswith(begins)
    assert stat.S_ISFIFO(file.stat().st_mode)


@contextmanager
def no_larger_files_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("last", ["report.html", "compare.html"])
@pytest.mark.usefixtures("other")
def test_what_cannot_be_written_whole_leaves_all_as_it_was(
    sweep: Path, tmp_path: Path, call: Call, last: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    words: list[object] = ["report", sweep, "--out", out]
    if last == "compare.html":
        words = ["compare", sweep, "other", "--md", out / "compare.md", "--html", out / last]
    assert call(*words) == (0, "")
    [largest] = [len(each) for name, each in content(out).items() if name == last]
    for name in content(out):
        (out / name).write_text("of an earlier one")
    before = content(out)
    with no_larger_files_than(largest - 100):
        code, told = call(*words)
    assert (code, told) == (
        2,
        f"vllm-frontier: {out / last} cannot be written: File too large\n",
    )
    assert content(out) == before
    assert call(*words) == (0, "")
    assert b"of an earlier one" not in content(out).values()


@pytest.mark.parametrize("words", [("report", "--out"), ("recommend", "--write")])
@pytest.mark.usefixtures("before")
def test_no_empty_folder_is_left(
    sweep: Path, tmp_path: Path, call: Call, words: tuple[str, str]
) -> None:
    with no_larger_files_than(10):
        code, told = call(words[0], sweep, words[1], tmp_path / "new/out")
    assert code == 2
    assert told.endswith(" cannot be written: File too large\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", OWN)
@pytest.mark.usefixtures("before")
def test_what_a_sweep_consists_of_is_never_written_over(
    sweep: Path, tmp_path: Path, name: str
) -> None:
    link = tmp_path / "link"
    link.symlink_to(sweep / name)
    for file in (sweep / name, link, sweep / ".." / "s" / name):
        with pytest.raises(StoreError) as told:
            named.write_all([(tmp_path / "first", b"abc"), (file, b"abc")])
        assert str(told.value) == f"{file} is a part of the sweep in {sweep}: name another place"
    assert not (tmp_path / "first").exists()


@pytest.mark.parametrize("option", ["--html", "--md"])
@pytest.mark.usefixtures("before")
def test_a_sweep_is_no_target(sweep: Path, call: Call, option: str) -> None:
    code, told = call("compare", sweep, "other", option, "s/sweep.yaml")
    assert (code, told) == (
        2,
        f"vllm-frontier: s/sweep.yaml is a part of the sweep in {sweep}: name another place\n",
    )


@pytest.mark.parametrize("words", [("report", "--out"), ("recommend", "--write")])
@pytest.mark.usefixtures("before")
def test_no_report_lies_among_the_attempts(sweep: Path, call: Call, words: tuple[str, str]) -> None:
    command, option = words
    code, told = call(command, sweep, option, sweep / "attempts" / "new")
    assert code == 2
    assert f"is a part of the sweep in {sweep}" in told
    assert not (sweep / "attempts" / "new").exists()


@pytest.mark.usefixtures("other")
def test_a_comparison_may_stand_in_a_sweep_beside_its_tables(sweep: Path, call: Call) -> None:
    assert call("compare", sweep, "other", "--html", sweep / "report.html") == (0, "")
    assert (sweep / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("other", "before")
def test_two_options_have_two_files(sweep: Path, tmp_path: Path, call: Call) -> None:
    code, told = call("compare", sweep, "other", "--html", "x", "--md", "x")
    assert (code, told) == (
        2,
        "vllm-frontier: x is one file to hold two: name another for one of them\n",
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["./x", "link", "a/../x"])
def test_two_names_of_one_file_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("link").symlink_to("x")
    with pytest.raises(StoreError, match="one file to hold two"):
        named.write_all([(Path("x"), b"abc"), (Path(name), b"def")])
    assert not Path("x").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "s", "other", "--html", ""),
        ("compare", "s", "other", "--md", ""),
        ("compare", "s", ""),
        ("report", "s", "--out", ""),
        ("recommend", "s", "--write", ""),
        ("report", ""),
        ("show", ""),
        ("run", "demo-cpu", "--out", ""),
    ],
)
@pytest.mark.usefixtures("before")
def test_an_empty_text_is_no_place(tmp_path: Path, call: Call, words: tuple[str, ...]) -> None:
    names = sorted(each.name for each in tmp_path.iterdir())
    code, told = call(*words)
    assert code == 2
    assert (
        f": an empty text names no file or folder. Try `vllm-frontier {words[0]} --help`." in told
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == names


@pytest.mark.usefixtures("other", "before")
def test_a_missing_folder_is_named(sweep: Path, call: Call) -> None:
    code, told = call("compare", sweep, "other", "--md", "new/x.md")
    assert code == 2
    assert told.startswith("vllm-frontier: new/x.md cannot be written: the folder ")
    assert told.endswith("/new does not exist\n")


def test_plots_that_are_a_file_are_named(sweep: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "plots").write_text("mine")
    code, told = call("report", sweep, "--out", out)
    assert (code, told) == (
        2,
        f"vllm-frontier: {out}/plots cannot be written: {out}/plots is no folder\n",
    )
    assert content(out) == {"plots": b"mine"}


def test_a_report_of_a_sweep_that_is_read_only_goes_elsewhere(
    sweep: Path, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.access", lambda path, _: sweep not in [path, *path.parents])
    code, told = call("report", sweep)
    assert (code, told) == (
        2,
        f"vllm-frontier: {sweep}/plots cannot be written: nothing can be made in {sweep}; "
        "--out names another folder\n",
    )
    assert call("report", sweep, "--out", tmp_path / "out") == (0, "")


def test_a_folder_that_a_link_names_is_made(sweep: Path, tmp_path: Path, call: Call) -> None:
    (tmp_path / "link").symlink_to("there")
    assert call("report", sweep, "--out", "link") == (0, "")
    assert sorted(content(tmp_path / "there")) == ["report.html", "report.md"]
    assert (tmp_path / "link").is_symlink()


# Kinds of files that no test may have for real


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFIFO])
def test_a_stream_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    file = tmp_path / "stream"
    file.write_text("0123456789")
    number = file.stat().st_ino
    monkeypatch.setattr(named, "_kind", lambda _: kind)
    named.write_all([(file, b"abc")])
    assert (file.stat().st_ino, file.read_text()) == (number, "abc3456789")


@pytest.mark.parametrize("kind", [stat.S_IFBLK, stat.S_IFSOCK])
def test_a_disk_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    file = tmp_path / "disk"
    file.write_text("0123456789")
    monkeypatch.setattr(named, "_kind", lambda _: kind)
    with pytest.raises(StoreError, match="is a block device or a socket: name a file"):
        named.write_all([(tmp_path / "first", b"abc"), (file, b"abc")])
    assert content(tmp_path) == {"disk": b"0123456789"}


def test_what_is_open_is_written_where_it_stands(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as stream:
        stream.write(b"first ")
        stream.flush()
        named.write_all([(Path(f"/proc/self/fd/{stream.fileno()}"), b"second ")])
        stream.write(b"third")
    assert (tmp_path / "log").read_bytes() == b"first second third"


def test_links_in_a_circle_are_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StoreError, match="a cannot be written: "):
        named.check(tmp_path / "a")
    with pytest.raises(StoreError, match="a cannot be written: "):
        named.check_folder(tmp_path / "a")
