"""From cells to command-line words."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.engine import command
from vllm_frontier.engine.arguments import kv_cache_bytes, render, serve_arguments
from vllm_frontier.errors import EngineError
from vllm_frontier.grid import Cell
from vllm_frontier.spec import CardSpec, EngineSpec, ModelSpec, SpeculationSpec

CPU = CardSpec(kind="cpu", name="slice", memory_gib=2.0, reserved_gib=0.5)
GPU = CardSpec(kind="nvidia", name="RTX 5090", memory_gib=31.36)
MODEL = ModelSpec(name="m", id="/models/m")


def words(
    cell: Cell,
    *,
    model: ModelSpec = MODEL,
    engine: EngineSpec | None = None,
    card: CardSpec = GPU,
) -> list[str]:
    return list(render(serve_arguments(cell, model, engine or EngineSpec(kind="vllm"), card)))


def following(flag: str, given_words: list[str]) -> str:
    return given_words[given_words.index(flag) + 1]


def test_values_become_words() -> None:
    assert render(
        {
            "max_num_seqs": 4,
            "enable_prefix_caching": False,
            "trust_remote_code": True,
            "dtype": None,
            "hf_overrides": {"b": 1, "a": [2]},
            "middleware": ["one", "two"],
            "lora_modules": [{"name": "x"}],
            "allowed": [],
            "offset": -1,
            "compilation_config.cudagraph_mode": "FULL",
            "kv-cache-dtype": "fp8",
        }
    ) == (
        *("--max-num-seqs", "4", "--no-enable-prefix-caching", "--trust-remote-code"),
        *("--hf-overrides", '{"a":[2],"b":1}', "--middleware", "one", "two"),
        *("--lora-modules", '[{"name":"x"}]', "--offset=-1"),
        *("--compilation-config.cudagraph_mode", "FULL", "--kv-cache-dtype", "fp8"),
    )


@given(
    text=st.text(min_size=1),
    number=st.floats(allow_nan=False) | st.integers(),
    several=st.lists(st.text(alphabet="abcx", min_size=1), min_size=1),
    mapping=st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()),
    on=st.booleans(),
)
def test_argparse_reads_back_what_was_rendered(
    text: str, number: float, several: list[str], mapping: dict[str, Any], on: bool
) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--some-text")
    parser.add_argument("--some-number", type=float)
    parser.add_argument("--several", nargs="+")
    parser.add_argument("--some-mapping", type=json.loads)
    parser.add_argument("--switch", action=argparse.BooleanOptionalAction)
    read = parser.parse_args(
        render(
            {
                "some_text": text,
                "some_number": number,
                "several": several,
                "some_mapping": mapping,
                "switch": on,
            }
        )
    )
    assert read.some_text == text
    assert read.some_number == pytest.approx(float(number))
    assert (read.several, read.some_mapping, read.switch) == (several, mapping, on)


def test_gpu_cell() -> None:
    cell = Cell(depth=3, context=65536, graphs=True, utilization=0.93)
    assert words(cell) == [
        *("--max-model-len", "65536", "--gpu-memory-utilization", "0.93"),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":3}'),
    ]


def test_without_speculation_and_graphs() -> None:
    given_words = words(Cell(depth=0, context=1024, graphs=False, utilization=0.5))
    assert "--enforce-eager" in given_words
    assert "--speculative-config" not in given_words


def test_cpu_cell_gets_a_declared_share_of_the_slice() -> None:
    engine = EngineSpec(kind="vllm-cpu")
    given_words = words(
        Cell(depth=0, context=1024, graphs=False, utilization=0.5), engine=engine, card=CPU
    )
    assert following("--kv-cache-memory-bytes", given_words) == str(2**29)
    assert "--gpu-memory-utilization" not in given_words


@pytest.mark.parametrize("utilization", [0.25, 0.1, 0.0001])
def test_a_cpu_cell_with_nothing_left_asks_for_one_byte(utilization: float) -> None:
    assert kv_cache_bytes(Cell(0, 1024, False, utilization), CPU) == 1


@given(st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_more_utilization_is_never_less_memory(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert kv_cache_bytes(Cell(0, 1, False, low), CPU) <= kv_cache_bytes(
        Cell(0, 1, False, high), CPU
    )


@pytest.mark.parametrize(
    ("speculation", "config"),
    [
        (SpeculationSpec(), {"method": "mtp", "num_speculative_tokens": 2}),
        (
            SpeculationSpec(method="ngram", args={"prompt_lookup_max": 8}),
            {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "prompt_lookup_max": 8,
                "prompt_lookup_min": 2,
            },
        ),
        (
            SpeculationSpec(method="eagle3", model="/models/head", args={"draft_tp": 1}),
            {
                "method": "eagle3",
                "num_speculative_tokens": 2,
                "model": "/models/head",
                "draft_tp": 1,
            },
        ),
    ],
)
def test_speculation(speculation: SpeculationSpec, config: dict[str, Any]) -> None:
    model = ModelSpec(name="m", id="/models/m", speculation=speculation)
    given_words = words(Cell(2, 1024, True, 0.9), model=model)
    assert json.loads(following("--speculative-config", given_words)) == config


def test_later_layers_win_however_they_are_spelled() -> None:
    model = ModelSpec(
        name="m", id="/m", revision="abc", args={"max_num_seqs": 1, "kv-cache-dtype": "auto"}
    )
    engine = EngineSpec(
        kind="vllm", tensor_parallel=2, args={"max-num-seqs": 2, "enforce_eager": False}
    )
    cell = Cell(0, 1024, False, 0.9, extra=(("kv_cache_dtype", "fp8"), ("max_num_seqs", 3)))
    given_words = words(cell, model=model, engine=engine)
    assert following("--max-num-seqs", given_words) == "3"
    assert following("--kv-cache-dtype", given_words) == "fp8"
    assert given_words.count("--max-num-seqs") == given_words.count("--kv-cache-dtype") == 1
    assert "--enforce-eager" not in given_words
    assert "--no-enforce-eager" in given_words
    assert following("--tensor-parallel-size", given_words) == "2"
    assert following("--revision", given_words) == "abc"


def test_template_words_and_shell_text() -> None:
    values = {"port": "8011", "model": "/m", "name": "n", "gpus": "GPU-1,GPU-2", "python": "py"}
    args = ("--a", '{"x": 1}')
    assert command.expand(
        "docker run --gpus '\"device={gpus}\"' image {args} --port={port}", values, args
    ) == (
        *("docker", "run", "--gpus", '"device=GPU-1,GPU-2"', "image"),
        *("--a", '{"x": 1}', "--port=8011"),
    )
    shell = command.expand('bash -c "exec vllm serve {model} {args}"', values, args)
    assert shell == ("bash", "-c", "exec vllm serve /m --a '{\"x\": 1}'")


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("vllm serve {args} {prot}", r"\{prot\}.*\{port\}"),
        ("vllm serve {model}", r"lacks \{args\}"),
        ("vllm 'serve {args}", "cannot be split"),
    ],
)
def test_wrong_template(template: str, complaint: str) -> None:
    with pytest.raises(EngineError, match=complaint):
        command.placeholders(template)
