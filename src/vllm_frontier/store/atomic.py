"""The one way in which a file of a sweep is written.

A reader, and a writer that starts after a crash, sees the old content or the new one, never a
part of it: temporary file in the same folder, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

_TEMPORARY = ".tmp"
_NAME = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, durably and all at once.

    Raises:
        OSError: the folder cannot be written, or the disk is full; `path` is as it was.
    """
    temporary = write_aside(path, content)
    try:
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(path.parent)


def write_aside(path: Path, content: bytes) -> Path:
    """Write what is to stand at `path` into a file beside it, durably, to be renamed.

    Raises:
        OSError: the folder cannot be written, or the disk is full; nothing is left.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{_TEMPORARY}")
    try:
        # Not tempfile: its files are private, and results are for everyone the umask allows.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        remove(temporary)
        raise
    return temporary


def remove(temporary: Path) -> None:
    """Remove a file that was written aside.

    What went wrong is told, not that its traces could not be removed either.
    """
    with suppress(OSError):
        temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by a JSON document for people and programs; see `write_bytes`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Whether a file is what a crash left of a write that never took effect."""
    return _NAME.fullmatch(path.name) is not None and path.is_file()
