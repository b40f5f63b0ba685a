"""Requests to a simulated server: tokens, steps, prefix cache, refusals, options, faults."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.engine.simulated.card import Fault, decode_speed
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.engine.simulated.faults import FaultBook, state_file
from vllm_frontier.engine.simulated.options import Options, Refusal, parse_options
from vllm_frontier.engine.simulated.protocol import Asked, read_request
from vllm_frontier.engine.simulated.refusals import ApiError
from vllm_frontier.engine.simulated.requests import PrefixCache, plan_decoding
from vllm_frontier.engine.simulated.text import answer, pieces, stopped, task_of, token_ids
from vllm_frontier.grid import Cell

TINY = load_card("tiny-8gib")
SILENT = dataclasses.replace(TINY, speed=dataclasses.replace(TINY.speed, noise=0.0))


@given(st.text(max_size=300))
def test_pieces_give_the_text_back(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert all(0 <= token < 151_000 for token in token_ids(text))


@pytest.mark.parametrize(
    ("prompt", "task"),
    [
        ("Here is the file `a.py`: ...", "edit"),
        ("Write a Python module `b.py`.", "code"),
        ("Session 7.\nWrite a Python module `b.py`. Here is the file it uses.", "code"),
        ("Explain rivers. " * 60 + "Here is the file", "prose"),
        ("", "prose"),
    ],
)
def test_task_is_told_by_the_prompt(prompt: str, task: str) -> None:
    assert task_of(prompt) == task


def test_edit_gives_the_file_back() -> None:
    prompt = "Here is the file `a.py`:\n\n```python\nx = load(1)\n```\n\nRename it."
    text, ended = answer(prompt, 256, endless=False)
    assert "".join(text) == "```python\nx = load(1)\n```"
    assert ended
    cut, ended = answer(prompt, 5, endless=False)
    assert (cut, ended) == (text[:5], False)
    endless, ended = answer(prompt, 400, endless=True)
    assert (len(endless), ended) == (400, False)
    assert endless[: len(text)] == text


def test_answers_depend_on_the_prompt_alone() -> None:
    one, _ = answer("Explain tides.", 200, endless=False)
    assert one == answer("Explain tides.", 200, endless=False)[0]
    assert one != answer("Explain locks.", 200, endless=False)[0]
    assert len(one) == 200
    long, ended = answer("Explain tides.", 5000, endless=False)
    assert (len(long), ended) == (1024, True)


@given(
    depth=st.integers(0, 6),
    completion=st.integers(1, 700),
    run=st.text(max_size=8),
    task=st.sampled_from(["edit", "code", "prose"]),
)
def test_steps_make_up_the_answer(depth: int, completion: int, run: str, task: str) -> None:
    cell = Cell(depth, 8192, True, 0.9)
    plan = plan_decoding(SILENT, cell, task, uncached=800, completion=completion, run=run, seed=0)
    assert 1 + sum(plan.steps) == completion
    assert all(1 <= step <= depth + 1 for step in plan.steps)
    assert plan.prefill_s == pytest.approx(0.1)
    assert plan.decode_s == pytest.approx((completion - 1) / decode_speed(SILENT, cell, task))
    assert len(plan.accepted_per_position) == depth
    assert plan.draft_tokens == plan.drafts * depth
    assert list(plan.accepted_per_position) == sorted(plan.accepted_per_position, reverse=True)
    if plan.steps:
        assert plan.ends_s()[-1] == pytest.approx(plan.decode_s)


def test_counters_show_the_acceptance_of_the_card() -> None:
    cell = Cell(4, 8192, True, 0.9)
    plan = plan_decoding(SILENT, cell, "code", uncached=1, completion=600, run="r", seed=0)
    shares = [accepted / plan.drafts for accepted in plan.accepted_per_position]
    assert shares == pytest.approx([0.85, 0.70, 0.55, 0.45], abs=0.02)


def test_prefix_cache_counts_leading_whole_blocks() -> None:
    cache = PrefixCache(block=16, capacity=1600)
    prompt = list(range(100))
    assert cache.take(prompt) == 0
    assert cache.take(prompt) == 96
    assert cache.take([*prompt[:40], *range(900, 960)]) == 32
    assert cache.take([7, *prompt]) == 0
    assert cache.take(prompt, "salt") == 0
    assert cache.take(prompt, "salt") == 96
    assert cache.take(prompt[:96]) == 80  # the last token is always computed
    assert PrefixCache(block=16, capacity=1600, enabled=False).take(prompt) == 0


def test_prefix_cache_forgets_the_oldest() -> None:
    cache = PrefixCache(block=16, capacity=128)
    first, second = list(range(64)), list(range(1000, 1128))
    cache.take(first)
    cache.take(second)
    assert cache.take(first) == 0


def chat(**changes: object) -> dict[str, object]:
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    return body | changes


def test_requests_are_read() -> None:
    asked = read_request(chat(max_tokens=5, stream=True), chat=True, model="m", window=100)
    assert isinstance(asked, Asked)
    assert (asked.max_tokens, asked.stream, asked.usage, asked.text) == (5, True, False, "Hello")
    asked = read_request(chat(), chat=True, model="m", window=100)
    assert isinstance(asked, Asked)
    assert asked.max_tokens == 100 - len(asked.ids)
    asked = read_request(
        {"prompt": [[5, 6, 7]], "max_tokens": 9, "ignore_eos": True},
        chat=False,
        model="m",
        window=12,
    )
    assert isinstance(asked, Asked)
    assert (list(asked.ids), asked.max_tokens, asked.endless) == ([5, 6, 7], 9, True)


@pytest.mark.parametrize(
    ("body", "is_chat", "status", "told"),
    [
        ({"prompt": [1] * 13, "max_tokens": 1}, False, 400, "contains 13 input tokens"),
        ({"prompt": "a b " * 9}, False, 400, "contains at least 13 input tokens"),
        ({"prompt": [1] * 12, "max_tokens": 1}, False, 400, "at least 1, got 0. (parameter=max_"),
        ({"prompt": [1], "max_tokens": 0}, False, 400, "must be at least 1, got 0."),
        ({"prompt": [1], "max_tokens": -1}, False, 400, "must be at least 1, got -1."),
        ({"prompt": [1], "max_tokens": "x"}, False, 400, "unable to parse string as an integer"),
        ({"prompt": [1], "max_tokens": 2.5}, False, 400, "number with a fractional part"),
        ({"prompt": [], "max_tokens": 1}, False, 400, "You must pass at least one prompt"),
        ({"prompt": ""}, False, 400, "must be provided and non-empty. (parameter=prompt)"),
        ({}, False, 400, "must be provided and non-empty."),
        ({"prompt": ["a", "b"]}, False, 400, "one prompt at a time"),
        ({"prompt": [4, -3]}, False, 400, "'loc': 'body.prompt.1'"),
        ({"prompt": [10**9]}, False, 400, "Token id 1000000000 is out of vocabulary"),
        ({"prompt": "a", "n": 2}, False, 400, "one answer to a request"),
        ({"prompt": "a", "temperature": -1}, False, 400, "non-negative, got -1.0."),
        ({"prompt": "a", "top_p": 3}, False, 400, "top_p must be in (0, 1], got 3.0."),
        ({"prompt": "a", "cache_salt": ""}, False, 400, "(parameter=cache_salt)"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, False, 400, "`stream=True`"),
        (chat(model="other"), True, 404, "The model `other` does not exist. Valid aliases: m."),
        (chat(messages="Hello"), True, 400, "Input should be a valid list"),
        (chat(messages=[]), True, 400, "empty conversation"),
        (chat(messages=["Hello"]), True, 400, "'loc': 'body.messages.0'"),
        ({"model": "m"}, True, 400, "'loc': 'body.messages', 'msg': 'Field required'"),
        ([], True, 400, "'input': '<list of 0 items>'"),
    ],
)
def test_refused_requests(body: object, is_chat: bool, status: int, told: str) -> None:
    error = read_request(body, chat=is_chat, model="m", window=12)
    assert isinstance(error, ApiError)
    assert error.status == status
    assert told in error.message
    assert error.body()["error"]["code"] == status


def test_an_answer_is_cut_to_the_window() -> None:
    asked = read_request({"prompt": [1] * 8, "max_tokens": 5}, chat=False, model="m", window=12)
    assert isinstance(asked, Asked)
    assert asked.max_tokens == 4
    asked = read_request({"prompt": "a", "max_tokens": "7"}, chat=False, model="m", window=12)
    assert isinstance(asked, Asked)
    assert asked.max_tokens == 7


@given(st.lists(st.text("ab ", min_size=1, max_size=4), max_size=12), st.text("ab ", min_size=1))
def test_answers_end_before_the_first_stop(written: list[str], stop: str) -> None:
    kept, by = stopped(written, [stop])
    whole = "".join(written)
    assert "".join(kept) == (whole[: whole.index(stop)] if stop in whole else whole)
    assert by == (stop if stop in whole else None)
    # the token that completes the text is the last one
    assert by is None or stop not in "".join(written[: len(kept) - 1])


def test_options_of_vllm() -> None:
    options = parse_options(
        [
            *("--model", "some/model", "--port=8001", "--served-model-name", "s"),
            *("--max-model-len", "32k", "--gpu-memory-utilization", "0.93", "--enforce-eager"),
            *("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}'),
            *("--enable-prompt-tokens-details", "--no-enable-prefix-caching"),
            *("--max-num-seqs", "4", "--seed", "7"),
        ]
    )
    assert isinstance(options, Options)
    assert options.cell(65536) == Cell(3, 32000, False, 0.93)
    assert (options.port, options.seed, options.method) == (8001, 7, "mtp")
    assert (options.prompt_details, options.prefix_caching) == (True, False)
    assert options.axes(65536)["max_num_seqs"] == 4


@pytest.mark.parametrize(
    ("words", "context"),
    [
        ([], 65536),
        (["--max-model-len", "auto"], -1),
        (["--max-model-len", "-1"], -1),
        (["--max-model-len=-1"], -1),
        (["--max-model-len", "2K"], 2048),
    ],
)
def test_windows(words: list[str], context: int) -> None:
    options = parse_options(words)
    assert isinstance(options, Options)
    assert options.cell(65536).context == context


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--gpu-memory-utilization", "1.5"], 1, "less than or equal to 1"),
        (["--gpu-memory-utilization", "0"], 1, "greater than 0"),
        (["--gpu-memory-utilization", "x"], 2, "argument --gpu-memory-utilization"),
        (["--max-model-len", "long"], 2, "argument --max-model-len"),
        (["--port", "p"], 2, "argument --port"),
        (["--speculative-config", '{"method":'], 2, "argument --speculative-config"),
        (
            ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 0}'],
            1,
            "1 validation error for SpeculativeConfig",
        ),
    ],
)
def test_refused_options(words: list[str], code: int, told: str) -> None:
    refusal = parse_options(words)
    assert isinstance(refusal, Refusal)
    assert refusal.exit_code == code
    assert told in refusal.text


def test_faults_are_counted_across_launches(tmp_path: Path) -> None:
    faults = (
        Fault(kind="crash", at="load", when={"depth": 3}, times=2),
        Fault(kind="hang", at="load", when={"depth": [2, 3], "graphs": True}),
    )
    axes = {"depth": 3, "context": 8192, "graphs": True, "utilization": 0.9}
    file = tmp_path / "faults.json"
    taken = [FaultBook(faults, axes, file).take("load") for _ in range(4)]
    assert taken == ["crash", "crash", "hang", "hang"]
    assert list(json.loads(file.read_text()).values()) == [2]
    assert FaultBook(faults, axes | {"depth": 1}, file).take("load") is None
    assert FaultBook(faults, axes, file).take("profile") is None
    alone = FaultBook(faults, axes)
    assert [alone.take("load") for _ in range(3)] == ["crash", "crash", "hang"]
    assert FaultBook((Fault(kind="hang", at="load", when={"tp": 2}),), axes).take("load") is None


def test_state_file_is_that_of_the_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_FRONTIER_SWEEP_DIR", str(tmp_path))
    assert state_file(None) == tmp_path / "simulated-faults.json"
    assert state_file("/x/y.json") == Path("/x/y.json")
    monkeypatch.delenv("VLLM_FRONTIER_SWEEP_DIR")
    assert state_file(None) is None
