"""What a model's files tell of its memory: against figures that are known from elsewhere."""

import dataclasses
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.checkpoint import prior_for
from vllm_frontier.checkpoint.folder import model_folder
from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Axis, Cell
from vllm_frontier.memory import Figure, MemoryModel, MemoryPrior
from vllm_frontier.spec import SweepSpec

GIB = 2.0**30

QWEN3_14B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "max_position_embeddings": 40960,
    "max_window_layers": 40,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
# The hybrid of the bundled card: 64 layers, full attention in every fourth, an encoder beside it.
QWEN3_HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
    "vision_config": {"depth": 27, "hidden_size": 1152, "num_hidden_layers": 27},
    "text_config": {
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": 24,
        "num_hidden_layers": 64,
        "num_key_value_heads": 4,
        "torch_dtype": "bfloat16",
        "vocab_size": 248320,
    },
}
GEMMA3_27B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, list[int]]] | None = None,
) -> Path:
    """A model folder with a `config.json` and the header of a weight file, without its data."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        header = json.dumps(
            {
                "__metadata__": {"format": "pt"},
                **{
                    name: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]}
                    for name, (kind, shape) in tensors.items()
                },
            }
        ).encode()
        content = struct.pack("<Q", len(header)) + header
        (folder / "model.safetensors").write_bytes(content)
    return folder


SPEC = compose_sweep("rtx4090-qwen3-14b-awq").spec
HUB_ID = SPEC.model.id
FIGURES = [each.name for each in dataclasses.fields(MemoryPrior) if each.name != "basis"]
SPECULATION = dataclasses.replace(SPEC.model.speculation, method="mtp", model=None)


def sweep(
    model_id: object,
    *,
    args: Mapping[str, Any] | None = None,
    extra: tuple[Axis, ...] = (),
    tensor_parallel: int = 1,
    **model: Any,
) -> SweepSpec:
    """A sweep of a 24 GB card on a model; what the test does not give is that of a ready one."""
    named = {"quantization": None, "speculation": SPECULATION, "args": args or {}, **model}
    return dataclasses.replace(
        SPEC,
        model=dataclasses.replace(SPEC.model, id=str(model_id), **named),
        engine=dataclasses.replace(SPEC.engine, tensor_parallel=tensor_parallel),
        grid=dataclasses.replace(SPEC.grid, extra=extra),
    )


def prior(folder: Path, **settings: Any) -> MemoryPrior:
    found = prior_for(sweep(folder, **settings))
    assert found is not None
    return found


def near(figure: Figure, value: float, deviations: float = 2.0) -> bool:
    """Whether a figure that is known from elsewhere lies where it is believed to."""
    return abs(figure.mean - value) <= deviations * figure.sd


# KV cache and state


def test_a_dense_model_needs_what_its_heads_hold(tmp_path: Path) -> None:
    found = prior(write_model(tmp_path / "qwen", QWEN3_14B), args={"dtype": "bfloat16"})
    assert found.kv_per_1k.mean == pytest.approx(0.1526, abs=1e-4)
    assert found.kv_per_1k.sd < 0.02 * found.kv_per_1k.mean
    assert found.state == Figure(0.0, 0.0)
    assert found.basis == "config.json of qwen"


@pytest.mark.parametrize(
    ("argument", "share"),
    [
        ({"kv_cache_dtype": "fp8"}, 0.5),
        ({"kv-cache-dtype": "auto"}, 1.0),
        ({"dtype": "float32"}, 2.0),
    ],
)
def test_the_type_of_an_element_counts(
    tmp_path: Path, argument: dict[str, str], share: float
) -> None:
    found = prior(write_model(tmp_path / "qwen", QWEN3_14B), args=argument)
    assert found.kv_per_1k.mean == pytest.approx(share * 0.1526, rel=1e-3)


def test_every_card_holds_its_share(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "qwen", QWEN3_14B, {"a.weight": ("BF16", [4, 2**30])})
    one, two = prior(folder), prior(folder, tensor_parallel=2)
    many = prior(folder, tensor_parallel=16)
    assert one.weights.mean == pytest.approx(8.0)
    assert two.weights.mean == pytest.approx(4.0)
    assert two.kv_per_1k.mean == pytest.approx(one.kv_per_1k.mean / 2)
    assert many.kv_per_1k.mean == pytest.approx(one.kv_per_1k.mean / 8)  # a head is not split


def test_compressed_attention_needs_little_and_is_not_split(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "deepseek", DEEPSEEK_V3)
    found = prior(folder)
    assert found.kv_per_1k.mean == pytest.approx(61 * 576 * 2 * 1000 / GIB)  # 0.0654
    assert found.head_kv_per_1k.mean == pytest.approx(576 * 2 * 1000 / GIB)
    assert prior(folder, tensor_parallel=8).kv_per_1k.mean == found.kv_per_1k.mean


def test_a_hybrid_needs_what_the_bundled_card_was_described_with(tmp_path: Path) -> None:
    found = prior(write_model(tmp_path / "hybrid", QWEN3_HYBRID))
    assert near(found.kv_per_1k, 0.0321)
    assert near(found.head_kv_per_1k, 0.00198)
    assert near(found.state, 0.15)
    assert near(found.state_per_depth, 0.15)
    assert found.kv_per_1k.mean == pytest.approx(16 * 2 * 4 * 256 * 1000 / GIB)
    # 48 states of 48 heads, 128 by 128 in 32 bits, and three columns of the convolution
    state = 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2) / GIB
    assert found.state_per_depth.mean == pytest.approx(state, rel=0.01)
    text = QWEN3_HYBRID["text_config"]
    listed = {**text, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16}
    del listed["full_attention_interval"]
    other = prior(write_model(tmp_path / "listed", {**QWEN3_HYBRID, "text_config": listed}))
    assert other.kv_per_1k == found.kv_per_1k
    assert other.state == found.state


def test_states_that_prefix_caching_keeps_are_counted(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "hybrid", QWEN3_HYBRID)
    with_it, without = (
        prior(folder, args={"enable_prefix_caching": value}).state for value in (True, False)
    )
    assert with_it.mean == pytest.approx(2 * without.mean)


def test_a_sliding_window_needs_the_same_whatever_the_context(tmp_path: Path) -> None:
    found = prior(write_model(tmp_path / "gemma", GEMMA3_27B))
    token = 16 * 2 * 128 * 2  # bytes of a token in one layer
    assert found.kv_per_1k.mean == pytest.approx(10 * token * 1000 / GIB)
    # 52 sliding layers in groups of ten, each with its window and a step's tokens
    assert found.state.mean == pytest.approx(60 * token * (1023 + 2048 + 16) / GIB)
    assert found.state_per_depth.mean == 0.0


def test_mamba_layers_have_a_state_of_their_own(tmp_path: Path) -> None:
    config = {
        "hybrid_override_pattern": "M-M-M*-M-",
        "conv_kernel": 4,
        "head_dim": 128,
        "hidden_size": 4480,
        "mamba_head_dim": 80,
        "mamba_num_heads": 128,
        "mamba_ssm_cache_dtype": "float32",
        "n_groups": 8,
        "num_attention_heads": 40,
        "num_hidden_layers": 9,
        "num_key_value_heads": 8,
        "ssm_state_size": 128,
        "torch_dtype": "bfloat16",
    }
    found = prior(write_model(tmp_path / "nemotron", config))
    state = 128 * 80 * 128 * 4 + (128 * 80 + 2 * 8 * 128) * 3 * 2
    assert found.kv_per_1k.mean == pytest.approx(2 * 8 * 128 * 2 * 1000 / GIB)
    assert found.state_per_depth.mean == pytest.approx(4 * state / GIB, rel=0.02)


@pytest.mark.parametrize(
    ("depth", "context", "needed", "available"),
    # Of real launches of the bundled model, rounded by vLLM to two places.
    [(0, 32768, 0.22, 0.20), (1, 16384, 0.12, 0.11), (3, 32768, 0.23, 0.20)],
)
def test_the_bundled_model_needs_what_real_servers_said(
    depth: int, context: int, needed: float, available: float
) -> None:
    spec = compose_sweep("demo-cpu").spec
    found = prior_for(spec)
    assert found is not None
    per_1k = found.kv_per_1k.mean + (found.head_kv_per_1k.mean if depth else 0.0)
    assert per_1k * context / 1000 == pytest.approx(needed, abs=0.006)
    utilization = 0.9 if context == 32768 else 0.6
    model = MemoryModel(spec.card.memory_gib, found)
    told = model.predict(Cell(depth, context, graphs=False, utilization=utilization))
    assert told.margin_gib == pytest.approx(available - needed, abs=0.011)
    assert told.probability < 0.1


def test_on_a_cpu_only_what_is_set_apart_comes_off() -> None:
    spec = compose_sweep("demo-cpu").spec
    found = prior_for(spec)
    assert found is not None
    assert found.weights == Figure(spec.card.reserved_gib, 0.0)
    zero = Figure(0.0, 0.0)
    assert [found.head, found.activation, found.graphs, found.overhead] == [zero] * 4


# Weights


def test_the_head_is_told_from_the_model(tmp_path: Path) -> None:
    tensors = {
        "model.language_model.layers.0.mlp.down_proj.weight": ("BF16", [1024, 1024]),
        "model.visual.layers.64.weight": ("BF16", [1024, 1024]),
        "model.language_model.embed_tokens.weight": ("F8_E4M3", [1024, 1024]),
        "mtp.layers.0.mlp.down_proj.weight": ("BF16", [2048, 1024]),
        "mtp.embed_tokens.weight": ("BF16", [4096, 1024]),
    }
    found = prior(write_model(tmp_path / "hybrid", QWEN3_HYBRID, tensors))
    mib = 2**20 / GIB
    assert found.weights.mean == pytest.approx(5 * mib)
    assert found.head.mean == pytest.approx(4 * mib)
    assert found.head.sd > 4 * mib  # vLLM may hold the embedding twice
    assert found.basis == "config.json and the weight index of hybrid"


def test_layers_beyond_the_last_are_the_head(tmp_path: Path) -> None:
    tensors = {
        "model.layers.60.self_attn.o_proj.weight": ("BF16", [1024, 1024]),
        "model.layers.61.self_attn.o_proj.weight": ("BF16", [1024, 512]),
        "model.layers.61.embed_tokens.weight": ("BF16", [1024, 512]),
    }
    found = prior(write_model(tmp_path / "deepseek", DEEPSEEK_V3, tensors))
    assert found.weights.mean == pytest.approx(2 * 2**20 / GIB)
    assert found.head.mean == pytest.approx(2**20 / GIB)


def test_weights_are_converted_unless_they_are_quantized(tmp_path: Path) -> None:
    tensors = {"model.norm.weight": ("F32", [1024, 1024])}
    mib = 2**20 / GIB
    plain = prior(write_model(tmp_path / "plain", QWEN3_14B, tensors))
    assert plain.weights.mean == pytest.approx(2 * mib)
    quantized = {**QWEN3_14B, "quantization_config": {"quant_method": "awq"}}
    kept = prior(write_model(tmp_path / "quantized", quantized, tensors))
    assert kept.weights.mean == pytest.approx(4 * mib)


def test_an_index_without_its_files_tells_the_size(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "qwen", QWEN3_14B)
    index = {"metadata": {"total_size": 8 * 2**30}, "weight_map": {"a": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = prior(folder)
    assert found.weights.mean == pytest.approx(8.0)
    assert 0.2 < found.weights.sd < 1.0


def test_without_weights_their_size_is_guessed(tmp_path: Path) -> None:
    found = prior(write_model(tmp_path / "qwen", QWEN3_14B), quantization="awq")
    assert near(found.weights, 9.38, deviations=1.0)  # of the real one
    assert found.weights.sd > 1.5


def test_a_drafter_of_its_own_counts(tmp_path: Path) -> None:
    model = write_model(tmp_path / "qwen", QWEN3_14B, {"a": ("BF16", [1024, 1024])})
    eagle = {**QWEN3_14B, "num_hidden_layers": 1}
    drafter = write_model(tmp_path / "eagle", eagle, {"b": ("BF16", [512, 1024])})
    eagle3 = dataclasses.replace(SPECULATION, method="eagle3", model=str(drafter))
    found = prior(model, speculation=eagle3)
    assert found.head.mean == pytest.approx(2**20 / GIB)
    assert found.head_kv_per_1k.mean == pytest.approx(0.00381, abs=1e-4)


def test_further_axes_make_it_less_certain(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "qwen", QWEN3_14B)
    found = prior(folder, extra=(Axis("kv_cache_dtype", ("auto", "fp8")),))
    assert found.kv_per_1k.mean == pytest.approx(0.75 * 0.1526, rel=1e-3)
    assert found.kv_per_1k.sd == pytest.approx(0.25 * 0.1526, rel=0.01)


# Files that are not there, or not what they should be


def test_a_snapshot_of_the_hub_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "models--Qwen--Qwen3-14B-AWQ"
    write_model(cached / "snapshots" / "abc123", QWEN3_14B)
    write_model(cached / "snapshots" / "def456", {**QWEN3_14B, "num_key_value_heads": 4})
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc123")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = prior_for(sweep(HUB_ID))
    assert found is not None
    assert found.kv_per_1k.mean == pytest.approx(0.1526, abs=1e-4)
    assert found.basis == "config.json of Qwen/Qwen3-14B-AWQ"
    other = prior_for(sweep(HUB_ID, revision="def456"))
    assert other is not None
    assert other.kv_per_1k.mean == pytest.approx(0.0763, abs=1e-4)
    assert prior_for(sweep(HUB_ID, revision="elsewhere")) is None


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        ({"HF_HUB_CACHE": "{}/cache", "HF_HOME": "/nowhere"}, "cache"),
        ({"HF_HOME": "{}/home", "XDG_CACHE_HOME": "/nowhere"}, "home/hub"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/huggingface/hub"),
    ],
)
def test_the_cache_lies_where_the_hub_puts_it(
    tmp_path: Path, environment: dict[str, str], where: str
) -> None:
    snapshot = tmp_path / where / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    filled = {name: value.format(tmp_path) for name, value in environment.items()}
    assert model_folder("org/name", None, filled) == snapshot
    assert model_folder("org/other", None, filled) is None


def test_nothing_is_told_of_a_model_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert prior_for(sweep(HUB_ID)) is None
    folder = write_model(tmp_path / "qwen", QWEN3_14B)
    simulated = dataclasses.replace(SPEC.engine, kind="simulated")
    assert prior_for(dataclasses.replace(sweep(folder), engine=simulated)) is None


def test_a_damaged_weight_file_leaves_the_rest(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "qwen", QWEN3_14B)
    for content in (b"", b"\xff" * 64, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b"x"):
        (folder / "model.safetensors").write_bytes(content)
        found = prior(folder)
        assert found.kv_per_1k.mean == pytest.approx(0.1526, abs=1e-4)
        assert found.basis == "config.json of qwen"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)
config_keys = sorted({*QWEN3_14B, *DEEPSEEK_V3, *QWEN3_HYBRID, *QWEN3_HYBRID["text_config"]})


@given(
    base=st.sampled_from([QWEN3_14B, DEEPSEEK_V3, QWEN3_HYBRID, GEMMA3_27B]),
    odd=st.dictionaries(
        st.sampled_from([*config_keys, "layer_types", "linear_attn_config", "head_dim"]),
        json_values,
        max_size=4,
    ),
)
def test_an_odd_config_never_raises(
    tmp_path_factory: pytest.TempPathFactory, base: dict[str, Any], odd: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"odd-{os.getpid()}"
    inner = {"text_config": {**base["text_config"], **odd}} if "text_config" in base else {}
    write_model(folder, {**base, **odd, **inner}, {"a": ("BF16", [8, 8])})
    found = prior_for(sweep(folder))
    if found is not None:
        figures = [getattr(found, name) for name in FIGURES]
        assert all(math.isfinite(each.mean) and math.isfinite(each.sd) for each in figures)
        assert all(each.mean >= 0 and each.sd >= 0 for each in figures)


@given(content=st.binary(max_size=64))
def test_a_file_of_any_bytes_never_raises(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"bytes-{os.getpid()}"
    write_model(folder, QWEN3_14B)
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (folder / name).write_bytes(content)
    assert prior_for(sweep(folder)) is not None
    (folder / "config.json").write_bytes(content)
    assert prior_for(sweep(folder)) is None
