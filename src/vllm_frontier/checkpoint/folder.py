"""Where the files of a model lie on this machine, and its `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAIN = "main"
_CONFIG = "config.json"
_CONFIG_BYTES_MAX = 16 * 2**20  # the longest seen has some hundred kB


def model_folder(
    model_id: str, revision: str | None, environment: Mapping[str, str]
) -> Path | None:
    """The folder of a model: its own, or a snapshot in the cache of the Hugging Face hub.

    Args:
        model_id: a folder or a hub id.
        revision: of a hub id: a branch, a tag or a commit.
        environment: of the launches; decides where the cache is.

    Returns:
        None where the model is not on this machine.
    """
    try:
        folder = Path(model_id).expanduser()
        if folder.is_dir():
            return folder
        return _snapshot(_cache(environment) / _cached_name(model_id), revision)
    except (OSError, RuntimeError, ValueError):  # no home, or no name that a file could have
        return None


def read_config(folder: Path) -> Mapping[str, Any] | None:
    """The `config.json` of a model; None where there is none, or it is no JSON object."""
    return read_object(folder / _CONFIG)


def read_object(path: Path) -> Mapping[str, Any] | None:
    """A JSON object from a file of moderate size; None where it cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > _CONFIG_BYTES_MAX:
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _cache(environment: Mapping[str, str]) -> Path:
    """The folder of the cache, by the rules of `huggingface_hub`, which is not imported."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]).expanduser() / "hub"
    home = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "huggingface" / "hub"


def _cached_name(model_id: str) -> str:
    return "models--" + model_id.replace("/", "--")


def _snapshot(model: Path, revision: str | None) -> Path | None:
    """The snapshot that a revision names; without one the main branch, else the newest."""
    snapshots = model / "snapshots"
    wanted = revision or _MAIN
    reference = model / "refs" / wanted
    commit = reference.read_text().strip() if reference.is_file() else wanted
    if commit and (snapshots / commit).is_dir():
        return snapshots / commit
    if revision is not None or not snapshots.is_dir():
        return None
    found = [each for each in snapshots.iterdir() if each.is_dir()]
    return max(found, key=lambda each: each.stat().st_mtime, default=None)
