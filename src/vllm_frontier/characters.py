"""Characters that no name may have, because a terminal, a shell or a file would act on them."""

from __future__ import annotations

import re
import shlex
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Control characters but for tab and line feed, embeddings, overrides and isolates of direction,
# other ends of lines, halves of surrogate pairs, and what Unicode keeps for no character, such as
# U+FFFE: XML has none of the first and the last.
_UNPRINTABLE = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069"
    "\\ud800-\\udfff\\ufdd0-\\ufdef\\ufffe\\uffff"
)
_IN_LINES = re.compile(f"[{_UNPRINTABLE}]")
_IN_A_LINE = re.compile(f"[\\t\\n{_UNPRINTABLE}]")


def unprintable(text: str, *, lines: bool = False) -> str | None:
    """The first character of a text that cannot be printed, such as `U+001B`; None: all can.

    Args:
        text: what is to be printed.
        lines: it may have several lines, and tabs.
    """
    found = (_IN_LINES if lines else _IN_A_LINE).search(text)
    return None if found is None else f"U+{ord(found[0]):04X}"


def printable(text: str, *, lines: bool = False) -> str:
    """A text with `REPLACEMENT` for every character that cannot be printed.

    Args:
        text: what is to be printed.
        lines: it may have several lines, and tabs.
    """
    return (_IN_LINES if lines else _IN_A_LINE).sub(REPLACEMENT, text)


def all_printable(value: Any) -> Any:
    """JSON values with every text in them printable, also keys; texts may have several lines."""
    if isinstance(value, str):
        return printable(value, lines=True)
    if isinstance(value, dict):
        return {all_printable(key): all_printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [all_printable(each) for each in value]
    return value


def escaped_json(text: str) -> str:
    """A JSON document in which what cannot be printed is escaped; it means the same."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def quoted(word: str) -> str:
    r"""A word quoted for a shell; what cannot be printed as bash and zsh have it, `$'\x1b'`."""
    if unprintable(word, lines=True) is None:
        return shlex.quote(word)
    told = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{_IN_LINES.sub(_as_bytes, told)}'"


def _as_bytes(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))
