"""The HTTP client: one server, one model, one request at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from vllm_frontier.measure.counters import Counters, read_counters, read_kv_tokens
from vllm_frontier.measure.deadline import Deadline
from vllm_frontier.measure.reply import (
    FailureKind,
    Reply,
    RequestFailure,
    StreamReader,
    error_text,
    one_line,
    read_prompt_logprobs,
)

__all__ = ["FailureKind", "Reply", "RequestFailure", "ServerClient"]

# Questions that a server answers at once when it answers at all, seconds.
QUICK_TIMEOUT_S = 10.0
# Cutting a long text into tokens takes a moment on a slow machine, seconds.
TOKENIZE_TIMEOUT_S = 60.0


class ServerClient:
    """Talks to a running OpenAI-compatible server as a client would.

    Args:
        base_url: such as `http://127.0.0.1:8000`.
        model: the name under which the server serves its model.
        time_scale: seconds that pass per second of the server's time; every measured duration is
            divided by it, timeouts are not.
        request_timeout_s: limit on a whole generating request, in seconds that pass.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        time_scale: float = 1.0,
        request_timeout_s: float = 600.0,
    ) -> None:
        self.base_url = base_url
        self.model = model
        self.time_scale = time_scale
        self.request_timeout_s = request_timeout_s
        # A connection of its own for every request, which `Deadline` needs; and no proxy of the
        # user's environment between this program and a server on the same machine.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=base_url, limits=limits, trust_env=False)

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up all connections."""
        self._http.close()

    def healthy(self, timeout_s: float = QUICK_TIMEOUT_S) -> bool:
        """Whether `/health` answers with 200 within `timeout_s` seconds."""
        return not isinstance(self._ask("GET", "/health", timeout_s), RequestFailure)

    def served_models(self) -> list[str]:
        """Names of the served models; empty when the server does not tell."""
        answer = self._ask_json("GET", "/v1/models", QUICK_TIMEOUT_S)
        if isinstance(answer, RequestFailure):
            return []
        models = answer.get("data")
        return [str(model.get("id")) for model in models] if isinstance(models, list) else []

    def metrics(self) -> str | None:
        """The text of `/metrics`; None when the server does not answer."""
        answer = self._ask("GET", "/metrics", QUICK_TIMEOUT_S)
        return None if isinstance(answer, RequestFailure) else answer.text

    def counters(self) -> Counters | None:
        """The server's counters; None when it does not answer or has none to read."""
        text = self.metrics()
        if text is None:
            return None
        try:
            return read_counters(text)
        except ValueError:
            return None

    def kv_tokens(self) -> int | None:
        """How many tokens the server's KV cache holds; None when it does not say."""
        text = self.metrics()
        if text is None:
            return None
        try:
            return read_kv_tokens(text)
        except ValueError:
            return None

    def tokenize(self, text: str) -> list[int] | RequestFailure:
        """The token ids of a text, without the special tokens around a prompt."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        answer = self._ask_json("POST", "/tokenize", TOKENIZE_TIMEOUT_S, body)
        if isinstance(answer, RequestFailure):
            return answer
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            return RequestFailure(FailureKind.STREAM_ERROR, "/tokenize gave no list of tokens", 200)
        return tokens

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        thinking: bool = False,
        cache_salt: str | None = None,
        timeout_s: float | None = None,
    ) -> Reply | RequestFailure:
        """Ask for the next message of a conversation.

        Args:
            messages: mappings with `role` and `content`.
            max_tokens: limit on the answer; it may stop before.
            temperature: 0 is greedy.
            seed: of the sampling.
            thinking: whether a chat template that knows thinking turns it on.
            cache_salt: the prefix cache only helps requests with the same salt.
            timeout_s: limit on the whole request, seconds that pass; None takes the client's.
        """
        body: dict[str, Any] = {
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "chat_template_kwargs": {"enable_thinking": thinking},
        }
        return self._stream("/v1/chat/completions", body, cache_salt, timeout_s)

    def complete(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        ignore_eos: bool = False,
        cache_salt: str | None = None,
        timeout_s: float | None = None,
    ) -> Reply | RequestFailure:
        """Continue a prompt given as token ids.

        Args:
            prompt_token_ids: the prompt, of which every id is one token.
            max_tokens: limit on the answer; with `ignore_eos` its exact length.
            temperature: 0 is greedy.
            seed: of the sampling.
            ignore_eos: go on when the model would stop.
            cache_salt: the prefix cache only helps requests with the same salt.
            timeout_s: limit on the whole request, seconds that pass; None takes the client's.
        """
        body: dict[str, Any] = {
            "prompt": list(prompt_token_ids),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "ignore_eos": ignore_eos,
        }
        return self._stream("/v1/completions", body, cache_salt, timeout_s)

    def prompt_logprobs(
        self, token_ids: Sequence[int], *, top: int, timeout_s: float | None = None
    ) -> list[dict[int, float]] | RequestFailure:
        """How probable the model finds a text, which it only reads: nothing is drafted.

        Args:
            token_ids: the text.
            top: how many of the most probable tokens are told at each place.
            timeout_s: limit on the request, seconds that pass; None takes the client's.

        Returns:
            For every token but the first the natural logarithms of probabilities by token: those
            of the `top` most probable, and that of the token that stands there.
        """
        body = {
            "model": self.model,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": top,
        }
        limit = self.request_timeout_s if timeout_s is None else timeout_s
        answer = self._ask_json("POST", "/v1/completions", limit, body)
        return answer if isinstance(answer, RequestFailure) else read_prompt_logprobs(answer)

    def _stream(
        self, path: str, body: dict[str, Any], cache_salt: str | None, timeout_s: float | None
    ) -> Reply | RequestFailure:
        body |= {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,  # older servers pass over it
        }
        if cache_salt is not None:
            body["cache_salt"] = cache_salt
        limit = self.request_timeout_s if timeout_s is None else timeout_s
        reader = StreamReader(self._now())
        with Deadline(limit) as deadline:
            try:
                reply = self._read_stream(path, body, deadline, reader)
            except httpx.RequestError as error:
                deadline.note(error)
                reply = _broken(error)
        # Asked last: a connection that was shut down may look like a stream that just ended.
        if isinstance(reply, RequestFailure) and deadline.expired:
            return _late(limit, f"{reader.chunks} chunks had come")
        return reply

    def _read_stream(
        self, path: str, body: Mapping[str, Any], deadline: Deadline, reader: StreamReader
    ) -> Reply | RequestFailure:
        extensions = deadline.extensions
        with self._http.stream("POST", path, json=body, extensions=extensions) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                return _refused(response)
            for line in response.iter_lines():
                failure = reader.feed(line, self._now())
                if failure is not None:
                    return failure
        return reader.finish()

    def _ask(
        self, method: str, path: str, limit: float, body: Mapping[str, Any] | None = None
    ) -> httpx.Response | RequestFailure:
        with Deadline(limit) as deadline:
            extensions = deadline.extensions
            try:
                response = self._http.request(method, path, json=body, extensions=extensions)
            except httpx.RequestError as error:
                deadline.note(error)
                return _late(limit, f"asked for {path}") if deadline.expired else _broken(error)
        return response if response.status_code == httpx.codes.OK else _refused(response)

    def _ask_json(
        self, method: str, path: str, limit: float, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | RequestFailure:
        response = self._ask(method, path, limit, body)
        if isinstance(response, RequestFailure):
            return response
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return answer
        return RequestFailure(FailureKind.STREAM_ERROR, f"{path} gave no JSON object", 200)

    def _now(self) -> float:
        return time.monotonic() / self.time_scale


def _refused(response: httpx.Response) -> RequestFailure:
    try:
        body = response.json()
    except ValueError:
        body = response.text or response.reason_phrase
    return RequestFailure(FailureKind.HTTP_ERROR, error_text(body), response.status_code)


def _broken(error: httpx.RequestError) -> RequestFailure:
    message = one_line(f"{type(error).__name__}: {error}")
    return RequestFailure(FailureKind.DISCONNECTED, message)


def _late(limit: float, detail: str) -> RequestFailure:
    return RequestFailure(FailureKind.TIMEOUT, f"no complete answer within {limit:g} s; {detail}")
