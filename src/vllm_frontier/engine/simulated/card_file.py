"""Card files: finding, reading and checking them.

A card file is YAML. Bundled ones lie in `conf/simulated/` and are named without ending; any
other is named by its path. What is wrong with a file is told in one line that names the key.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from vllm_frontier.engine.simulated.card import (
    SPOILING,
    CardFigures,
    Fault,
    MemoryFigures,
    ModelFigures,
    SimulatedCard,
    SpeedFigures,
    StepFigures,
    TimeFigures,
)
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import BUILT_IN_AXES
from vllm_frontier.shipped import shipped

T = TypeVar("T")

DEFAULT_CARD = "rtx5090-qwen3.8-27b-nvfp4"

FAULT_PHASES = (
    *("spawn", "configure", "load", "profile", "allocate_kv", "capture_graphs", "warm_up"),
    *("ready", "fill", "measure", "stop"),
)
_ANY_PHASE = FAULT_PHASES[:-1]
# kind -> the phases it can happen in
FAULT_KINDS: Mapping[str, tuple[str, ...]] = {
    "crash": _ANY_PHASE,
    "hang": FAULT_PHASES,
    "exit": _ANY_PHASE,
    "kill": _ANY_PHASE,
    "oom": ("load", "profile", "capture_graphs", "warm_up", "fill", "measure"),
    "port": ("spawn",),
    "refuse": ("fill", "measure"),
    "error": ("fill", "measure"),
    "contended": ("profile",),
    **dict.fromkeys(SPOILING, ("measure",)),
}

_BYTES_MAX = 2**20  # the longest of the bundled files has some kB
# PyYAML lets through whatever its constructors raise: KeyError for `!!bool abc`, say.
_UNREADABLE = (
    *(OSError, yaml.YAMLError, RecursionError),
    *(ValueError, ArithmeticError, LookupError, AttributeError, TypeError),
)
# Beyond these figures speeds, times and numbers of tokens would overflow.
_LEAST, _MOST = 1e-9, 1e9
_LEAST_OF: Mapping[str, float] = {
    "card.total_gib": 1e-3,
    "memory.kv_per_1k_tokens": 1e-6,
    "speed.prefill_tok_s": 1e-3,
    "speed.step_ms.eager": 1e-6,
    "speed.step_ms.graphs": 1e-6,
}
_MOST_OF: Mapping[str, float] = {
    "card.total_gib": 1e6,
    "memory.kv_per_1k_tokens": 1e6,
    "memory.block_tokens": 1e6,
    "time.scale": 5.0,
}


class _Short(reprlib.Repr):
    """What stands in a file, short enough for one line, however long or deeply nested it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 2, 80, 80

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write out a number of thousands of digits."""
        return repr(x) if x.bit_length() <= 128 else f"a number of {x.bit_length()} bits"


_shown = _Short().repr


def card_folder() -> Path:
    """The folder of the bundled card files, in an installed package or in a checkout."""
    return shipped("conf") / "simulated"


def bundled_cards() -> tuple[str, ...]:
    """Names of the bundled card files, sorted."""
    return tuple(sorted(path.stem for path in card_folder().glob("*.yaml")))


def find_card(name_or_path: str | None) -> Path:
    """The file behind a card's name or path; None is the default card.

    Raises:
        ConfigError: there is no such card; the text names those there are.
    """
    name = name_or_path or DEFAULT_CARD
    bundled = card_folder() / f"{name}.yaml"
    try:
        if "/" not in name and bundled.is_file():
            return bundled
        path = Path(name).expanduser()
        if path.is_file():
            return path
    except (OSError, RuntimeError) as error:  # not readable, too long, no such user
        reason = getattr(error, "strerror", None) or f"{name} names no user's home"
        raise ConfigError(f"no simulated card {_shown(name)}: {reason}") from None
    known = bundled_cards()
    raise ConfigError(
        f"no simulated card {_shown(name)}: neither a file nor one of {', '.join(known)}"
        f"{_nearest(name, known)}"
    )


def load_card(name_or_path: str | None = None) -> SimulatedCard:
    """Read and check a card file; None is the default card.

    Raises:
        ConfigError: the file is missing, is not YAML, or says something impossible.
    """
    path = find_card(name_or_path)
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
        if len(content) > _BYTES_MAX:
            raise ConfigError(f"card file {path} is larger than 1 MiB")
        data = yaml.safe_load(content.decode("utf-8"))
    except _UNREADABLE as error:
        raise ConfigError(f"card file {path} cannot be read: {_reason(error)}") from error
    if data is None:
        raise ConfigError(f"card file {path} is empty")
    return parse_card(data, str(path))


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, OSError | UnicodeDecodeError | yaml.YAMLError):
        return " ".join(str(error).split())
    return f"a value is not what its form or its tag says ({' '.join(str(error).split())[:80]})"


def parse_card(data: object, where: str) -> SimulatedCard:
    """Check the content of a card file; `where` begins the text of an error.

    Raises:
        ConfigError: a key is missing, unknown or has an impossible value.
    """
    top = _mapping(data, where)
    names = ("kind", "card", "model", "memory", "speed", "time", "faults")
    _known_keys(top, names, where)
    if top.get("kind") != "simulated":
        raise ConfigError(f"{where}: kind must be simulated, not {_shown(top.get('kind'))}")
    speed = _mapping(top.get("speed"), f"{where}: speed")
    result = SimulatedCard(
        card=_section(CardFigures, top.get("card"), f"{where}: card"),
        model=_section(ModelFigures, top.get("model"), f"{where}: model"),
        memory=_section(MemoryFigures, top.get("memory"), f"{where}: memory"),
        speed=_section(
            SpeedFigures,
            speed
            | {
                name: _section(StepFigures, speed[name], f"{where}: speed.{name}")
                for name in ("step_ms", "step_ms_per_depth")
                if name in speed
            }
            | {"acceptance": _acceptance(speed.get("acceptance"), f"{where}: speed.acceptance")},
            f"{where}: speed",
        ),
        time=_section(
            TimeFigures, {} if top.get("time") is None else top["time"], f"{where}: time"
        ),
        faults=_faults(top.get("faults"), f"{where}: faults"),
    )
    _check_whole(result, where)
    return result


def _section(kind: type[T], data: object, where: str) -> T:
    """Fill a dataclass from a mapping, checking names and the types of plain values."""
    values = _mapping(data, where)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    _known_keys(values, fields, where)
    for name, field in fields.items():
        if name not in values:
            if field.default is dataclasses.MISSING:
                raise ConfigError(f"{where}.{name} is missing")
        else:
            values[name] = _plain(values[name], str(field.type), f"{where}.{name}")
    return kind(**values)


def _plain(value: Any, annotation: str, where: str) -> Any:
    if annotation == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"{where} must be true or false, not {_shown(value)}")
    elif annotation == "str":
        if not isinstance(value, str) or not value or not value.isprintable():
            raise ConfigError(f"{where} must be a text of one line, not {_shown(value)}")
    elif annotation == "str | None":
        return None if value is None else _plain(value, "str", where)
    elif annotation in ("int", "float"):
        wanted = (int,) if annotation == "int" else (int, float)
        if isinstance(value, bool) or not isinstance(value, wanted):
            what = "a whole number" if annotation == "int" else "a number"
            raise ConfigError(f"{where} must be {what}, not {_shown(value)}")
        if not 0 <= value < float("inf"):
            raise ConfigError(f"{where} must not be negative or infinite, but is {_shown(value)}")
        if value > _MOST:
            raise ConfigError(f"{where} must be at most {_MOST:g}, but is {_shown(value)}")
        return float(value) if annotation == "float" else value
    return value


def _acceptance(data: object, where: str) -> dict[str, tuple[float, ...]]:
    by_task = _mapping(data, where)
    if not by_task:
        raise ConfigError(f"{where} must name at least one task")
    result: dict[str, tuple[float, ...]] = {}
    for task, shares in by_task.items():
        if not isinstance(shares, list):
            raise ConfigError(f"{where}.{task} must be a list of shares, not {_shown(shares)}")
        figures = tuple(_plain(share, "float", f"{where}.{task}") for share in shares)
        falling = all(a >= b for a, b in itertools.pairwise(figures))
        if not falling or any(share > 1 for share in figures):
            raise ConfigError(
                f"{where}.{task} must fall from at most 1: the share of drafts whose first n "
                "tokens were all accepted"
            )
        result[task] = figures
    return result


def _faults(data: object, where: str) -> tuple[Fault, ...]:
    if data is None:
        return ()
    if not isinstance(data, list):
        raise ConfigError(f"{where} must be a list, not {_shown(data)}")
    return tuple(_fault(item, f"{where}[{index}]") for index, item in enumerate(data))


def _fault(data: object, where: str) -> Fault:
    values = _mapping(data, where)
    _known_keys(values, ("when", "at", "kind", "times"), where)
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in FAULT_KINDS:
        raise ConfigError(
            f"{where}.kind must be one of {', '.join(FAULT_KINDS)}, not {_shown(kind)}"
        )
    phases = FAULT_KINDS[kind]
    at = values.get("at", phases[0] if len(phases) == 1 else None)
    if at is None:
        raise ConfigError(f"{where}.at is missing: one of {', '.join(phases)}")
    if not isinstance(at, str) or at not in phases:
        raise ConfigError(f"{where}.at must be one of {', '.join(phases)}, not {_shown(at)}")
    times = values.get("times")
    if times is not None and (
        isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= _MOST
    ):
        raise ConfigError(f"{where}.times must be a whole number from 1, not {_shown(times)}")
    if times is not None and kind in SPOILING:
        raise ConfigError(f"{where}.times has no meaning for {kind}, which lasts")
    when = {} if values.get("when") is None else _mapping(values["when"], f"{where}.when")
    axes = {name: _axis_values(name, value, f"{where}.when.{name}") for name, value in when.items()}
    return Fault(kind=kind, at=at, when=axes, times=times)


def _axis_values(name: str, value: Any, where: str) -> Any:
    """The value, or the list of values, of an axis for which a fault is meant."""
    if isinstance(value, list):
        return [_axis_value(name, each, where) for each in value]
    return _axis_value(name, value, where)


def _axis_value(name: str, value: Any, where: str) -> Any:
    if name == "graphs":
        words = {"on": True, "true": True, "off": False, "false": False}
        value = words.get(value.lower(), value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise ConfigError(f"{where} must be true or false, not {_shown(value)}")
    elif name in BUILT_IN_AXES:
        return _plain(value, "int" if isinstance(value, int) else "float", where)
    elif not isinstance(value, bool | int | float | str):
        raise ConfigError(f"{where} must be a plain value or a list of them, not {_shown(value)}")
    elif isinstance(value, int | float) and not abs(value) < 2**63:
        raise ConfigError(f"{where} must be a number within 64 bits, not {_shown(value)}")
    return value


def _check_whole(card: SimulatedCard, where: str) -> None:
    """Check what no single value shows."""
    for name, value in (
        ("card.total_gib", card.card.total_gib),
        ("model.max_context", card.model.max_context),
        ("memory.kv_per_1k_tokens", card.memory.kv_per_1k_tokens),
        ("memory.block_tokens", card.memory.block_tokens),
        ("speed.step_ms.eager", card.speed.step_ms.eager),
        ("speed.step_ms.graphs", card.speed.step_ms.graphs),
        ("speed.prefill_tok_s", card.speed.prefill_tok_s),
        ("time.scale", card.time.scale),
    ):
        if value <= 0:
            raise ConfigError(f"{where}: {name} must be above 0")
        least, most = _LEAST_OF.get(name, _LEAST), _MOST_OF.get(name, _MOST)
        if not least <= value <= most:
            raise ConfigError(
                f"{where}: {name} must be between {least:g} and {most:g}, but is {value:g}"
            )
    if card.card.in_use_gib >= card.card.total_gib:
        raise ConfigError(f"{where}: card.in_use_gib must be below card.total_gib")


def _mapping(data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        told = "is missing" if data is None else f"must be a mapping, not {_shown(data)}"
        raise ConfigError(f"{where} {told}")
    return {name if isinstance(name, str) else _shown(name): value for name, value in data.items()}


def _known_keys(values: Iterable[str], known: Iterable[str], where: str) -> None:
    names = list(known)
    for name in values:
        if name not in names:
            raise ConfigError(f"{where} has no key {_shown(name)}{_nearest(name, names)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
