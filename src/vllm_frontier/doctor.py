"""Is this machine ready for a sweep, and what is missing?

Every check gives one `Finding`: what was looked at, what was found, and, where something is
missing, what to do about it. Nothing is launched and nothing is changed.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import psutil

from vllm_frontier import telemetry
from vllm_frontier.engine.registry import create_engine
from vllm_frontier.errors import EngineError
from vllm_frontier.launch.ports import free_port
from vllm_frontier.spec import SweepSpec

# Below these, a sweep is likely to fail for reasons that are not the cell's.
DISK_GIB = 5.0
SHARED_MEMORY_GIB = 0.5
GIB = 1 << 30


class Verdict(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `advice` says what to do unless all is well."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def examine(spec: SweepSpec | None, out: Path, problem: str | None = None) -> list[Finding]:
    """Look at this machine, for a sweep if one is given.

    Args:
        spec: the sweep it should be ready for; None for a look at the machine alone.
        out: where results will be written.
        problem: why the sweep that was asked for could not be read.
    """
    findings = [_interpreter(), *_packages(), _platform()]
    probe = telemetry.probe()
    findings.extend(_cards(probe, spec))
    if spec is not None:
        findings.extend([_engine(spec), _model(spec)])
        findings.extend(_memory(spec))
        findings.extend(_compiler(spec))
    if problem is not None:
        findings.append(Finding("sweep", Verdict.MISSING, problem, "put this right first"))
    findings.extend([_disk(out), _shared_memory(), _port()])
    return findings


def _interpreter() -> Finding:
    version = platform.python_version()
    return Finding("python", Verdict.OK, f"{version} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    for name in ("ray", "hydra-core", "polars", "pyarrow", "nvidia-ml-py"):
        try:
            yield Finding(name, Verdict.OK, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(
                name, Verdict.MISSING, "not installed", "reinstall: pip install vllm-frontier"
            )
    try:
        deprecated = metadata.version("pynvml")
    except metadata.PackageNotFoundError:
        return
    yield Finding(
        "pynvml",
        Verdict.NOTE,
        f"the deprecated package pynvml {deprecated} shadows nvidia-ml-py",
        "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
    )


def _platform() -> Finding:
    release = platform.release()
    if "microsoft" in release.lower():
        return Finding(
            "platform",
            Verdict.NOTE,
            f"WSL2 ({release})",
            "memory of single processes is not visible under WSL2, and Windows programs share "
            "the card: close them, and keep utilization at 0.95 or lower",
        )
    if platform.system() != "Linux":
        return Finding(
            "platform", Verdict.MISSING, platform.system(), "vLLM is launched on Linux only"
        )
    return Finding("platform", Verdict.OK, f"Linux {release}")


def _cards(probe: telemetry.Probe, spec: SweepSpec | None) -> Iterator[Finding]:
    needed = spec is not None and spec.card.kind == "nvidia"
    if not probe.cards:
        yield Finding(
            "card",
            Verdict.MISSING if needed else Verdict.NOTE,
            probe.problem or "no NVIDIA card",
            "install the NVIDIA driver, or choose engine=vllm-cpu or engine=simulated"
            if needed
            else "without an NVIDIA card, engine=vllm-cpu and engine=simulated work",
        )
        return
    yield Finding("driver", Verdict.OK, f"{probe.driver}, CUDA {probe.cuda or 'unknown'}")
    for card in probe.cards:
        busy = card.used_gib is not None and card.total_gib and card.used_gib / card.total_gib > 0.1
        memory = (
            "memory unknown"
            if card.used_gib is None or card.total_gib is None
            else f"{card.used_gib:.2f} of {card.total_gib:.2f} GiB in use"
        )
        yield Finding(
            f"card {card.index}",
            Verdict.NOTE if busy else Verdict.OK,
            f"{card.name}, {memory}",
            "end the programs that use the card, or keep utilization below what is free"
            if busy
            else "",
        )
    if needed and spec is not None and spec.card.name not in [card.name for card in probe.cards]:
        yield Finding(
            "sweep's card",
            Verdict.MISSING,
            f"the sweep is for {spec.card.name}, which is not in this machine",
            "add card=auto to the command",
        )


def _engine(spec: SweepSpec) -> Finding:
    try:
        engine = create_engine(spec)
        return Finding("engine", Verdict.OK, f"{engine.kind} {engine.version()}")
    except EngineError as error:
        return Finding("engine", Verdict.MISSING, str(error), "make setup")


def _model(spec: SweepSpec) -> Finding:
    folder = Path(spec.model.id).expanduser()
    if spec.engine.kind == "simulated":
        return Finding("model", Verdict.OK, "none needed by the simulated card")
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            return Finding(
                "model", Verdict.MISSING, f"{folder} has no config.json", "check model.id"
            )
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / GIB
        return Finding("model", Verdict.OK, f"{folder} ({size:.2f} GiB of weights)")
    if looks_like_path(spec.model.id):
        return Finding("model", Verdict.MISSING, f"there is no folder {folder}", "check model.id")
    return Finding(
        "model",
        Verdict.NOTE,
        f"{spec.model.id} on a model hub",
        "download it before the sweep, or the first launch pays for it",
    )


def _memory(spec: SweepSpec) -> Iterator[Finding]:
    if spec.card.kind != "cpu":
        return
    free = psutil.virtual_memory().available / GIB
    wanted = spec.card.memory_gib + 3.0  # three vLLM processes hold some 3 GiB beside the card
    enough = free >= wanted
    yield Finding(
        "memory",
        Verdict.OK if enough else Verdict.MISSING,
        f"{free:.1f} GiB free, {wanted:.1f} GiB needed",
        "" if enough else "close programs, or lower card.memory_gib",
    )


def _compiler(spec: SweepSpec) -> Iterator[Finding]:
    if spec.engine.kind == "simulated" or True not in spec.grid.graphs:
        return
    names = ("g++", "clang++") if spec.engine.kind == "vllm-cpu" else ("gcc", "clang")
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    yield Finding(
        "compiler",
        Verdict.OK if compiler else Verdict.MISSING,
        compiler or f"no {names[0]}",
        ""
        if compiler
        else "vLLM compiles parts of a model when it starts: apt-get install g++ python3-dev",
    )


def _disk(out: Path) -> Finding:
    place = next(folder for folder in (out, *out.resolve().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free / GIB
    enough = free >= DISK_GIB
    return Finding(
        "disk",
        Verdict.OK if enough else Verdict.NOTE,
        f"{free:.1f} GiB free at {place}",
        "" if enough else f"logs and results want {DISK_GIB:g} GiB",
    )


def _shared_memory() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding("shared memory", Verdict.MISSING, f"no {place}", "mount a tmpfs there")
    free = shutil.disk_usage(place).free / GIB
    enough = free >= SHARED_MEMORY_GIB
    return Finding(
        "shared memory",
        Verdict.OK if enough else Verdict.MISSING,
        f"{free:.1f} GiB free",
        "" if enough else "a container needs --shm-size=2g or --ipc=host",
    )


def _port() -> Finding:
    return Finding("ports", Verdict.OK, f"loopback ports can be had ({free_port()})")


def looks_like_path(model_id: str) -> bool:
    """Whether a model id can only be meant as a folder (a hub id has one inner slash)."""
    return model_id.startswith(("/", ".", "~")) or model_id.count("/") > 1
