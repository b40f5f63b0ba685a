"""Checks of a composed configuration that its types cannot express.

Each check raises ConfigError with one line that names the key, says what is wrong and what
would be right.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from vllm_frontier.characters import printable, unprintable
from vllm_frontier.config_schema import SweepConf
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import BUILT_IN_AXES, Axis, Grid, Value
from vllm_frontier.identity import without_secrets
from vllm_frontier.launch.environment import is_secret, mask_forms, mask_secrets
from vllm_frontier.measure.task import load_task, needs_tokens

CARD_KINDS = ("nvidia", "cpu", "simulated")
ENGINE_KINDS = ("vllm", "vllm-cpu", "simulated")
METHODS = ("mtp", "ngram", "eagle3", "draft_model")
# vLLM arguments that the built-in axes or the launch itself set.
OWNED_ARGUMENTS = {
    "max_model_len": "grid.context",
    "gpu_memory_utilization": "grid.utilization",
    "kv_cache_memory_bytes": "grid.utilization",
    "enforce_eager": "grid.graphs",
    "speculative_config": "grid.depth and model.speculation",
    "num_speculative_tokens": "grid.depth",
    "tensor_parallel_size": "engine.tensor_parallel",
    "model": "model.id",
    "revision": "model.revision",
    "served_model_name": "model.name",
    "port": None,
    "host": None,
    "api_key": None,
}
# Beyond these nothing that exists can be meant, and numbers that follow from them overflow.
DEPTH_MAX, CONTEXT_MAX = 1024, 2**31
_WHOLE_BITS = 63
_SECONDS_MAX = 1e9
_TIMES_MAX = 1000
_TEMPERATURE_MAX = 100  # far above what leaves any text readable
_GIB_MAX = 1e6
# Values that nothing is named by, such as a chat template or a certificate.
_HANDED_ON = (
    "engine.args.",
    "engine.env.",
    "engine.command",
    "model.args.",
    "model.speculation.args.",
)


def check_texts(conf: SweepConf) -> None:
    """Every text can be printed; only values that are handed on may have several lines."""
    for key in ("model.name", "card.name"):
        section, name = key.split(".")
        if getattr(getattr(conf, section), name) == "":
            raise ConfigError(f"{key} is '', but must be a text of one line")
    for key, value in _texts("", dataclasses.asdict(conf)):
        found = unprintable(value, lines=key.startswith(_HANDED_ON))
        if found is not None:
            raise ConfigError(
                f"{printable(key)} is {value[:60]!a}, but must be a text of one line without "
                f"control characters: it has {found}"
            )


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """The texts in a value, names of keys included, each with its key; lists have one key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"a name in {key}", str(name)
            yield from _texts(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(key, inner)
    elif isinstance(value, str):
        yield key, value


def check_figures(conf: SweepConf) -> None:
    """Every number of a configuration, wherever it stands, can be stored."""
    for key, value in _figures("", dataclasses.asdict(conf)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} has {_show(value)}, but must be a finite number")
        if isinstance(value, int) and value.bit_length() > _WHOLE_BITS:
            raise ConfigError(f"{key} has a whole number that does not fit into 64 bits")


def _figures(key: str, value: Any) -> Iterator[tuple[str, int | float]]:
    """The numbers in a value, each with its key; lists have one key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _figures(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _figures(key, inner)
    elif isinstance(value, int | float):
        yield key, value


def check_grid(conf: SweepConf) -> Grid:
    """The grid of a configuration, every axis and rule checked."""
    grid = conf.grid
    axes: dict[str, Sequence[Any]] = {
        "depth": grid.depth,
        "context": grid.context,
        "graphs": grid.graphs,
        "utilization": grid.utilization,
    }
    for name, values in axes.items():
        _check_values(f"grid.{name}", values)
    _each("grid.depth", grid.depth, lambda v: v >= 0, "0 (no speculation) or more tokens a step")
    _each("grid.depth", grid.depth, lambda v: v <= DEPTH_MAX, f"at most {DEPTH_MAX}")
    _each("grid.context", grid.context, lambda v: v > 0, "a number of tokens above 0")
    _each("grid.context", grid.context, lambda v: v <= CONTEXT_MAX, f"at most {CONTEXT_MAX}")
    _each(
        "grid.utilization", grid.utilization, lambda v: 0 < v <= 1, "a share above 0 and at most 1"
    )
    extra = tuple(_extra_axis(name, values) for name, values in sorted(grid.extra.items()))
    known = {*axes, *grid.extra}
    exclude = tuple(_exclude_rule(i, rule, known) for i, rule in enumerate(grid.exclude))
    result = Grid(
        depth=tuple(grid.depth),
        context=tuple(grid.context),
        graphs=tuple(grid.graphs),
        utilization=tuple(grid.utilization),
        extra=extra,
        exclude=exclude,
    )
    if not result.cells():
        raise ConfigError("grid.exclude leaves no cell: remove or narrow a rule")
    return result


def check_numbers(conf: SweepConf) -> None:
    """Counts, limits and durations of all sections."""
    at_least_one: dict[str, float | None] = {
        "workload.repeats": conf.workload.repeats,
        "workload.replicates": conf.workload.replicates,
        "workload.repeats_max": conf.workload.repeats_max,
        "workload.prefill_tokens": conf.workload.prefill_tokens,
        "engine.tensor_parallel": conf.engine.tensor_parallel,
        "search.max_launches": conf.search.max_launches,
        "model.max_context": conf.model.max_context,
    }
    for key, value in at_least_one.items():
        _require(value is None or value >= 1, key, value, "1 or more")
    not_negative: dict[str, float] = {
        "workload.warmups": conf.workload.warmups,
        "workload.temperature": conf.workload.temperature,
        "schedule.retries": conf.schedule.retries,
        "search.audit": conf.search.audit,
        "search.seed": conf.search.seed,
        "card.reserved_gib": conf.card.reserved_gib,
        "card.baseline_tolerance_gib": conf.card.baseline_tolerance_gib,
        "card.drain_timeout_s": conf.card.drain_timeout_s,
    }
    for key, value in not_negative.items():
        _require(value >= 0, key, value, "0 or more")
    positive: dict[str, float | None] = {
        "card.memory_gib": conf.card.memory_gib,
        "engine.ready_timeout_s": conf.engine.ready_timeout_s,
        "engine.stop_timeout_s": conf.engine.stop_timeout_s,
        "workload.slowest_prefill_tok_s": conf.workload.slowest_prefill_tok_s,
        "workload.slowest_decode_tok_s": conf.workload.slowest_decode_tok_s,
        "workload.request_timeout_s": conf.workload.request_timeout_s,
        "workload.fill_timeout_s": conf.workload.fill_timeout_s,
        "workload.precision": conf.workload.precision,
        "search.max_hours": conf.search.max_hours,
    }
    for key, value in positive.items():
        _require(value is None or value > 0, key, value, "above 0")
    _require(
        conf.workload.max_tokens is None or conf.workload.max_tokens >= 2,
        "workload.max_tokens",
        conf.workload.max_tokens,
        "2 or more: the first token of an answer has no decode speed",
    )
    for key, value, most in (
        ("card.memory_gib", conf.card.memory_gib, _GIB_MAX),
        ("card.reserved_gib", conf.card.reserved_gib, _GIB_MAX),
        ("card.baseline_tolerance_gib", conf.card.baseline_tolerance_gib, _GIB_MAX),
        ("card.drain_timeout_s", conf.card.drain_timeout_s, _SECONDS_MAX),
        ("engine.ready_timeout_s", conf.engine.ready_timeout_s, _SECONDS_MAX),
        ("engine.stop_timeout_s", conf.engine.stop_timeout_s, _SECONDS_MAX),
        ("workload.repeats", conf.workload.repeats, _TIMES_MAX),
        ("workload.repeats_max", conf.workload.repeats_max, _TIMES_MAX),
        ("workload.replicates", conf.workload.replicates, _TIMES_MAX),
        ("workload.precision", conf.workload.precision, 1),
        ("workload.temperature", conf.workload.temperature, _TEMPERATURE_MAX),
        ("workload.request_timeout_s", conf.workload.request_timeout_s, _SECONDS_MAX),
        ("workload.fill_timeout_s", conf.workload.fill_timeout_s, _SECONDS_MAX),
        ("search.max_hours", conf.search.max_hours, _SECONDS_MAX / 3600),
    ):
        _require(value is None or value <= most, key, value, f"at most {most:g}")
    if conf.workload.precision is not None and conf.workload.repeats_max < conf.workload.repeats:
        raise ConfigError(
            f"workload.repeats_max is {conf.workload.repeats_max}, but at least "
            f"workload.repeats ({conf.workload.repeats}) are measured: raise it, or lower these"
        )


def check_choices(conf: SweepConf) -> None:
    """Words that must come from a closed set, and what each of them needs."""
    _one_of("engine.kind", conf.engine.kind, ENGINE_KINDS)
    _one_of("card.kind", conf.card.kind, CARD_KINDS)
    _one_of("search.strategy", conf.search.strategy, ("exhaustive", "boundary"))
    _one_of("search.verify", conf.search.verify, ("all", "boundaries", "frontier"))
    _one_of("search.measure", conf.search.measure, ("frontier", "boundaries", "all"))
    method = conf.model.speculation.method
    _one_of("model.speculation.method", method, METHODS)
    if method in ("eagle3", "draft_model") and not conf.model.speculation.model:
        raise ConfigError(
            f"model.speculation.model is not set: the method {method} needs a drafter, "
            "give its folder or hub id"
        )
    pairs = {"vllm": "nvidia", "vllm-cpu": "cpu", "simulated": "simulated"}
    wanted = pairs[conf.engine.kind]
    if conf.card.kind != wanted:
        raise ConfigError(
            f"engine={conf.engine.kind} needs a card of kind {wanted}, "
            f"not {conf.card.kind}: choose another card=... or engine=..."
        )
    for section, args in (("engine.args", conf.engine.args), ("model.args", conf.model.args)):
        for name in args:
            _refuse_owned(f"{section}.{name}", name)


def check_secrets(conf: SweepConf) -> None:
    """Secrets that would stand in the command or the settings of every launch."""
    for section, values in (
        ("engine.args", conf.engine.args),
        ("engine.env", conf.engine.env),
        ("model.args", conf.model.args),
        ("model.speculation.args", conf.model.speculation.args),
        ("grid.extra", conf.grid.extra),
    ):
        _refuse_secrets(section, values)
    for key, shown in (
        ("model.name", conf.model.name),
        ("card.name", conf.card.name),
        *((f"grid.extra.{axis}", values) for axis, values in conf.grid.extra.items()),
    ):
        if without_secrets({key: shown}) != {key: shown}:
            raise ConfigError(
                f"{key} holds a secret that every table would show: keep it in a variable of your "
                "shell or in engine.env, and give a name here that tells what differs"
            )
    if conf.engine.command is not None:
        words = conf.engine.command.split()
        if mask_secrets(words) != words or mask_forms(conf.engine.command) != conf.engine.command:
            raise ConfigError(
                "engine.command holds a secret that would be written to disk with the results: "
                "set it as a variable of your shell, and pass it on by name (docker: -e HF_TOKEN)"
            )


def check_window(conf: SweepConf) -> None:
    """Every context must hold the longest task."""
    _check_values("workload.tasks", conf.workload.tasks)
    names = [load_task(task).name for task in conf.workload.tasks]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(
            f"workload.tasks has two tasks with the name {twice!r}, whose runs could not be told "
            "apart: change the `name` in one of the files"
        )
    needed = needs_tokens(conf.workload.tasks, conf.workload.max_tokens)
    short = [value for value in conf.grid.context if value < needed]
    if short:
        raise ConfigError(
            f"grid.context has {short[0]}, but the longest task needs a window of {needed} "
            "tokens: drop the value, lower workload.max_tokens, or choose other workload.tasks"
        )
    limit = conf.model.max_context
    if limit is not None and min(conf.grid.context) > limit:
        raise ConfigError(
            f"every value of grid.context is above model.max_context, which is {limit}: "
            "add a shorter one"
        )


def _extra_axis(name: str, values: Sequence[Any]) -> Axis:
    key = f"grid.extra.{name}"
    if name in BUILT_IN_AXES:
        raise ConfigError(f"{key} is a built-in axis: set grid.{name} instead")
    _refuse_owned(key, name)
    _check_values(key, values)
    _each(
        key,
        values,
        lambda v: isinstance(v, bool | int | float | str),
        "a plain value (text, number, true or false)",
    )
    return Axis(name, tuple(values))


def _refuse_owned(key: str, name: str) -> None:
    plain = name.replace("-", "_").lstrip("_")
    if plain in OWNED_ARGUMENTS:
        owner = OWNED_ARGUMENTS[plain]
        use = f"set {owner} instead" if owner else "it is chosen for every launch"
        raise ConfigError(f"{key} cannot be set: {use}")


def _refuse_secrets(key: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        return
    for name, inner in value.items():
        # Such as `hf_token: true`: the one that is logged in with.
        if is_secret(str(name)) and not isinstance(inner, bool | None):
            raise ConfigError(
                f"{key}.{name} would be written to disk with the results: set the secret as a "
                "variable of your shell instead, launches inherit it"
            )
        _refuse_secrets(f"{key}.{name}", inner)


def _exclude_rule(
    index: int, rule: Mapping[str, Any], known: Iterable[str]
) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    key = f"grid.exclude[{index}]"
    if not rule:
        raise ConfigError(f"{key} is empty and would exclude every cell: name an axis and a value")
    result = []
    for name, value in rule.items():
        if name not in known:
            raise ConfigError(
                f"{key} names the axis {name!r}, which the grid does not have: "
                f"it has {', '.join(sorted(known))}"
            )
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        result.append((name, tuple(_axis_value(key, name, item) for item in values)))
    return tuple(result)


def _axis_value(key: str, name: str, value: Any) -> Value:
    if name == "graphs":
        words = {"on": True, "true": True, "off": False, "false": False}
        value = words.get(str(value).lower(), value)
        if not isinstance(value, bool):
            raise ConfigError(f"{key}.{name} must be true or false, not {value!r}")
    elif name in BUILT_IN_AXES and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"{key}.{name} must be a number or a list of numbers, not {value!r}")
    result: Value = value
    return result


def _check_values(key: str, values: Sequence[Any]) -> None:
    if len(values) == 0:
        raise ConfigError(f"{key} is empty: give at least one value, such as {key}=[...]")
    seen: dict[Any, Any] = {}
    for value in values:
        # 1, 1.0 and true are equal, and "1" is the same argument as 1.
        marks = {str(value), value if isinstance(value, bool | int | float) else str(value)}
        for mark in marks:
            if mark in seen:
                raise ConfigError(_repeated(key, seen[mark], value))
        seen |= dict.fromkeys(marks, value)


def _repeated(key: str, first: Any, second: Any) -> str:
    one, other = _show(first), _show(second)
    if one == other:
        return f"{key} has the value {one} twice: remove one"
    return f"{key} has {one} and {other}, which are the same value: remove one"


def _each(key: str, values: Iterable[Any], holds: Callable[[Any], bool], right: str) -> None:
    for value in values:
        _require(holds(value), key, value, right, verb="has")


def _require(ok: bool, key: str, value: Any, right: str, *, verb: str = "is") -> None:
    if not ok:
        raise ConfigError(f"{key} {verb} {_show(value)}, but must be {right}")


def _one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key} is {value!r}, but must be one of {', '.join(allowed)}")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
