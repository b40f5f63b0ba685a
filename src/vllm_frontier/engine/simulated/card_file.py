"""Card files: finding, reading and checking them.

A card file is YAML. Bundled ones lie in `conf/simulated/` and are named without ending; any
other is named by its path. What is wrong with a file is told in one line that names the key.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from vllm_frontier.engine.simulated.card import (
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
}


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
    if "/" not in name and bundled.is_file():
        return bundled
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = bundled_cards()
    raise ConfigError(
        f"no simulated card {name!r}: neither a file nor one of {', '.join(known)}"
        f"{_nearest(name, known)}"
    )


def load_card(name_or_path: str | None = None) -> SimulatedCard:
    """Read and check a card file; None is the default card.

    Raises:
        ConfigError: the file is missing, is not YAML, or says something impossible.
    """
    path = find_card(name_or_path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"card file {path} cannot be read: {reason}") from error
    return parse_card(data, str(path))


def parse_card(data: object, where: str) -> SimulatedCard:
    """Check the content of a card file; `where` begins the text of an error.

    Raises:
        ConfigError: a key is missing, unknown or has an impossible value.
    """
    top = _mapping(data, where)
    names = ("kind", "card", "model", "memory", "speed", "time", "faults")
    _known_keys(top, names, where)
    if top.get("kind") != "simulated":
        raise ConfigError(f"{where}: kind must be simulated, not {top.get('kind')!r}")
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
        time=_section(TimeFigures, top.get("time") or {}, f"{where}: time"),
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
            raise ConfigError(f"{where} must be true or false, not {value!r}")
    elif annotation == "str":
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where} must be a text, not {value!r}")
    elif annotation == "str | None":
        return None if value is None else _plain(value, "str", where)
    elif annotation in ("int", "float"):
        wanted = (int,) if annotation == "int" else (int, float)
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise ConfigError(f"{where} must be a number, not {value!r}")
        if not 0 <= value < float("inf"):
            raise ConfigError(f"{where} must not be negative or infinite, but is {value}")
        return float(value) if annotation == "float" else value
    return value


def _acceptance(data: object, where: str) -> dict[str, tuple[float, ...]]:
    by_task = _mapping(data, where)
    if not by_task:
        raise ConfigError(f"{where} must name at least one task")
    result: dict[str, tuple[float, ...]] = {}
    for task, shares in by_task.items():
        if not isinstance(shares, list):
            raise ConfigError(f"{where}.{task} must be a list of shares, not {shares!r}")
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
        raise ConfigError(f"{where} must be a list, not {data!r}")
    return tuple(_fault(item, f"{where}[{index}]") for index, item in enumerate(data))


def _fault(data: object, where: str) -> Fault:
    values = _mapping(data, where)
    _known_keys(values, ("when", "at", "kind", "times"), where)
    kind = str(values.get("kind"))
    if kind not in FAULT_KINDS:
        raise ConfigError(f"{where}.kind must be one of {', '.join(FAULT_KINDS)}, not {kind!r}")
    phases = FAULT_KINDS[kind]
    at = str(values.get("at", phases[0] if len(phases) == 1 else None))
    if at not in phases:
        raise ConfigError(f"{where}.at must be one of {', '.join(phases)}, not {at!r}")
    times = values.get("times")
    if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
        raise ConfigError(f"{where}.times must be a whole number from 1, not {times!r}")
    when = _mapping(values.get("when") or {}, f"{where}.when")
    return Fault(kind=kind, at=at, when=when, times=times)


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
    if card.card.in_use_gib >= card.card.total_gib:
        raise ConfigError(f"{where}: card.in_use_gib must be below card.total_gib")


def _mapping(data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        told = "is missing" if data is None else f"must be a mapping, not {data!r}"
        raise ConfigError(f"{where} {told}")
    return {str(name): value for name, value in data.items()}


def _known_keys(values: Iterable[str], known: Iterable[str], where: str) -> None:
    names = list(known)
    for name in values:
        if name not in names:
            raise ConfigError(f"{where} has no key {name!r}{_nearest(name, names)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
