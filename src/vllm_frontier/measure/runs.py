"""From a reply and the server's counters around it to a measured run, on both clocks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from vllm_frontier.measure.client import Reply, RequestFailure, ServerClient
from vllm_frontier.measure.counters import Counters
from vllm_frontier.outcome import Run

# How long the counters may lag behind the last chunk, seconds that pass.
SETTLE_S = 2.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class RunLabel:
    """Which request this is; the fields are columns of the table `runs`."""

    task: str
    repeat: int
    kind: str  # decode | prefill | fill | probe
    temperature: float = 0.0
    thinking: bool = False
    variant: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A request that was answered, and the run that it is."""

    run: Run
    reply: Reply


def run_request(
    client: ServerClient, label: RunLabel, send: Callable[[], Reply | RequestFailure]
) -> Run | RequestFailure:
    """Send one request while nothing else runs, with the counters read before and after."""
    measured = measure_request(client, label, send)
    return measured if isinstance(measured, RequestFailure) else measured.run


def measure_request(
    client: ServerClient, label: RunLabel, send: Callable[[], Reply | RequestFailure]
) -> Measured | RequestFailure:
    """The same for who needs the reply, too."""
    before = client.counters()
    started_at = time.time()
    reply = send()
    if isinstance(reply, RequestFailure):
        return reply
    growth = None if before is None else settled_growth(client, before)
    return Measured(make_run(label, reply, growth, started_at=started_at), reply)


def settled_growth(
    client: ServerClient, before: Counters, *, timeout_s: float = SETTLE_S
) -> Counters | None:
    """What one request added to the counters, once the server has counted it as finished.

    A server may record a request shortly after it has sent the last chunk. None when that does
    not show within `timeout_s`: half-counted figures are worse than none. On a machine that lets
    neither run for so long, the last look is one that was begun after that.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last = time.monotonic() >= deadline
        after = client.counters()
        if after is not None:
            growth = after - before
            # Without such a counter there is nothing to wait for.
            if growth.requests_finished is None or growth.requests_finished > 0:
                return growth
        if last:
            return None
        time.sleep(_POLL_S)


def make_run(
    label: RunLabel, reply: Reply, growth: Counters | None, *, started_at: float = 0.0
) -> Run:
    """Put a run together.

    The server's clock is used where the growth of its counters belongs to this request alone
    (one request more is finished), else the client's; `ttft_s`, `decode_s` and `prefill_tok_s`
    follow the same rule. Prefill speed is only told of prefill and fill runs: the prompts of tasks
    are too short for it.

    Args:
        label: which request this is.
        reply: the answer to it.
        growth: what the server's counters grew by; None where it is not known.
        started_at: when the request was sent, seconds since the epoch.
    """
    own = _own_growth(growth)
    server_s, client_s = _server_decode_s(own), _positive(reply.stream_s)
    later_tokens = reply.completion_tokens - 1
    server_speed, client_speed = _speed(later_tokens, server_s), _speed(later_tokens, client_s)
    cached = own.prefix_cache_hits if reply.cached_tokens is None else reply.cached_tokens
    prefill_s = _positive(own.prefill_time_sum) or _positive(reply.ttft_s)
    fresh_tokens = reply.prompt_tokens - (cached or 0)
    return Run(
        task=label.task,
        repeat=label.repeat,
        kind=label.kind,
        temperature=label.temperature,
        thinking=label.thinking,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cached_tokens=cached,
        ttft_s=_positive(own.ttft_sum) or _positive(reply.ttft_s),
        decode_s=server_s or client_s,
        decode_tok_s=server_speed or client_speed,
        decode_tok_s_server=server_speed,
        decode_tok_s_client=client_speed,
        prefill_tok_s=(
            _speed(fresh_tokens, prefill_s) if label.kind in ("prefill", "fill") else None
        ),
        drafts=own.drafts,
        draft_tokens=own.draft_tokens,
        accepted_tokens=own.accepted_tokens,
        accepted_per_position=own.accepted_per_position,
        output_sha256=hashlib.sha256(reply.text.encode()).hexdigest(),
        output=reply.text,
        started_at=started_at,
        variant=label.variant,
        output_token_ids=reply.token_ids,
    )


def _own_growth(growth: Counters | None) -> Counters:
    """The growth where it is that of a single request, else nothing."""
    if growth is None or growth.requests_finished not in (None, 1):
        return Counters()
    return growth


def _server_decode_s(growth: Counters) -> float | None:
    return _positive(growth.decode_time_sum) if growth.decode_time_count == 1 else None


def _positive(seconds: float | None) -> float | None:
    return seconds if seconds is not None and seconds > 0 else None


def _speed(tokens: int, seconds: float | None) -> float | None:
    return tokens / seconds if seconds is not None and tokens > 0 else None
