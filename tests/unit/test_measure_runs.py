from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import pytest

from vllm_frontier.measure.client import Reply, ServerClient
from vllm_frontier.measure.counters import Counters
from vllm_frontier.measure.runs import RunLabel, make_run, settled_growth

DECODE = RunLabel("edit", 2, "decode")
PREFILL = RunLabel("prefill", 0, "prefill")
REPLY = Reply(
    text="some text",
    finish_reason="length",
    prompt_tokens=1000,
    completion_tokens=101,
    cached_tokens=None,
    t_sent=10.0,
    t_first=10.5,
    t_last=12.5,
    chunks=40,
)
GROWTH = Counters(
    drafts=40,
    draft_tokens=120,
    accepted_tokens=60,
    accepted_per_position=(35, 20, 5),
    prefix_cache_hits=0,
    decode_time_sum=0.8,
    decode_time_count=1,
    prefill_time_sum=0.25,
    ttft_sum=0.3,
    requests_finished=1,
)


def test_the_server_s_clock_goes_first_and_both_are_kept() -> None:
    run = make_run(DECODE, REPLY, GROWTH, started_at=5.0)

    assert run.decode_tok_s_server == pytest.approx(100 / 0.8)
    assert run.decode_tok_s_client == pytest.approx(100 / 2.0)
    assert run.decode_tok_s == run.decode_tok_s_server
    assert (run.decode_s, run.ttft_s, run.started_at) == (0.8, 0.3, 5.0)
    assert (run.task, run.repeat, run.kind, run.concurrency) == ("edit", 2, "decode", 1)
    assert (run.drafts, run.draft_tokens, run.accepted_tokens) == (40, 120, 60)
    assert run.accepted_per_position == (35, 20, 5)
    assert run.output_sha256 == hashlib.sha256(b"some text").hexdigest()
    assert run.output == "some text"
    assert run.prefill_tok_s is None


@pytest.mark.parametrize(
    "growth",
    [
        None,
        Counters(),
        replace(GROWTH, requests_finished=2, decode_time_count=2),
        replace(GROWTH, requests_finished=2),
    ],
)
def test_the_client_s_clock_is_used_where_the_server_s_is_not_of_this_request(
    growth: Counters | None,
) -> None:
    run = make_run(DECODE, REPLY, growth)

    assert run.decode_tok_s_server is None
    assert run.decode_tok_s == run.decode_tok_s_client == pytest.approx(50.0)
    assert (run.decode_s, run.ttft_s) == (2.0, 0.5)
    assert run.drafts is None


def test_a_histogram_that_counted_another_request_is_not_used() -> None:
    run = make_run(DECODE, REPLY, replace(GROWTH, decode_time_count=2))

    assert run.decode_tok_s_server is None
    assert run.decode_tok_s == pytest.approx(50.0)


def test_prefill_speed_leaves_out_what_was_cached() -> None:
    by_usage = make_run(PREFILL, replace(REPLY, cached_tokens=400), GROWTH)
    by_counter = make_run(PREFILL, REPLY, replace(GROWTH, prefix_cache_hits=200))
    by_client = make_run(PREFILL, replace(REPLY, cached_tokens=0), None)

    assert by_usage.prefill_tok_s == pytest.approx(600 / 0.25)
    assert (by_usage.cached_tokens, by_counter.cached_tokens) == (400, 200)
    assert by_counter.prefill_tok_s == pytest.approx(800 / 0.25)
    assert by_client.prefill_tok_s == pytest.approx(1000 / 0.5)


def test_one_token_has_no_decode_speed_and_a_burst_no_client_speed() -> None:
    single = make_run(PREFILL, replace(REPLY, completion_tokens=1, t_last=10.5), GROWTH)
    burst = make_run(DECODE, replace(REPLY, t_last=10.5), GROWTH)

    assert single.decode_tok_s is None
    assert single.decode_tok_s_client is None
    assert burst.decode_tok_s_client is None
    assert burst.decode_tok_s == pytest.approx(125.0)


class Late(ServerClient):
    """Answers its first look only after the time that counting may take."""

    def __init__(self, looks: list[Counters]) -> None:
        super().__init__("http://127.0.0.1:9", "none")
        self.looks = looks

    def counters(self) -> Counters | None:
        found = self.looks.pop(0)
        time.sleep(0.05)
        return found


def test_what_was_counted_during_a_slow_look_is_seen() -> None:
    with Late([Counters(requests_finished=0), GROWTH]) as client:
        growth = settled_growth(client, Counters(requests_finished=0), timeout_s=0.01)
    assert growth is not None
    assert growth.decode_time_sum == 0.8


def test_what_is_not_counted_by_then_is_none() -> None:
    with Late([Counters(requests_finished=0)] * 3) as client:
        growth = settled_growth(client, Counters(requests_finished=0), timeout_s=0.01)
        assert (growth, len(client.looks)) == (None, 1)
