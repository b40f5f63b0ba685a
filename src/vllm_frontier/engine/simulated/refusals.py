"""How vLLM words what is wrong with a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

_KINDS = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


@dataclass(frozen=True, slots=True)
class ApiError:
    """A request that is refused; `kind` None is the usual one of the status."""

    status: int
    message: str
    param: str | None = None
    kind: str | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind or _KINDS[self.status],
                "param": self.param,
                "code": self.status,
            }
        }


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with the form of a body: what, where, and what stands there."""

    kind: str
    at: str
    told: str
    found: Any = None
    context: str | None = None

    def __str__(self) -> str:
        shown: dict[str, Any] = {
            "type": self.kind,
            "loc": self.at,
            "msg": self.told,
            "input": _shown(self.found),
        }
        return str(shown | ({"ctx": {"error": self.context}} if self.context else {}))


def malformed(*faults: Fault) -> ApiError:
    """A body whose form is wrong."""
    count = f"{len(faults)} validation error{'s' if len(faults) > 1 else ''}"
    lines = "\n  ".join(str(fault) for fault in faults)
    return ApiError(400, f"{count}:\n  {lines}", faults[0].at, "Bad Request")


def missing(body: Any, *names: str) -> ApiError:
    """A body without fields that it needs."""
    return malformed(*(Fault("missing", f"body.{name}", "Field required", body) for name in names))


def no_body() -> ApiError:
    """A request without a body."""
    return malformed(Fault("missing", "body", "Field required"))


def not_json(at: int, reason: str) -> ApiError:
    """A body that is no JSON from a character on."""
    return malformed(Fault("json_invalid", f"body.{at}", "JSON decode error", {}, reason))


def not_an_object(body: Any) -> ApiError:
    """A body that is JSON, but no object."""
    told = "Input should be a valid dictionary or object to extract fields from"
    return malformed(Fault("model_attributes_type", "body", told, body))


def media_type() -> ApiError:
    """A body that is not declared as JSON."""
    told = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(400, told, kind="Bad Request")


def wrong_value(message: str, param: str, value: Any = None) -> ApiError:
    """A field whose value cannot be served."""
    about = f"parameter={param}" + ("" if value is None else f", value={value}")
    return ApiError(400, f"{message} ({about})", param)


def unknown_model(name: Any, served: str) -> ApiError:
    """Another model than the one that is served."""
    return ApiError(404, f"The model `{name}` does not exist. Valid aliases: {served}.", "model")


def too_long(prompt: Sequence[int], window: int, *, counted: bool) -> ApiError:
    """A prompt above the window.

    `counted`: it came as tokens; a text is cut off as soon as it is longer than the window.
    """
    length = len(prompt) if counted else window + 1
    shown = f"{length}" if counted else f"at least {length}"
    return wrong_value(
        f"This model's maximum context length is {window} tokens. However, your prompt contains "
        f"{shown} input tokens, which exceeds this limit even without any output tokens. Please "
        "reduce the length of the input prompt.",
        "input_tokens",
        length,
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)
