"""Probes: texts that were written and are scored, as runs whose speed counts nowhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from vllm_frontier.measure.client import FailureKind, RequestFailure, ServerClient
from vllm_frontier.measure.pace import Pace
from vllm_frontier.measure.runs import Measured
from vllm_frontier.measure.scoring import SCORED_TOKENS, Score, score
from vllm_frontier.outcome import Run


def probes(
    client: ServerClient, written: Iterable[Measured | RequestFailure], pace: Pace
) -> Iterator[Run]:
    """Score texts one after another, as long as the server answers.

    A server that does not tell token ids, or refuses a request, gives no probe of that text; when
    it is not healthy after that, or fails otherwise, nothing more is asked.

    Args:
        client: of a server that is idle.
        written: the texts, or why one of them could not be written; taken one at a time.
        pace: how long a request may take.
    """
    for measured in written:
        began = time.time()
        result = measured if isinstance(measured, RequestFailure) else _rate(client, measured, pace)
        if isinstance(result, RequestFailure):
            if result.kind is FailureKind.HTTP_ERROR and client.healthy():
                continue
            return
        if result is not None and isinstance(measured, Measured):
            yield _probe(measured.run, result, began)


def _rate(client: ServerClient, measured: Measured, pace: Pace) -> Score | RequestFailure | None:
    prompt, answer = measured.reply.prompt_token_ids, measured.reply.token_ids
    if not prompt or not answer:
        return None
    limit = pace.limit_s(len(prompt) + SCORED_TOKENS, 1)
    return score(client, prompt, answer, limit, temperature=measured.run.temperature)


def _probe(run: Run, rated: Score, began: float) -> Run:
    """The row of a scored text; what was measured of it stays with the run that measured it.

    `began` is when it was scored, seconds since the epoch.
    """
    if run.kind == "probe":
        return replace(run, output_logprob=rated.logprob, output_logprob_expected=rated.expected)
    return Run(
        task=run.task,
        repeat=run.repeat,
        kind="probe",
        temperature=run.temperature,
        thinking=run.thinking,
        prompt_tokens=run.prompt_tokens,
        completion_tokens=run.completion_tokens,
        output_sha256=run.output_sha256,
        output=run.output,
        started_at=began,
        variant=run.variant,
        output_token_ids=run.output_token_ids,
        output_logprob=rated.logprob,
        output_logprob_expected=rated.expected,
    )
