"""The simulated server's side of the OpenAI protocol: requests in, JSON out.

Pure: what a request asks for, what is wrong with it, and the bodies of answers.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_frontier.engine.simulated.text import chat_ids, message_texts, token_ids

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(frozen=True, slots=True)
class ApiError:
    """A request that is refused, as vLLM words it."""

    status: int
    message: str
    param: str | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kinds = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
        return {
            "error": {
                "message": self.message,
                "type": kinds[self.status],
                "param": self.param,
                "code": self.status,
            }
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for; `text` tells the task and seeds the answer."""

    chat: bool
    ids: Sequence[int]
    text: str
    max_tokens: int
    endless: bool
    stream: bool
    usage: bool
    cache_salt: str = ""

    def run_key(self) -> str:
        """What tells this run from others of the cell."""
        digest = hashlib.sha256(array("q", self.ids).tobytes())
        return f"{digest.hexdigest()[:16]} {self.max_tokens}"


def read_request(body: Any, *, chat: bool, model: str, window: int) -> Asked | ApiError:
    """Read a request for an answer.

    Args:
        body: the JSON of the request.
        chat: whether it has messages, not a prompt.
        model: the name that is served.
        window: tokens that prompt and answer may have together.
    """
    if not isinstance(body, dict):
        return ApiError(400, "The request body must be a JSON object.")
    if body.get("model") not in (None, model):
        return ApiError(404, f"The model `{body['model']}` does not exist.", "model")
    prompt = _chat_prompt(body) if chat else _plain_prompt(body)
    if isinstance(prompt, ApiError):
        return prompt
    ids, text = prompt
    if not ids:
        return ApiError(400, "The decoder prompt cannot be empty")
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    default = window - len(ids) if chat else min(16, window - len(ids))
    limit = _check_length(len(ids), default if wanted is None else wanted, window)
    if isinstance(limit, ApiError):
        return limit
    return Asked(
        chat=chat,
        ids=ids,
        text=text,
        max_tokens=limit,
        endless=bool(body.get("ignore_eos")),
        stream=bool(body.get("stream")),
        usage=bool((body.get("stream_options") or {}).get("include_usage")),
        cache_salt=str(body.get("cache_salt") or ""),
    )


def _chat_prompt(body: dict[str, Any]) -> tuple[list[int], str] | ApiError:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return ApiError(400, "messages must be a list of messages", "messages")
    texts = message_texts(messages)
    asked = [text for role, text in texts if role == "user"]
    return chat_ids(texts), asked[-1] if asked else ""


def _plain_prompt(body: dict[str, Any]) -> tuple[Sequence[int], str] | ApiError:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return token_ids(prompt), prompt
    if isinstance(prompt, list) and all(type(each) is int for each in prompt):
        return prompt, hashlib.sha256(array("q", prompt).tobytes()).hexdigest()
    return ApiError(400, "prompt must be one text or one list of token ids", "prompt")


def _check_length(prompt: int, wanted: Any, window: int) -> int | ApiError:
    if prompt >= window:
        return ApiError(
            400,
            f"This model's maximum context length is {window} tokens. However, your prompt "
            f"contains {prompt} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt.",
            "input_tokens",
        )
    if not isinstance(wanted, int) or wanted < 1:
        return ApiError(400, f"max_tokens must be at least 1, got {wanted}.", "max_tokens")
    if prompt + wanted > window:
        return ApiError(
            400,
            f"This model's maximum context length is {window} tokens. However, you requested "
            f"{wanted} output tokens and your prompt contains {prompt} input tokens, for a total "
            f"of {prompt + wanted} tokens. Please reduce the length of the input prompt or the "
            "number of requested output tokens.",
            "input_tokens",
        )
    return wanted


@dataclass(frozen=True, slots=True)
class Wording:
    """The bodies of one answer."""

    asked: Asked
    request_id: str
    model: str
    created: int

    def chunk(self, text: str, reason: str | None = None, *, first: bool = False) -> bytes:
        """One event of a stream."""
        if self.asked.chat:
            role = {"role": "assistant"} if first else {}
            choice: dict[str, Any] = {"index": 0, "delta": role | {"content": text}}
        else:
            choice = {"index": 0, "text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        return event(self._head(stream=True) | {"choices": [choice]})

    def usage_chunk(self, usage: dict[str, Any]) -> bytes:
        """The last event of a stream whose usage was asked for."""
        return event(self._head(stream=True) | {"choices": [], "usage": usage})

    def whole(self, text: str, reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self.asked.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return self._head(stream=False) | {"choices": [choice], "usage": usage}

    def _head(self, *, stream: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.asked.chat:
            kind = "chat.completion.chunk" if stream else "chat.completion"
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def usage_of(prompt: int, completion: int, cached: int, *, details: bool) -> dict[str, Any]:
    """The `usage` of an answer; cached tokens only with `--enable-prompt-tokens-details`."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached} if details else None,
    }


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"
