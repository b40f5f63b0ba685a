"""What an error that a running server answers with means."""

from __future__ import annotations

from vllm_frontier.engine.failures import WRAPPERS, name_of
from vllm_frontier.engine.rules import rule_for
from vllm_frontier.outcome import FailureClass, Phase

# How a request is refused here before it is sent: the model came without a usable tokenizer.
NO_TOKENIZER = "/tokenize makes no two different tokens"

# What can end a server that was well; other words of an error body are about its request.
_OF_A_SERVER = frozenset(
    {
        FailureClass.ENGINE_CRASHED,
        FailureClass.HOST_OOM,
        FailureClass.DISK_FULL,
        FailureClass.GPU_LOST,
    }
)
# Another try with the same request may be answered: too slow, too many.
_PASSING = (408, 425, 429)


def class_of_answer(message: str, http_status: int | None) -> FailureClass | None:
    """The failure class of an error body; None where neither words nor status decide.

    Args:
        message: the error's message.
        http_status: of the answer; 200 for an error inside a stream.
    """
    if message.startswith(NO_TOKENIZER):
        return FailureClass.MODEL_CORRUPT
    asked_too_much = http_status == 400  # its words quote the request
    rule = None if asked_too_much or WRAPPERS.search(message) else rule_for(message)
    if rule is not None and (rule.out_of_memory or rule.failure_class in _OF_A_SERVER):
        return name_of(rule, (), Phase.READY, started=True)[0]
    if http_status is not None and 400 <= http_status < 500 and http_status not in _PASSING:
        # The server is well and refuses the request, and would refuse it again.
        return FailureClass.INVALID_ARGUMENT
    return None
