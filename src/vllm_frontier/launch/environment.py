"""The environment of a launch, and what of it may be written down."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, overload

MASK = "***"

_DROPPED = frozenset({"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PYTHONHOME", "TMP", "TEMP"})
_OF_RAY = re.compile(r"(^|/)ray/(_private|thirdparty_files|core)(/|$)")
# A pass before or after another is one of a compiler's.
_SECRET = re.compile(
    r"(^|_)(API_?KEYS?|TOKEN|AUTH|(?<!PRE_)(?<!POST_)PASS)$"
    r"|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(ACCESS|PRIVATE)_KEY|AUTHORIZATION",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(r"(?P<name>(--env=|-e)?[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)
# Of an address of the web a user alone is a token, too; `ssh://git@host` holds none.
_USER_IN_URL = re.compile(
    r"""(?<=https://)[^/?#\s"']+(?=@)|(?<=http://)[^/?#\s"']+(?=@)
        |(?<=://)[^/?#\s"':]*:[^/?#\s"']*(?=@)""",
    re.VERBOSE | re.IGNORECASE,
)
_HEADER = re.compile(
    r"""\b(?:authorization|x-[\w-]*(?:key|token|auth))["']?\s*[:=]\s*["']?
        (?P<value>[^"'\n,;{}]*[^"'\s,;{}])""",
    re.VERBOSE | re.IGNORECASE,
)
# What follows `Basic` is base64, so that words of a name are not taken for it.
_SCHEME = re.compile(
    r"""\bbearer\s+(?P<token>[\w.~+/=-]{6,})
        |\bbasic\s+(?P<pair>(?=[^\s]*[0-9=])[A-Za-z0-9+/]{6,}={0,2}(?![\w-]))""",
    re.VERBOSE | re.IGNORECASE,
)
# These options of vLLM take several values.
_LIST_OPTIONS = frozenset({"API_KEY"})


def launch_environment(
    base: Mapping[str, str], changes: Mapping[str, str | None], *, tmp: Path
) -> dict[str, str]:
    """The complete environment of a server.

    Taken out of the base are the variables by which Ray steers its own workers and those
    that bind a process to the driver's virtual environment: the server may run in another.

    Args:
        base: the driver's environment.
        changes: what the launch sets on top of it; None removes a variable.
        tmp: the launch's own folder for temporary files, which becomes TMPDIR.
    """
    environment = {
        name: value
        for name, value in base.items()
        if not name.startswith(("RAY_", "__RAY")) and name not in _DROPPED
    }
    pieces = environment.pop("PYTHONPATH", "").split(os.pathsep)
    kept = [piece for piece in pieces if piece and not _OF_RAY.search(piece)]
    if kept:
        environment["PYTHONPATH"] = os.pathsep.join(kept)
    if environment.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del environment["PYTHONBREAKPOINT"]
    # A killed server must not take its last lines with it.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment["TMPDIR"] = str(tmp)
    # Compiled code is kept from launch to launch, where PyTorch itself would keep it.
    kept_at = Path(base.get("TMPDIR", "/tmp")) / f"torchinductor_{os.getuid()}"
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept_at))
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    return _SECRET.search(name.lstrip("-").replace("-", "_")) is not None


@overload
def mask_secrets(value: Mapping[str, str]) -> dict[str, str]: ...
@overload
def mask_secrets(value: Sequence[str]) -> list[str]: ...
def mask_secrets(value: Mapping[str, str] | Sequence[str]) -> dict[str, str] | list[str]:
    """A copy of an environment or a command in which secrets read `***`.

    Secret are the values of variables and options whose name ends in `API_KEY`, `TOKEN`, `AUTH`
    or `PASS` or speaks of a secret, password, credential, authorization or access key, and what
    `mask_forms` finds.
    """
    if isinstance(value, Mapping):
        return {
            name: MASK if text and _SECRET.search(name) else _mask_text(text)
            for name, text in value.items()
        }
    return _mask_arguments(value)


def secret_forms(text: str) -> Iterator[tuple[int, int]]:
    """Where a text holds what is secret by its form, whatever its name: start and end of each.

    That is the value of an `Authorization` or `X-Api-Key` header, a token after `Bearer` or
    `Basic`, and what stands before the `@` of a URL.
    """
    for found in _HEADER.finditer(text):
        yield found.span("value")
    for found in _SCHEME.finditer(text):
        yield found.span(found.lastgroup or 0)
    for found in _USER_IN_URL.finditer(text):
        yield found.span()


def mask_forms(text: str) -> str:
    """A text in which what is secret by its form reads `***`."""
    for pattern in (_HEADER, _SCHEME, _USER_IN_URL):
        pieces, position = [], 0
        for found in pattern.finditer(text):
            start, end = found.span(found.lastgroup or 0)
            pieces += [text[position:start], MASK]
            position = end
        text = "".join(pieces) + text[position:]
    return text


def _mask_arguments(argv: Sequence[str]) -> list[str]:
    masked: list[str] = []
    pending = 0  # how many of the next words are values of a secret option
    for word in argv:
        if word.startswith("--"):
            option, equals, _ = word.partition("=")
            name = option.lstrip("-").replace("-", "_").upper()
            hidden = is_secret(option)
            pending = 0
            if hidden and not equals:
                pending = len(argv) if name in _LIST_OPTIONS else 1
            masked.append(f"{option}={MASK}" if hidden and equals else _mask_text(word))
        elif pending:
            pending -= 1
            masked.append(MASK)
        else:
            masked.append(_mask_text(word))
    return masked


def _mask_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: MASK if each and is_secret(str(key)) else _mask_json(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_mask_json(each) for each in value]
    return mask_forms(value) if isinstance(value, str) else value


def _mask_text(text: str) -> str:
    if text.startswith("{"):
        with suppress(ValueError):
            document = json.loads(text)
            if (masked := _mask_json(document)) != document:
                text = json.dumps(masked)
    assignment = _ASSIGNMENT.fullmatch(text)
    if assignment and _SECRET.search(assignment["name"].removeprefix("--env=").removeprefix("-e")):
        return f"{assignment['name']}={MASK}"
    return mask_forms(text)
