"""Refusals of real vLLM: launched, read, and the figures checked against each other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_frontier.engine.protocol import LaunchPlan, LogReading
from vllm_frontier.engine.vllm import VllmEngine
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Phase
from vllm_frontier.spec import CardSpec, EngineSpec, ModelSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON", sys.executable)
CARD = CardSpec(kind="cpu", name="a slice of memory", memory_gib=0.25, reserved_gib=0.0)
CONFIG: Mapping[str, Any] = {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "qwen2",
    "num_nextn_predict_layers": 1,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A tiny model without weights; vLLM makes some up."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    args = {"load_format": "dummy", "skip_tokenizer_init": True}
    return ModelSpec(name="tiny", id=str(folder), args=args)


def launch(plan: LaunchPlan, log: Path) -> int:
    """Run a server that is expected to end by itself; its exit code."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    for name, value in plan.env.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    with log.open("wb") as file:
        process = subprocess.Popen(
            plan.argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(timeout=240)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def attempt(cell: Cell, model: ModelSpec, log: Path, card: CardSpec = CARD) -> LogReading:
    engine = VllmEngine(EngineSpec(kind="vllm-cpu", python=PYTHON), model, card)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    plan = engine.plan_launch(cell, port=port, served_name="under-test", cards=())
    exit_code = launch(plan, log)
    assert exit_code == 1
    return engine.read_log(log, exit_code=exit_code)


def test_kv_cache_too_small_tells_by_how_much(model: ModelSpec, tmp_path: Path) -> None:
    cell = Cell(depth=1, context=131072, graphs=False, utilization=0.25)
    reading = attempt(cell, model, tmp_path / "server.log")
    failure, facts = reading.failure, reading.facts
    assert failure is not None
    assert failure.failure_class is FailureClass.KV_TOO_SMALL
    assert failure.phase is Phase.ALLOCATE_KV
    assert not reading.started
    # 4 layers and the head, keys and values, 2 heads of 32, 2 bytes each: 1280 bytes a token.
    assert facts.kv_needed_gib == pytest.approx(131072 * 1280 / 2**30, abs=0.01)
    assert facts.kv_available_gib == pytest.approx(0.0625, abs=0.01)
    assert facts.max_context_estimate == pytest.approx(0.0625 * 2**30 / 1280, rel=0.05)
    assert facts.engine_version is not None


def test_nothing_left_for_the_kv_cache(model: ModelSpec, tmp_path: Path) -> None:
    cell = Cell(depth=0, context=1024, graphs=False, utilization=0.25)
    card = replace(CARD, reserved_gib=0.1)
    reading = attempt(cell, model, tmp_path / "server.log", card)
    assert reading.failure is not None
    assert reading.failure.failure_class is FailureClass.KV_NONE


def test_context_above_the_models(model: ModelSpec, tmp_path: Path) -> None:
    cell = Cell(depth=0, context=131073, graphs=False, utilization=1.0)
    reading = attempt(cell, model, tmp_path / "server.log")
    assert reading.failure is not None
    assert reading.failure.failure_class is FailureClass.CONTEXT_EXCEEDS_MODEL
    assert reading.failure.phase is Phase.CONFIGURE
    assert "131073" in reading.failure.evidence
