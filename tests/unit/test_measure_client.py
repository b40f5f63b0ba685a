from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from measure_fake_server import (
    MODEL,
    Answer,
    FakeServer,
    text_event,
    usage_event,
)

from vllm_frontier.measure.client import FailureKind, Reply, RequestFailure, ServerClient

USER = [{"role": "user", "content": "Say something."}]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def client(server: FakeServer) -> Iterator[ServerClient]:
    with ServerClient(server.url, MODEL, request_timeout_s=10.0) as made:
        yield made


def test_asks_about_the_server(server: FakeServer, client: ServerClient) -> None:
    assert client.healthy()
    assert client.served_models() == [MODEL]
    assert client.kv_tokens() is None
    counters = client.counters()
    assert counters is not None
    assert counters.requests_finished == 0

    server.healthy = False

    assert not client.healthy()


def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ServerClient(f"http://127.0.0.1:{port}", MODEL) as client:
        assert not client.healthy()
        assert client.served_models() == []
        assert client.metrics() is None
        assert client.counters() is None
        failure = client.chat(USER, max_tokens=4)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.DISCONNECTED


def test_metrics_that_cannot_be_read_are_no_counters(
    server: FakeServer, client: ServerClient
) -> None:
    server.metric_names = ('vllm:x{broken="',)

    assert client.metrics() is not None
    assert client.counters() is None
    assert client.kv_tokens() is None


def test_what_a_chat_request_asks_for(server: FakeServer, client: ServerClient) -> None:
    client.chat(USER, max_tokens=8, cache_salt="edit-0")
    client.chat(USER, max_tokens=8, thinking=True, temperature=0.5)

    first, second = server.requests
    assert first == {
        "path": "/v1/chat/completions",
        "model": MODEL,
        "messages": USER,
        "max_tokens": 8,
        "temperature": 0.0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
        "cache_salt": "edit-0",
    }
    assert "cache_salt" not in second
    assert second["chat_template_kwargs"] == {"enable_thinking": True}
    assert second["temperature"] == 0.5


def test_a_prompt_of_token_ids(server: FakeServer, client: ServerClient) -> None:
    reply = client.complete([5, 6, 7], max_tokens=16, ignore_eos=True)

    assert isinstance(reply, Reply)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (3, 16, 0)
    assert reply.text == "word " * 16
    assert reply.chunks == 4
    assert server.requests[0]["path"] == "/v1/completions"
    assert server.requests[0]["prompt"] == [5, 6, 7]
    assert server.requests[0]["ignore_eos"] is True


def test_tokenize(client: ServerClient) -> None:
    assert client.tokenize("a b a") == [97, 98, 97]


def slow_answer() -> Answer:
    """First text after 0.2 s, the last 0.4 s later, then 1 s until the usage figures."""
    texts = [(0.2, text_event("one two"))] + [(0.1, text_event(" three four"))] * 4
    return Answer([*texts, (1.0, usage_event(7, 33))])


def test_times_are_those_of_the_text(server: FakeServer, client: ServerClient) -> None:
    server.answers = [slow_answer()]

    reply = client.chat(USER, max_tokens=64)

    assert isinstance(reply, Reply)
    assert reply.completion_tokens == 33
    assert reply.chunks == 5
    assert 0.19 < reply.ttft_s < 0.9
    assert 0.1 < reply.stream_s < 0.9


def test_a_scaled_server_is_measured_in_its_own_seconds(server: FakeServer) -> None:
    server.answers = [slow_answer()]
    with ServerClient(server.url, MODEL, time_scale=0.01, request_timeout_s=10.0) as client:
        reply = client.chat(USER, max_tokens=64)

    assert isinstance(reply, Reply)
    assert 19 < reply.ttft_s < 90
    assert 10 < reply.stream_s < 90


def test_a_refusal_gives_the_server_s_message(server: FakeServer, client: ServerClient) -> None:
    message = "This model's maximum context length is 2048 tokens."
    server.answers = [
        Answer(status=400, body=json.dumps({"error": {"message": message, "code": 400}})),
        Answer(status=400, body=json.dumps({"object": "error", "message": message})),
        Answer(status=502, body="<html>\nbad gateway</html>"),
    ]

    failures = [client.chat(USER, max_tokens=1) for _ in range(3)]

    refused = RequestFailure(FailureKind.HTTP_ERROR, message, 400)
    assert failures[:2] == [refused, refused]
    assert failures[2] == RequestFailure(FailureKind.HTTP_ERROR, "<html> bad gateway</html>", 502)


def test_a_crash_while_serving(server: FakeServer, client: ServerClient) -> None:
    error = json.dumps({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
    server.answers = [Answer([(0, text_event("one")), (0, error)])]

    failure = client.chat(USER, max_tokens=64)

    assert failure == RequestFailure(
        FailureKind.STREAM_ERROR, "EngineCore encountered an issue.", http_status=200
    )


@pytest.mark.parametrize("end", ["cut", "close"])
def test_a_stream_that_breaks_off(server: FakeServer, client: ServerClient, end: str) -> None:
    server.answers = [Answer([(0, text_event("one")), (0, usage_event(3, 1))], end=end)]

    failure = client.chat(USER, max_tokens=64)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.DISCONNECTED


@pytest.mark.parametrize(
    "answer",
    [
        Answer(end="hang"),
        Answer([(0, text_event("one"))], end="hang"),
        Answer([(0.05, text_event("tick"))] * 100),
        Answer([(5.0, text_event("late")), (0, usage_event(1, 1))]),
    ],
    ids=["silent", "stalled", "trickling", "late"],
)
def test_the_limit_is_on_the_whole_request(server: FakeServer, answer: Answer) -> None:
    server.answers = [answer]
    with ServerClient(server.url, MODEL, request_timeout_s=0.5) as client:
        began = time.monotonic()
        failure = client.chat(USER, max_tokens=64)
        took = time.monotonic() - began

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.TIMEOUT
    assert "0.5 s" in failure.message
    assert took > 0.45


def test_a_limit_of_its_own_for_one_request(server: FakeServer, client: ServerClient) -> None:
    server.answers = [Answer(end="hang")]

    failure = client.complete([1, 2], max_tokens=4, timeout_s=0.2)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.TIMEOUT
    assert "0.2 s" in failure.message


def test_headers_that_trickle_are_limited_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()
        thread = threading.Thread(target=_trickle_headers, args=(listener, stop))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with ServerClient(url, MODEL, request_timeout_s=0.4) as client:
            failure = client.chat(USER, max_tokens=4)
        stop.set()
        thread.join()

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.TIMEOUT


def _trickle_headers(listener: socket.socket, stop: threading.Event) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while not stop.wait(0.1):
            try:
                connection.sendall(b"z")
            except OSError:
                return


def test_no_thread_outlives_its_request(server: FakeServer, client: ServerClient) -> None:
    client.chat(USER, max_tokens=4)
    deadline = time.monotonic() + 60

    while any(isinstance(each, threading.Timer) for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_proxy_of_the_environment_is_not_used(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    with ServerClient(server.url, MODEL) as client:
        assert client.healthy()
