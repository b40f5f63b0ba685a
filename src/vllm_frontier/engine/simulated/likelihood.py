"""How probable a simulated model finds a text: its own words are likely, others are not.

Words that the model writes, and tokens that stand earlier in the text, have ranks as if they had
been drawn from the distribution at their place, so that the mean of their log-probabilities is on
average what that distribution lets expect. Anything else is as unlikely as noise. The same text
is always rated the same.
"""

from __future__ import annotations

import functools
import math
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_frontier.engine.simulated.text import ids_of, own_words

TOP_MAX = 20
"""Most probable tokens that are told at a place, as many as vLLM allows by default."""

_LEVELS = 16  # of certainty; the share of the most probable token is one less what follows
_FOLLOWING = tuple(0.05 + 0.5 * level / (_LEVELS - 1) for level in range(_LEVELS))
_FOREIGN, _FOREIGN_SPAN = -12.0, 6.0  # log-probability of what it would never write, at most

Entry = dict[str, Any]


def prompt_logprobs(ids: Sequence[int], top: int) -> list[Mapping[str, Entry] | None]:
    """The `prompt_logprobs` of an answer: by token what is told of it; nothing at the first.

    Args:
        ids: the text.
        top: how many of the most probable tokens are told at each place.
    """
    own = own_words()
    places: list[Mapping[str, Entry] | None] = []
    seen: set[int] = set()
    key = 0
    for place, token in enumerate(ids):
        if place:
            draw = random.Random(zlib.crc32(b"%d %d" % (key, place)))
            level = draw.randrange(_LEVELS)
            written = token in own or token in seen
            rank = _drawn_rank(draw, level) if written else 1000 + draw.randrange(100_000)
            told = _likely(level, rank) if written else _FOREIGN - _FOREIGN_SPAN * draw.random()
            actual = _entry(told, rank, own.get(token, "\ufffd"))
            others = _listed(level, top)
            places.append({str(token): actual} | {k: v for k, v in others if v["rank"] != rank})
        else:
            places.append(None)
        seen.add(token)
        key = zlib.crc32(b"%d %d" % (key, token))
    return places


def _likely(level: int, rank: int) -> float:
    """The log-probability of a rank, from 1: every next token is so much less probable."""
    following = _FOLLOWING[level]
    return math.log1p(-following) + (rank - 1) * math.log(following)


def _drawn_rank(draw: random.Random, level: int) -> int:
    return 1 + int(math.log(1.0 - draw.random()) / math.log(_FOLLOWING[level]))


@functools.cache
def _listed(level: int, top: int) -> list[tuple[str, Entry]]:
    """The most probable tokens at a place."""
    words = [f" alternative {rank}" for rank in range(1, top + 1)]  # which no text has
    return [
        (str(token), _entry(_likely(level, rank), rank, word))
        for rank, (token, word) in enumerate(zip(ids_of(words), words, strict=True), start=1)
    ]


def _entry(logprob: float, rank: int, word: str) -> Entry:
    return {"logprob": logprob, "rank": rank, "decoded_token": word}
