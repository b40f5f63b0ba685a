"""What `recommend` prints: comments and commands, so that each can be pasted into a shell."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from vllm_frontier.report.recommend import headline as commands
from vllm_frontier.report.recommend.serving.forms import COMMAND, CONFIG, DOCKER

if TYPE_CHECKING:
    from vllm_frontier.report.recommend.advice import Advice

_WIDTH = 80  # columns


def show(advice: Advice, console: Console, forms: Collection[str] = (COMMAND,)) -> None:
    """Print each choice as comments and its commands, or the reason and what comes nearest.

    Args:
        advice: what was chosen.
        console: where to.
        forms: of `command`, `config` and `docker`; cells that only come nearest have the first.
    """
    told: set[str] = set()
    if advice.reason is not None:
        _comment(console, advice.reason)
    for number, choice in enumerate(advice.choices):
        if number:
            console.print()
        _comment(console, commands.describe(choice), "bold")
        _about(choice, console, told)
        _print_forms(choice, console, forms)
    for each in advice.nearest:
        console.print()
        _comment(console, f"{each['headline']}: {commands.describe(each)}", "bold")
        for one in each["missing"]:
            _comment(console, one["words"])
        _about(each, console, told)
        _print_forms(each, console, (COMMAND,))
    for number, note in enumerate(advice.notes):
        if not number:
            console.print()
        _comment(console, note)


def _about(choice: Mapping[str, Any], console: Console, told: set[str]) -> None:
    """What is to be known of a cell; of warnings that were `told` already only the names."""
    for each in choice["against"]:
        _comment(console, each["words"])
    if choice["note"] is not None:
        _comment(console, choice["note"])
    again = []
    for name, line in _found(choice["checks"]):
        if line in told:
            again.append(name)
        else:
            told.add(line)
            _comment(console, line, "yellow")
    if again:
        _comment(console, f"as above: {', '.join(again)}", "yellow")


def _print_forms(choice: Mapping[str, Any], console: Console, forms: Collection[str]) -> None:
    """The forms; a line before each where there are several."""
    titles = {COMMAND: "a command", CONFIG: "a config file", DOCKER: "a container"}
    shown = {COMMAND: choice["command"], CONFIG: _config(choice), DOCKER: choice["docker"]}
    there = [name for name in titles if name in forms and shown[name] is not None]
    if COMMAND in there and choice["docker"] == choice["command"]:
        there.remove(DOCKER)
    for name in there:
        if len(there) > 1:
            console.print()
            _comment(console, f"as {titles[name]}:")
        console.print(shown[name], markup=False, soft_wrap=True)


def _config(choice: Mapping[str, Any]) -> str | None:
    """The file, unless it was written already, and the command that serves it."""
    if choice["config"] is None or choice.get("written"):
        command: str | None = choice["config_command"]
        return command
    name = choice["config_file"]
    return f"cat > {name} <<'EOF'\n{choice['config']}EOF\n{choice['config_command']}"


def _found(findings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What the checks found, the worst of each check: its name, and a line."""
    by_check: dict[str, list[Mapping[str, Any]]] = {}
    for each in findings:
        by_check.setdefault(each["check"], []).append(each)
    for name, found in by_check.items():
        worst = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        named = f"{worst['verdict']} {name}"
        yield named, f"{named}: {worst['detail']}{more}"


def _comment(console: Console, text: str, style: str = "") -> None:
    """Words for a person, in as many lines of a shell script as they take."""
    lines = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    console.print(Text("\n".join(f"# {line}" for line in lines), style=style), soft_wrap=True)
