"""What is believed of a model's memory on one card before the first launch.

Every figure comes with a standard deviation that says how well the files tell it: sizes of
tensors and of the KV cache follow from them, what vLLM needs while it computes is a guess.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vllm_frontier.checkpoint.architecture import (
    Config,
    has_encoder,
    head_layers,
    layers_of,
    quantization,
    text_config,
    whole,
)
from vllm_frontier.checkpoint.cache import CacheNeeds, Serving, cache_needs, element_bytes
from vllm_frontier.checkpoint.folder import model_folder, read_config
from vllm_frontier.checkpoint.weights import Weights, read_weights
from vllm_frontier.engine.arguments import canonical
from vllm_frontier.memory import Figure, MemoryPrior
from vllm_frontier.spec import SweepSpec

_GIB = 2.0**30
_VARIANTS_MAX = 16  # of further axes that change the figures
_NOTHING = Figure(0.0, 0.0)
_STEP_TOKENS, _SEQUENCES = 2048, 256  # vLLM's defaults for a server on a card below 70 GiB
_LARGE_CARD_GIB, _LARGE_STEP_TOKENS, _LARGE_SEQUENCES = 70.0, 8192, 1024
_LOGIT_BYTES = 16.0  # of one word of one sequence: 32 bits, sorted, with its place
_CAPTURE_BATCHES = 512  # more sequences have no graphs of their own
# Bytes of a weight, by what a quantization is called; scales and what stays in 16 bits included.
_METHOD_BYTES = {"awq": 0.6, "gptq": 0.6, "nvfp4": 0.65, "fp4": 0.65, "fp8": 1.05, "int8": 1.05}


@dataclass(frozen=True, slots=True)
class _Model:
    """What was read of a model's folder."""

    folder: Path
    outer: Config
    text: Config


def prior_for(spec: SweepSpec) -> MemoryPrior | None:
    """What the files of a sweep's model tell of its memory on one card.

    Further axes of the grid that change it, such as `kv_cache_dtype`, make it less certain.

    Returns:
        None where the model is not on this machine, its files cannot be read, or the engine is
        simulated and has no model.
    """
    if spec.engine.kind == "simulated":
        return None
    model = _read(spec.model.id, spec.model.revision, spec)
    if model is None:
        return None
    priors = [_prior(spec, model, arguments) for arguments in _variants(spec)]
    return _blended([prior for prior in priors if prior is not None])


def unread(spec: SweepSpec) -> str | None:
    """Why `prior_for` gives None though the engine has a model, in words; None if it gives one."""
    if spec.engine.kind == "simulated":
        return None
    folder = model_folder(spec.model.id, spec.model.revision, {**os.environ, **spec.engine.env})
    if folder is None:
        return "the model's files are not on this machine"
    if prior_for(spec) is not None:
        return None
    if read_config(folder) is None:
        return f"config.json of {folder} is missing or cannot be read"
    return f"config.json of {folder} does not describe the model's layers"


def _read(model_id: str, revision: str | None, spec: SweepSpec) -> _Model | None:
    folder = model_folder(model_id, revision, {**os.environ, **spec.engine.env})
    outer = read_config(folder) if folder is not None else None
    if folder is None or outer is None:
        return None
    return _Model(folder, outer, text_config(outer))


def _variants(spec: SweepSpec) -> Iterator[Mapping[str, Any]]:
    """The arguments of the sweep with every combination of its further axes."""
    fixed = {
        canonical(name): value
        for layer in (spec.model.args, spec.engine.args)
        for name, value in layer.items()
    }
    names = [canonical(axis.name) for axis in spec.grid.extra]
    combinations = itertools.product(*(axis.values for axis in spec.grid.extra))
    for values in itertools.islice(combinations, _VARIANTS_MAX):
        yield fixed | dict(zip(names, values, strict=True))


def _blended(priors: Sequence[MemoryPrior]) -> MemoryPrior | None:
    """One prior for several variants: their mean, and how far apart they lie."""
    if len(priors) < 2:
        return priors[0] if priors else None
    figures = {}
    for name in (each.name for each in fields(MemoryPrior) if each.name != "basis"):
        each: list[Figure] = [getattr(prior, name) for prior in priors]
        mean = sum(figure.mean for figure in each) / len(each)
        spread = sum(figure.sd**2 + (figure.mean - mean) ** 2 for figure in each) / len(each)
        figures[name] = Figure(mean, math.sqrt(spread))
    return MemoryPrior(**figures, basis=priors[0].basis)


def _prior(spec: SweepSpec, model: _Model, arguments: Mapping[str, Any]) -> MemoryPrior | None:
    serving = _serving(spec, model, arguments)
    layers = layers_of(model.text)
    drafter = _drafter(spec)
    needs = None
    if layers is not None:
        own = head_layers(model.outer) if spec.model.speculation.method == "mtp" else 0
        needs = cache_needs(model.text, model.outer, layers, own, serving)
    if needs is None:
        return None
    kv = _kv_figures(needs, _drafter_kv(drafter, serving), arguments)
    in_cache = model.folder.parent.name == "snapshots"
    name = spec.model.id if in_cache else model.folder.name
    if spec.engine.kind == "vllm-cpu":
        # There the budget is KV cache, less what the card's description sets apart.
        return MemoryPrior(
            weights=Figure(spec.card.reserved_gib, 0.0),
            head=_NOTHING,
            activation=_NOTHING,
            activation_per_depth=_NOTHING,
            graphs=_NOTHING,
            graphs_per_depth=_NOTHING,
            overhead=_NOTHING,
            **kv,
            basis=f"config.json of {name}",
        )
    found = _weights(model, serving, arguments)
    weights, exact = found or (_guessed_weights(model, spec), False)
    return MemoryPrior(
        weights=_weight_figure(weights.base, serving, exact=exact, guessed=found is None),
        head=_head_figure(spec, model, weights, drafter, serving),
        activation=_activation(spec, model, arguments, serving),
        activation_per_depth=Figure(0.0, 0.02),
        graphs=_graphs(spec, model, arguments),
        graphs_per_depth=Figure(0.02, 0.03),
        overhead=Figure(0.1, 0.15) if serving.tensor_parallel == 1 else Figure(0.4, 0.4),
        **kv,
        basis=f"config.json and the weight index of {name}"
        if found is not None
        else f"config.json of {name}",
    )


def _serving(spec: SweepSpec, model: _Model, arguments: Mapping[str, Any]) -> Serving:
    given = element_bytes(arguments.get("dtype"))
    stored = element_bytes(
        model.text.get("dtype") or model.text.get("torch_dtype") or model.outer.get("torch_dtype")
    )
    kv_dtype, state_dtype = arguments.get("kv_cache_dtype"), arguments.get("mamba_ssm_cache_dtype")
    large = spec.card.memory_gib >= _LARGE_CARD_GIB
    return Serving(
        # Left to itself vLLM runs what is stored in 32 bits in 16.
        model_bytes=given or min(stored or 2.0, 2.0),
        kv_dtype=None if kv_dtype is None else str(kv_dtype),
        state_dtype=None if state_dtype is None else str(state_dtype),
        tensor_parallel=max(1, spec.engine.tensor_parallel),
        step_tokens=whole(arguments, "max_num_batched_tokens")
        or (_LARGE_STEP_TOKENS if large else _STEP_TOKENS),
        longest=max(spec.grid.context),
    )


# KV cache


def _drafter(spec: SweepSpec) -> _Model | None:
    """The model that drafts, where it is another one."""
    name = spec.model.speculation.model
    return None if name is None else _read(name, None, spec)


def _drafter_kv(drafter: _Model | None, serving: Serving) -> float:
    """KV cache of a drafter of its own, bytes per token."""
    layers = layers_of(drafter.text) if drafter is not None else None
    if drafter is None or layers is None:
        return 0.0
    needs = cache_needs(drafter.text, drafter.outer, layers, 0, serving)
    return needs.per_token if needs is not None else 0.0


def _kv_figures(
    needs: CacheNeeds, drafter: float, arguments: Mapping[str, Any]
) -> dict[str, Figure]:
    per_1k = needs.per_token * 1000 / _GIB
    head = (needs.head_per_token + drafter) * 1000 / _GIB
    fixed, state = needs.fixed / _GIB, needs.state / _GIB
    states, doubt = _states(arguments)
    return {
        "kv_per_1k": Figure(per_1k, per_1k * math.hypot(0.01, needs.doubt)),
        "head_kv_per_1k": Figure(head, 0.1 * head + 0.002 * per_1k),
        "state": Figure(
            fixed + states * state,
            0.3 * fixed + state * math.hypot(doubt, states * needs.doubt),
        ),
        "state_per_depth": Figure(state, state * math.hypot(0.1, needs.doubt)),
    }


def _states(arguments: Mapping[str, Any]) -> tuple[float, float]:
    """How many states a request keeps beside those of its drafts, and how sure that is not.

    With prefix caching they are two; older versions leave it off for such models.
    """
    match arguments.get("enable_prefix_caching"):
        case True:
            return 2.0, 0.2
        case False:
            return 1.0, 0.1
    return 1.5, 0.5


# Weights


def _weights(
    model: _Model, serving: Serving, arguments: Mapping[str, Any]
) -> tuple[Weights, bool] | None:
    """The weights, and whether their sizes hold as they are read."""
    quantized = bool(quantization((model.outer, model.text)))
    tied = bool(model.text.get("tie_word_embeddings", model.outer.get("tie_word_embeddings")))
    found = read_weights(
        model.folder,
        layers=whole(model.text, "num_hidden_layers"),
        float_bytes=None if quantized else serving.model_bytes,
        tied=tied,
    )
    if found is None:
        return None
    online = arguments.get("quantization")
    if online is None or quantized:
        return found, found.exact
    # Quantized while it is loaded: what is stored is larger than what is kept.
    share = _METHOD_BYTES.get(str(online).lower(), 1.0) / serving.model_bytes
    return Weights(found.base * min(share, 1.0), found.head, found.shared, exact=False), False


def _guessed_weights(model: _Model, spec: SweepSpec) -> Weights:
    """From the numbers in `config.json` alone, where the weights are elsewhere."""
    text = model.text
    width = whole(text, "hidden_size", "n_embd") or 4096
    layers = whole(text, "num_hidden_layers", "n_layer") or 32
    inner = whole(text, "intermediate_size", "n_inner") or 4 * width
    experts = whole(text, "num_experts", "n_routed_experts", "num_local_experts") or 0
    expert = whole(text, "moe_intermediate_size") or inner
    words = whole(text, "vocab_size") or 100_000
    mixing = 3 * width * (experts * expert if experts else inner)
    method = quantization((model.outer, text)).get("quant_method") or spec.model.quantization
    size = _METHOD_BYTES.get(str(method).lower(), 2.0)
    layer = 4 * width * width + mixing
    return Weights(layers * layer * size + 2 * words * width * 2.0, 0.0, 0.0, exact=False)


def _weight_figure(size: float, serving: Serving, *, exact: bool, guessed: bool) -> Figure:
    mean = size / serving.tensor_parallel / _GIB
    if guessed:
        return Figure(mean, 0.25 * mean)
    return Figure(mean, (0.02 if exact else 0.06) * mean + 0.05)


def _head_figure(
    spec: SweepSpec, model: _Model, weights: Weights, drafter: _Model | None, serving: Serving
) -> Figure:
    if spec.model.speculation.method == "ngram":
        return Figure(0.0, 0.02)
    if spec.model.speculation.method == "mtp":
        size, shared, exact = weights.head, weights.shared, weights.exact
        if not exact:  # one layer like the others
            layers = whole(model.text, "num_hidden_layers") or 32
            size = weights.base / (layers + 2) * head_layers(model.outer)
    else:
        layers_there = None if drafter is None else whole(drafter.text, "num_hidden_layers")
        found = drafter and read_weights(
            drafter.folder, layers=layers_there, float_bytes=None, tied=False
        )
        if not found:
            rough = 0.05 * weights.base / _GIB / serving.tensor_parallel
            return Figure(rough, rough)
        size, shared, exact = found.base + found.head, found.shared, found.exact
    mean = size / serving.tensor_parallel / _GIB
    # vLLM may hold what could be shared twice, and graphs and buffers of the head count, too.
    return Figure(mean, (0.15 if exact else 0.6) * mean + 0.5 * shared / _GIB + 0.02)


# What vLLM needs while it computes


def _activation(
    spec: SweepSpec, model: _Model, arguments: Mapping[str, Any], serving: Serving
) -> Figure:
    """The largest step while vLLM profiles: a few buffers of every width, and the words."""
    text = model.text
    width = whole(text, "hidden_size", "n_embd") or 4096
    inner = whole(text, "intermediate_size", "moe_intermediate_size", "n_inner") or 4 * width
    words = whole(text, "vocab_size") or 100_000
    step = serving.step_tokens * (6 * width + 3 * inner / serving.tensor_parallel) * 2.0
    sampled = min(_sequences(spec, arguments), serving.step_tokens) * words * _LOGIT_BYTES
    mean = (step + sampled) / _GIB
    if has_encoder(model.outer) and not arguments.get("language_model_only"):
        return Figure(mean + 1.0, 0.5 * mean + 0.8)  # the largest image is profiled, too
    return Figure(mean, 0.5 * mean + 0.1)


def _graphs(spec: SweepSpec, model: _Model, arguments: Mapping[str, Any]) -> Figure:
    """Graphs are captured for every size of a batch; most of them is the same for all models."""
    layers = whole(model.text, "num_hidden_layers") or 32
    batches = min(_CAPTURE_BATCHES, 2 * _sequences(spec, arguments))
    mean = 0.3 + layers * (0.003 + 0.00001 * batches)
    return Figure(mean, mean)


def _sequences(spec: SweepSpec, arguments: Mapping[str, Any]) -> int:
    large = spec.card.memory_gib >= _LARGE_CARD_GIB
    return whole(arguments, "max_num_seqs") or (_LARGE_SEQUENCES if large else _SEQUENCES)
