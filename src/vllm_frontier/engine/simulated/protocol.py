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

from vllm_frontier.engine.simulated import refusals
from vllm_frontier.engine.simulated.likelihood import TOP_MAX, prompt_logprobs
from vllm_frontier.engine.simulated.refusals import ApiError, Fault
from vllm_frontier.engine.simulated.text import (
    VOCABULARY,
    chat_ids,
    message_texts,
    token_ids,
)

_FINGERPRINT = "vllm-simulated-1"
_LIMITS = ("max_completion_tokens", "max_tokens")  # on the answer, the newer name first


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
    stop: tuple[str, ...] = ()
    seed: int | None = None  # of a sampled answer
    token_ids: bool = False
    prompt_logprobs: int | None = None

    def run_key(self) -> str:
        """What tells this run from others of the cell."""
        digest = hashlib.sha256(array("q", self.ids).tobytes())
        return " ".join((digest.hexdigest()[:16], f"{self.max_tokens}", self.cache_salt))


def read_request(body: Any, *, chat: bool, model: str, window: int) -> Asked | ApiError:
    """Read a request for an answer.

    Args:
        body: the JSON of the request.
        chat: whether it has messages, not a prompt.
        model: the name that is served.
        window: tokens that prompt and answer may have together; a limit on the answer that is
            beyond it is cut.
    """
    wrong = _wrong_form(body, chat=chat)
    if wrong is None and body.get("model") not in (None, model):
        wrong = refusals.unknown_model(body["model"], model)
    wrong = wrong or _wrong_value(body) or _wrong_logprobs(body)
    if wrong is not None:
        return wrong
    wanted = _wanted_tokens(body)
    ids, text, counted = _chat_prompt(body) if chat else _plain_prompt(body)
    if any(each >= VOCABULARY for each in ids):
        return ApiError(400, f"Token id {max(ids)} is out of vocabulary")
    if len(ids) > window:
        return refusals.too_long(ids, window, counted=counted)
    default = window if chat else 16
    limit = min(default if wanted is None else wanted, window - len(ids))
    if limit < 1:
        return refusals.wrong_value(
            f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit
        )
    stop = body.get("stop") or ()
    return Asked(
        chat=chat,
        ids=ids,
        text=text,
        max_tokens=limit,
        endless=bool(body.get("ignore_eos")),
        stream=bool(body.get("stream")),
        usage=bool((body.get("stream_options") or {}).get("include_usage")),
        cache_salt=str(body.get("cache_salt") or ""),
        stop=(stop,) if isinstance(stop, str) else tuple(str(each) for each in stop if each),
        seed=int(body.get("seed") or 0) if body.get("temperature") else None,
        token_ids=bool(body.get("return_token_ids")),
        prompt_logprobs=body.get("prompt_logprobs"),
    )


def _wrong_form(body: Any, *, chat: bool) -> ApiError | None:
    """What is wrong with the form of a body, whatever is served."""
    if not isinstance(body, dict):
        return refusals.not_an_object(body)
    wrong = (_wrong_limit(body, name) for name in _LIMITS)
    first = next((each for each in wrong if each is not None), None)
    return first or (_wrong_messages(body) if chat else _wrong_prompt(body))


def _wrong_limit(body: dict[str, Any], name: str) -> ApiError | None:
    """What is wrong with a limit on the answer; a text or a float may stand for a whole number."""
    value, told = body.get(name), "Input should be a valid integer"
    if value is None or _integer(value) is not None:
        return None
    if isinstance(value, str):
        told += ", unable to parse string as an integer"
        return refusals.malformed(Fault("int_parsing", f"body.{name}", told, value))
    if isinstance(value, float):
        told += ", got a number with a fractional part"
        return refusals.malformed(Fault("int_from_float", f"body.{name}", told, value))
    return refusals.malformed(Fault("int_type", f"body.{name}", told, value))


def _integer(value: Any) -> int | None:
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    return None


def _wanted_tokens(body: dict[str, Any]) -> int | None:
    limits = (_integer(body.get(name)) for name in _LIMITS)
    return next((limit for limit in limits if limit is not None), None)


def _wrong_messages(body: dict[str, Any]) -> ApiError | None:
    if "messages" not in body:
        return refusals.missing(body, "messages")
    messages = body["messages"]
    if not isinstance(messages, list):
        told = "Input should be a valid list"
        return refusals.malformed(Fault("list_type", "body.messages", told, messages))
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            told = "Input should be a valid dictionary"
            return refusals.malformed(Fault("dict_type", f"body.messages.{at}", told, message))
    if not messages:
        told = "Cannot apply chat template to an empty conversation. Provide at least one message."
        return ApiError(400, told)
    return None


def _wrong_prompt(body: dict[str, Any]) -> ApiError | None:
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        told = "Either prompt or prompt_embeds must be provided and non-empty."
        return refusals.wrong_value(told, "prompt")
    if prompt == []:
        return ApiError(400, "You must pass at least one prompt")
    if isinstance(prompt, list) and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            return ApiError(400, "The simulated server takes one prompt at a time", "prompt")
        prompt = prompt[0]
    return None if isinstance(prompt, str) else _wrong_tokens(prompt)


def _wrong_tokens(prompt: Any) -> ApiError | None:
    if not isinstance(prompt, list) or not all(type(each) is int for each in prompt):
        told = "Input should be a valid string"
        return refusals.malformed(Fault("string_type", "body.prompt", told, prompt))
    at = next((at for at, token in enumerate(prompt) if token < 0), None)
    if at is None:
        return None
    told = "Input should be greater than or equal to 0"
    return refusals.malformed(Fault("greater_than_equal", f"body.prompt.{at}", told, prompt[at]))


def _wrong_value(body: dict[str, Any]) -> ApiError | None:
    """What the form allows and vLLM refuses, or what this server does not do."""
    if body.get("stream_options") and not body.get("stream"):
        told = "Stream options can only be defined when `stream=True`."
        return refusals.wrong_value(told, "stream_options")
    if body.get("cache_salt") == "":
        told = "Parameter 'cache_salt' must be a non-empty string if provided."
        return refusals.wrong_value(told, "cache_salt")
    temperature, top_p = body.get("temperature"), body.get("top_p")
    if isinstance(temperature, int | float) and temperature < 0:
        told = f"temperature must be non-negative, got {float(temperature)}."
        return refusals.wrong_value(told, "temperature", float(temperature))
    if isinstance(top_p, int | float) and not 0 < top_p <= 1:
        told = f"top_p must be in (0, 1], got {float(top_p)}."
        return refusals.wrong_value(told, "top_p", float(top_p))
    if body.get("n") not in (None, 1):
        return ApiError(400, "The simulated server gives one answer to a request", "n")
    return None


def _wrong_logprobs(body: dict[str, Any]) -> ApiError | None:
    wanted = body.get("prompt_logprobs")
    if wanted is None:
        return None
    if type(wanted) is not int:
        told = "`prompt_logprobs` must be an integer."
    elif body.get("stream") and wanted != 0:
        told, wanted = "`prompt_logprobs` are not available when `stream=True`.", None
    elif wanted < 0:
        told = "`prompt_logprobs` must be a positive value or -1."
    elif wanted > TOP_MAX:
        told = (
            f"Requested prompt logprobs of {wanted}, which is greater than max allowed: {TOP_MAX}"
        )
    else:
        return None
    return refusals.wrong_value(told, "prompt_logprobs", wanted)


def _chat_prompt(body: dict[str, Any]) -> tuple[Sequence[int], str, bool]:
    texts = message_texts(body["messages"])
    asked = [text for role, text in texts if role == "user"]
    return chat_ids(texts), asked[-1] if asked else "", False


def _plain_prompt(body: dict[str, Any]) -> tuple[Sequence[int], str, bool]:
    """The tokens, what stands for the text, and whether it came as tokens."""
    prompt = body["prompt"]
    if isinstance(prompt, list) and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return token_ids(prompt), prompt, False
    return prompt, hashlib.sha256(array("q", prompt).tobytes()).hexdigest(), True


@dataclass(frozen=True, slots=True)
class Part:
    """Some tokens of an answer: their text and their ids."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Wording:
    """The bodies of one answer."""

    asked: Asked
    request_id: str
    model: str
    created: int

    def opening(self) -> bytes:
        """The first event of a chat, which has no text yet; nothing for a plain answer."""
        if not self.asked.chat:
            return b""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        head = self._head(stream=True) | {"choices": [choice | _ending(None)]}
        return event(head | self._prompt_ids())

    def chunk(
        self,
        part: Part,
        reason: str | None = None,
        stop: str | None = None,
        *,
        first: bool = False,
    ) -> bytes:
        """One event of a stream; `stop` is the text that ended the answer."""
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": part.text}} if self.asked.chat else {"text": part.text}
        choice |= _ending(reason, stop)
        if self.asked.token_ids:
            choice["token_ids"] = part.ids
            choice |= self._prompt_ids() if first and not self.asked.chat else {}
        return event(self._head(stream=True) | {"choices": [choice]})

    def usage_chunk(self, usage: dict[str, Any]) -> bytes:
        """The last event of a stream whose usage was asked for."""
        return event(self._head(stream=True) | {"choices": [], "usage": usage})

    def whole(
        self, part: Part, reason: str, usage: dict[str, Any], stop: str | None = None
    ) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        asked, choice = self.asked, {"index": 0, **_ending(reason, stop)}
        about_prompt = self._prompt_ids() if asked.token_ids else {}
        if asked.prompt_logprobs is not None:
            about_prompt["prompt_logprobs"] = prompt_logprobs(asked.ids, asked.prompt_logprobs)
        if asked.token_ids:
            choice["token_ids"] = part.ids
        if asked.chat:
            choice["message"] = {
                "role": "assistant",
                "content": part.text,
                **dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning")),
            }
        else:
            choice |= {"text": part.text, **about_prompt}
        return self._head(stream=False) | {
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": usage,
            "kv_transfer_params": None,
            **(about_prompt if asked.chat else {}),
        }

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self.asked.ids)} if self.asked.token_ids else {}

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
        "completion_tokens_details": None,
    }


def _ending(reason: str | None, stop: str | None = None) -> dict[str, Any]:
    return {"logprobs": None, "finish_reason": reason, "stop_reason": stop}


def as_json(data: dict[str, Any]) -> bytes:
    """JSON as vLLM writes it, without spaces."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + as_json(data) + b"\n\n"
