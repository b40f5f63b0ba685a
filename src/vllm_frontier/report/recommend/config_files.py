"""Config files of recommended cells, written into a folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_frontier.errors import ConfigError, StoreError
from vllm_frontier.report.recommend.advice import Advice
from vllm_frontier.store import named


def write(advice: Advice, folder: Path) -> Advice:
    """Write the config file of each cell; those that are there with the same content stay.

    Args:
        advice: what was chosen.
        folder: made where it is missing.

    Returns:
        The same, with `config_file` as the path of what was written, `config_command` for it,
        and a note of what each file holds.

    Raises:
        ConfigError: a file is there with other content, the folder cannot be written, or the
            sweep has no config files. Nothing is written where one is in the way.
    """
    cells = [*advice.choices, *advice.nearest]
    if not cells:
        raise ConfigError(f"--write: there is nothing to write, {advice.reason}")
    if any(each["config"] is None for each in cells):
        raise ConfigError("--write: a sweep with a command of its own has no config files")
    contents = {folder / each["config_file"]: str(each["config"]) for each in cells}
    try:
        named.check_folder(folder)
        new = list(_new(contents))
        with named.made_folder(folder):
            named.write_all(new)
    except StoreError as error:
        raise ConfigError(f"--write: {error}") from error
    except OSError as error:
        raise ConfigError(f"--write: {named.cannot(folder, error)}") from error
    told = [f"config file of {_named(each)}: {folder / each['config_file']}" for each in cells]
    return replace(
        advice,
        choices=[_at(folder, each) for each in advice.choices],
        nearest=[_at(folder, each) for each in advice.nearest],
        notes=[*advice.notes, *told],
    )


def _named(cell: dict[str, Any]) -> str:
    """A cell by what it was chosen for: a file bears only the first of these."""
    return ", ".join(cell["choices"]) if "choices" in cell else f"the cell {cell['headline']}"


def _new(contents: dict[Path, str]) -> Iterator[tuple[Path, bytes]]:
    for path, content in contents.items():
        if not path.exists():
            yield path, content.encode()
        elif not path.is_file() or path.read_bytes() != content.encode():
            raise ConfigError(f"--write: {path} is there with other content; name another folder")


def _at(folder: Path, cell: dict[str, Any]) -> dict[str, Any]:
    path = str(folder / cell["config_file"])
    # The name is plain, so that it stands unquoted in the command for the file beside it.
    command = str(cell["config_command"]).replace(
        f"--config {cell['config_file']}", f"--config {shlex.quote(path)}", 1
    )
    return {**cell, "config_file": path, "config_command": command, "written": True}
