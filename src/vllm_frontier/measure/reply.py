"""What a request comes to: a reply or a failure, both plain values; and how a stream is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

# What vLLM calls a request that it ends because it was told to stop.
_ABORTED = "abort"


class FailureKind(StrEnum):
    """How a request failed."""

    TIMEOUT = "timeout"  # not complete within its time
    HTTP_ERROR = "http_error"  # refused with an HTTP status other than 200
    DISCONNECTED = "disconnected"  # no connection, or it broke before the answer was complete
    STREAM_ERROR = "stream_error"  # the answer itself reports an error or makes no sense


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request without a usable answer; `message` is one line."""

    kind: FailureKind
    message: str
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer.

    Token counts are those of the server's usage figures. `t_sent`, `t_first` and `t_last` are
    seconds on a monotonic clock without a meaning of its own; only differences count, and those
    are in seconds of the server's time. `t_first` and `t_last` are the arrivals of the first and
    the last chunk with generated text (or the one that ends the text), reasoning included, which
    `text` has in front. `cached_tokens` is None where the server does not say, and so are the ids
    of the tokens of prompt and answer; those of the answer also where they are not as many as the
    usage figures say.
    """

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    t_sent: float
    t_first: float
    t_last: float
    chunks: int
    prompt_token_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first generated text."""
        return self.t_first - self.t_sent

    @property
    def stream_s(self) -> float:
        """Seconds from the first generated text to the last."""
        return self.t_last - self.t_first


class StreamReader:
    """Puts together a `Reply` from the lines of an event stream, as they arrive."""

    def __init__(self, t_sent: float) -> None:
        self.chunks = 0
        self._t_sent = t_sent
        self._t_first: float | None = None
        self._t_last = t_sent
        self._pieces: list[str] = []
        self._prompt_ids: tuple[int, ...] | None = None
        self._ids: list[int] = []
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._done = False

    def feed(self, line: str, now: float) -> RequestFailure | None:
        """Take one line that arrived at `now`; a failure ends the stream."""
        if not line.startswith("data:"):
            return None
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self._done = True
            return None
        try:
            event = json.loads(data)
        except json.JSONDecodeError:
            return _stream_error(f"not JSON in the stream: {one_line(data)}")
        if not isinstance(event, dict):
            return _stream_error(f"not an object in the stream: {one_line(data)}")
        if event.get("error"):
            return _stream_error(error_text(event))
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        self._take_prompt(event)  # a chat tells it here, a plain answer with its text
        for choice in event.get("choices") or []:
            if isinstance(choice, dict):
                self._take(choice, now)
        return None

    def finish(self) -> Reply | RequestFailure:
        """The reply, once the stream has ended."""
        if not self._done:
            return RequestFailure(
                FailureKind.DISCONNECTED, f"the stream ended early, after {self.chunks} chunks"
            )
        if self._finish_reason == _ABORTED:
            return _stream_error(f"the server aborted the request, after {self.chunks} chunks")
        prompt, completion = self._usage.get("prompt_tokens"), self._usage.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(completion, int):
            return _stream_error("the stream ended without usage figures")
        details = self._usage.get("prompt_tokens_details")
        return Reply(
            text="".join(self._pieces),
            finish_reason=self._finish_reason,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=details.get("cached_tokens") if isinstance(details, dict) else None,
            t_sent=self._t_sent,
            t_first=self._t_last if self._t_first is None else self._t_first,
            t_last=self._t_last,
            chunks=self.chunks,
            prompt_token_ids=self._prompt_ids,
            token_ids=tuple(self._ids) if len(self._ids) == completion else None,
        )

    def _take(self, choice: Mapping[str, Any], now: float) -> None:
        text = _text_of(choice)
        finish_reason = choice.get("finish_reason")
        self._take_prompt(choice)
        self._ids += _ids_of(choice, "token_ids")
        if text:
            self.chunks += 1
            self._pieces.append(text)
            if self._t_first is None:
                self._t_first = now
        if finish_reason is not None:
            self._finish_reason = str(finish_reason)
        if text or finish_reason is not None:
            self._t_last = now

    def _take_prompt(self, told: Mapping[str, Any]) -> None:
        if self._prompt_ids is None:
            self._prompt_ids = tuple(_ids_of(told, "prompt_token_ids")) or None


def _ids_of(told: Mapping[str, Any], name: str) -> list[int]:
    ids = told.get(name)
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        return []
    return ids


def _text_of(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice.get("text") or ""
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    return reasoning + (delta.get("content") or "")


def read_prompt_logprobs(answer: Mapping[str, Any]) -> list[dict[int, float]] | RequestFailure:
    """The logarithms of probabilities in a plain answer: one mapping a token, without the first."""
    try:
        (choice,) = answer["choices"]
        _, *places = choice["prompt_logprobs"]
        return [
            {int(token): float(told["logprob"]) for token, told in place.items()}
            for place in places
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return _stream_error("the answer has no logarithms of the prompt's probabilities")


def _stream_error(message: str) -> RequestFailure:
    return RequestFailure(FailureKind.STREAM_ERROR, message, http_status=200)


def error_text(body: Any) -> str:
    """The message in an error body of vLLM, one line; servers differ in how deep it lies."""
    if isinstance(body, dict):
        error = body.get("error", body)
        message = error.get("message") if isinstance(error, dict) else error
        return one_line(str(message if message else body))
    return one_line(str(body))


def one_line(text: str, limit: int = 500) -> str:
    """The text without line breaks, cut to `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."
