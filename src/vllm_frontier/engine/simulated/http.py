"""The HTTP side of the simulated server: vLLM's routes over the standard library."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vllm_frontier.engine.simulated import log
from vllm_frontier.engine.simulated.protocol import (
    ENGINE_DEAD,
    ApiError,
    Asked,
    event,
    read_request,
)
from vllm_frontier.engine.simulated.service import Answer, EngineDied, Service
from vllm_frontier.engine.simulated.text import chat_ids, message_texts, token_ids

VERSION = "simulated-1"
# Faults that leave the engine well: the request alone fails.
_REFUSALS = {
    "refuse": ApiError(400, "This request is refused on purpose."),
    "error": ApiError(500, "This request fails on purpose."),
}


class HttpServer(ThreadingHTTPServer):
    """A threaded server on a socket that was bound before."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, listener: socket.socket, service: Service) -> None:
        """Take over the bound socket and listen."""
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.service = service
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def _service(self) -> Service:
        assert isinstance(self.server, HttpServer)
        return self.server.service

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log a request as uvicorn does."""
        host, port = self.client_address[:2]
        status = HTTPStatus(int(code))
        log.write_line(
            f'INFO:     {host}:{port} - "{self.requestline}" {status.value} {status.phrase}'
        )

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing else."""

    def do_GET(self) -> None:
        """Answer /health, /v1/models, /version and /metrics."""
        service = self._service
        path = self.path.partition("?")[0]
        if path in ("/health", "/ping"):
            self._send(503 if service.dead.is_set() else 200, b"")
        elif path == "/v1/models":
            self._send_json(200, {"object": "list", "data": [self._model_entry()]})
        elif path == "/version":
            self._send_json(200, {"version": VERSION})
        elif path == "/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8"
            self._send(200, service.metrics.text().encode(), kind)
        else:
            self._send_json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Answer /v1/chat/completions, /v1/completions and /tokenize."""
        length = int(self.headers.get("Content-Length") or 0)
        try:
            body = json.loads(self.rfile.read(length))
        except json.JSONDecodeError as error:
            self._refuse(ApiError(400, f"JSON decode error: {error}"))
            return
        path = self.path.partition("?")[0]
        if path in ("/v1/chat/completions", "/v1/completions"):
            self._answer(body, chat="chat" in path)
        elif path == "/tokenize":
            self._tokenize(body)
        else:
            self._send_json(404, {"detail": "Not Found"})

    def _answer(self, body: Any, *, chat: bool) -> None:
        service = self._service
        asked = read_request(body, chat=chat, model=service.model, window=service.window)
        if isinstance(asked, ApiError):
            self._refuse(asked)
            return
        laid_out = service.lay_out(asked)
        if laid_out.fault in _REFUSALS:
            self._refuse(_REFUSALS[laid_out.fault])
            return
        if asked.stream:
            self._stream(asked, laid_out)
        else:
            self._whole(asked, laid_out)

    def _whole(self, asked: Asked, laid_out: Answer) -> None:
        service = self._service
        wording = service.wording(asked)
        try:
            text = "".join(service.generate(asked, laid_out))
        except EngineDied:
            service.tell_dead("Engine Exception caught.")
            self._refuse(ApiError(500, ENGINE_DEAD))
            return
        usage = service.usage(asked, laid_out)
        self._send_json(200, wording.whole(text, laid_out.reason, usage))

    def _stream(self, asked: Asked, laid_out: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for data in self._events(asked, laid_out):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def _events(self, asked: Asked, laid_out: Answer) -> Iterator[bytes]:
        service = self._service
        wording = service.wording(asked)
        last = len(laid_out.decoding.steps)
        try:
            for index, text in enumerate(service.generate(asked, laid_out)):
                reason = laid_out.reason if index == last else None
                yield wording.chunk(text, reason, first=index == 0)
            if asked.usage:
                yield wording.usage_chunk(service.usage(asked, laid_out))
        except EngineDied:
            kind = "chat completion" if asked.chat else "completion"
            service.tell_dead(f"Error in {kind} stream generator.")
            yield event(ApiError(500, ENGINE_DEAD).body())
        yield b"data: [DONE]\n\n"

    def _tokenize(self, body: Any) -> None:
        if not isinstance(body, dict):
            self._refuse(ApiError(400, "The request body must be a JSON object."))
            return
        messages = body.get("messages")
        if isinstance(messages, list):
            ids = chat_ids(message_texts(messages))
        else:
            ids = token_ids(str(body.get("prompt", "")))
        window = self._service.window
        self._send_json(200, {"count": len(ids), "max_model_len": window, "tokens": ids})

    def _model_entry(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": service.launch.options.model,
            "parent": None,
            "max_model_len": service.window,
        }

    def _refuse(self, error: ApiError) -> None:
        self._send_json(error.status, error.body())

    def _send_json(self, status: int, data: dict[str, Any]) -> None:
        self._send(status, json.dumps(data).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
