"""A cell as a config file for `vllm serve --config FILE`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from vllm_frontier.characters import printable, unprintable
from vllm_frontier.engine.arguments import flag, render
from vllm_frontier.engine.serving import Serving
from vllm_frontier.report.recommend.serving import shell

_WIDTH = 80  # columns of comments
_ONE_LINE = 1 << 20  # columns: values are not folded


def content(serving: Serving, headline: str) -> str:
    """The YAML file: a comment, the model, the arguments.

    Args:
        serving: what is served.
        headline: what it is, in words.
    """
    told = [headline]
    variables = shell.environment(serving)
    if variables:
        told.append(f"Needs the environment {shell.plain(variables)}")
    if shell.is_masked(serving):
        told.append(f"{shell.STANDS_FOR}: put it in before you use the file")
    comment = "\n".join(
        f"# {line}"
        for each in told
        for line in textwrap.wrap(
            printable(each, lines=True), _WIDTH - 2, break_long_words=False, break_on_hyphens=False
        )
    )
    values = {"model": serving.model} | {
        flag(name).removeprefix("--"): _value(value)
        for name, value in serving.arguments.items()
        if _is_told(value)
    }
    text = _dumped(values, escaped=False)
    if unprintable(text, lines=True) is not None:  # YAML itself escapes but some of these
        text = _dumped(values, escaped=True)
    return f"{comment}\n{text}"


def _dumped(values: Mapping[str, Any], *, escaped: bool) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=not escaped, width=_ONE_LINE)


def command(serving: Serving, path: str) -> str:
    """The command that serves what is in the file at a path."""
    beside = {name: each for name, each in serving.arguments.items() if _needs_shell(each)}
    return shell.lines([*serving.launcher, "--config", path], render(beside), serving)


def _is_told(value: Any) -> bool:
    return value is not None and value != [] and not _needs_shell(value)


def _needs_shell(value: Any) -> bool:
    """Whether a value looks like a flag: joined to its own it is none, which no file can say."""
    one = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    return isinstance(one, str) and one.startswith("-")


def _value(value: Any) -> Any:
    """A value as vLLM reads it: mappings as JSON, which every version knows."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    if isinstance(value, Mapping) or any(isinstance(item, Mapping) for item in items):
        return json.dumps(value, separators=(",", ":"), sort_keys=True)
    return list(value) if isinstance(value, tuple) else value
