"""Settings and models that real vLLM refuses: each is one attempt, and its row is right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from real_attempt import DEMO, Finished, assert_row, attempt, sweep, without_weights

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Phase
from vllm_frontier.spec import ModelSpec, SpeculationSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

# 4 layers and the head, keys and values, 2 heads of 32, 2 bytes each.
KV_BYTES_PER_TOKEN = 5 * 2 * 2 * 32 * 2


def demo_copy(folder: Path) -> Path:
    """The bundled model, to be spoilt."""
    return Path(shutil.copytree(DEMO, folder / "spoilt"))


def assert_no_figures(finished: Finished) -> None:
    """A refusal before any memory was looked at tells nothing about memory."""
    names = ("kv_needed_gib", "kv_available_gib", "max_context_estimate", "kv_tokens")
    assert {name: finished.row[name] for name in names} == dict.fromkeys(names)


def test_kv_cache_too_small_tells_by_how_much(tmp_path: Path) -> None:
    cell = Cell(depth=1, context=131072, graphs=False, utilization=0.25)
    finished = attempt(sweep(without_weights(tmp_path)), cell, tmp_path)
    assert_row(
        finished,
        FailureClass.KV_TOO_SMALL,
        Phase.ALLOCATE_KV,
        words=("To serve at least one request", "131072"),
    )
    row = finished.row
    assert row["kv_needed_gib"] == pytest.approx(131072 * KV_BYTES_PER_TOKEN / 2**30, abs=0.006)
    assert row["kv_available_gib"] == pytest.approx(0.25 * 0.25, abs=0.006)
    assert row["max_context_estimate"] == pytest.approx(2**26 / KV_BYTES_PER_TOKEN, rel=0.02)
    assert str(row["max_context_estimate"]) in row["evidence"]
    assert row["kv_tokens"] is None


def test_nothing_left_for_the_kv_cache(tmp_path: Path) -> None:
    cell = Cell(depth=0, context=1024, graphs=False, utilization=0.25)
    finished = attempt(sweep(without_weights(tmp_path), reserved_gib=0.1), cell, tmp_path)
    assert_row(
        finished,
        FailureClass.KV_NONE,
        Phase.ALLOCATE_KV,
        words=("No available memory for the cache blocks",),
    )
    row = finished.row
    assert row["kv_available_gib"] == pytest.approx(0.0, abs=0.006)
    assert (row["max_context_estimate"], row["kv_tokens"]) == (None, None)


def test_context_above_the_models(tmp_path: Path) -> None:
    cell = Cell(depth=0, context=131073, graphs=False, utilization=1.0)
    finished = attempt(sweep(without_weights(tmp_path)), cell, tmp_path)
    assert_row(
        finished,
        FailureClass.CONTEXT_EXCEEDS_MODEL,
        Phase.CONFIGURE,
        words=("131073", "131072"),
    )
    assert_no_figures(finished)


@pytest.mark.parametrize("model_id", ["folder", "hub"])
def test_a_model_that_is_not_there(model_id: str, tmp_path: Path) -> None:
    name = str(tmp_path / "no-such-model") if model_id == "folder" else "nobody/no-such-model"
    words = "Repo id must be in the form" if model_id == "folder" else "Cannot find"
    cell = Cell(depth=0, context=1024, graphs=False, utilization=1.0)
    finished = attempt(sweep(ModelSpec("absent", name)), cell, tmp_path)
    assert_row(finished, FailureClass.MODEL_UNAVAILABLE, Phase.CONFIGURE, words=(words,))
    assert_no_figures(finished)


def test_weights_that_end_in_the_middle(tmp_path: Path) -> None:
    model = demo_copy(tmp_path)
    weights = model / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    cell = Cell(depth=0, context=1024, graphs=False, utilization=1.0)
    finished = attempt(sweep(ModelSpec("spoilt", str(model))), cell, tmp_path)
    assert_row(finished, FailureClass.MODEL_CORRUPT, Phase.LOAD, words=("SafetensorError",))
    assert_no_figures(finished)


def test_weights_of_another_shape(tmp_path: Path) -> None:
    model = demo_copy(tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"intermediate_size": 352}))
    cell = Cell(depth=0, context=1024, graphs=False, utilization=1.0)
    finished = attempt(sweep(ModelSpec("spoilt", str(model))), cell, tmp_path)
    assert_row(
        finished, FailureClass.MODEL_CORRUPT, Phase.LOAD, words=("RuntimeError", "352", "320")
    )
    assert_no_figures(finished)


def test_a_model_without_the_head_that_speculation_asks_for(tmp_path: Path) -> None:
    changes = {"architectures": ["Qwen2ForCausalLM"], "num_nextn_predict_layers": None}
    model = without_weights(tmp_path, **changes)
    assert model.speculation == SpeculationSpec(method="mtp")
    cell = Cell(depth=1, context=1024, graphs=False, utilization=1.0)
    finished = attempt(sweep(model), cell, tmp_path)
    assert_row(finished, FailureClass.SPEC_UNSUPPORTED, Phase.CONFIGURE, words=("mtp",))
    assert_no_figures(finished)
