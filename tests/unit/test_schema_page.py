"""docs/schema.md is what the schema says, and its queries give the answers that it prints."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import example_sweep  # noqa: E402
import schema_page  # noqa: E402

from vllm_frontier.analyze.by_depth import by_depth  # noqa: E402
from vllm_frontier.store.schema import SCHEMA_VERSION, SCHEMAS  # noqa: E402

# Worked out by hand from the rules in tools/example_sweep.py.
LONGEST = [(0, 32768, True), (1, 16384, True), (3, 8192, True)]
SPEEDS = [
    (0, "code", 40.0, 60.0),
    (0, "edit", 48.0, 72.0),
    (0, "prose", 32.0, 48.0),
    (1, "code", 50.0, 75.0),
    (1, "edit", 60.0, 90.0),
    (1, "prose", 40.0, 60.0),
    # Of two cells without graphs one was launched three times, twice at 0.8: that is its middle.
    # With graphs one run of three for `edit` was at 0.75 of 126, one at 0.99: that is the middle.
    (3, "code", 63.0, 105.0),
    (3, "edit", 75.6, 124.7),
    (3, "prose", 50.4, 84.0),
]
FAILED = [
    ("infeasible", "kv_too_small", 16, "ValueError: a window of 32768 tokens does not fit", 41),
    ("failed", "engine_crashed", 1, "RuntimeError: lost", 58),
]
SLOWEST = [
    (3, True, 8192, "edit", 2, 0.758, 1500.0, 84.0),
    (1, True, 16384, "code", 0, 0.8, 1600.0, 83.0),
    (0, False, 32768, "prose", 1, 0.909, 1900.0, 80.0),
]
EXPECTED = {"longest_window": LONGEST, "median_speed": SPEEDS, "slowest_runs": SLOWEST}
TOOLS = ("polars", "duckdb", "pandas")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    example_sweep.write_example(folder / "outputs" / "demo-cpu")
    return folder


@pytest.fixture
def sweep(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep, from where its path is as on the page."""
    monkeypatch.chdir(made)
    return made / "outputs" / "demo-cpu"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", schema_page.PAGE.read_text(), re.M | re.S)


def asked(tool: str, code: str) -> list[tuple[Any, ...]]:
    """The rows that a block answers, as plain values."""
    if tool == "duckdb":
        return duckdb.sql(code).fetchall()
    found: dict[str, Any] = {}
    exec(code, found)
    answer = found["answer"]
    if isinstance(answer, pl.DataFrame):
        return answer.rows()
    assert isinstance(answer, pd.DataFrame)
    return [tuple(row) for row in answer.astype(object).itertuples(index=False)]


def queries() -> Iterator[tuple[str, str, str]]:
    """Every worked query as the page has it: its name, the tool, the code."""
    python, sql = blocks("python")[1:], blocks("sql")
    for number, each in enumerate(schema_page.questions()):
        codes = (python[2 * number], sql[number], python[2 * number + 1])
        for tool, code in zip(TOOLS, codes, strict=True):
            yield each["name"], tool, code


QUERIES = list(queries())


def test_the_page_is_that_of_the_schema() -> None:
    made_now = schema_page.render()
    told = f"docs/schema.md is out of date; run: {schema_page.COMMAND}"
    assert schema_page.PAGE.read_text() == made_now, told


def test_every_block_of_the_page_is_run_here() -> None:
    assert len(blocks("python")) == 1 + 2 * len(schema_page.questions())
    assert len(blocks("sql")) == len(schema_page.questions()) >= 3
    assert {(name, tool): code for name, tool, code in QUERIES} == {
        (each["name"], tool): each[tool] for each in schema_page.questions() for tool in TOOLS
    }


@pytest.mark.parametrize(("name", "tool", "code"), QUERIES, ids=[f"{n}-{t}" for n, t, _ in QUERIES])
@pytest.mark.usefixtures("sweep")
def test_a_query_gives_the_answer(name: str, tool: str, code: str) -> None:
    rows = asked(tool, code)
    if name == "failures":
        logs = [row[4] for row in rows]
        rows = [(*row[:4], row[5]) for row in rows]
        broken = example_sweep.IDENTITY.cell_id(example_sweep.BROKEN)
        assert logs[1] == f"attempts/{broken}/1/server.log"
        assert re.fullmatch(r"attempts/[0-9a-f]{16}/1/server\.log", logs[0])
    assert rows == EXPECTED.get(name, FAILED)


@pytest.mark.parametrize("name", [each["name"] for each in schema_page.questions()])
@pytest.mark.usefixtures("sweep")
def test_the_three_tools_agree(name: str) -> None:
    first, *others = [asked(tool, code) for each, tool, code in QUERIES if each == name]
    assert [list(row) for row in first]
    assert others == [first, first]


def test_speeds_are_those_that_show_tells(sweep: Path) -> None:
    trials, runs = (pl.scan_parquet(sweep / f"{name}.parquet") for name in ("trials", "runs"))
    told = by_depth(trials, runs).select("depth", "task", pl.col("eager", "graphs").round(1))
    assert told.collect().rows() == SPEEDS


@pytest.mark.usefixtures("sweep")
def test_the_metadata_is_read_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("python")[0], {})
    meaning = SCHEMAS["trials"].field("kv_available_gib").metadata[b"comment"].decode()
    assert capsys.readouterr().out.splitlines() == [str(SCHEMA_VERSION), meaning]


@pytest.mark.parametrize("table", SCHEMAS)
def test_what_is_never_null_is_not(table: str, sweep: Path) -> None:
    files = schema_page.FILES[table][0].replace("<cell_id>", "*").replace("<attempt>", "*")
    content = pl.read_parquet(sweep / files)
    assert content.height > 0
    nulls = schema_page.null_meanings()[table]
    assert [
        name for name in content.columns if nulls[name] == "never" and content[name].has_nulls()
    ] == []


def test_a_column_that_nobody_explained_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = SCHEMAS["runs"].append(pa.field("news", pa.int64(), metadata={"comment": "tokens"}))
    monkeypatch.setattr(schema_page, "SCHEMAS", {**SCHEMAS, "runs": wider})
    with pytest.raises(ValueError, match=r"nulls\.yaml: runs has to tell news"):
        schema_page.render()


def test_a_changed_meaning_changes_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = SCHEMAS["runs"]
    place = old.get_field_index("ttft_s")
    new = old.set(place, pa.field("ttft_s", pa.float32(), metadata={"comment": "parsecs"}))
    monkeypatch.setattr(schema_page, "SCHEMAS", {**SCHEMAS, "runs": new})
    assert "| `ttft_s` | float | parsecs | " in schema_page.render()
    monkeypatch.setattr(sys, "argv", ["schema_page.py", "--check"])
    assert schema_page.main() == 1
    assert "run: python tools/schema_page.py" in capsys.readouterr().out
