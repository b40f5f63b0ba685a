"""The parts of a `config.json` that decide how much memory a request needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
_ENCODERS = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower")
_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "hybrid": "both",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "recurrent": "state",
    "conv": "state",
    "short_conv": "state",
    "moe": "none",
    "mlp": "none",
}
_NEMOTRON_KINDS = {"*": "full", "M": "state", "-": "none", "E": "none"}
_ALTERNATING = ("gemma2", "gemma2_text", "gpt_oss")
_LAYERS_MAX = 10_000
_WHOLE_MAX = 2**40  # beyond that a file is damaged
_NESTED_MAX = 3


@dataclass(frozen=True, slots=True)
class Layers:
    """How many layers of a model are of which kind; the others need no memory for requests.

    Attributes:
        full: attend to the whole window.
        sliding: attend to the last `window` tokens only.
        state: keep a state of fixed size (linear attention, Mamba, short convolutions).
        window: tokens; 0 without sliding layers.
    """

    full: int
    sliding: int = 0
    state: int = 0
    window: int = 0

    def padded(self) -> Layers:
        """As vLLM counts them, which gives every kind whole groups of equally many layers."""
        present = [count for count in (self.full, self.sliding, self.state) if count]
        if len(present) < 2:
            return self
        group = max(present) if max(present) < 1.5 * min(present) else min(present)
        full, sliding, state = (
            -(-count // group) * group for count in (self.full, self.sliding, self.state)
        )
        return Layers(full, sliding, state, self.window)


def whole(config: Config, *names: str) -> int | None:
    """The first of some keys that holds a whole number above 0, of a size that can be meant."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _WHOLE_MAX:
            return value
    return None


def text_config(config: Config) -> Config:
    """The part that describes the language model; that of a multimodal one is nested."""
    for _ in range(_NESTED_MAX):
        inner = [config[name] for name in _TEXT_CONFIGS if isinstance(config.get(name), dict)]
        if not inner:
            break
        config = inner[0]
    return config


def has_encoder(config: Config) -> bool:
    """Whether the model looks at images or listens, too."""
    return any(config.get(name) for name in _ENCODERS)


def head_layers(config: Config) -> int:
    """Layers of the speculative head that a checkpoint brings along, in its own `config.json`."""
    text = text_config(config)
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
    return whole(text, *names) or whole(config, *names) or 1


def layers_of(text: Config) -> Layers | None:
    """The layers of a language model; None where its `config.json` does not say how many."""
    count = whole(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count is None or count > _LAYERS_MAX:
        return None
    kinds = _kinds(text, count)
    window = whole(text, "sliding_window", "sliding_window_size", "attention_chunk_size") or 0
    if window == 0 or text.get("use_sliding_window") is False:
        kinds = ["full" if kind == "sliding" else kind for kind in kinds]
    shared = whole(text, "num_kv_shared_layers") or 0
    kinds = kinds[: len(kinds) - shared] if shared < len(kinds) else kinds
    both = kinds.count("both")
    sliding = kinds.count("sliding")
    return Layers(
        full=kinds.count("full") + both,
        sliding=sliding,
        state=kinds.count("state") + both,
        window=window if sliding else 0,
    )


def _kinds(text: Config, count: int) -> list[str]:
    """What every layer is, by whichever key this family of models says it."""
    return _listed(text, count) or _periodic(text, count) or _uniform(text, count)


def _listed(text: Config, count: int) -> list[str] | None:
    """From a list, or a text, with an entry for every layer."""
    listed = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(listed, list) and all(isinstance(kind, str) for kind in listed):
        return [_KINDS.get(kind, "full") for kind in listed]
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_NEMOTRON_KINDS.get(sign, "none") for sign in pattern]
    linear = text.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        full = len(linear["full_attn_layers"])
        return ["full"] * full + ["state"] * max(0, count - full)
    numbers = text.get("attn_type_list")
    if isinstance(numbers, list):
        return ["full" if kind == 1 else "state" for kind in numbers]
    return None


def _periodic(text: Config, count: int) -> list[str] | None:
    """From how many layers lie between two that attend to the whole window."""
    every = whole(text, "full_attention_interval", "attn_layer_period")
    if every is not None:
        return _every(count, every, "state")
    every = whole(text, "sliding_window_pattern", "_sliding_window_pattern")
    if every is None and str(text.get("model_type")) in _ALTERNATING:
        every = 2
    return None if every is None else _every(count, every, "sliding")


def _uniform(text: Config, count: int) -> list[str]:
    if whole(text, "mamba_d_state", "state_size") and not _has_attention(text):
        return ["state"] * count
    return ["sliding" if text.get("sliding_window") else "full"] * count


def _every(count: int, every: int, other: str) -> list[str]:
    """Full attention in every n-th layer, something else in the others."""
    return ["full" if (layer + 1) % every == 0 else other for layer in range(count)]


def _has_attention(text: Config) -> bool:
    return whole(text, "num_attention_heads", "n_head") is not None


def quantization(configs: Sequence[Config]) -> Config:
    """How the checkpoint is quantized; empty where it is not."""
    for config in configs:
        found = config.get("quantization_config")
        if isinstance(found, dict):
            return found
    return {}
