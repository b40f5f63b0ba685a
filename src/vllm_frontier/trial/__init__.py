"""One attempt, start to finish: from what it is given to its `Outcome`."""

from vllm_frontier.trial.attempt import run_attempt
from vllm_frontier.trial.request import AttemptRequest, Progress, Steps

__all__ = ["AttemptRequest", "Progress", "Steps", "run_attempt"]
