"""What a simulated server tells of its tokens: ids, probabilities, and garbage on purpose."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_frontier.engine.simulated.attempt import simulate_attempt
from vllm_frontier.engine.simulated.card import Fault
from vllm_frontier.engine.simulated.card_file import card_folder, load_card
from vllm_frontier.engine.simulated.faults import FaultBook
from vllm_frontier.engine.simulated.likelihood import prompt_logprobs
from vllm_frontier.engine.simulated.protocol import Asked, Part, Wording, read_request
from vllm_frontier.engine.simulated.refusals import ApiError
from vllm_frontier.engine.simulated.text import answer, garbage, ids_of, own_words, token_ids
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Status

PROMPTS = ("Explain tides.", "Write a Python module `ring.py`.", "Write a Python module `a.py`.")


def rated(text: list[str], prompt: str) -> float:
    """The mean log-probability of an answer."""
    before, ids = token_ids(prompt), ids_of(text)
    places = prompt_logprobs([*before, *ids], 20)[len(before) :]
    values = [place[str(each)]["logprob"] for place, each in zip(places, ids, strict=True) if place]
    return statistics.fmean(values)


def expected(place: dict[str, dict[str, Any]]) -> float:
    """The mean log-probability of what is drawn from the tokens that are told."""
    logs = [each["logprob"] for each in place.values() if each["rank"] <= 20]
    return math.fsum(math.exp(each) * each for each in logs)


@pytest.mark.parametrize("seed", [None, 3])
def test_its_own_texts_are_as_likely_as_drawn_ones(seed: int | None) -> None:
    values, hopes = [], []
    for prompt in PROMPTS:
        text, _ = answer(prompt, 400, endless=False, seed=seed)
        before = token_ids(prompt)
        places = prompt_logprobs([*before, *ids_of(text)], 20)[len(before) :]
        values.append(rated(text, prompt))
        hopes.append(statistics.fmean(expected(dict(place)) for place in places if place))
    assert statistics.fmean(values) == pytest.approx(statistics.fmean(hopes), abs=0.15)


def test_garbage_is_as_many_tokens_that_are_not_likely() -> None:
    text, _ = answer(PROMPTS[0], 64, endless=False)
    noise = garbage(text)
    assert len(noise) == len(text) == 64
    assert noise == garbage(text)
    assert not set(ids_of(noise)) & set(own_words())
    assert rated(noise, PROMPTS[0]) < -12 < -5 < rated(text, PROMPTS[0])


def test_probabilities_are_told_as_vllm_tells_them() -> None:
    first, *places = prompt_logprobs(ids_of(["def", " x", " qqqq"]), 5)
    assert first is None
    for place in places:
        assert place is not None
        ranks = sorted(each["rank"] for each in place.values())
        assert ranks[:5] == [1, 2, 3, 4, 5]
        assert len(place) in (5, 6)
        assert math.fsum(math.exp(each["logprob"]) for each in place.values()) <= 1
        assert all(set(each) == {"logprob", "rank", "decoded_token"} for each in place.values())
    assert str(ids_of([" qqqq"])[0]) in (places[1] or {})


def test_sampled_answers_depend_on_the_seed_and_greedy_ones_do_not() -> None:
    greedy, one, two = (answer(PROMPTS[0], 50, endless=False, seed=s)[0] for s in (None, 1, 2))
    assert greedy == answer(PROMPTS[0], 50, endless=False)[0]
    assert len({tuple(greedy), tuple(one), tuple(two)}) == 3


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"prompt_logprobs": 21}, "Requested prompt logprobs of 21, which is greater than max"),
        ({"prompt_logprobs": 2, "stream": True}, "are not available when `stream=True`"),
        ({"prompt_logprobs": -2}, "must be a positive value or -1"),
        ({"prompt_logprobs": "many"}, "must be an integer"),
    ],
)
def test_wishes_that_are_refused(body: dict[str, object], told: str) -> None:
    refused = read_request({"prompt": "x"} | body, chat=False, model="m", window=100)
    assert isinstance(refused, ApiError)
    assert (refused.status, refused.param) == (400, "prompt_logprobs")
    assert told in refused.message


def asked(**body: object) -> Asked:
    read = read_request({"prompt": [5, 6]} | body, chat=False, model="m", window=100)
    assert isinstance(read, Asked)
    return read


def test_seeds_count_where_something_is_drawn() -> None:
    assert asked(seed=4).seed is asked(seed=4, temperature=0).seed is None
    assert (asked(seed=4, temperature=0.7).seed, asked(temperature=1.0).seed) == (4, 0)


def test_runs_of_one_prompt_have_noise_of_their_own() -> None:
    keys = {asked(cache_salt=salt).run_key() for salt in ("edit-0", "edit-3", "edit-0")}
    assert len(keys) == 2


def test_ids_are_told_where_they_are_wished_for() -> None:
    usage: dict[str, Any] = {}
    for wished in (False, True):
        words = Wording(asked(return_token_ids=wished, prompt_logprobs=1), "id", "m", 0)
        (choice,) = words.whole(Part("ab", [7, 8]), "stop", usage)["choices"]
        assert (choice.get("token_ids"), choice.get("prompt_token_ids")) == (
            ([7, 8], [5, 6]) if wished else (None, None)
        )
        assert len(choice["prompt_logprobs"]) == 2
        chunks = [words.chunk(Part("a", [7]), first=first) for first in (True, False)]
        first, later = (json.loads(each.removeprefix(b"data: "))["choices"][0] for each in chunks)
        assert ("token_ids" in first, "prompt_token_ids" in first) == (wished, wished)
        assert ("token_ids" in later, "prompt_token_ids" in later) == (wished, False)


def write_card(folder: Path, *faults: dict[str, object]) -> str:
    tiny = yaml.safe_load((card_folder() / "tiny-8gib.yaml").read_text())
    file = folder / "card.yaml"
    file.write_text(yaml.safe_dump(tiny | {"faults": list(faults)}))
    return str(file)


def test_garbage_ends_nothing_and_hides_no_other_fault(tmp_path: Path) -> None:
    spoiled = {"kind": "garbage", "when": {"depth": 2}}
    card = load_card(write_card(tmp_path, spoiled, {"kind": "oom", "at": "measure", "times": 1}))
    assert card.faults[0] == Fault(kind="garbage", at="measure", when={"depth": 2})
    book = FaultBook(card.faults)
    ends = [simulate_attempt(card, Cell(2, 8192, True, 0.9), faults=book) for _ in range(2)]
    assert [end.status for end in ends] == [Status.INFEASIBLE, Status.MEASURED]


def test_garbage_comes_where_it_is_meant() -> None:
    book = FaultBook(
        (
            Fault(kind="garbage", at="measure", when={"depth": 3}),
            Fault(kind="garbage_sampled", at="measure", when={"depth": [2, 3]}),
        )
    )
    spoiled = {
        depth: [
            book.at(Cell(depth, 8192, True, 0.9)).spoils(sampled=sampled)
            for sampled in (False, True)
        ]
        for depth in (0, 2, 3)
    }
    assert spoiled == {0: [False, False], 2: [False, True], 3: [True, True]}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"kind": "garbage", "times": 2}, r"times has no meaning for garbage, which lasts"),
        ({"kind": "garbage", "at": "load"}, r"at must be one of measure"),
    ],
)
def test_garbage_that_cannot_be(tmp_path: Path, fault: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_card(write_card(tmp_path, fault))
