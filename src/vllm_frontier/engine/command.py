"""Templates for the command of a launch, such as a call of a container."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from vllm_frontier.errors import EngineError

PLACEHOLDERS = ("args", "gpus", "model", "name", "port", "python")

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


def placeholders(template: str) -> frozenset[str]:
    """The placeholders that a template uses.

    Raises:
        EngineError: it uses one that does not exist, lacks `{args}`, or is no shell words.
    """
    used = frozenset(_PLACEHOLDER.findall(template))
    unknown = sorted(used - set(PLACEHOLDERS))
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    if unknown:
        raise EngineError(
            f"engine.command has an unknown placeholder {{{unknown[0]}}}; known are {known}"
        )
    if "args" not in used:
        raise EngineError(
            "engine.command lacks {args}: without it no cell's settings reach the server"
        )
    _words(template)
    return used


def expand(template: str, values: Mapping[str, str], args: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a template with its placeholders filled in.

    `{args}` as a word of its own becomes the arguments as separate words; inside a word, as in
    `bash -c "vllm serve {args}"`, it becomes one shell-quoted text.
    """
    texts = {**values, "args": shlex.join(args)}
    words: list[str] = []
    for word in _words(template):
        if word == "{args}":
            words += args
        else:
            words.append(_PLACEHOLDER.sub(lambda match: texts[match[1]], word))
    return tuple(words)


def _words(template: str) -> list[str]:
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise EngineError(f"engine.command cannot be split into words: {error}") from error
    return words
