"""How probable a model finds what it wrote: whether the output of a server is sane.

A text and its prompt are given to the server as one prompt, which it reads in a prefill, without
drafting anything. What speculation broke shows as text that the model itself would never write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_frontier.measure.client import FailureKind, RequestFailure, ServerClient

SCORED_TOKENS = 64
"""So many tokens of an answer are scored at most.

For every token of a scored prompt a card holds the figures of the whole vocabulary at once, of
which nothing was set aside when the server started.
"""

_TOPS = (20, 5)  # most probable tokens to ask for; the second where the server refuses the first
# No vocabulary is larger; bounds what is said of tokens that the server does not list.
_VOCABULARY_MAX = 2**18


@dataclass(frozen=True, slots=True)
class Score:
    """Of a text, means over its tokens, natural logarithms.

    Attributes:
        logprob: of the probability of the token that was written.
        expected: the same on average for text drawn from the model's own distribution, which is
            the negative entropy of that distribution.
    """

    logprob: float
    expected: float


def score(
    client: ServerClient, prompt: Sequence[int], answer: Sequence[int], timeout_s: float
) -> Score | RequestFailure:
    """Let the server rate the first tokens of an answer.

    Args:
        client: of a server that is idle.
        prompt: its token ids, at least one.
        answer: its token ids, at least one.
        timeout_s: limit on a request, seconds that pass.
    """
    scored, text = answer[:SCORED_TOKENS], [*prompt, *answer[:SCORED_TOKENS]]
    most, fewer = _TOPS
    places = client.prompt_logprobs(text, top=most, timeout_s=timeout_s)
    if isinstance(places, RequestFailure) and places.http_status == 400:
        most = fewer
        places = client.prompt_logprobs(text, top=most, timeout_s=timeout_s)
    if isinstance(places, RequestFailure):
        return places
    return _score(places[len(prompt) - 1 :], scored, most)


def _score(
    places: Sequence[dict[int, float]], answer: Sequence[int], top: int
) -> Score | RequestFailure:
    pairs = list(zip(places, answer, strict=False))
    if len(places) != len(answer) or not all(token in place for place, token in pairs):
        message = "the server's probabilities are not those of the text"
        return RequestFailure(FailureKind.STREAM_ERROR, message, http_status=200)
    found = [place[token] for place, token in pairs]
    tops = [sorted(place.values(), reverse=True)[:top] for place in places]
    return Score(
        math.fsum(found) / len(found),
        math.fsum(expected_logprob(each) for each in tops) / len(tops),
    )


def expected_logprob(top: Sequence[float]) -> float:
    """The negative entropy of a distribution of which only the most probable tokens are known.

    The rest is taken to fall with a power of the rank, starting at the last known token and with
    the power that makes everything sum to one (a Pareto tail). It cannot be more probable than that
    last token, nor spread over more tokens than a vocabulary has.

    Args:
        top: natural logarithms of the probabilities of the most probable tokens, falling.
    """
    shares = [math.exp(each) for each in top]
    head = math.fsum(share * each for share, each in zip(shares, top, strict=True))
    rest, last = 1.0 - math.fsum(shares), shares[-1]
    if rest <= 0.0:
        return head
    thinnest = math.log(rest / _VOCABULARY_MAX)
    falling = top[-1] - 1.0 - rest / (len(top) * last) if last > 0.0 else thinnest
    return head + rest * min(top[-1], max(thinnest, falling))
