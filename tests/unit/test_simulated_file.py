"""Card files: what is found, and what is said of wrong ones."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_frontier.engine.simulated.card_file import (
    bundled_cards,
    card_folder,
    find_card,
    load_card,
    parse_card,
)
from vllm_frontier.errors import ConfigError

GOOD = yaml.safe_load((card_folder() / "tiny-8gib.yaml").read_text())


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good file with one value replaced; None removes the key."""
    data: dict[str, Any] = copy.deepcopy(GOOD)
    *sections, name = path.split(".")
    section = data
    for each in sections:
        section = section[each]
    if value is None:
        del section[name]
    else:
        section[name] = value
    return data


def fault(**when: Any) -> dict[str, Any]:
    """A fault that is meant for some cells only."""
    return {"kind": "crash", "at": "load", "when": when}


def test_every_bundled_card_is_read() -> None:
    assert {"rtx5090-qwen3.8-27b-nvfp4", "tiny-8gib"} < set(bundled_cards())
    for name in bundled_cards():
        card = load_card(name)
        assert card.card.name.startswith("Simulated")
        assert card.memory.weights < card.card.total_gib


def test_default_card_has_the_published_figures() -> None:
    card = load_card(None)
    assert card.card.name == "Simulated RTX 5090"
    assert (card.card.total_gib, card.card.in_use_gib) == (31.36, 0.6)
    assert card.model.max_context == 262144
    assert card.memory.weights + card.memory.head == pytest.approx(22.15)
    assert card.speed.acceptance["prose"] == (0.93, 0.80, 0.66, 0.55, 0.45, 0.38)
    assert (card.speed.step_ms.eager, card.speed.step_ms_per_depth.graphs) == (42.0, 0.6)
    assert (card.time.load_s, card.time.scale, card.faults) == (45.0, 0.01, ())


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(changed("card.name", "Mine")))
    assert load_card(str(file)).card.name == "Mine"
    assert find_card(str(file)) == file


def test_left_out_figures_have_defaults() -> None:
    data = copy.deepcopy(GOOD)
    for key in ("head", "state", "fill_extra", "graphs", "activation_per_depth"):
        del data["memory"][key]
    del data["time"], data["faults"], data["speed"]["noise"], data["speed"]["step_ms_per_depth"]
    card = parse_card(data, "x")
    assert (card.memory.head, card.memory.state, card.memory.block_tokens) == (0.0, 0.0, 16)
    assert (card.speed.step_ms_per_depth.eager, card.time.scale) == (0.0, 0.01)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (changed("memory.wieghts", 1.0), "memory has no key 'wieghts'; did you mean weights?"),
        (changed("memory.weights", None), "memory.weights is missing"),
        (changed("speed", None), "speed is missing"),
        (changed("kind", "nvidia"), "kind must be simulated, not 'nvidia'"),
        (changed("memory.weights", "much"), "memory.weights must be a number, not 'much'"),
        (changed("memory.head", -1.0), "memory.head must not be negative or infinite"),
        (changed("memory.head", float("nan")), "memory.head must not be negative or infinite"),
        (changed("memory.block_tokens", 16.5), "memory.block_tokens must be a whole number, not"),
        (changed("memory.block_tokens", 0), "memory.block_tokens must be above 0"),
        (changed("memory.graphs_counted", 1), "memory.graphs_counted must be true or false"),
        (changed("card.in_use_gib", 8.0), "card.in_use_gib must be below card.total_gib"),
        (changed("speed.acceptance.code", [0.5, 0.6]), "speed.acceptance.code must fall from"),
        (changed("speed.acceptance.code", [1.5]), "speed.acceptance.code must fall from"),
        (changed("speed.acceptance", {}), "speed.acceptance must name at least one task"),
        (changed("speed.step_ms.eager", 0), "speed.step_ms.eager must be above 0"),
        (changed("time.scale", 0), "time.scale must be above 0"),
        (changed("faults", [{"kind": "crsh", "at": "load"}]), "faults[0].kind must be one of"),
        (changed("faults", [{"kind": "crash", "at": "lod"}]), "faults[0].at must be one of"),
        (changed("faults", [{"kind": "oom", "at": "spawn"}]), "faults[0].at must be one of load"),
        (changed("faults", [{"kind": "hang", "at": "load", "times": 0}]), "faults[0].times must"),
        (changed("faults", [{"kind": "crash"}]), "faults[0].at is missing: one of spawn, "),
        (
            changed("faults", [fault(graphs="off?")]),
            "when.graphs must be true or false, not 'off?'",
        ),
        (changed("faults", [fault(depth="3")]), "faults[0].when.depth must be a number, not '3'"),
        (changed("faults", [fault(dtype=2**90)]), "when.dtype must be a number within 64 bits"),
        (changed("faults", [fault(dtype=[["a"]])]), "when.dtype must be a plain value or a list"),
        (changed("faults", [fault(dtype=math.nan)]), "when.dtype must be a number within 64 bits"),
        (changed("card.total_gib", 1e308), "card.total_gib must be at most 1e+09, but is 1e+308"),
        (
            changed("card.total_gib", 10**400),
            "card.total_gib must be at most 1e+09, but is a number",
        ),
        (changed("card.total_gib", 1e8), "card.total_gib must be between 0.001 and 1e+06, but is"),
        (changed("memory.kv_per_1k_tokens", 1e-320), "kv_per_1k_tokens must be between 1e-06 and"),
        (changed("memory.block_tokens", 10**5000), "memory.block_tokens must be at most 1e+09"),
        (changed("speed.step_ms.graphs", 1e-320), "speed.step_ms.graphs must be between 1e-06 and"),
        (changed("speed.prefill_tok_s", 1e-320), "speed.prefill_tok_s must be between 0.001 and"),
        (
            changed("speed.acceptance.code", [10**400]),
            "speed.acceptance.code must be at most 1e+09",
        ),
        (changed("time.load_s", 1e300), "time.load_s must be at most 1e+09"),
        (changed("time.scale", 1e-320), "time.scale must be between 1e-09 and 5, but is"),
        (changed("card.name", "two\nlines"), "card.name must be a text of one line, not"),
        (changed("time", []), "time must be a mapping, not []"),
        ([], "x must be a mapping"),
    ],
)
def test_wrong_files_are_told_in_one_line(data: object, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_card(data, "x")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty"),
        ("name: 2024-99-99", "cannot be read: a value is not what its form or its tag says"),
        ("name: " + "9" * 5000, "cannot be read: a value is not what its form"),
        ("name: !!int abc", "cannot be read: a value is not what its form"),
        ("name: !!float abc", "cannot be read: a value is not what its form"),
        ("name: !!bool abc", "cannot be read: a value is not what its form"),
        ("name: !!timestamp abc", "cannot be read: a value is not what its form"),
        ("a: " + "[" * 5000, "cannot be read: it is nested too deeply"),
        ("#" * (2**20 + 1), "is larger than 1 MiB"),
        ("kind: !!python/object:os.system {}", "cannot be read: could not determine a constructor"),
    ],
    ids=range(10),
)
def test_odd_content_is_told_in_one_line(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_card(str(file))
    assert f"card file {file} {told}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [("~no-such-user-0", "names no user's home"), ("n" * 300, "File name too long")],
)
def test_a_name_that_no_file_can_have(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        load_card(name)
    assert len(str(caught.value)) < 200


def test_words_for_graphs_are_understood_in_a_fault() -> None:
    when = parse_card(changed("faults", [fault(graphs=["off", True])]), "x").faults[0].when
    assert when == {"graphs": [False, True]}


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean tiny-8gib"):
        load_card("tiny-8gb")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,\nb: }")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load_card(str(broken))
    assert "\n" not in str(caught.value)


def test_a_fault_for_the_port_needs_no_phase() -> None:
    faults = parse_card(changed("faults", [{"kind": "port"}]), "x").faults
    assert (faults[0].at, faults[0].times) == ("spawn", None)
