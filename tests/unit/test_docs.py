"""That the README and the pages in docs/ say what is there."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from vllm_frontier.cli import cli
from vllm_frontier.config import compose_sweep
from vllm_frontier.config_schema import GROUPS, SearchConf
from vllm_frontier.errors import ConfigError
from vllm_frontier.outcome import FailureClass, Status
from vllm_frontier.search.proof import ARITHMETIC, BESIDE_THE_SHARE
from vllm_frontier.shipped import shipped
from vllm_frontier.store.schema import SCHEMAS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SWEEPS = sorted(path.stem for path in (ROOT / "sweeps").glob("*.yaml"))
COMMAND = re.compile(r"^(?:\$ )?vllm-frontier (.+)$")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[str]:
    """The lines in fenced blocks, those that end in a backslash joined to the next."""
    for number, part in enumerate(page.read_text().split("```")):
        if number % 2:
            yield from part.replace("\\\n", " ").splitlines()[1:]


def commands(page: Path) -> Iterator[list[str]]:
    for line in blocks(page):
        for part in line.split(" | "):
            found = COMMAND.match(part.strip())
            if found:
                words = shlex.split(found[1].replace("&", ""), comments=True)
                yield words


EXAMPLES = [(page, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(
    ("page", "words"), EXAMPLES, ids=[f"{page_name(p)}: {' '.join(w)}" for p, w in EXAMPLES]
)
def test_every_command_that_is_shown_exists(
    page: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.log").write_text("")
    monkeypatch.chdir(tmp_path)
    command = cli.commands[words[0]]
    context = command.make_context(words[0], [word for word in words[1:] if word != "..."])
    given = context.params.get("words", ())
    if given and not given[0].startswith("./"):
        sweep = next(word for word in given if "=" not in word)
        assert sweep in SWEEPS
        overrides = [word for word in given if word != sweep and not word.startswith("card=")]
        compose_sweep(sweep, [*overrides, "engine=simulated"])


def test_the_readme_lists_every_command() -> None:
    table = (ROOT / "README.md").read_text().split("## Commands")[1]
    assert set(re.findall(r"^\| `(\w+)[ `]", table, re.MULTILINE)) == set(cli.commands)
    for name, command in cli.commands.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}"))
        options = {
            option
            for each in command.params
            if isinstance(each, click.Option)
            for option in each.opts
        }
        assert set(re.findall(r"--[\w-]+", row)) == options - {"--json"}, name


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target


def slug(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_explained(table: str) -> None:
    text = (ROOT / "docs" / "files.md").read_text()
    part = re.split(r"^## ", text.split(f"\n## {table}\n")[1], flags=re.MULTILINE)[0]
    named = set(re.findall(r"`(\w+)`", part)) | axes()
    assert set(SCHEMAS[table].names) - named == set()


def axes() -> set[str]:
    """Columns that mean the same in every table."""
    first = {"sweep", "cell_id", "attempt"}
    return first | {"depth", "context", "graphs", "utilization", "extra"}


def test_every_search_key_is_explained_with_its_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for key in fields(SearchConf):
        assert f"`search.{key.name}`" in text
        row = re.search(rf"^\| `search\.{key.name}` \| (.+?) \|", text, re.MULTILINE)
        if row is not None:
            default = "no limit" if key.default is None else str(key.default)
            assert row[1].strip("`") == default, key.name


def test_every_choice_of_a_group_is_listed() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for group in GROUPS:
        row = re.search(rf"^\| `{group}` \| (.+?) \|", text, re.MULTILINE)
        assert row is not None, group
        there = {path.stem for path in (shipped("conf") / group).glob("*.yaml")}
        assert set(re.findall(r"`([^`]+)`", row[1])) == there


def test_the_search_page_has_every_failure_class_that_proves_something() -> None:
    text = (ROOT / "docs" / "search.md").read_text()
    rows = {
        row.split("|")[1]: row.split("|")[-2].strip()
        for row in text.split("## What proves what")[1].splitlines()
        if row.startswith("| `")
    }
    named = {word: when for cell, when in rows.items() for word in re.findall(r"`(\w+)`", cell)}
    for each in ARITHMETIC:
        # The last row names one of these as an exception.
        assert any(f"`{each.value}`" in cell and "firm" in when for cell, when in rows.items())
    for each in BESIDE_THE_SHARE:
        assert named[each.value] == "when a second one agrees"
    infeasible = {each.value for each in FailureClass if each.status is Status.INFEASIBLE}
    assert infeasible <= set(named)


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "src" / "vllm_frontier"
    rooms = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    rooms |= {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    rooms = {room for room in rooms if not room.startswith("config")}
    assert {room for room in rooms if f"`{room}`" not in text} == set()
    modules = {path.name for path in (package / "search").glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if f"`{name}`" not in text} == set()


def test_an_unknown_key_in_an_example_would_be_seen() -> None:
    with pytest.raises(ConfigError):
        compose_sweep(SWEEPS[0], ["search.verifi=all"])
