"""Launch plans of real vLLM, and the interpreters it is looked for in."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_frontier.engine.arguments import MEASURING
from vllm_frontier.engine.protocol import Engine
from vllm_frontier.engine.registry import create_engine
from vllm_frontier.engine.vllm import VllmEngine
from vllm_frontier.errors import EngineError
from vllm_frontier.grid import Cell, Grid
from vllm_frontier.spec import (
    CardSpec,
    EngineSpec,
    ModelSpec,
    ScheduleSpec,
    SearchSpec,
    SweepSpec,
    WorkloadSpec,
)

CELL = Cell(depth=1, context=2048, graphs=False, utilization=0.5)
CPU = CardSpec(kind="cpu", name="slice", memory_gib=1.0)
MODEL = ModelSpec(name="m", id="/models/m")


def make(engine: EngineSpec) -> Engine:
    return VllmEngine(engine, MODEL, CPU)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An interpreter whose only package is a vLLM without code, of version 0.33.1."""
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    info = packages / "vllm-0.33.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.1\n")
    return environment


def test_version_of_another_interpreter(environment: Path) -> None:
    engine = make(EngineSpec(kind="vllm", python=str(environment / "bin" / "python")))
    assert engine.version() == "0.33.1"
    assert make(EngineSpec(kind="vllm-cpu", python=str(environment / "bin" / "python"))).version()


def test_vllm_serve_is_used_where_it_works(environment: Path) -> None:
    python = environment / "bin" / "python"
    spec = EngineSpec(kind="vllm", python=str(python))
    plan = make(spec).plan_launch(CELL, port=8011, served_name="one", cards=("GPU-a", "GPU-b"))
    assert plan.argv[:3] == (str(python), "-m", "vllm.entrypoints.openai.api_server")
    assert plan.argv[3:5] == ("--model", "/models/m")

    script = environment / "bin" / "vllm"
    script.write_text("#!/bin/sh\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    plan = make(spec).plan_launch(CELL, port=8011, served_name="one", cards=("GPU-a", "GPU-b"))
    assert plan.argv[:3] == (str(script), "serve", "/models/m")
    assert plan.argv[3:9] == (
        *("--host", "127.0.0.1", "--port", "8011"),
        *("--served-model-name", "one"),
    )
    assert plan.argv[9:] == MEASURING + make(spec).serve_arguments(CELL)
    assert plan.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert plan.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert (plan.port, plan.served_name) == (8011, "one")


def test_a_cpu_launch_hides_no_cards_and_takes_the_users_environment(environment: Path) -> None:
    spec = EngineSpec(
        kind="vllm-cpu",
        python=str(environment / "bin" / "python"),
        env={"OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "0"},
    )
    plan = make(spec).plan_launch(CELL, port=8011, served_name="one", cards=())
    assert "CUDA_VISIBLE_DEVICES" not in plan.env
    assert plan.env["OMP_NUM_THREADS"] == "1"
    assert plan.env["VLLM_NO_USAGE_STATS"] == "0"


def test_an_interpreter_without_vllm(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    engine = make(EngineSpec(kind="vllm", python=str(tmp_path / "bin" / "python")))
    with pytest.raises(EngineError, match=r"no vLLM in .*extra `gpu` or `cpu`.*engine\.python"):
        engine.version()


def test_no_interpreter_and_one_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.python: there is no interpreter"):
        make(EngineSpec(kind="vllm", python=str(tmp_path / "python"))).version()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(EngineError, match="does not run"):
        make(EngineSpec(kind="vllm", python=str(broken))).version()


def test_command_template_stands_for_an_interpreter() -> None:
    spec = EngineSpec(kind="vllm", command="docker run --network host vllm:1 {args}")
    engine = make(spec)
    plan = engine.plan_launch(CELL, port=8011, served_name="one", cards=("GPU-a",))
    assert plan.argv[:5] == ("docker", "run", "--network", "host", "vllm:1")
    assert plan.argv[5:] == (
        *("--model", "/models/m", "--host", "127.0.0.1", "--port", "8011"),
        *("--served-model-name", "one", *MEASURING, *engine.serve_arguments(CELL)),
    )
    other = make(EngineSpec(kind="vllm", command="docker run --network host vllm:2 {args}"))
    assert engine.version().startswith("command-")
    assert engine.version() != other.version()


def test_template_that_places_everything_itself_gets_nothing_twice() -> None:
    template = "run -p 127.0.0.1:{port}:8000 img --model {model} --served-model-name {name} {args}"
    engine = make(EngineSpec(kind="vllm", command=template))
    plan = engine.plan_launch(CELL, port=8011, served_name="one", cards=())
    assert plan.argv.count("--model") == plan.argv.count("--served-model-name") == 1
    assert "127.0.0.1:8011:8000" in plan.argv
    assert "--host" not in plan.argv


def test_arguments_that_would_move_the_server_are_refused() -> None:
    with pytest.raises(EngineError, match=r"engine\.args must not set served-model-name"):
        make(EngineSpec(kind="vllm", args={"served-model-name": "x"}))


def test_registry_chooses_by_kind() -> None:
    def sweep(kind: str) -> SweepSpec:
        return SweepSpec(
            name="s",
            model=MODEL,
            card=CPU,
            engine=EngineSpec(kind=kind),
            grid=Grid((0,), (1024,), (False,), (0.5,)),
            workload=WorkloadSpec(),
            search=SearchSpec(),
            schedule=ScheduleSpec(),
        )

    engine = create_engine(sweep("vllm-cpu"))
    assert engine.kind == "vllm-cpu"
    assert engine.time_scale == 1.0
    with pytest.raises(EngineError, match="known are vllm, vllm-cpu, simulated"):
        create_engine(sweep("vlm"))


def test_nothing_of_vllm_or_torch_is_imported() -> None:
    code = (
        "import sys, vllm_frontier.engine.vllm, vllm_frontier.engine.registry;"
        "sys.exit(bool({'vllm', 'torch', 'polars', 'pyarrow', 'ray', 'hydra', 'httpx'}"
        " & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
