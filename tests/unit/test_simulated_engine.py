"""The simulated engine as the rest of the program sees it."""

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_frontier.engine.protocol import Engine
from vllm_frontier.engine.simulated.engine import SimulatedEngine, simulated_card_spec
from vllm_frontier.engine.simulated.options import Options, parse_options
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import Cell
from vllm_frontier.spec import CardSpec, EngineSpec, ModelSpec, SpeculationSpec


def engine(**changes: object) -> SimulatedEngine:
    spec = EngineSpec(kind="simulated", card_file="tiny-8gib", **changes)  # type: ignore[arg-type]
    model = ModelSpec("m", "some/model", speculation=SpeculationSpec())
    return SimulatedEngine(spec, model, simulated_card_spec("tiny-8gib"))


def test_card_of_a_card_file() -> None:
    assert simulated_card_spec() == CardSpec("simulated", "Simulated RTX 5090", 31.36)
    assert simulated_card_spec("tiny-8gib").memory_gib == 8.0
    with pytest.raises(ConfigError):
        simulated_card_spec("none such")


def test_it_is_an_engine() -> None:
    one: Engine = engine()
    assert (one.kind, one.time_scale, one.version()) == ("simulated", 0.001, "simulated-1")


@pytest.mark.parametrize(
    "cell",
    [
        Cell(0, 8192, False, 0.9),
        Cell(3, 32768, True, 0.93),
        Cell(6, -1, True, 0.955, (("max_num_seqs", 4),)),
    ],
)
def test_server_understands_the_plan(cell: Cell) -> None:
    plan = engine(args={"seed": 3}, env={"A": "b"}).plan_launch(
        cell, port=8123, served_name="only-this", cards=()
    )
    assert plan.argv[:3] == (sys.executable, "-m", "vllm_frontier.engine.simulated.server")
    assert plan.env["A"] == "b"
    options = parse_options(plan.argv[3:])
    assert isinstance(options, Options)
    axes = {name: value for name, value in cell.axes().items() if name != "max_num_seqs"}
    assert options.cell(65536).axes() == axes
    assert (options.port, options.served_name, options.model) == (8123, "only-this", "some/model")
    assert (options.seed, options.prompt_details) == (3, True)
    assert Path(str(options.card)).is_file()
    if cell.extra:
        assert options.axes(65536)["max_num_seqs"] == 4


def test_serve_arguments_are_those_of_vllm() -> None:
    words = engine().serve_arguments(Cell(2, 8192, False, 0.9))
    line = " ".join(words)
    assert "--max-model-len 8192" in line
    assert "--gpu-memory-utilization 0.9" in line
    assert "--enforce-eager" in words
    assert '"num_speculative_tokens":2' in line
    assert "simulated" not in line
    assert "port" not in line


def test_server_is_light() -> None:
    heavy = ["ray", "polars", "pyarrow", "httpx", "hydra", "psutil", "asyncio"]
    code = (
        "import sys, vllm_frontier.engine.simulated.server\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
