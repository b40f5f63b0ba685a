"""What a sweep is recognised by: model, card, engine, fixed arguments, workload.

Secrets are no part of it, and never written down: with another token it is the same sweep.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import digest
from vllm_frontier.launch.environment import MASK, is_secret, mask_forms, mask_secrets
from vllm_frontier.measure.task import load_task
from vllm_frontier.spec import ModelSpec, SweepIdentity, SweepSpec, WorkloadSpec

# Enough of a weight file to tell two trainings of one architecture apart, without reading it.
_SAMPLE_BYTES = 1 << 20

WORKLOAD_KEYS = ("tasks", "repeats", "max_tokens", "temperature", "thinking", "prefill_tokens")
"""What decides what is measured; the other keys of `workload` decide how often, and how long it
may take."""

# Inside a longer text: NAME=value, "name": "value", ?name=value, --name value.
_NAMED = re.compile(
    r"""(?P<name>(?P<option>--)?[A-Za-z_][\w.-]*)
        (?:["']?\s*[=:]\s*|(?(option)\s+|(?!)))
        (?P<quote>["'])?(?P<value>(?(quote)[^"']*|[^\s"',;{}&]+))""",
    re.VERBOSE,
)
_PLACEHOLDER = re.compile(r"\{\w+\}")
_ENVIRONMENT = "engine.env."
# Where vLLM itself looks for a secret that has another name as an argument.
_VARIABLES = {"API_KEY": "VLLM_API_KEY"}


def identify(spec: SweepSpec, engine_version: str) -> SweepIdentity:
    """The identity of a sweep that runs on an engine of this version."""
    return SweepIdentity(
        cell_part=without_secrets(
            {
                "model": _model(spec.model),
                "card": {"name": spec.card.name, "memory_gib": spec.card.memory_gib},
                "engine": {"kind": spec.engine.kind, "version": engine_version},
                "arguments": {
                    "model": dict(spec.model.args),
                    "engine": dict(spec.engine.args),
                    "env": dict(spec.engine.env),
                    "command": spec.engine.command,
                    "described_card": _described_card(spec),
                    "tensor_parallel": spec.engine.tensor_parallel,
                    "reserved_gib": spec.card.reserved_gib,
                },
            }
        ),
        workload=workload_digest(spec.workload),
    )


def without_secrets(document: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, or a part of one, as it may be written down: secrets read `***`.

    Secret is what `launch.environment.mask_secrets` takes for it: by the name of a key, of a
    variable or of an option, at any depth and inside of texts, or by its form.
    """
    return {str(name): _masked(value, str(name)) for name, value in document.items()}


def with_secrets(document: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The reverse of `without_secrets`, as far as an environment has what is missing.

    A value of `engine.env` comes from the variable of the same name, an argument from the
    variable of its name in capitals (`hf_token`: `HF_TOKEN`), and `api_key` from `VLLM_API_KEY`.

    Raises:
        ConfigError: a variable is not set, or the configuration does not say which it is.
    """
    return {
        str(name): _filled(value, str(name), str(name), environment)
        for name, value in document.items()
    }


def _masked(value: Any, name: str) -> Any:
    if is_secret(name) and not isinstance(value, bool) and value not in (None, "", [], {}):
        return MASK
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        if value and all(isinstance(each, str) for each in value):
            value = mask_secrets(list(value))
        return [_masked(each, "") for each in value]
    return _masked_text(value) if isinstance(value, str) else value


def _masked_text(text: str) -> str:
    # A header first: its value is more than the one word that follows its name.
    text = _with_named(mask_forms(text), lambda name, value: MASK)
    try:
        words = shlex.split(text)
    except ValueError:  # no command: a quotation mark without its partner
        words = [text]
    masked = [
        word if _PLACEHOLDER.fullmatch(word) else hidden
        for word, hidden in zip(words, mask_secrets(words), strict=True)
    ]
    if masked == words:
        return text
    # As a command it is the same, also where it is quoted in another way.
    return shlex.join(masked) if len(masked) > 1 else masked[0]


def _with_named(text: str, replace: Callable[[str, str], str]) -> str:
    """A text in which every value with the name of a secret is replaced."""
    pieces, position = [], 0
    while found := _NAMED.search(text, position):
        if is_secret(found["name"]):
            pieces.append(text[position : found.start("value")])
            pieces.append(replace(found["name"], found["value"]))
            position = found.end("value")
        else:
            # Its value may begin with another name.
            pieces.append(text[position : found.end("name")])
            position = found.end("name")
    return "".join(pieces) + text[position:]


def _filled(value: Any, key: str, name: str, environment: Mapping[str, str]) -> Any:
    """A value of the key `key` with its secrets; `name` is what they are called."""
    if isinstance(value, Mapping):
        return {
            str(each): _filled(inner, f"{key}.{each}", str(each), environment)
            for each, inner in value.items()
        }
    if isinstance(value, list):
        before = ["", *(each if isinstance(each, str) else "" for each in value)]
        return [
            _filled(each, key, option or name, environment)
            for each, option in zip(value, before, strict=False)
        ]
    if not isinstance(value, str) or MASK not in value:
        return value
    if key.startswith(_ENVIRONMENT):
        return _secret(key, name, environment)
    if value == MASK:
        return _secret(key, _variable(name), environment)
    return _filled_text(value, key, environment)


def _filled_text(text: str, key: str, environment: Mapping[str, str]) -> str:
    def fill(name: str, value: str) -> str:
        return _secret(key, _variable(name), environment) if value == MASK else value

    filled = _with_named(text, fill)
    if MASK in filled:
        raise ConfigError(
            f"{key} holds a secret that was not written down: give it again, with "
            "`vllm-frontier run SWEEP KEY=VALUE --out DIR`"
        )
    return filled


def _variable(name: str) -> str:
    plain = name.lstrip("-").replace("-", "_").upper()
    return _VARIABLES.get(plain, plain)


def _secret(key: str, variable: str, environment: Mapping[str, str]) -> str:
    value = environment.get(variable)
    if not value:
        raise ConfigError(
            f"{key} holds a secret that was not written down: set the variable {variable}, or "
            "give it again with `vllm-frontier run SWEEP KEY=VALUE --out DIR`"
        )
    return value


def _model(model: ModelSpec) -> dict[str, Any]:
    speculation = model.speculation
    drafter = _source(speculation.model) if speculation.model else None
    return {
        **_source(model.id),
        "revision": model.revision,
        "speculation": {
            "method": speculation.method,
            "drafter": drafter,
            "args": dict(speculation.args),
        },
    }


def _source(model_id: str) -> dict[str, Any]:
    """A hub id as it is; a folder by its name and fingerprint, so that it may be moved."""
    folder = Path(model_id)
    if not folder.is_dir():
        return {"id": model_id, "fingerprint": None}
    return {"id": folder.name, "fingerprint": fingerprint(folder)}


def fingerprint(folder: Path) -> str:
    """A digest of a model folder: config, weight index, and samples of each weight file."""
    found = hashlib.sha256()
    for name in ("config.json", "model.safetensors.index.json"):
        path = folder / name
        found.update(name.encode() + (path.read_bytes() if path.is_file() else b"-"))
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        found.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            found.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            found.update(file.read(_SAMPLE_BYTES))
    return found.hexdigest()[:16]


def _described_card(spec: SweepSpec) -> str | None:
    """A digest of what decides results on a simulated card; faults and waiting times do not."""
    if spec.engine.kind != "simulated":
        return None
    card = dataclasses.asdict(load_card(spec.engine.card_file))
    return digest({name: value for name, value in card.items() if name not in ("faults", "time")})


def workload_digest(workload: WorkloadSpec) -> str:
    """The identity of what is measured: its settings, and the content of its tasks.

    Raises:
        ConfigError: a task cannot be loaded.
    """
    tasks = {name: load_task(name).digest for name in workload.tasks}
    told = {name: getattr(workload, name) for name in WORKLOAD_KEYS}
    return digest({**told, "tasks": tasks})
