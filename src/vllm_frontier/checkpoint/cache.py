"""What one request needs of the KV cache, in bytes on one card."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_frontier.checkpoint.architecture import Config, Layers, quantization, whole

# Bytes of one element, by the names that vLLM's arguments and checkpoints use.
_BYTES = {
    "float32": 4.0,
    "float": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "int8": 1.0,
    "fp8_per_token_head": 1.0,
    "int8_per_token_head": 1.0,
    "nvfp4": 0.5625,
    "fp4": 0.5625,
}
_SPARSE_FP8_BYTES = 656.0  # per token and layer: 512 in fp8, their scales, 64 in 16 bits
_INDEX_SCALE_BYTES = 4.0
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class CacheNeeds:
    """What one request needs, in bytes on one card.

    Attributes:
        per_token: of the window.
        head_per_token: more of it when tokens are drafted.
        fixed: whatever the window: the last tokens of sliding layers.
        state: of one state of every layer that keeps one.
        doubt: how far off a figure may be, as a share of it.
    """

    per_token: float
    head_per_token: float
    fixed: float
    state: float
    doubt: float


@dataclass(frozen=True, slots=True)
class Serving:
    """What beside the model decides its KV cache.

    Attributes:
        model_bytes: of an element of the model.
        kv_dtype: `kv_cache_dtype`; None: not given.
        state_dtype: `mamba_ssm_cache_dtype`; None: not given.
        tensor_parallel: cards that share the model.
        step_tokens: the most that one step computes.
        longest: the longest window that is asked for, tokens.
    """

    model_bytes: float
    kv_dtype: str | None
    state_dtype: str | None
    tensor_parallel: int
    step_tokens: int
    longest: int


def element_bytes(name: object) -> float | None:
    """Bytes of an element of a type such as `bfloat16`; None for `auto` and what is unknown."""
    return _BYTES.get(str(name).removeprefix("torch."))


def kv_bytes(text: Config, outer: Config, serving: Serving) -> tuple[float, float]:
    """Bytes of an element of the KV cache, and how sure that is not, as a share of it."""
    if serving.kv_dtype not in (None, "auto"):
        given = element_bytes(serving.kv_dtype)
        return (given, 0.0) if given is not None else (1.0, 0.4)
    found = _of_checkpoint(quantization((outer, text)))
    if found is not None:
        # Versions differ in whether they follow the checkpoint here.
        return found, 0.1
    return serving.model_bytes, 0.0


def _of_checkpoint(method: Config) -> float | None:
    """Bytes of an element of the KV cache where the checkpoint itself says so."""
    inner = method.get("quantization")
    for part in (inner if isinstance(inner, dict) else {}, method):
        match part.get("kv_cache_scheme") or part.get("kv_cache_quant_algo"):
            case {"num_bits": int(bits)} if 0 < bits <= 16:
                return {4: _BYTES["nvfp4"]}.get(bits, bits / 8)
            case str(name):
                return element_bytes(name.lower())
    return None


def cache_needs(
    text: Config, outer: Config, layers: Layers, head_layers: int, serving: Serving
) -> CacheNeeds | None:
    """What one request needs.

    Args:
        text: the part of `config.json` that describes the language model.
        outer: the whole of it.
        layers: of the model.
        head_layers: attention layers of a speculative head that its checkpoint brings along.
        serving: what beside the model decides.

    Returns:
        None where `config.json` lacks what the sizes follow from.
    """
    size, doubt = kv_bytes(text, outer, serving)
    full = _layer_bytes(text, size, serving, wide=True)
    sliding = _layer_bytes(text, size, serving, wide=False)
    if full is None or sliding is None:
        return None
    plain = layers.padded()
    drafting = Layers(
        layers.full + head_layers, layers.sliding, layers.state, layers.window
    ).padded()
    state, state_doubt = _state_bytes(text, serving)
    if layers.state and layers.full and full > 0:
        # A state fills one block of attention, which is made as long as that takes.
        block = math.ceil(state / full / _BLOCK_TOKENS) * _BLOCK_TOKENS
        state = max(state, block * full)
    kept = min(layers.window - 1 + serving.step_tokens, serving.longest) + _BLOCK_TOKENS
    return CacheNeeds(
        per_token=plain.full * full,
        head_per_token=(drafting.full - plain.full) * full,
        fixed=plain.sliding * sliding * kept if layers.window else 0.0,
        state=plain.state * state,
        doubt=max(doubt, state_doubt if layers.state else 0.0),
    )


def _layer_bytes(text: Config, size: float, serving: Serving, *, wide: bool) -> float | None:
    """KV cache of one token in one layer; `wide`: one that attends to the whole window."""
    rank = whole(text, "kv_lora_rank")
    if rank is not None:
        return _latent_bytes(text, size, rank)
    heads = whole(text, "num_attention_heads", "n_head", "num_heads")
    kv_heads = whole(text, *_KV_HEADS)
    width = whole(text, "hidden_size", "n_embd", "d_model")
    length = whole(text, "head_dim", "kv_channels", "attention_head_dim")
    if wide:
        kv_heads = whole(text, "num_global_key_value_heads") or kv_heads
        length = whole(text, "global_head_dim") or length
    if heads is None or (length is None and width is None):
        return None
    length = length or (width or 0) // heads
    if kv_heads is None:
        kv_heads = 1 if text.get("multi_query") is True else heads
    # With more cards than heads every card holds a copy of one.
    own = max(1, math.ceil(kv_heads / serving.tensor_parallel))
    return own * (length + (whole(text, "v_head_dim") or length)) * size


def _latent_bytes(text: Config, size: float, rank: int) -> float:
    """Of compressed attention; every card holds all of it."""
    kept = rank + (whole(text, "qk_rope_head_dim") or 0)
    indexed = whole(text, "index_head_dim")
    if indexed is None:
        return kept * size
    content = _SPARSE_FP8_BYTES if size == 1.0 else kept * size
    return content + indexed + _INDEX_SCALE_BYTES


def _state_bytes(text: Config, serving: Serving) -> tuple[float, float]:
    """One state of one layer, and how far off it may be, as a share of it."""
    plain = serving.model_bytes
    wanted = serving.state_dtype
    if wanted in (None, "auto"):
        named = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")
        wanted = str(named) if named else None
    precise = element_bytes(wanted) or plain
    doubt = 0.02 if wanted else 0.3  # versions differ in what they take where nothing is said
    found = _delta_net(text) or _mamba2(text) or _kda(text) or _mamba1(text) or _convolution(text)
    if found is None:
        hidden = whole(text, "hidden_size") or 4096
        return hidden * 128 * plain / serving.tensor_parallel, 1.0
    convolution, temporal = found
    size = (convolution * plain + temporal * precise) / serving.tensor_parallel
    return size, doubt


_Elements = tuple[float, float]  # of the convolution's state, and of what is carried on


def _delta_net(text: Mapping[str, Any]) -> _Elements | None:
    heads, length = whole(text, "linear_num_value_heads"), whole(text, "linear_value_head_dim")
    key_heads = whole(text, "linear_num_key_heads")
    key_length = whole(text, "linear_key_head_dim")
    if heads is None or length is None or key_heads is None or key_length is None:
        return None
    kernel = whole(text, "linear_conv_kernel_dim") or 4
    channels = 2 * key_heads * key_length + heads * length
    return channels * (kernel - 1), heads * length * key_length


def _mamba2(text: Mapping[str, Any]) -> _Elements | None:
    heads = whole(text, "mamba_num_heads", "mamba_n_heads")
    length = whole(text, "mamba_head_dim", "mamba_d_head")
    state = whole(text, "ssm_state_size", "mamba_d_state", "state_size")
    if heads is None or length is None or state is None:
        return None
    groups = whole(text, "mamba_n_groups", "n_groups") or 1
    kernel = whole(text, "conv_kernel", "mamba_d_conv", "conv_kernel_size") or 4
    channels = heads * length + 2 * groups * state
    return channels * (kernel - 1), heads * length * state


def _kda(text: Mapping[str, Any]) -> _Elements | None:
    inner = text.get("linear_attn_config")
    if not isinstance(inner, dict):
        return None
    heads, length = whole(inner, "num_heads"), whole(inner, "head_dim")
    if heads is None or length is None:
        return None
    kernel = whole(inner, "short_conv_kernel_size") or 4
    return 3 * heads * length * (kernel - 1), heads * length * length


def _mamba1(text: Mapping[str, Any]) -> _Elements | None:
    width = whole(text, "hidden_size", "d_model")
    state = whole(text, "mamba_d_state", "state_size")
    if width is None or state is None:
        return None
    inner = whole(text, "intermediate_size") if "state_size" in text else None
    inner = inner or width * (whole(text, "mamba_expand", "expand") or 2)
    kernel = whole(text, "mamba_d_conv", "conv_kernel") or 4
    return inner * (kernel - 1), inner * state


def _convolution(text: Mapping[str, Any]) -> _Elements | None:
    width, kernel = whole(text, "conv_dim", "hidden_size"), whole(text, "conv_L_cache")
    return None if width is None or kernel is None else (width * (kernel - 1), 0.0)
