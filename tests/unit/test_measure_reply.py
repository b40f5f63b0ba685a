from __future__ import annotations

import json

import pytest
from measure_fake_server import text_event, usage_event

from vllm_frontier.measure.reply import (
    FailureKind,
    Reply,
    RequestFailure,
    StreamReader,
    read_prompt_logprobs,
)


def read(*events: tuple[float, str], done: bool = True) -> Reply | RequestFailure:
    reader = StreamReader(t_sent=100.0)
    for now, event in events:
        failure = reader.feed(f"data: {event}", now)
        if failure is not None:
            return failure
    if done:
        assert reader.feed("data: [DONE]", events[-1][0]) is None
    return reader.finish()


def test_tokens_come_from_usage_and_times_from_chunks_with_text() -> None:
    reply = read(
        (101.0, json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})),
        (102.0, text_event("one two three")),
        (103.0, text_event(" four")),
        (104.0, text_event("", finish="stop")),
        (109.0, usage_event(30, 9, 16)),
    )

    assert isinstance(reply, Reply)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (30, 9, 16)
    assert (reply.text, reply.finish_reason, reply.chunks) == ("one two three four", "stop", 2)
    assert (reply.ttft_s, reply.stream_s) == (2.0, 2.0)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_is_generated_text(key: str) -> None:
    reply = read(
        (101.0, json.dumps({"choices": [{"delta": {key: "hm "}, "finish_reason": None}]})),
        (103.0, text_event("yes", finish="stop")),
        (103.0, usage_event(5, 2)),
    )

    assert isinstance(reply, Reply)
    assert reply.text == "hm yes"
    assert (reply.ttft_s, reply.stream_s) == (1.0, 2.0)
    assert reply.cached_tokens is None


def test_an_answer_without_text_has_its_first_token_at_its_end() -> None:
    reply = read((104.0, text_event("", finish="stop")), (105.0, usage_event(5, 1)))

    assert isinstance(reply, Reply)
    assert (reply.ttft_s, reply.stream_s, reply.text) == (4.0, 0.0, "")


def test_an_error_in_the_stream_ends_it() -> None:
    error = {"error": {"message": "EngineCore\nencountered an issue.", "code": 500}}

    failure = read((101.0, text_event("one", chat=False)), (102.0, json.dumps(error)))

    assert failure == RequestFailure(
        FailureKind.STREAM_ERROR, "EngineCore encountered an issue.", http_status=200
    )


@pytest.mark.parametrize("garbage", ["{not json", "[1, 2]", "null"])
def test_what_is_not_an_object_is_an_error(garbage: str) -> None:
    failure = read((101.0, garbage))

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.STREAM_ERROR
    assert garbage in failure.message


def test_a_stream_without_its_end_is_disconnected_and_one_without_usage_an_error() -> None:
    early = read((101.0, text_event("one")), (101.0, usage_event(5, 1)), done=False)
    silent = read((101.0, text_event("one", finish="length")))

    assert isinstance(early, RequestFailure)
    assert early.kind is FailureKind.DISCONNECTED
    assert isinstance(silent, RequestFailure)
    assert silent.kind is FailureKind.STREAM_ERROR
    assert "usage" in silent.message


def test_comments_and_other_lines_are_passed_over() -> None:
    reader = StreamReader(t_sent=0.0)

    assert reader.feed(": ping", 1.0) is None
    assert reader.feed("", 1.0) is None
    assert reader.feed("event: message", 1.0) is None
    assert reader.chunks == 0


def test_a_request_that_the_server_aborted_is_no_answer() -> None:
    # Complete in form: text, a reason, usage and the end of the stream.
    failure = read(
        (1.0, text_event("half")),
        (1.5, text_event("", finish="abort")),
        (1.5, usage_event(9, 2)),
    )
    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.STREAM_ERROR
    assert failure.message == "the server aborted the request, after 1 chunks"


def test_token_ids_are_those_of_all_chunks() -> None:
    reply = read(
        (1.0, json.dumps({"choices": [], "prompt_token_ids": [4, 5]})),
        (2.0, text_event("one two", ids=[10, 11])),
        (2.5, text_event("", ids=[12])),  # no whole character yet
        (3.0, text_event(" x", finish="stop", ids=[13])),
        (3.0, usage_event(2, 4)),
    )

    assert isinstance(reply, Reply)
    assert reply.token_ids == (10, 11, 12, 13)
    assert reply.prompt_token_ids == (4, 5)
    assert reply.chunks == 2


@pytest.mark.parametrize("ids", [None, [10, 11], [10, 11, 12, 13]])
def test_token_ids_of_another_number_than_used_are_not_told(ids: list[int] | None) -> None:
    reply = read((2.0, text_event("a b c", finish="stop", ids=ids)), (3.0, usage_event(2, 3)))

    assert isinstance(reply, Reply)
    assert reply.token_ids is None
    assert reply.prompt_token_ids is None


def test_a_plain_answer_tells_its_prompt_with_its_text() -> None:
    choice = {"text": "a", "token_ids": [3], "prompt_token_ids": [1], "finish_reason": "length"}

    reply = read((2.0, json.dumps({"choices": [choice]})), (3.0, usage_event(1, 1)))

    assert isinstance(reply, Reply)
    assert (reply.prompt_token_ids, reply.token_ids) == ((1,), (3,))


def test_probabilities_of_a_prompt_are_read_without_the_first_token() -> None:
    places = [None, {"5": {"logprob": -0.5, "rank": 1}, "9": {"logprob": -2, "rank": 2}}]

    assert read_prompt_logprobs({"choices": [{"prompt_logprobs": places}]}) == [{5: -0.5, 9: -2.0}]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": [{"prompt_logprobs": None}]},
        {"choices": [{"prompt_logprobs": []}]},
        {"choices": [{"prompt_logprobs": [None, {"x": {"logprob": -1}}]}]},
        {"choices": [{"prompt_logprobs": [None, {"5": {"rank": 1}}]}]},
        {"choices": [{"prompt_logprobs": [None, None]}]},
    ],
)
def test_an_answer_without_probabilities_is_an_error(answer: dict[str, object]) -> None:
    failure = read_prompt_logprobs(answer)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.STREAM_ERROR
