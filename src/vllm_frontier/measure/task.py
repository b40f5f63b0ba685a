"""Tasks: what a model is asked to write while its speed is measured.

A task is one YAML file with a name, a limit on the answer and several variants of the prompt.
Repeats use different variants, so that a prefix cache never helps by accident, and the same
repeat asks the same in every cell, so that cells can be compared.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from vllm_frontier.characters import unprintable
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import digest

# A byte-level vocabulary of 2048 entries makes at most one token of so many bytes of text.
BYTES_PER_TOKEN_MIN = 1.6
# What a chat template may put around a prompt, and the line before a repeated variant.
TEMPLATE_TOKENS = 128

_FIELDS = frozenset({"name", "max_tokens", "prompt_tokens_max", "variants"})


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of text that is asked for.

    Attributes:
        name: the word of the column `task`.
        max_tokens: limit on the answer, tokens.
        prompt_tokens_max: upper bound on the length of a prompt in any tokenizer, chat template
            included, tokens.
        variants: prompts that ask for the same kind of text.
    """

    name: str
    max_tokens: int
    prompt_tokens_max: int
    variants: tuple[str, ...]

    def prompt(self, repeat: int) -> str:
        """The prompt of a repeat (counted from 0), the same whenever it is asked for.

        Beyond the last variant a line with the number of the repeat comes first, so that no two
        repeats begin alike.
        """
        text = self.variants[repeat % len(self.variants)]
        return text if repeat < len(self.variants) else f"Request {repeat} of a series.\n\n{text}"

    @property
    def digest(self) -> str:
        """Identity of the content: 16 hex digits that change with any part of the task."""
        return digest([self.name, self.max_tokens, list(self.variants)])


def known_tasks() -> tuple[str, ...]:
    """Names of the bundled tasks, sorted."""
    names = (entry.name for entry in _bundled().iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def load_task(name_or_path: str) -> Task:
    """Read a task: a bundled one by its name, or a YAML file by its path.

    Raises:
        ConfigError: there is no such task, or the file does not describe one.
    """
    if name_or_path in known_tasks():
        return _parse(_bundled().joinpath(f"{name_or_path}.yaml"), name_or_path)
    path = Path(name_or_path)
    if path.is_file():
        return _parse(path, name_or_path)
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        raise ConfigError(f"task file {name_or_path!r} does not exist")
    known = ", ".join(known_tasks())
    raise ConfigError(
        f"unknown task {name_or_path!r}: give the path of a YAML file or one of {known}"
    )


def needs_tokens(tasks: Sequence[str], max_tokens: int | None = None) -> int:
    """The shortest window that every task fits, tokens; 0 without tasks.

    Args:
        tasks: names of bundled tasks or paths of task files.
        max_tokens: limit on the answer for all tasks; None leaves each its own.

    Raises:
        ConfigError: a task cannot be loaded.
    """
    loaded = [load_task(name) for name in tasks]
    windows = (task.prompt_tokens_max + (max_tokens or task.max_tokens) for task in loaded)
    return max(windows, default=0)


def _bundled() -> Traversable:
    return importlib.resources.files("vllm_frontier.measure").joinpath("tasks")


def _parse(source: Traversable, shown: str) -> Task:
    try:
        fields = yaml.safe_load(source.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where is not None else ""
        raise ConfigError(f"task {shown!r} is not valid YAML{line}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"task {shown!r} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"task {shown!r} must be a mapping with name, max_tokens and variants")
    unknown = sorted(str(key) for key in fields if key not in _FIELDS)
    if unknown:
        known = ", ".join(sorted(_FIELDS))
        raise ConfigError(f"task {shown!r} has an unknown key {unknown[0]!r}: known are {known}")
    variants = _variants(fields.get("variants"), shown)
    longest = max(len(text.encode()) for text in variants)
    return Task(
        name=_name(fields.get("name"), shown),
        max_tokens=_positive(fields.get("max_tokens"), "max_tokens", shown),
        prompt_tokens_max=_positive(
            fields.get("prompt_tokens_max", int(longest / BYTES_PER_TOKEN_MIN) + TEMPLATE_TOKENS),
            "prompt_tokens_max",
            shown,
        ),
        variants=variants,
    )


def _name(value: Any, shown: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"task {shown!r} needs a name")
    found = unprintable(value.strip())
    if found is not None:
        raise ConfigError(
            f"task {shown!r} has the name {value.strip()[:60]!a}, but must have one of one line "
            f"without control characters: it has {found}"
        )
    return value.strip()


def _positive(value: Any, key: str, shown: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"task {shown!r} needs {key} as a whole number above 0, not {value!r}")
    return value


def _variants(value: Any, shown: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"task {shown!r} needs variants, a list of prompts")
    if not all(isinstance(text, str) and text.strip() for text in value):
        raise ConfigError(f"task {shown!r} has a variant that is not a text")
    if any("\ud800" <= letter <= "\udfff" for text in value for letter in text):
        raise ConfigError(f"task {shown!r} has a variant with half of a surrogate pair in it")
    if len(set(value)) < len(value):
        raise ConfigError(f"task {shown!r} has the same variant twice")
    return tuple(value)
