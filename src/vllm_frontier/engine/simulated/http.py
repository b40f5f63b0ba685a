"""The HTTP side of the simulated server: vLLM's routes over the standard library."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vllm_frontier.engine.simulated import log, refusals
from vllm_frontier.engine.simulated.protocol import Asked, Part, as_json, event, read_request
from vllm_frontier.engine.simulated.refusals import ENGINE_DEAD, ApiError
from vllm_frontier.engine.simulated.service import Answer, EngineDied, Service
from vllm_frontier.engine.simulated.text import chat_ids, message_texts, token_ids

VERSION = "simulated-1"
# What vLLM serves, as far as anyone asks for it.
ROUTES = {
    "/health": ("GET",),
    "/ping": ("GET", "POST"),
    "/load": ("GET",),
    "/version": ("GET",),
    "/metrics": ("GET",),
    "/v1/models": ("GET",),
    "/tokenize": ("POST",),
    "/detokenize": ("POST",),
    "/v1/completions": ("POST",),
    "/v1/chat/completions": ("POST",),
}
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
        """Answer a GET request."""
        self._dispatch("GET")

    def do_POST(self) -> None:
        """Answer a POST request."""
        self._dispatch("POST")

    def do_HEAD(self) -> None:
        """Answer a HEAD request, which no route takes."""
        self._dispatch("HEAD")

    def _dispatch(self, method: str) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        methods = ROUTES.get(path)
        if methods is None:
            self._send_json(404, {"detail": "Not Found"})
        elif method not in methods:
            self._send_json(405, {"detail": "Method Not Allowed"})
        elif path in ("/health", "/ping"):
            self._send(503 if self._service.dead.is_set() else 200, b"", None)
        elif method == "GET":
            self._tell(path)
        else:
            self._take(path, data)

    def _tell(self, path: str) -> None:
        service = self._service
        if path == "/metrics":
            kind = "text/plain; version=1.0.0; charset=utf-8"
            self._send(200, service.metrics.text().encode(), kind)
        elif path == "/v1/models":
            self._send_json(200, {"object": "list", "data": [self._model_entry()]})
        elif path == "/version":
            self._send_json(200, {"version": VERSION})
        else:
            self._send_json(200, {"server_load": 0})  # as long as vLLM is not told to count it

    def _take(self, path: str, data: bytes) -> None:
        body = self._read_json(data)
        if isinstance(body, ApiError):
            self._refuse(body)
        elif path == "/tokenize":
            self._tokenize(body)
        elif path == "/detokenize":
            self._detokenize(body)
        else:
            self._answer(body, chat="chat" in path)

    def _read_json(self, data: bytes) -> Any:
        kind = str(self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return refusals.media_type()
        if not data:
            return refusals.no_body()
        try:
            return json.loads(data)
        except json.JSONDecodeError as error:
            return refusals.not_json(error.pos, error.msg)
        except UnicodeDecodeError as error:
            return refusals.not_json(error.start, error.reason)

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
            parts = list(service.generate(asked, laid_out))
        except EngineDied:
            service.tell_dead("Engine Exception caught.")
            self._refuse(ApiError(500, ENGINE_DEAD))
            return
        usage = service.usage(asked, laid_out)
        text, ids = (
            "".join(part.text for part in parts),
            [each for part in parts for each in part.ids],
        )
        whole = wording.whole(Part(text, ids), laid_out.reason, usage, laid_out.stop)
        self._send_json(200, whole)

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
        opened = False
        try:
            for index, part in enumerate(service.generate(asked, laid_out)):
                if not opened and (opening := wording.opening()):
                    yield opening
                opened = True
                ending = (laid_out.reason, laid_out.stop) if index == last else ()
                yield wording.chunk(part, *ending, first=index == 0)
            if asked.usage:
                yield wording.usage_chunk(service.usage(asked, laid_out))
        except EngineDied:
            kind = "chat completion" if asked.chat else "completion"
            service.tell_dead(f"Error in {kind} stream generator.")
            yield event(ApiError(500, ENGINE_DEAD).body())
        yield b"data: [DONE]\n\n"

    def _tokenize(self, body: Any) -> None:
        service = self._service
        wrong = self._wrong_form(body, "prompt", "messages")
        if wrong is not None:
            self._refuse(wrong)
            return
        if isinstance(body.get("messages"), list):
            texts = message_texts(body["messages"])
            ids = chat_ids(texts)
            for _, text in texts:
                service.remember(text)
        else:
            ids = token_ids(str(body["prompt"]))
            service.remember(str(body["prompt"]))
        told = {"count": len(ids), "max_model_len": service.window, "tokens": ids}
        strings = service.words(ids) if body.get("return_token_strs") else None
        self._send_json(200, told | {"token_strs": strings})

    def _detokenize(self, body: Any) -> None:
        wrong = self._wrong_form(body, "tokens")
        if wrong is None and not _are_tokens(body["tokens"]):
            told = "Input should be a valid list of token ids"
            fault = refusals.Fault("list_type", "body.tokens", told, body["tokens"])
            wrong = refusals.malformed(fault)
        if wrong is not None:
            self._refuse(wrong)
            return
        self._send_json(200, {"prompt": "".join(self._service.words(body["tokens"]))})

    def _wrong_form(self, body: Any, *one_of: str) -> ApiError | None:
        """What is wrong with a body that needs one of some fields."""
        if not isinstance(body, dict):
            return refusals.not_an_object(body)
        if all(body.get(name) is None for name in one_of):
            return refusals.missing(body, *one_of)
        served = self._service.model
        if body.get("model") not in (None, served):
            return refusals.unknown_model(body["model"], served)
        return None

    def _model_entry(self) -> dict[str, Any]:
        service = self._service
        now = int(time.time())
        may = ("sampling", "logprobs", "view")
        may_not = ("create_engine", "search_indices", "fine_tuning")
        return {
            "id": service.model,
            "object": "model",
            "created": now,
            "owned_by": "vllm",
            "root": service.launch.options.model,
            "parent": None,
            "max_model_len": service.window,
            "permission": [
                {
                    "id": f"modelperm-{now:016x}",
                    "object": "model_permission",
                    "created": now,
                    **{f"allow_{what}": True for what in may},
                    **{f"allow_{what}": False for what in may_not},
                    "organization": "*",
                    "group": None,
                    "is_blocking": False,
                }
            ],
        }

    def _refuse(self, error: ApiError) -> None:
        self._send_json(error.status, error.body())

    def _send_json(self, status: int, data: dict[str, Any]) -> None:
        self._send(status, as_json(data), "application/json")

    def _send(self, status: int, data: bytes, kind: str | None) -> None:
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
