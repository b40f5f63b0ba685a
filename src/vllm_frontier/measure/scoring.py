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
which nothing was set aside when the server started; with a short prompt that finds room in what was
set aside for reading long ones.
"""

SCORED_PROMPT_MAX = 448
"""Tokens of a prompt whose answer is scored, at most; for the same reason."""

_TOPS = (20, 5)  # most probable tokens to ask for; the second where the server refuses the first
# No vocabulary is larger; bounds what is said of tokens that the server does not list.
_VOCABULARY_MAX = 2**18


@dataclass(frozen=True, slots=True)
class Score:
    """Of a text, means over its tokens, natural logarithms.

    Attributes:
        logprob: of the probability of the token that was written.
        expected: the same on average for text drawn as it was drawn: from the model's own
            distribution at that temperature; of greedy text that of the most probable tokens.
    """

    logprob: float
    expected: float


def score(
    client: ServerClient,
    prompt: Sequence[int],
    answer: Sequence[int],
    timeout_s: float,
    *,
    temperature: float = 1.0,
) -> Score | RequestFailure:
    """Let the server rate the first tokens of an answer.

    Args:
        client: of a server that is idle.
        prompt: its token ids, at least one.
        answer: its token ids, at least one.
        timeout_s: limit on a request, seconds that pass.
        temperature: at which the answer was drawn; 0: greedy.
    """
    scored, text = answer[:SCORED_TOKENS], [*prompt, *answer[:SCORED_TOKENS]]
    most, fewer = _TOPS
    places = client.prompt_logprobs(text, top=most, timeout_s=timeout_s)
    if isinstance(places, RequestFailure) and places.http_status == 400:
        most = fewer
        places = client.prompt_logprobs(text, top=most, timeout_s=timeout_s)
    if isinstance(places, RequestFailure):
        return places
    return _score(places[len(prompt) - 1 :], scored, most, temperature)


def _score(
    places: Sequence[dict[int, float]], answer: Sequence[int], top: int, temperature: float
) -> Score | RequestFailure:
    pairs = list(zip(places, answer, strict=False))
    if len(places) != len(answer) or not all(token in place for place, token in pairs):
        message = "the server's probabilities are not those of the text"
        return RequestFailure(FailureKind.STREAM_ERROR, message, http_status=200)
    found = [place[token] for place, token in pairs]
    tops = [sorted(place.values(), reverse=True)[:top] for place in places]
    vocabulary = 1 + max(max(place) for place in places)
    expected = [expected_logprob(each, temperature, vocabulary) for each in tops]
    return Score(math.fsum(found) / len(found), math.fsum(expected) / len(expected))


def expected_logprob(
    top: Sequence[float], temperature: float = 1.0, vocabulary: int = _VOCABULARY_MAX
) -> float:
    """The mean log-probability of tokens drawn at a temperature, under the model as it is.

    At temperature 1 that is the negative entropy of the model's distribution, of which only the
    most probable tokens are known. The rest is taken to fall with a power of the rank, starting at
    the last known token and with the power that makes everything sum to one (a Pareto tail). It
    cannot be more probable than that last token, nor spread over more tokens than a vocabulary has.

    Args:
        top: natural logarithms of the probabilities of the most probable tokens, falling.
        temperature: 0: the most probable token is taken.
        vocabulary: tokens that there are at least; only counts at other temperatures than 1.
    """
    if temperature == 0:
        return top[0]
    if temperature != 1:
        return _expected_at(top, temperature, vocabulary)
    shares = [math.exp(each) for each in top]
    head = math.fsum(share * each for share, each in zip(shares, top, strict=True))
    rest, last = 1.0 - math.fsum(shares), shares[-1]
    if rest <= 0.0:
        return head
    thinnest = math.log(rest / _VOCABULARY_MAX)
    falling = top[-1] - 1.0 - rest / (len(top) * last) if last > 0.0 else thinnest
    return head + rest * min(top[-1], max(thinnest, falling))


def _expected_at(top: Sequence[float], temperature: float, vocabulary: int) -> float:
    """The same at another temperature: probabilities to the power of its inverse, tail included."""
    # Relative to the most probable token, so that low temperatures do not underflow.
    weights = [math.exp((each - top[0]) / temperature) for each in top]
    total = math.fsum(weights)
    mean = math.fsum(weight * each for weight, each in zip(weights, top, strict=True))
    rest, known = 1.0 - math.fsum(math.exp(each) for each in top), len(top)
    last = math.exp(top[-1])
    if rest > 0.0 and last > 0.0 and vocabulary > known:
        power = 1.0 + known * last / rest
        mass, logs = _tail(power / temperature, math.log(vocabulary / known))
        scale = known * weights[-1]
        total += scale * mass
        mean += scale * (top[-1] * mass - power * logs)
    return mean / total


def _tail(power: float, reach: float) -> tuple[float, float]:
    """The integrals of x^-power and of log(x) x^-power from 1 to exp(reach)."""
    rate = 1.0 - power
    if abs(rate) * reach < 1e-4:  # nearly 1/x
        return reach, reach**2 / 2
    grown = math.exp(rate * reach)
    return (grown - 1) / rate, (grown * (rate * reach - 1) + 1) / rate**2
