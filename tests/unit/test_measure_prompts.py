from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.measure.prompts import SEEDS, PromptSource

TEXTS = st.lists(st.integers(0, 300), min_size=2, max_size=200).filter(
    lambda ids: len(set(ids)) > 1
)
SEED = st.integers(0, SEEDS - 1)


@given(ids=TEXTS, length=st.integers(1, 3000), seed=SEED)
def test_length_is_exact_and_tokens_are_those_of_the_text(
    ids: list[int], length: int, seed: int
) -> None:
    prompt = PromptSource(ids).prompt(length, seed)

    assert len(prompt) == length
    assert set(prompt) <= set(ids)
    assert prompt == PromptSource(ids).prompt(length, seed)


@given(ids=TEXTS, first=SEED, second=SEED)
def test_other_seeds_differ_before_the_first_block_ends(
    ids: list[int], first: int, second: int
) -> None:
    source = PromptSource([*ids, *range(1000, 1040)])

    same = source.prompt(16, first) == source.prompt(16, second)

    assert same == (first == second)


def test_a_long_prompt_repeats_the_text() -> None:
    ids = list(range(100, 150))

    prompt = PromptSource(ids).prompt(250, 3)

    body = prompt[4:]
    assert body[:50] == body[50:100] != ids
    assert sorted(body[:50]) == ids


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="two different"):
        PromptSource([7, 7, 7])
