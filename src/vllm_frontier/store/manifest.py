"""`sweep.yaml`: what a sweep is, and whether a folder may hold another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vllm_frontier.errors import StoreError
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store import atomic
from vllm_frontier.store.paths import SweepPaths
from vllm_frontier.store.schema import SCHEMA_VERSION

_ABSENT = "not set"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `sweep.yaml`: the resolved configuration and the identity."""

    config: Mapping[str, Any]
    identity: SweepIdentity


def write(paths: SweepPaths, manifest: Manifest) -> None:
    """Write `sweep.yaml`; OSError when the folder cannot be written."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "identity": {
            "digest": manifest.identity.digest,
            "workload": manifest.identity.workload,
            "cell": plain(manifest.identity.cell_part),
        },
        "config": plain(manifest.config),
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    atomic.write_text(paths.sweep_yaml, text)


def read(paths: SweepPaths) -> Manifest:
    """Read `sweep.yaml`.

    Raises:
        StoreError: the folder is no sweep, or its `sweep.yaml` is not what this version reads.
    """
    path = paths.sweep_yaml
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{paths.root} is no sweep: there is no {path.name} in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {_reason(error)}") from None
    except yaml.YAMLError:
        raise StoreError(f"{path} is not YAML; restore it, or choose another folder") from None
    return _parse(path, document)


def difference(stored: Manifest, given: Manifest) -> str | None:
    """The first key in which two sweeps differ and both values; None for the same sweep.

    A workload counts by its digest; which of its settings differs is told from the two
    configurations.
    """
    told = _first_difference(stored.identity.cell_part, given.identity.cell_part)
    names = stored.config.get("name"), given.config.get("name")
    if told is None and names[0] != names[1]:
        told = _told("name", *names)
    if told is None and stored.identity.workload != given.identity.workload:
        told = _first_difference(
            {"workload": stored.config.get("workload", {})},
            {"workload": given.config.get("workload", {})},
        ) or _told("workload", stored.identity.workload, given.identity.workload)
    return told


def _parse(path: Path, document: Any) -> Manifest:
    try:
        version = document["schema_version"]
        identity = document["identity"]
        manifest = Manifest(
            config=dict(document["config"]),
            identity=SweepIdentity(dict(identity["cell"]), str(identity["workload"])),
        )
    except (KeyError, TypeError, ValueError):
        raise StoreError(
            f"{path} is not the configuration of a sweep; restore it, or choose another folder"
        ) from None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, and this program reads up to {SCHEMA_VERSION}; "
            "use the version that wrote it, or a later one"
        )
    return manifest


def _first_difference(stored: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    there, here = dict(_leaves(plain(stored))), dict(_leaves(plain(given)))
    for key in [*there, *(key for key in here if key not in there)]:
        if there.get(key, _ABSENT) != here.get(key, _ABSENT):
            return _told(key, there.get(key, _ABSENT), here.get(key, _ABSENT))
    return None


def _told(key: str, there: Any, here: Any) -> str:
    return f"{key} is {there} there and {here} here"


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def plain(value: Mapping[str, Any]) -> Any:
    """The value as a file gives it back: lists for tuples, text for what JSON has no word for."""
    return json.loads(json.dumps(dict(value), default=_convert))


def _convert(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
