"""Secrets in what a server prints: taken out of its log before anybody keeps it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_frontier.launch.environment import MASK, is_secret, mask_secrets, secret_forms

# A shorter value would be found in words that have nothing to do with it.
SHORTEST = 8
_SCHEME = re.compile(r"(bearer|basic)\s+", re.IGNORECASE)
_CHUNK = 1024 * 1024


def secret_values(environment: Mapping[str, str], argv: Sequence[str]) -> tuple[str, ...]:
    """The values that must not be written down, longest first.

    Args:
        environment: of the launch; secret by the names of its variables, or by its form.
        argv: of the launch; secret by the names of its options, or by its form.
    """
    found = {value for name, value in environment.items() if is_secret(name)}
    for text in (*environment.values(), *argv):
        for start, end in secret_forms(text):
            # A server may print it without the word before it, or the user.
            value = _SCHEME.sub("", text[start:end], count=1)
            found.update((value, value.partition(":")[2]))
    for word, masked in zip(argv, mask_secrets(argv), strict=True):
        if masked == MASK:
            found.add(word)
        elif masked != word and masked.endswith(f"={MASK}"):
            found.add(word.removeprefix("--env=").partition("=")[2])
    return tuple(sorted((each for each in found if len(each) >= SHORTEST), key=len, reverse=True))


def conceal(text: str, secrets: Sequence[str]) -> str:
    """The text with every secret as `***`."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def conceal_in_file(path: Path, secrets: Sequence[str]) -> bool:
    """Replace every secret in a file that nobody writes any more; whether there was one.

    Raises:
        OSError: the file can be read but not replaced.
    """
    hidden = [secret.encode() for secret in secrets]
    if not hidden or not path.exists() or not _contains(path, hidden):
        return False
    # Named as what the store writes, so that one who is killed here leaves nothing for ever.
    copy = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        with path.open("rb") as source, copy.open("wb") as target:
            for line in source:
                target.write(_concealed(line, hidden))
        copy.replace(path)
    finally:
        copy.unlink(missing_ok=True)
    return True


def _concealed(line: bytes, hidden: Sequence[bytes]) -> bytes:
    for secret in hidden:
        line = line.replace(secret, MASK.encode())
    return line


def _contains(path: Path, hidden: Sequence[bytes]) -> bool:
    overlap = max(len(secret) for secret in hidden) - 1
    tail = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            data = tail + chunk
            if any(secret in data for secret in hidden):
                return True
            tail = data[-overlap:] if overlap else b""
    return False
