"""Write docs/schema.md: the columns of every table, and queries with their answers.

python tools/schema_page.py            write the page
python tools/schema_page.py --check    say whether it is as it would be written
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml
from example_sweep import write_example

from vllm_frontier.store.schema import SCHEMA_VERSION, SCHEMAS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "schema.md"
COMMAND = "python tools/schema_page.py"
_PARTS = Path(__file__).with_suffix("")

FILES = {
    "trials": ("trials.parquet", "an attempt, or a cell that was inferred"),
    "runs": ("runs.parquet", "a request that was measured"),
    "frontier": ("frontier.parquet", "a cell that no other beats, for the median or for a task"),
    "boundaries": ("boundaries.parquet", "a combination of all axes but the window"),
    "telemetry": (
        "attempts/<cell_id>/<attempt>/telemetry.parquet",
        "a card or the machine at a moment",
    ),
    "checks": ("checks.parquet", "a thing that was judged"),
}


def main() -> int:
    """Write or check the page; 1 where it is out of date."""
    text = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is out of date; run: {COMMAND}")
    return 1


def render() -> str:
    """The page as it should be.

    Raises:
        ValueError: a column has no entry in nulls.yaml, or an entry has no column.
    """
    loader = jinja2.FileSystemLoader(_PARTS)
    # Markdown, not HTML; nothing here comes from outside.
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    with tempfile.TemporaryDirectory() as folder:
        write_example(Path(folder) / "outputs" / "demo-cpu")
        queries = [
            {**each, "answer": _answer(each["polars"], Path(folder))} for each in questions()
        ]
    return environment.get_template("page.md.jinja").render(
        version=SCHEMA_VERSION, tables=list(_tables()), queries=queries
    )


def questions() -> list[dict[str, str]]:
    """The worked queries: `name`, `title`, `text`, and the code for each tool."""
    content: list[dict[str, str]] = yaml.safe_load((_PARTS / "queries.yaml").read_text())
    return content


def null_meanings() -> dict[str, dict[str, str]]:
    """What null means, by table and column."""
    content: Mapping[str, Mapping[str, str]] = yaml.safe_load((_PARTS / "nulls.yaml").read_text())
    return {
        table: {name: text for names, text in told.items() for name in names.split()}
        for table, told in content.items()
    }


def _tables() -> Iterator[dict[str, Any]]:
    nulls = null_meanings()
    for table, schema in SCHEMAS.items():
        unlike = set(schema.names) ^ set(nulls[table])
        if unlike:
            columns = ", ".join(sorted(unlike))
            raise ValueError(f"{_PARTS / 'nulls.yaml'}: {table} has to tell {columns}, and no more")
        file, row = FILES[table]
        columns = [
            {
                "name": field.name,
                "type": _type(field.type),
                "meaning": field.metadata[b"comment"].decode().replace("|", "\\|"),
                "null": nulls[table][field.name],
            }
            for field in schema
        ]
        yield {"name": table, "file": file, "row": row, "columns": columns}


def _type(kind: Any) -> str:
    """An Arrow type in words."""
    text = str(kind)
    if text.startswith("list<"):
        return f"list of {_type(kind.value_type)}"
    if text.startswith("struct<"):
        return "struct of " + ", ".join(f"`{each.name}` {_type(each.type)}" for each in kind)
    return text.replace("timestamp[us, tz=UTC]", "timestamp, UTC")


def _answer(code: str, folder: Path) -> str:
    """What a polars block answers in a folder, as a table."""
    found: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, found)  # the queries are our own
    finally:
        os.chdir(before)
    rows = found["answer"].rows()
    lines = [found["answer"].columns, ["---"] * found["answer"].width, *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
