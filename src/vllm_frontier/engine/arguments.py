"""From names and values to the arguments of `vllm serve`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_frontier.grid import Cell
from vllm_frontier.spec import CardSpec, EngineSpec, ModelSpec, SpeculationSpec

_NGRAM = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}


# What measuring needs and serving does not: cached tokens in the usage of a request.
MEASURING = ("--enable-prompt-tokens-details",)


def flag(name: str) -> str:
    """The flag of an argument: `max_num_seqs` becomes `--max-num-seqs`.

    The dots of nested arguments stay (`compilation_config.mode`), and so do underscores behind
    the first dot, which vLLM takes literally.
    """
    head, dot, rest = name.removeprefix("--").partition(".")
    return f"--{head.replace('_', '-')}{dot}{rest}"


def canonical(name: str) -> str:
    """The name under which two spellings of an argument are the same."""
    head, dot, rest = name.removeprefix("--").partition(".")
    return f"{head.replace('-', '_')}{dot}{rest}"


def render(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The command-line words for arguments by name.

    True is a bare flag, False its negation (`--no-flag`), None leaves the argument out;
    mappings, and lists that hold any, are JSON; lists of scalars follow their flag one by one,
    which is how vLLM declares arguments of several values; an empty list is left out.
    """
    words: list[str] = []
    for name, value in arguments.items():
        words += _render_one(flag(name), value)
    return tuple(words)


def _render_one(name: str, value: object) -> list[str]:
    if value is None or value == []:
        return []
    if isinstance(value, bool):
        return [name if value else f"--no-{name.removeprefix('--')}"]
    items = list(value) if isinstance(value, list | tuple) else [value]
    if isinstance(value, Mapping) or any(isinstance(item, Mapping) for item in items):
        return [name, _json(value)]
    texts = [str(item) for item in items]
    if len(texts) == 1 and texts[0].startswith("-"):
        # A value that looks like a flag is taken for one unless it is joined to its own.
        return [f"{name}={texts[0]}"]
    return [name, *texts]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def speculative_config(speculation: SpeculationSpec, depth: int) -> dict[str, Any]:
    """The value of `--speculative-config` for a depth above 0."""
    config: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": depth}
    if speculation.method == "ngram":
        config |= _NGRAM
    if speculation.model is not None:
        config["model"] = speculation.model
    return config | dict(speculation.args)


def kv_cache_bytes(cell: Cell, card: CardSpec) -> int:
    """The KV cache of a cell on a card that is a declared slice of memory, in bytes.

    vLLM takes no figure below 1 and refuses 1 as no memory at all, which is what a cell with
    nothing left means.
    """
    gib = cell.utilization * card.memory_gib - card.reserved_gib
    return max(int(gib * 2**30), 1)


def serve_arguments(
    cell: Cell, model: ModelSpec, engine: EngineSpec, card: CardSpec
) -> dict[str, Any]:
    """The arguments of a cell beside the model, by canonical name.

    What the grid decides comes first; `model.args`, `engine.args` and the further axes of the
    cell are laid over it in this order, the later one wins. The quantization of a model is not
    among them: vLLM reads it from the checkpoint, and a model that needs the flag all the same
    names it in its `args`.
    """
    arguments: dict[str, Any] = {
        "revision": model.revision,
        "max_model_len": cell.context,
        **_memory(cell, engine, card),
    }
    if not cell.graphs:
        arguments["enforce_eager"] = True
    if cell.depth > 0:
        arguments["speculative_config"] = speculative_config(model.speculation, cell.depth)
    if engine.tensor_parallel > 1:
        arguments["tensor_parallel_size"] = engine.tensor_parallel
    layers: Iterable[Mapping[str, Any]] = (model.args, engine.args, dict(cell.extra))
    for layer in layers:
        arguments |= {canonical(name): value for name, value in layer.items()}
    return arguments


def _memory(cell: Cell, engine: EngineSpec, card: CardSpec) -> dict[str, Any]:
    if engine.kind == "vllm-cpu":
        # The share vLLM would take depends on the machine's memory, not on the card's.
        return {"kv_cache_memory_bytes": kv_cache_bytes(cell, card)}
    return {"gpu_memory_utilization": cell.utilization}
