"""The command line of the simulated server: vLLM's, and three options of its own.

    --simulated-card FILE     card file, a name or a path
    --simulated-state FILE    where faults are counted (see `faults`)
    --seed N                  vLLM's own; another draw of the noise

Of vLLM's arguments those that matter to a card are read; any other is accepted and only serves
to select faults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from vllm_frontier.engine.simulated.card import AUTO_CONTEXT
from vllm_frontier.grid import Cell

_UNITS = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
_SHORT = {"-sc": "speculative_config", "-tp": "tensor_parallel_size"}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; `context` None stands for the model's own length."""

    model: str = "simulated"
    served_name: str = "simulated"
    host: str = "127.0.0.1"
    port: int = 8000
    context: int | None = None
    utilization: float = 0.9
    eager: bool = False
    depth: int = 0
    method: str | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)
    prompt_details: bool = False
    prefix_caching: bool = True
    seed: int = 0
    card: str | None = None
    state: str | None = None
    other: Mapping[str, Any] = field(default_factory=dict)

    def cell(self, longest: int) -> Cell:
        """The cell that the options describe, on a model with the given longest window."""
        return Cell(
            depth=self.depth,
            context=longest if self.context is None else self.context,
            graphs=not self.eager,
            utilization=self.utilization,
        )

    def axes(self, longest: int) -> dict[str, Any]:
        """What faults may be selected by: the cell's axes and every other argument."""
        return dict(self.other) | dict(self.cell(longest).axes())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why vLLM would refuse the command line: its last line, and the exit code.

    Exit code 2 is the argument parser's; with 1 the text is that of a validation error.
    """

    text: str
    exit_code: int


class _BadValueError(Exception):
    """An argument's value is of no use; carries the parser's line."""


def parse_options(argv: Sequence[str]) -> Options | Refusal:
    """Read a command line as vLLM does."""
    given = _pairs(argv)
    try:
        speculation = _json(given, "speculative_config")
        options = Options(
            model=str(given.pop("model", "simulated")),
            served_name=str(given.pop("served_model_name", "")),
            host=str(given.pop("host", "127.0.0.1")),
            port=_integer(given, "port", 8000),
            context=_context(given),
            utilization=_number(given, "gpu_memory_utilization", 0.9),
            eager=_flag(given, "enforce_eager", default=False),
            depth=int(speculation.get("num_speculative_tokens") or 0),
            method=speculation.get("method"),
            speculation=speculation,
            prompt_details=_flag(given, "enable_prompt_tokens_details", default=False),
            prefix_caching=_flag(given, "enable_prefix_caching", default=True),
            seed=_integer(given, "seed", 0),
            card=given.pop("simulated_card", None),
            state=given.pop("simulated_state", None),
            other={name: _plain(value) for name, value in given.items()},
        )
    except _BadValueError as error:
        return Refusal(f"api_server.py: error: {error}", 2)
    return _validated(options, speculation)


def _validated(options: Options, speculation: Mapping[str, Any]) -> Options | Refusal:
    """Refuse what vLLM's configuration classes refuse."""
    wrong: tuple[str, str, str] | None = None
    if speculation and options.depth <= 0:
        wrong = ("SpeculativeConfig", "num_speculative_tokens", "greater than 0")
    elif not options.utilization > 0:
        wrong = ("CacheConfig", "gpu_memory_utilization", "greater than 0")
    elif options.utilization > 1:
        wrong = ("CacheConfig", "gpu_memory_utilization", "less than or equal to 1")
    elif options.context is not None and options.context < 1 and options.context != AUTO_CONTEXT:
        wrong = ("ModelConfig", "max_model_len", "greater than 0")
    if wrong is None:
        return options
    section, name, rule = wrong
    kind = "less_than_equal" if "less" in rule else "greater_than"
    return Refusal(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {section}\n{name}\n"
        f"  Input should be {rule} [type={kind}]",
        1,
    )


def _pairs(argv: Sequence[str]) -> dict[str, Any]:
    """Names in snake case with their texts; True for a flag without a value."""
    given: dict[str, Any] = {}
    name: str | None = None
    for word in argv:
        if word.startswith("--") or word in _SHORT:
            name, equals, value = word.partition("=")
            name = _SHORT.get(name, name[2:].replace("-", "_"))
            given[name] = value if equals else True
            name = None if equals else name
        elif name is None:
            given.setdefault("model", word)
        else:
            given[name] = word
            name = None
    return given


def _flag(given: dict[str, Any], name: str, *, default: bool) -> bool:
    if given.pop(f"no_{name}", None) is not None:
        given.pop(name, None)
        return False
    return bool(given.pop(name, default))


def _argument(name: str) -> str:
    return "--" + name.replace("_", "-")


def _integer(given: dict[str, Any], name: str, default: int) -> int:
    text = given.pop(name, default)
    try:
        return int(text)
    except ValueError as error:
        raise _BadValueError(f"argument {_argument(name)}: invalid int value: {text!r}") from error


def _number(given: dict[str, Any], name: str, default: float) -> float:
    text = given.pop(name, default)
    try:
        return float(text)
    except ValueError as error:
        message = f"argument {_argument(name)}: Value {text} cannot be converted to float"
        raise _BadValueError(message) from error


def _context(given: dict[str, Any]) -> int | None:
    text = given.pop("max_model_len", None)
    if text is None:
        return None
    if text == "auto":
        return AUTO_CONTEXT
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmM]?)", str(text))
    if match is None:
        raise _BadValueError(f"argument --max-model-len: invalid value: {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def _json(given: dict[str, Any], name: str) -> dict[str, Any]:
    text = given.pop(name, None)
    if text is None:
        return {}
    try:
        value = json.loads(str(text))
    except json.JSONDecodeError as error:
        message = (
            f"argument {_argument(name)}: Value {text} cannot be converted to <function loads>."
        )
        raise _BadValueError(message) from error
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> Any:
    """A text as the value it stands for, so that `when: {max_num_seqs: 4}` finds "4"."""
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError:
        return value
