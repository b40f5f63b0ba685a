from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_fake_server import MODEL, FakeServer

from vllm_frontier.measure.client import FailureKind, RequestFailure, ServerClient
from vllm_frontier.measure.scoring import SCORED_TOKENS, Score, expected_logprob, score


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def client(server: FakeServer) -> Iterator[ServerClient]:
    with ServerClient(server.url, MODEL, request_timeout_s=10.0) as made:
        yield made


def entropy(shares: list[float]) -> float:
    return math.fsum(share * math.log(share) for share in shares)


def test_a_whole_distribution_has_its_negative_entropy() -> None:
    assert expected_logprob([math.log(0.5), math.log(0.5)]) == pytest.approx(-math.log(2))
    assert expected_logprob([0.0]) == 0.0


@pytest.mark.parametrize("power", [1.5, 2.0, 3.0])
def test_what_is_not_listed_is_made_up_for(power: float) -> None:
    weights = [rank**-power for rank in range(1, 32_001)]
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    listed = [math.log(share) for share in shares[:20]]

    told = expected_logprob(listed)

    # Cutting the rest off would tell far too little of a flat distribution.
    assert told == pytest.approx(entropy(shares), rel=0.06)


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=20))
def test_it_lies_between_what_the_listed_tokens_allow(logs: list[float]) -> None:
    total = math.log(math.fsum(math.exp(each) for each in logs))
    top = sorted((each - max(0.0, total) for each in logs), reverse=True)
    rest = max(0.0, 1 - math.fsum(math.exp(each) for each in top))
    head = math.fsum(math.exp(each) * each for each in top)

    told = expected_logprob(top)

    most = head + rest * top[-1]
    least = head + rest * min(top[-1], math.log(max(rest, 1e-300) / 2**18))
    assert least - 1e-9 <= told <= most + 1e-9


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.3, 2.0])
@pytest.mark.parametrize("power", [1.5, 2.0, 3.0])
def test_text_drawn_at_another_temperature_is_held_against_that(
    power: float, temperature: float
) -> None:
    weights = [rank**-power for rank in range(1, 32_001)]
    total = math.fsum(weights)
    logs = [math.log(weight / total) for weight in weights]
    drawn = [math.exp(each / temperature) for each in logs]
    truth = math.fsum(p * each for p, each in zip(drawn, logs, strict=True)) / math.fsum(drawn)

    told = expected_logprob(logs[:20], temperature, 32_000)

    assert told == pytest.approx(truth, rel=0.12)
    # Held against temperature 1 a hot text would look broken, and a cold one too good.
    assert (told < expected_logprob(logs[:20])) == (temperature > 1)


def test_greedy_text_takes_the_most_probable_tokens() -> None:
    assert expected_logprob([-0.2, -3.0], 0.0) == -0.2
    top = [math.log(0.5), math.log(0.3), math.log(0.2)]
    assert expected_logprob(top, 1e-3) == pytest.approx(top[0])
    assert expected_logprob(top, 1.0 + 1e-9) == pytest.approx(expected_logprob(top), rel=1e-6)


def test_only_the_answer_is_rated(server: FakeServer, client: ServerClient) -> None:
    rated = score(client, [1, 2, 3], [7, 7, 9, 7], 5.0)

    assert isinstance(rated, Score)
    assert rated.logprob == pytest.approx((-0.5 - 0.5 - 9.0 - 0.5) / 4)
    (request,) = server.scored
    assert request["prompt"] == [1, 2, 3, 7, 7, 9, 7]
    assert (request["max_tokens"], request["prompt_logprobs"]) == (1, 20)
    assert "stream" not in request


def test_a_long_answer_is_cut(server: FakeServer, client: ServerClient) -> None:
    rated = score(client, [1], [7] * SCORED_TOKENS + [9] * 100, 5.0)

    assert isinstance(rated, Score)
    assert rated.logprob == -0.5
    assert len(server.scored[0]["prompt"]) == 1 + SCORED_TOKENS


def test_a_server_that_allows_fewer_tokens_is_asked_for_fewer(
    server: FakeServer, client: ServerClient
) -> None:
    server.top_max = 5

    assert isinstance(score(client, [1], [7], 5.0), Score)
    assert [request["prompt_logprobs"] for request in server.scored] == [20, 5]


@pytest.mark.parametrize(
    ("failure", "kind", "asked"),
    [
        ((400, '{"error": "no"}'), FailureKind.HTTP_ERROR, 2),
        ((500, '{"error": "EngineDeadError"}'), FailureKind.HTTP_ERROR, 1),
        ((200, "{}"), FailureKind.STREAM_ERROR, 1),
        ((200, '{"choices": [{"prompt_logprobs": [null]}]}'), FailureKind.STREAM_ERROR, 1),
        (
            (200, '{"choices": [{"prompt_logprobs": [null, {"8": {"logprob": -1}}]}]}'),
            FailureKind.STREAM_ERROR,
            1,
        ),
    ],
)
def test_a_server_that_does_not_rate(
    server: FakeServer,
    client: ServerClient,
    failure: tuple[int, str],
    kind: FailureKind,
    asked: int,
) -> None:
    server.score_failure = failure

    told = score(client, [1], [7], 5.0)

    assert isinstance(told, RequestFailure)
    assert told.kind is kind
    assert len(server.scored) == asked
