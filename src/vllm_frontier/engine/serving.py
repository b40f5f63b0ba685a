"""How a person serves a cell: what a launch is, less what only measuring needs.

Nothing is asked of a server here: no port, no served name, no loopback address.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_frontier.engine import command
from vllm_frontier.engine.arguments import render, serve_arguments
from vllm_frontier.grid import Cell
from vllm_frontier.spec import EngineSpec, SweepSpec

MODULE = "vllm.entrypoints.openai.api_server"
PORT = 8000  # vLLM's own default

_IMAGE, _CPU_IMAGE = "vllm/vllm-openai", "vllm/vllm-openai-cpu"
_RELEASE = re.compile(r"(\d+(?:\.\d+)+(?:rc\d+|\.post\d+)?)(?:\+\w+)?")


@dataclass(frozen=True, slots=True)
class Serving:
    """A server for a cell, in parts.

    Attributes:
        launcher: the words before the model: `vllm serve`, or an interpreter and vLLM's module.
        model: folder or hub id.
        arguments: the others by canonical name; see `arguments.render`.
        environment: variables that the sweep sets.
        path: the folder that has to come first in PATH; None: the shell has it there already.
        command: the words of the sweep's own command, model and arguments among them; None where
            it has none.
        cpu: whether the image is the one for CPUs.
        files: the model and what drafts for it: folders or hub ids.
    """

    launcher: tuple[str, ...]
    model: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    path: str | None
    command: tuple[str, ...] | None
    cpu: bool
    files: tuple[str, ...]

    @property
    def positional(self) -> bool:
        """Whether the model follows as a word of its own; else as the value of `--model`."""
        return self.launcher[-1] == "serve"


def serving(spec: SweepSpec, cell: Cell) -> Serving:
    """The server of a cell; needs no vLLM. A simulated sweep has that of the real engine.

    Raises:
        EngineError: the template of the sweep's own command cannot be read.
    """
    engine, model = spec.engine, spec.model
    cpu = engine.kind == "vllm-cpu"
    launcher, path = _module(engine) if cpu else _script(engine)
    drafter = model.speculation.model if cell.depth > 0 else None
    return Serving(
        launcher=launcher,
        model=model.id,
        arguments=serve_arguments(cell, model, engine, spec.card),
        environment=dict(engine.env),
        path=path,
        command=None if engine.command is None else _own_command(spec, cell),
        cpu=cpu,
        files=(model.id,) if drafter is None else (model.id, drafter),
    )


def image(version: str | None, *, cpu: bool, machine: str) -> str | None:
    """The image of a release of vLLM; None where a version is no release.

    Args:
        version: such as `0.32.0`; None: the newest.
        cpu: whether it is the one for CPUs, which has a tag for each architecture.
        machine: the architecture, as `platform.machine` has it.
    """
    release = None if version is None else _RELEASE.fullmatch(version)
    if version is not None and release is None:
        return None
    tag = "latest" if release is None else f"v{release[1]}"
    if not cpu:
        return f"{_IMAGE}:{tag}"
    return f"{_CPU_IMAGE}:{tag}-{'arm64' if machine in ('aarch64', 'arm64') else 'x86_64'}"


def _module(engine: EngineSpec) -> tuple[tuple[str, ...], str | None]:
    """The module of vLLM: the script of `vllm-cpu` asks for another distribution and dies."""
    python, path = _interpreter(engine, "python")
    return (python, "-m", MODULE), path


def _script(engine: EngineSpec) -> tuple[tuple[str, ...], str | None]:
    if engine.kind == "simulated" or (engine.python is None and not _installed("vllm")):
        return ("vllm", "serve"), None
    script, path = _interpreter(engine, "vllm")
    if path is not None and Path(path).is_dir() and not Path(script).exists():
        return _module(engine)
    return (script, "serve"), path


def _interpreter(engine: EngineSpec, name: str) -> tuple[str, str | None]:
    """A program beside the interpreter with vLLM: by its name alone where the shell finds it."""
    if engine.python is not None:
        python = Path(shutil.which(Path(engine.python).expanduser()) or engine.python).absolute()
    else:
        python = Path(sys.executable)
        found = shutil.which(name)
        if found is None and not _installed("vllm-cpu") and not _installed("vllm"):
            return name, None  # the sweep was made elsewhere
        if found is not None and Path(found).parent == python.parent:
            return name, None
    program = python if name == "python" else python.with_name(name)
    return str(program), str(python.parent)


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _own_command(spec: SweepSpec, cell: Cell) -> tuple[str, ...]:
    """The sweep's own command with the port and the name that a server has by default."""
    template = spec.engine.command or ""
    used = command.placeholders(template)
    words: tuple[str, ...] = () if "model" in used else ("--model", spec.model.id)
    words += render(serve_arguments(cell, spec.model, spec.engine, spec.card))
    cards = spec.card.uuids or tuple(str(each) for each in range(spec.engine.tensor_parallel))
    values = {
        "port": str(PORT),
        "model": spec.model.id,
        "name": spec.model.id,
        "gpus": ",".join(cards[: spec.engine.tensor_parallel]),
        "python": spec.engine.python or sys.executable,
    }
    return command.expand(template, values, words)
