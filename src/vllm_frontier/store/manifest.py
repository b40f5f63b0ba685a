"""`sweep.yaml`: what a sweep is, and whether a folder may hold another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vllm_frontier.errors import StoreError
from vllm_frontier.identity import WORKLOAD_KEYS, without_secrets
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store import atomic
from vllm_frontier.store.paths import SweepPaths
from vllm_frontier.store.schema import SCHEMA_VERSION

_ABSENT = "not set"


@dataclass(frozen=True, slots=True)
class Change:
    """A further identity under which a sweep went on, since when, and what differs in words."""

    identity: SweepIdentity
    since: str
    differs: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `sweep.yaml`.

    Attributes:
        config: the resolved configuration, without secrets.
        identity: what decides the results of the sweep as it was begun.
        changes: what it was allowed to go on with later.
    """

    config: Mapping[str, Any]
    identity: SweepIdentity
    changes: tuple[Change, ...] = ()

    def knows(self, identity: SweepIdentity) -> bool:
        """Whether the sweep ran under this identity before."""
        return identity.digest in {each.digest for each in self.identities}

    def known(self, identity: SweepIdentity) -> SweepIdentity:
        """An identity as the sweep ran under it.

        It differs from what it would be today where an earlier version wrote down what is taken
        for a secret now; the ids of its cells stay as they are.
        """
        if not self.knows(identity):
            for each in reversed(self.identities):
                if each.workload == identity.workload and not identity_differences(each, identity):
                    return each
        return identity

    @property
    def identities(self) -> tuple[SweepIdentity, ...]:
        """All under which the sweep ran, first the one with which it was begun."""
        return (self.identity, *(change.identity for change in self.changes))


@dataclass(frozen=True, slots=True)
class Difference:
    """A key in which two sweeps differ, and its values."""

    key: str
    there: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.key} is {self.there} there and {self.here} here"

    def as_change(self) -> str:
        """The difference as a step from one value to the other."""
        return f"{self.key} {self.there} -> {self.here}"


def write(paths: SweepPaths, manifest: Manifest) -> None:
    """Write `sweep.yaml`; OSError when the folder cannot be written."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "identity": _identity_document(manifest.identity),
        "config": plain(manifest.config),
    }
    if manifest.changes:
        document["changes"] = [
            {
                **_identity_document(change.identity),
                "since": change.since,
                "differs": change.differs,
            }
            for change in manifest.changes
        ]
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    atomic.write_text(paths.sweep_yaml, text)


def read(paths: SweepPaths) -> Manifest:
    """Read `sweep.yaml`.

    Raises:
        StoreError: the folder is no sweep, or its `sweep.yaml` is not what this version reads.
    """
    path = paths.sweep_yaml
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no file; restore it, or choose another folder")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(_no_sweep(paths)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {_reason(error)}") from None
    except yaml.YAMLError:
        raise StoreError(f"{path} is not YAML; restore it, or choose another folder") from None
    return _parse(path, document)


def foreign_files(paths: SweepPaths) -> list[str]:
    """What is in a folder without `sweep.yaml` that no sweep leaves there which did not begin.

    Raises:
        OSError: the folder cannot be listed.
    """
    own = {paths.lock.name, paths.lock_holder.name, paths.attempts.name}
    return [
        each.name
        for each in sorted(paths.root.iterdir())
        if not (each.name in own or atomic.is_temporary(each))
        or (each == paths.attempts and any(each.iterdir()))
    ]


def differences(stored: Manifest, given: Manifest) -> list[Difference]:
    """In what of model, card, engine and fixed arguments two sweeps differ."""
    return identity_differences(stored.identity, given.identity)


def identity_differences(there: SweepIdentity, here: SweepIdentity) -> list[Difference]:
    """In what of model, card, engine and fixed arguments two identities differ."""
    return list(_differences(there.cell_part, here.cell_part))


def fixed_differences(stored: Manifest, given: Manifest) -> list[Difference]:
    """In what two sweeps differ that no sweep can go on with: its name, and what it measures.

    A workload counts by its digest; which of its settings differs is told from the two
    configurations, settings that decide nothing left out.
    """
    found = []
    names = stored.config.get("name"), given.config.get("name")
    if names[0] != names[1]:
        found.append(Difference("name", *names))
    if stored.identity.workload != given.identity.workload:
        settings = _differences(_decisive(stored.config), _decisive(given.config))
        digests = Difference("workload", stored.identity.workload, given.identity.workload)
        found += list(settings) or [digests]
    return found


def _decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration decides the digest of its workload."""
    workload = config.get("workload", {})
    return {"workload": {name: workload[name] for name in WORKLOAD_KEYS if name in workload}}


def _identity_document(identity: SweepIdentity) -> dict[str, Any]:
    return {
        "digest": identity.digest,
        "workload": identity.workload,
        "cell": plain(identity.cell_part),
    }


def _no_sweep(paths: SweepPaths) -> str:
    try:
        ended_early = not foreign_files(paths)
    except OSError:
        ended_early = False
    if not ended_early:
        return f"{paths.root} is no sweep: there is no {paths.sweep_yaml.name} in it"
    return (
        f"{paths.root} is no sweep yet: it was ended before it began; "
        f"`vllm-frontier run SWEEP --out {paths.root}` starts it"
    )


def _parse(path: Path, document: Any) -> Manifest:
    try:
        version = document["schema_version"]
        manifest = Manifest(
            config=dict(document["config"]),
            identity=_identity(document["identity"]),
            changes=tuple(
                Change(_identity(each), str(each["since"]), str(each["differs"]))
                for each in document.get("changes") or ()
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StoreError(
            f"{path} is not the configuration of a sweep; restore it, or choose another folder"
        ) from None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, and this program reads up to {SCHEMA_VERSION}; "
            "use the version that wrote it, or a later one"
        )
    return manifest


def _identity(document: Any) -> SweepIdentity:
    return SweepIdentity(dict(document["cell"]), str(document["workload"]))


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Difference]:
    # What earlier versions did not take for a secret makes no other sweep of it, nor is it told.
    there, here = (dict(_leaves(plain(without_secrets(each)))) for each in (stored, given))
    for key in [*there, *(key for key in here if key not in there)]:
        if there.get(key, _ABSENT) != here.get(key, _ABSENT):
            yield Difference(key, there.get(key, _ABSENT), here.get(key, _ABSENT))


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
