from __future__ import annotations

import ast
import re
from itertools import combinations
from pathlib import Path

import pytest

from vllm_frontier.errors import ConfigError
from vllm_frontier.measure.task import (
    BYTES_PER_TOKEN_MIN,
    TEMPLATE_TOKENS,
    known_tasks,
    load_task,
    needs_tokens,
)

BUNDLED = ("code", "edit", "prose")


def test_the_bundled_tasks() -> None:
    assert known_tasks() == BUNDLED
    for name in BUNDLED:
        task = load_task(name)
        assert task.name == name
        assert task.max_tokens == 256
        assert len(task.variants) >= 6


@pytest.mark.parametrize("name", BUNDLED)
def test_the_declared_length_holds_in_a_small_vocabulary(name: str) -> None:
    task = load_task(name)
    longest = max(len(task.prompt(repeat).encode()) for repeat in range(40))

    assert task.prompt_tokens_max >= longest / BYTES_PER_TOKEN_MIN + TEMPLATE_TOKENS


def test_the_shortest_window_is_that_of_the_longest_task() -> None:
    edit, prose = load_task("edit"), load_task("prose")

    assert needs_tokens(BUNDLED) == edit.prompt_tokens_max + 256 <= 8192
    assert needs_tokens(["prose"], 1000) == prose.prompt_tokens_max + 1000
    assert needs_tokens([]) == 0


def test_no_two_prompts_begin_alike() -> None:
    prompts = [load_task(name).prompt(repeat) for name in BUNDLED for repeat in range(15)]

    assert len(set(prompts)) == len(prompts)
    for first, second in combinations(prompts, 2):
        assert first[:40] != second[:40]


def test_a_repeat_always_asks_the_same_and_later_ones_reuse_the_texts() -> None:
    task, again = load_task("code"), load_task("code")

    assert [task.prompt(n) for n in range(9)] == [again.prompt(n) for n in range(9)]
    assert task.prompt(1) == task.variants[1]
    assert task.prompt(7) == f"Request 7 of a series.\n\n{task.variants[1]}"


def test_the_forms_by_which_a_task_is_known() -> None:
    assert all(text.startswith("Here is the file `") for text in load_task("edit").variants)
    assert all(text.startswith("Write a Python module `") for text in load_task("code").variants)
    assert all(text.endswith("Answer with the code only.") for text in load_task("code").variants)
    for text in load_task("prose").variants:
        assert text.startswith("Explain ")
        assert "in plain prose without lists or code." in text
        assert "\n" not in text


@pytest.mark.parametrize("variant", load_task("edit").variants)
def test_an_edit_is_of_a_real_file_with_that_function(variant: str) -> None:
    source = variant.split("```python\n")[1].split("```", maxsplit=1)[0]
    old, new = re.findall(r"Rename the function `(\w+)` to `(\w+)`\.", variant)[0]
    functions = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}

    assert 40 <= source.count("\n") <= 80
    assert old in functions
    assert len(re.findall(rf"\b{old}\(", source)) >= 2, "defined and called"
    assert new not in source


def test_a_task_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "haiku.yaml"
    path.write_text(
        "name: haiku\nmax_tokens: 32\nvariants: [Write about rain., Write about snow.]\n"
    )

    task = load_task(str(path))

    assert (task.name, task.max_tokens) == ("haiku", 32)
    assert task.prompt(1) == "Write about snow."
    assert task.prompt_tokens_max == int(17 / BYTES_PER_TOKEN_MIN) + TEMPLATE_TOKENS
    assert needs_tokens([str(path)]) == task.prompt_tokens_max + 32


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    digests = []
    for text in ("a", "b", "a"):
        path.write_text(f"name: own\nmax_tokens: 8\nvariants: [{text}]\n")
        digests.append(load_task(str(path)).digest)

    assert digests[0] == digests[2] != digests[1]
    assert re.fullmatch(r"[0-9a-f]{16}", digests[0])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name: x\nmax_tokens: 8\n", "variants"),
        ("name: x\nmax_tokens: 8\nvariants: []\n", "variants"),
        ("name: x\nmax_tokens: 8\nvariants: [1]\n", "not a text"),
        ("name: x\nmax_tokens: 8\nvariants: [a, a]\n", "twice"),
        ("name: x\nmax_tokens: none\nvariants: [a]\n", "max_tokens"),
        ("name: x\nmax_tokens: true\nvariants: [a]\n", "max_tokens"),
        ("name: x\nmax_tokens: 0\nvariants: [a]\n", "max_tokens"),
        ("max_tokens: 8\nvariants: [a]\n", "name"),
        ("name: x\nmax_token: 8\nvariants: [a]\n", "max_token"),
        ("name: x\nmax_tokens: 8\nprompt_tokens_max: -1\nvariants: [a]\n", "prompt_tokens_max"),
        ("- a\n", "mapping"),
        ("name: x\nvariants: [a\n", "line 3"),
        (b"\xff\xfe\x00", "read"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(ConfigError, match=said) as error:
        load_task(str(path))

    assert "wrong.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_names_and_missing_files() -> None:
    with pytest.raises(ConfigError, match=r"unknown task 'poem'.*code, edit, prose"):
        load_task("poem")
    with pytest.raises(ConfigError, match=r"'tasks/poem\.yaml' does not exist"):
        load_task("tasks/poem.yaml")
