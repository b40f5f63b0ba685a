"""Text in GitHub-flavoured Markdown, where every character stands for itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

# An underscore within a word is one; beside anything else it may begin or end an emphasis.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~&#$]|(?<![^\W_])_|_(?![^\W_])")
_SPACE = re.compile(r"\s+")
_TICKS = re.compile(r"`+")
# A mention of somebody, and a link that nobody meant.
_CALLS = re.compile(r"@(?=\w)|(?<=https)(?=:)|(?<=http)(?=:)|(?<=\bwww)(?=\.)", re.IGNORECASE)


class Plain(str):
    """Text that is Markdown already."""

    __slots__ = ()


def escaped(value: Any) -> Any:
    """A value for a line or a cell of a table: no markup, no line breaks."""
    if not isinstance(value, str) or isinstance(value, Plain):
        return value
    line = _SPACE.sub(" ", value).strip()
    return Plain(_CALLS.sub(_held_apart, _SPECIAL.sub(_as_it_is, line)))


def _as_it_is(found: re.Match[str]) -> str:
    return {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(found[0], f"\\{found[0]}")


def _held_apart(found: re.Match[str]) -> str:
    return f"{found[0]}<!-- -->"


def code(value: Any) -> Plain:
    """A value as code in a line or a cell; empty where there is none."""
    line = _SPACE.sub(" ", "" if value is None else str(value)).strip()
    if not line:
        return Plain("")
    fence = "`" * (_longest(line) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return Plain(f"{fence}{pad}{line.replace('|', chr(92) + '|')}{pad}{fence}")


def block(value: str, language: str = "") -> Plain:
    """Lines as a block of code."""
    fence = "`" * max(3, _longest(value) + 1)
    return Plain(f"{fence}{language}\n{value.rstrip()}\n{fence}")


def _longest(text: str) -> int:
    return max((len(ticks) for ticks in _TICKS.findall(text)), default=0)


def url(value: str) -> Plain:
    """A link that is quoted already, for the inside of `<` and `>`."""
    return Plain(value)


FILTERS: Mapping[str, Callable[..., Any]] = {"code": code, "block": block, "url": url}
