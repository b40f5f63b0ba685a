"""From YAML files and overrides to a frozen, validated `SweepSpec` (the only Hydra import).

A sweep is a primary config of Hydra: a name in sweeps/ or the path of a YAML file. Groups are
looked up beside that file, in its `conf/` folder, in `./conf`, and among the shipped ones, in
this order, so that a new model or card is a new YAML file and nothing else. Whatever is wrong
with a configuration is raised as ConfigError with one line for the user.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vllm_frontier import config_checks, config_words
from vllm_frontier.config_schema import GROUPS, SweepConf
from vllm_frontier.errors import ConfigError
from vllm_frontier.identity import with_secrets, without_secrets
from vllm_frontier.shipped import shipped
from vllm_frontier.spec import (
    CardSpec,
    EngineSpec,
    ModelSpec,
    ScheduleSpec,
    SearchSpec,
    SpeculationSpec,
    SweepSpec,
    WorkloadSpec,
)

# Reads the first card of this machine: (name, GiB, uuids); raises ConfigError without one.
CardReader = Callable[[], tuple[str, float, tuple[str, ...]]]
T = TypeVar("T")

_NAME_SHOWN_MAX = 60
_FOLDER_NAME_MAX = 200
# What YAML, Hydra and OmegaConf let through: numbers too long, brackets nested too deeply.
_ODD_VALUES = (ValueError, OverflowError, RecursionError)
_WRONG_TAGS = (KeyError, AttributeError)  # of YAML's `!!bool abc` and `!!timestamp abc`


@dataclass(frozen=True, slots=True)
class Composed:
    """A sweep and the plain dictionary it was made from (what sweep.yaml keeps)."""

    spec: SweepSpec
    document: dict[str, Any]


def ready_sweeps() -> list[str]:
    """The names of the sweeps that come with the program."""
    return sorted(path.stem for path in shipped("sweeps").glob("*.yaml"))


def compose_sweep(
    sweep: str, overrides: Sequence[str] = (), *, read_card: CardReader | None = None
) -> Composed:
    """Compose, complete and validate a sweep.

    Args:
        sweep: a name in sweeps/, or the path of a YAML file.
        overrides: `KEY=VALUE` in Hydra's override grammar.
        read_card: how `card=auto` learns the card; None where no card may be asked for.

    Raises:
        ConfigError: anything is wrong; the text is one line for the user.
    """
    path = _find_sweep(sweep)
    checked = [_check_override(override) for override in _parse(overrides)]
    composed = _compose(path, checked)
    if OmegaConf.is_missing(composed, "name"):
        composed.name = path.stem
    conf = _typed(composed)
    config_checks.check_texts(conf)
    _make_absolute(conf)
    _complete(conf, read_card)
    spec = _spec(conf)
    config_checks.check_secrets(conf)
    config_checks.check_window(conf)
    return Composed(spec=spec, document=_document(conf))


def spec_from_document(
    document: Mapping[str, Any], *, secrets: bool = True, file: Path | None = None
) -> SweepSpec:
    """The sweep that `Composed.document` describes; its task files need not be there.

    Args:
        document: as `sweep.yaml` keeps it, with `***` for secrets.
        secrets: whether to take these from this process's environment, as a launch needs them.
        file: where the document stands, which is named if something is wrong with it.

    Raises:
        ConfigError: the document is no sweep, or the environment lacks a secret.
    """
    content = with_secrets(document, os.environ) if secrets else without_secrets(document)
    try:
        return _spec(_typed(OmegaConf.create(content)))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}" if file is not None else str(error)) from None


# Composition


def _find_sweep(sweep: str) -> Path:
    path = Path(sweep)
    is_file = _usable("the name of the sweep", sweep, path.is_file)
    if path.suffix in (".yaml", ".yml") or is_file:
        if not is_file:
            raise ConfigError(f"there is no sweep file {sweep}")
        if path.suffix != ".yaml":
            raise ConfigError(f"{sweep}: the name of a sweep file ends in .yaml")
        return path.resolve()
    ready = shipped("sweeps") / f"{sweep}.yaml"
    if not ready.is_file():
        names = ready_sweeps()
        near = difflib.get_close_matches(sweep, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"there is no sweep {sweep!r}: {hint}ready sweeps are {', '.join(names)}; "
            "a file of your own is given by its path, such as ./my-sweep.yaml"
        )
    return ready


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        if "=" not in text and not text.startswith("~"):
            raise ConfigError(f"cannot read {text!r}: overrides are written KEY=VALUE")
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"cannot read the override {text!r} ({reason}): write KEY=VALUE, "
                "lists as [1,2], quotes around text with special characters"
            ) from None
        except _ODD_VALUES as error:
            raise ConfigError(
                f"cannot read the override of {text[:_NAME_SHOWN_MAX].partition('=')[0]}: "
                f"{config_words.odd(error)}"
            ) from None
        if parsed[-1].is_sweep_override():
            raise ConfigError(
                f"{text!r} gives several values without brackets: write "
                f"{parsed[-1].key_or_group}=[...]"
            )
    return parsed


def _check_override(override: Override) -> str:
    """The override as Hydra wants it, its key known to exist."""
    line = str(override.input_line)
    key = str(override.key_or_group)
    known, open_mappings = config_words.known_keys()
    if line.startswith("~") and (key in GROUPS or key in known):
        raise config_words.removed(key)
    if key in GROUPS or key == "hydra.searchpath":
        if key in GROUPS and isinstance(override.value(), dict):
            raise ConfigError(f"{key}=NAME chooses a file of conf/{key}; single keys are {key}.KEY")
        return line
    if "." in key or key == "name":
        if key in known - open_mappings:
            return line
        if any(f"{key}.".startswith(f"{mapping}.") for mapping in open_mappings):
            # Keys of an open mapping need not exist before; Hydra calls that `++`.
            return f"++{line.lstrip('+')}" if not line.startswith("~") else line
    raise config_words.unknown_key(key)


def _compose(path: Path, overrides: list[str]) -> DictConfig:
    store = ConfigStore.instance()
    store.store(name="schema", node=SweepConf)
    if not OmegaConf.has_resolver("bundled_model"):
        OmegaConf.register_new_resolver(
            "bundled_model", lambda name: str(shipped("models") / str(name))
        )
    folders = [
        path.parent,
        path.parent / "conf",
        Path.cwd() / "conf",
        shipped("conf"),
        shipped("sweeps"),
    ]
    places = ",".join(_quoted(f"file://{folder}") for folder in folders if folder.is_dir())
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a missing `_self_` is not an error
            with initialize_config_dir(config_dir=str(path.parent), version_base="1.3"):
                composed = compose(
                    config_name=path.stem, overrides=[f"hydra.searchpath=[{places}]", *overrides]
                )
    except MissingConfigException as error:
        raise config_words.missing_option(str(error), error.options or ()) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise config_words.readable(error) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{mark.name}, line {mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or "not valid YAML"
        raise ConfigError(f"{where}: {problem}") from None
    except (*_ODD_VALUES, *_WRONG_TAGS) as error:
        raise ConfigError(
            f"{path}, or what overrides it, cannot be read: {config_words.odd(error)}"
        ) from None
    if "workload" not in composed or "engine" not in composed:
        raise ConfigError(
            f"{path}: a sweep file begins with `defaults: [base, override model: NAME, _self_]`; "
            "without `base` it has no keys to build on"
        )
    return composed


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _typed(config: DictConfig) -> SweepConf:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(SweepConf), config)
        missing = sorted(OmegaConf.missing_keys(merged))
        if OmegaConf.select(merged, "engine.kind") == "simulated" and "model.id" in missing:
            merged.model.id = merged.model.name  # the simulated card needs no model files
            missing.remove("model.id")
        if missing:
            raise config_words.mandatory(missing[0])
        typed = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise config_words.readable(error) from None
    except _ODD_VALUES as error:
        raise ConfigError(f"the configuration cannot be read: {config_words.odd(error)}") from None
    if not isinstance(typed, SweepConf):
        raise ConfigError("the configuration of a sweep is a mapping of keys")
    return typed


def _make_absolute(conf: SweepConf) -> None:
    """Local folders and files by their absolute paths: launches have another working folder."""
    speculation, engine = conf.model.speculation, conf.engine
    conf.model.id = _absolute("model.id", conf.model.id)
    if speculation.model is not None:
        speculation.model = _absolute("model.speculation.model", speculation.model)
    if engine.card_file is not None:
        engine.card_file = _absolute("engine.card_file", engine.card_file)
    if engine.python is not None:
        _absolute("engine.python", engine.python)  # expanded where it is used
    conf.workload.tasks = [_absolute("workload.tasks", task) for task in conf.workload.tasks]


def _absolute(key: str, name: str) -> str:
    """The absolute path of something that is here, else the name as it is (a hub id, say)."""

    def found() -> str:
        path = Path(name).expanduser()
        is_path = path.is_dir() or (path.is_file() and path.suffix in (".yaml", ".yml"))
        return str(path.absolute()) if is_path else name

    return _usable(key, name, found)


def _usable(key: str, name: str, look: Callable[[], T]) -> T:
    """What is found under a name, which may be one that no file can have."""
    try:
        return look()
    except (OSError, RuntimeError) as error:
        shown = name if len(name) <= _NAME_SHOWN_MAX else f"{name[:_NAME_SHOWN_MAX]}..."
        reason = getattr(error, "strerror", None) or "there is no user of this name"
        raise ConfigError(f"{key} is {shown}, which cannot be used: {reason}") from None


def _complete(conf: SweepConf, read_card: CardReader | None) -> None:
    """Fill in what only the card knows."""
    if conf.engine.kind == "simulated":
        from vllm_frontier.engine.simulated.engine import simulated_card_spec

        card = simulated_card_spec(conf.engine.card_file)
        conf.card.kind, conf.card.name, conf.card.memory_gib = card.kind, card.name, card.memory_gib
        conf.card.reserved_gib, conf.card.uuids = 0.0, []
        return
    if conf.card.kind == "nvidia" and conf.card.name is None:
        if read_card is None:
            raise ConfigError("card=auto needs an NVIDIA card here: name one, such as card=rtx5090")
        name, memory_gib, uuids = read_card()
        conf.card.name, conf.card.memory_gib, conf.card.uuids = name, memory_gib, list(uuids)
    if conf.card.name is None:
        raise config_words.mandatory("card.name")
    if conf.card.memory_gib is None:
        raise config_words.mandatory("card.memory_gib")


# Checked values


def _spec(conf: SweepConf) -> SweepSpec:
    config_checks.check_figures(conf)
    config_checks.check_choices(conf)
    config_checks.check_numbers(conf)
    grid = config_checks.check_grid(conf)
    speculation = SpeculationSpec(**vars(conf.model.speculation))
    model = {**vars(conf.model), "speculation": speculation}
    card = {**vars(conf.card), "uuids": tuple(conf.card.uuids)}
    engine = {
        **vars(conf.engine),
        "env": {str(name): str(value) for name, value in conf.engine.env.items()},
    }
    workload = {**vars(conf.workload), "tasks": tuple(conf.workload.tasks)}
    return SweepSpec(
        name=_checked_name(conf.name),
        model=ModelSpec(**model),
        card=CardSpec(**card),
        engine=EngineSpec(**engine),
        grid=grid,
        workload=WorkloadSpec(**workload),
        search=SearchSpec(**vars(conf.search)),
        schedule=ScheduleSpec(**vars(conf.schedule)),
    )


def _checked_name(name: str) -> str:
    if len(name) > _FOLDER_NAME_MAX:
        raise ConfigError(f"name has {len(name)} letters, but at most {_FOLDER_NAME_MAX} can be")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigError(
            f"name is {name!r}, but must be a plain folder name (letters, digits, . _ -)"
        )
    return name


def _document(conf: SweepConf) -> dict[str, Any]:
    document: dict[str, Any] = dataclasses.asdict(conf)
    return document
