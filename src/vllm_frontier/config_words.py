"""What is said of a wrong configuration: one line, with the nearest key or the right form."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from vllm_frontier.config_schema import GROUPS, SweepConf
from vllm_frontier.errors import ConfigError


def known_keys() -> tuple[set[str], set[str]]:
    """All keys that can be set, and those of them that are open mappings."""
    known: set[str] = set()
    open_mappings: set[str] = set()
    for key, is_mapping in _walk(SweepConf, ""):
        known.add(key)
        if is_mapping:
            open_mappings.add(key)
    return known, open_mappings


def _walk(node: type[Any], prefix: str) -> Iterator[tuple[str, bool]]:
    for item in dataclasses.fields(node):
        key = f"{prefix}{item.name}"
        inner: Any = item.default_factory
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            yield from _walk(inner, f"{key}.")
        else:
            yield key, str(item.type).startswith("Dict")


def unknown_key(key: str) -> ConfigError:
    """A key that does not exist, with the nearest that does."""
    known, _ = known_keys()
    candidates = [*sorted(known), *GROUPS]
    near = difflib.get_close_matches(key, candidates, n=1, cutoff=0.5)
    if not near:
        last = key.rsplit(".", 1)[-1]
        near = [name for name in candidates if name.rsplit(".", 1)[-1] == last][:1]
    hint = f"did you mean {near[0]!r}?" if near else f"sections are {', '.join(GROUPS)}"
    return ConfigError(f"unknown key {key!r}: {hint}")


def removed(key: str) -> ConfigError:
    """A key that every sweep has, taken out with `~`."""
    if key in GROUPS:
        right = f"choose another with {key}=NAME"
    else:
        kind = str(_field(key).type)
        value = "null" if kind.startswith("Optional") else "[...]" if "List" in kind else "VALUE"
        right = f"set {key}={value} instead"
        if kind.startswith("Dict"):
            right = f"take out what is in it, as in ~{key}.NAME"
    return ConfigError(f"~{key} cannot be taken out of a sweep: {right}")


def _field(key: str) -> dataclasses.Field[Any]:
    """The field of the schema that a known key sets."""
    node: Any = SweepConf
    *sections, name = key.split(".")
    for section in sections:
        node = _named(node, section).default_factory
    return _named(node, name)


def _named(node: Any, name: str) -> dataclasses.Field[Any]:
    return next(item for item in dataclasses.fields(node) if item.name == name)


def _example(key: str) -> str:
    """A value that the key may have: its default, where it has one."""
    item = _field(key)
    if item.default_factory is not dataclasses.MISSING:
        return str(item.default_factory()).replace("'", "").replace(" ", "")
    without = "[...]" if str(item.type).startswith("List") else "VALUE"
    return without if item.default in (None, "???") else str(item.default)


def mandatory(key: str) -> ConfigError:
    """A key that needs a value and has none."""
    examples = {
        "model.id": "a folder or a hub id, such as model.id=/models/my-model",
        "grid.context": "window lengths in tokens, such as grid.context=[8192,16384]",
        "card.name": "the name of the card, such as card.name='RTX 5090'",
        "card.memory_gib": "the card's memory, such as card.memory_gib=24",
        "model.name": "a short name for the model, such as model.name=my-model",
    }
    return ConfigError(f"{key} is not set: give {examples.get(key, 'a value')}")


def missing_option(text: str, options: Iterable[object]) -> ConfigError:
    """A file of a group that is not there; `options` are the files that are."""
    lines = text.splitlines()
    match = re.search(r"Could not find '([^']+)'", lines[0])
    wanted = match.group(1) if match else lines[0]
    group, _, option = wanted.rpartition("/")
    names = sorted(str(name) for name in options)
    near = difflib.get_close_matches(option, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = f"there are {', '.join(names)}" if names else "there is no such file"
    return ConfigError(f"there is no {group or 'config'} {option!r}: {hint}{known}")


def readable(error: Exception) -> ConfigError:
    """One line out of Hydra's and OmegaConf's chained exceptions."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    for link in chain:
        full_key = getattr(link, "full_key", None)
        if not full_key:
            continue
        text = str(link).splitlines()[0]
        return _keyed(str(full_key), text)
    text = str(error)
    match = re.match(r"You must specify '(\w+)'", text)
    if match:
        options = ", ".join(line.strip() for line in text.splitlines()[2:])
        return ConfigError(f"no {match.group(1)} is chosen: add {match.group(1)}=NAME ({options})")
    if "grid.exclude" in text:
        return _not_rules()
    return ConfigError(text.splitlines()[0])


def _not_rules() -> ConfigError:
    return ConfigError(
        "grid.exclude must be a list of rules, such as grid.exclude=[{depth: 3, graphs: true}]"
    )


def _keyed(key: str, text: str) -> ConfigError:
    """Of a key, what OmegaConf says of it in `text`."""
    if "not in" in text:
        return unknown_key(key)
    known = key in known_keys()[0]
    kind = str(_field(key).type) if known else ""
    if known and "is not Optional" in text:
        right = "leave it out, or give a value such as"
        return ConfigError(f"{key} cannot be null: {right} {key}={_example(key)}")
    if key == "grid.exclude" and "merge DictConfig with ListConfig" in text:
        return _not_rules()
    match = re.match(r"Value '(.*)' of type '.*' could not be converted to (\w+)", text)
    if match:
        wanted = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
        right = wanted.get(match.group(2), match.group(2))
        return ConfigError(f"{key}: {match.group(1)!r} is not {right}")
    if kind.startswith("List") or "is not a ListConfig" in text or "'typing.List" in text:
        text = "must be a list, such as [1,2]"
    elif kind.startswith("Dict") or "is not a DictConfig" in text or "Cannot assign" in text:
        text = "must be a mapping of keys to values"
    return ConfigError(f"{key}: {text[:1].lower()}{text[1:]}")


def odd(error: Exception) -> str:
    """Of a value that a parser could not take, in words for the user."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, OverflowError) or "integer string conversion" in str(error):
        return "a number in it is too large"
    if isinstance(error, KeyError | AttributeError):
        return "a value in it is not what its tag (!!bool, say) promises"
    return str(error).splitlines()[0] if str(error) else "a value in it is malformed"
