"""A scripted server on loopback that speaks the part of vLLM's API that is measured."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "vf-test"
HISTOGRAMS = (
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_decode_time_seconds_count",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:time_to_first_token_seconds_sum",
)
COUNTERS = (
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:request_success_total",
)


@dataclass
class Answer:
    """What the server does with one generating request.

    `events` are (seconds to wait, text of the data line); `end` is what follows: `done` the final
    marker, `close` a clean end without it, `cut` a broken connection, `hang` silence.
    `counted` is added to the metrics, `lag_s` seconds after the stream has ended.
    """

    events: Sequence[tuple[float, str]] = ()
    end: str = "done"
    status: int = 200
    body: str = ""
    counted: dict[str, float] = field(default_factory=dict)
    lag_s: float = 0.0


def text_event(
    text: str, *, chat: bool = True, finish: str | None = None, ids: Sequence[int] | None = None
) -> str:
    piece: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
    if ids is not None:
        piece["token_ids"] = list(ids)
    return json.dumps({"choices": [{"index": 0, **piece, "finish_reason": finish}]})


def usage_event(prompt: int, completion: int, cached: int | None = None) -> str:
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return json.dumps({"choices": [], "usage": usage})


def finished(decode_s: float = 0.5, prefill_s: float = 0.1, **more: float) -> dict[str, float]:
    """Growth of the metrics by one finished request."""
    return {
        "vllm:request_success_total": 1,
        "vllm:request_decode_time_seconds_sum": decode_s,
        "vllm:request_decode_time_seconds_count": 1,
        "vllm:request_prefill_time_seconds_sum": prefill_s,
        "vllm:time_to_first_token_seconds_sum": prefill_s + 0.01,
        **more,
    }


class FakeServer:
    """Serves until it is closed; `answers` are used up in order, then `answer_for` decides."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.tells_ids = False
        self.scored: list[dict[str, Any]] = []
        self.top_max = 20
        self.score_failure: tuple[int, str] | None = None
        self.metric_names: tuple[str, ...] = HISTOGRAMS + COUNTERS
        self.counted: Counter[str] = Counter()
        self.healthy = True
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._http = _HttpServer(("127.0.0.1", 0), _Handler)
        self._http.fake = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def metrics(self) -> str:
        with self._lock:
            lines = [f'{name}{{engine="0"}} {self.counted[name]}' for name in self.metric_names]
        return "\n".join(lines) + "\n"

    def count(self, answer: Answer) -> None:
        with self._lock:
            self.counted.update(answer.counted)

    def answer_for(self, request: dict[str, Any]) -> Answer:
        """A plausible answer that uses up `max_tokens`, four to a chunk."""
        with self._lock:
            self.requests.append(request)
            if self.answers:
                return self.answers.pop(0)
        chat = "messages" in request
        prompt = request["messages"][0]["content"].split() if chat else request["prompt"]
        tokens = request["max_tokens"]
        ids = [7] * 4 if self.tells_ids else None
        chunks = [text_event("word " * 4, chat=chat, ids=ids)] * max(1, tokens // 4)
        if self.tells_ids:
            chunks.insert(0, json.dumps({"choices": [], "prompt_token_ids": [1, 2, 3]}))
        events = [*chunks, text_event("", chat=chat, finish="length")]
        usage = usage_event(len(prompt), tokens, 0)
        return Answer([(0.0, event) for event in [*events, usage]], counted=finished())

    def score(self, request: dict[str, Any]) -> tuple[int, str]:
        """Logarithms of the probabilities of a prompt: -0.5 for token 7, -9 for any other."""
        with self._lock:
            self.scored.append(request)
        if self.score_failure is not None:
            return self.score_failure
        if request["prompt_logprobs"] > self.top_max:
            return 400, '{"error": {"message": "greater than max allowed"}}'
        places: list[Any] = [
            {str(token): {"logprob": -0.5 if token == 7 else -9.0, "rank": 1}}
            for token in request["prompt"]
        ]
        places[0] = None
        return 200, json.dumps({"choices": [{"index": 0, "prompt_logprobs": places}]})


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = False
    fake: FakeServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(200 if self.server.fake.healthy else 503, "")
        elif self.path == "/metrics":
            self.reply(200, self.server.fake.metrics())
        elif self.path == "/v1/models":
            self.reply(200, json.dumps({"data": [{"id": MODEL}]}))
        else:
            self.reply(404, json.dumps({"detail": "Not Found"}))

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        request = json.loads(self.rfile.read(length))
        if self.path == "/tokenize":
            words = request["prompt"].split()
            ids = [sum(word.encode()) % 2000 for word in words]
            self.reply(200, json.dumps({"count": len(ids), "tokens": ids}))
            return
        if "prompt_logprobs" in request:
            self.reply(*self.server.fake.score(request))
            return
        answer = self.server.fake.answer_for({"path": self.path, **request})
        if answer.status != 200:
            self.reply(answer.status, answer.body)
            return
        try:
            self.stream(answer)
        except ConnectionError:
            return  # the client gave up, which is what some tests want
        self.server.fake.released.wait(answer.lag_s)
        self.server.fake.count(answer)

    def stream(self, answer: Answer) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        for delay, event in answer.events:
            self.server.fake.released.wait(delay)
            self.chunk(f"data: {event}\n\n")
        self.close_connection = True
        if answer.end == "hang":
            self.server.fake.released.wait()
        elif answer.end != "cut":
            if answer.end == "done":
                self.chunk("data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def reply(self, status: int, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
