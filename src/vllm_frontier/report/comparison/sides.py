"""The sweeps that are compared: read from their folders, and a short name for each."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vllm_frontier.config import spec_from_document
from vllm_frontier.errors import StoreError
from vllm_frontier.grid import shortest
from vllm_frontier.identity import without_secrets
from vllm_frontier.report import result, state
from vllm_frontier.report.result import Result
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.store.sweep_store import SweepStore

_CHANGED = " -> "
_NAME_MAX = 24  # characters
_SIMULATED = "simulated"
_SEPARATED = re.compile(r"[^\s-]+[\s-]*|[\s-]+")  # words, each with what stands behind it


@dataclass(frozen=True, slots=True)
class Side:
    """One of the sweeps.

    Attributes:
        folder: as it was given.
        found: its tables.
        spec: what it is.
        identities: all under which it ran, first the one with which it was begun.
        progress: from `state.document`.
    """

    folder: Path
    found: Result
    spec: SweepSpec
    identities: tuple[SweepIdentity, ...]
    progress: Mapping[str, Any]

    @property
    def workload(self) -> str:
        """Digest of what it measured."""
        return self.identities[0].workload


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in which sweeps differ: its key, a word for it, and the value of each."""

    key: str
    word: str
    values: tuple[Any, ...]


def load(folders: Sequence[Path]) -> list[Side]:
    """Read the sweeps, also while they run.

    Raises:
        StoreError: fewer than two folders, one twice, or one that is no sweep.
    """
    if len(folders) < 2:
        raise StoreError(
            "compare takes two folders of sweeps or more, such as "
            "`vllm-frontier compare outputs/one outputs/other`"
        )
    for one, other in itertools.combinations(folders, 2):
        if one.resolve() == other.resolve():
            named = str(one) if str(one) == str(other) else f"{one} and {other}"
            twice = "are the same folder" if str(one) != str(other) else "is given twice"
            raise StoreError(f"{named} {twice}: a sweep is compared with another one")
    return [_side(folder) for folder in folders]


def _side(folder: Path) -> Side:
    store = SweepStore.open(folder)
    return Side(
        folder=folder,
        found=result.load(folder),
        spec=spec_from_document(store.config, secrets=False, file=store.paths.sweep_yaml),
        identities=tuple(store.identities),
        progress=state.document(store, folder, analysed=False),
    )


def differences(sides: Sequence[Side]) -> list[Difference]:
    """In what the sweeps differ: card, model, engine, workload, grid; nothing that is equal.

    What a sweep went on with later is told as `0.31.0 -> 0.32.0`.
    """
    told = [dict(_facts(each)) for each in sides]
    words = dict(
        itertools.chain.from_iterable(((key, _word(key)) for key in each) for each in told)
    )
    found = []
    for key in sorted(words, key=_place):
        values = tuple(each.get(key) for each in told)
        if any(value != values[0] for value in values):
            found.append(Difference(key, words[key], values))
    return found


_WORDS = {
    "card.name": "card",
    "card.memory_gib": "card memory, GiB",
    "model.name": "model",
    "quantization": "quantization",
    "model.id": "model files",
    "model.fingerprint": "model fingerprint",
    "model.revision": "model revision",
    "engine.kind": "engine",
    "engine.version": "engine version",
    "driver": "driver",
    "cuda": "CUDA of the driver",
    "power_limit_w": "power limit, W",
    "arguments.described_card": "described card",
}
_GROUPS = ("model", "engine", "arguments", "workload", "grid")


def _word(key: str) -> str:
    return _WORDS.get(key, key.removeprefix("arguments."))


def _place(key: str) -> tuple[int, str]:
    if key in _WORDS:
        return list(_WORDS).index(key), key
    return len(_WORDS) + _GROUPS.index(key.partition(".")[0]), key


def _facts(side: Side) -> Iterator[tuple[str, Any]]:
    """What may differ, by key."""
    parts = [dict(_leaves(without_secrets(each.cell_part))) for each in side.identities]
    for key in dict.fromkeys(itertools.chain.from_iterable(parts)):
        yield key, _changing([each.get(key) for each in parts])
    spec, launched = side.spec, side.found.trials.filter(pl.col("attempt") > 0)
    yield "model.name", spec.model.name
    yield "quantization", spec.model.quantization
    for name in ("driver", "cuda", "power_limit_w"):
        yield name, _changing(launched[name].drop_nulls().to_list())
    for key, value in _leaves({"workload": side.found.config["workload"]}):
        yield key, value
    grid = spec.grid
    for name in ("depth", "context", "graphs", "utilization"):
        yield f"grid.{name}", sorted(getattr(grid, name))
    for axis in grid.extra:
        yield f"grid.{axis.name}", list(axis.values)
    if grid.exclude:
        yield (
            "grid.exclude",
            [{name: list(values) for name, values in each} for each in grid.exclude],
        )


def _changing(values: Sequence[Any]) -> Any:
    """A value, or all that it was in turn, as text."""
    seen = [value for value, _ in itertools.groupby(values)]
    seen = list(dict.fromkeys(seen)) if all(isinstance(each, str | None) for each in seen) else seen
    if len(seen) > 1:
        return _CHANGED.join(str(each) for each in dict.fromkeys(map(str, seen)))
    return seen[0] if seen else None


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        key = f"{prefix}{name}"
        if isinstance(each, Mapping):
            yield from _leaves(each, f"{key}.")
        else:
            yield key, each


# Names


def names(sides: Sequence[Side]) -> list[str]:
    """A short name for each sweep, by what differs between them; no two are equal.

    Card, model or quantization, and version of the engine where these differ; the folder's name
    where they do not tell all apart; else the folder.
    """
    facets = [_facet(sides, tell) for tell in _FACETS]
    if facets[0] is None:  # one card in two sizes
        facets[0] = _facet(sides, _card_and_memory)
    kinds = _facet(sides, lambda side: _SIMULATED if side.found.simulated else "")
    told = [facet for facet in facets if facet is not None]
    for count in range(len(told), 0, -1):
        found = [_joined(words) for words in zip(*told[:count], strict=True)]
        if max(map(len, found)) <= _NAME_MAX and _apart(found):
            return _marked(found, kinds)
    for facet in told:
        if max(map(len, facet)) <= _NAME_MAX and _apart(facet):
            return _marked(facet, kinds)
    folders = [side.folder.resolve() for side in sides]
    for tell in (_last, _two):
        if _apart(found := [_as_text(tell(each)) for each in folders]):
            return found
    return [_as_text(str(each)) for each in folders]


def _facet(sides: Sequence[Side], tell: Callable[[Side], str]) -> list[str] | None:
    """What it tells of every sweep, without what all begin with; None where all is equal."""
    told = [tell(side) for side in sides]
    if len(set(told)) == 1:
        return None
    words = [_SEPARATED.findall(each) for each in told]
    shared = 0
    while all(len(each) > shared + 1 for each in words) and (
        len({each[shared] for each in words}) == 1
    ):
        shared += 1
    return ["".join(each[shared:]) for each in words]


def _card(side: Side) -> str:
    return side.spec.card.name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def _card_and_memory(side: Side) -> str:
    return f"{_card(side)} {shortest(side.spec.card.memory_gib)} GiB"


def _version(side: Side) -> str:
    versions = [str(each.cell_part["engine"]["version"]) for each in side.identities]
    return f"{side.spec.engine.kind} {_CHANGED.join(dict.fromkeys(versions))}"


_FACETS: tuple[Callable[[Side], str], ...] = (
    _card,
    lambda side: side.spec.model.name,
    lambda side: side.spec.model.quantization or "unquantized",
    _version,
)


def _joined(words: Sequence[str]) -> str:
    """Words, each once: a model's name often ends with its quantization."""
    kept: list[str] = []
    for word in words:
        if not any(word.lower() in each.lower() for each in kept):
            kept.append(word)
    return " ".join(kept)


def _marked(found: list[str], kinds: Sequence[str] | None) -> list[str]:
    """The names, with a mark on what is simulated where not all of it is."""
    if kinds is None:
        return found
    return [
        f"{name} ({kind})" if kind and kind not in name.lower() else name
        for name, kind in zip(found, kinds, strict=True)
    ]


def _apart(found: Sequence[str]) -> bool:
    return all(found) and len({each.lower() for each in found}) == len(found)


def _last(folder: Path) -> str:
    return folder.name


def _two(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _as_text(path: str) -> str:
    """A path whose bytes may be no letters of the locale, in letters; different ones stay so."""
    return os.fsencode(path).decode(errors="backslashreplace")
