"""What the error body of a running server means."""

from __future__ import annotations

import pytest

from vllm_frontier.engine.answers import class_of_answer
from vllm_frontier.outcome import FailureClass

OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 31.36 GiB of "
    "which 605.88 MiB is free."
)


@pytest.mark.parametrize(
    ("message", "status", "failure_class"),
    [
        (OOM, 500, FailureClass.OOM_SERVE),
        (OOM, 200, FailureClass.OOM_SERVE),  # an error inside a stream
        ("CUDA error: an illegal memory access was encountered", 500, FailureClass.ENGINE_CRASHED),
        # A wrapper names no reason, and a bare 500 none either.
        ("EngineCore encountered an issue. See stack trace (above) for the root cause.", 500, None),
        ("Internal server error", 500, None),
        ("Internal server error", 200, None),
        ("This model's maximum context length is 8192 tokens.", 400, FailureClass.INVALID_ARGUMENT),
        ("chat template is not defined", 400, FailureClass.INVALID_ARGUMENT),
        ("The model `x` does not exist.", 404, FailureClass.INVALID_ARGUMENT),
        ("Unprocessable", 422, FailureClass.INVALID_ARGUMENT),
        # The request quotes words that mean something in a log; the server is well.
        ("'messages' holds: Address already in use", 400, FailureClass.INVALID_ARGUMENT),
        ("too many requests", 429, None),
        (
            "/tokenize makes no two different tokens of a text",
            200,
            FailureClass.MODEL_CORRUPT,
        ),
        ("timed out", 408, None),
    ],
)
def test_words_decide_then_the_status(
    message: str, status: int, failure_class: FailureClass | None
) -> None:
    assert class_of_answer(message, status) is failure_class
