from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.measure.counters import Counters, read_counters, read_kv_tokens

SPECULATING = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 255.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.796006422e+09
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 510.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 301.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 101.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 200.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0
# TYPE vllm:request_success_created gauge
vllm:request_success_created{engine="0",finished_reason="stop",model_name="m"} 1.796006422e+09
# TYPE vllm:request_decode_time_seconds histogram
vllm:request_decode_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 6.0
vllm:request_decode_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 7.0
vllm:request_decode_time_seconds_count{engine="0",model_name="m"} 7.0
vllm:request_decode_time_seconds_sum{engine="0",model_name="m"} 2.6618891430001668
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 7.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 7.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.5
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 16.0
"""


def test_reads_what_a_speculating_server_counts() -> None:
    counters = read_counters(SPECULATING)

    assert counters == Counters(
        drafts=255,
        draft_tokens=510,
        accepted_tokens=301,
        accepted_per_position=(200, 101),
        prefix_cache_hits=16,
        decode_time_sum=2.6618891430001668,
        decode_time_count=7,
        ttft_sum=0.5,
        requests_finished=7,
        kv_cache_usage=0.25,
    )


def test_a_server_without_speculation_has_no_such_counters_rather_than_zero() -> None:
    counters = read_counters("vllm:prompt_tokens_total 12.0\n")

    assert counters.prompt_tokens == 12
    assert counters.drafts is None
    assert counters.accepted_per_position is None
    assert counters.decode_time_sum is None


def test_engines_are_summed_but_for_the_fullest_cache() -> None:
    second = SPECULATING.replace('engine="0"', 'engine="1"').replace("0.25", "0.75")
    samples = [line for line in (SPECULATING + second).splitlines() if not line.startswith("#")]

    counters = read_counters("\n".join(samples) + "\n")

    assert counters.drafts == 510
    assert counters.accepted_per_position == (400, 202)
    assert counters.requests_finished == 14
    assert counters.kv_cache_usage == 0.75


def test_growth_of_one_request() -> None:
    before = read_counters(SPECULATING)
    after = read_counters(
        SPECULATING.replace("255.0", "300.0")
        .replace('position="1"} 101.0', 'position="1"} 111.0')
        .replace("2.6618891430001668", "3.1618891430001668")
        .replace("_count{engine", "_count{engine")
        .replace('finished_reason="length",model_name="m"} 4.0', 'x="",model_name="m"} 5.0')
        .replace("0.25", "0.5")
    )

    growth = after - before

    assert growth.drafts == 45
    assert growth.draft_tokens == 0
    assert growth.accepted_per_position == (0, 10)
    assert growth.decode_time_sum == pytest.approx(0.5)
    assert growth.requests_finished == 1
    assert growth.kv_cache_usage == 0.5
    assert growth.preemptions is None


def test_a_counter_that_appears_counts_from_zero_and_one_that_falls_is_unknown() -> None:
    before = Counters(drafts=None, prompt_tokens=50, accepted_per_position=(9,))
    after = Counters(drafts=7, prompt_tokens=20, accepted_per_position=(3, 1))

    growth = after - before

    assert growth.drafts == 7
    assert growth.prompt_tokens is None
    assert growth.accepted_per_position is None
    assert (Counters(accepted_per_position=(4, 1)) - Counters()).accepted_per_position == (4, 1)


def test_fewer_positions_than_before_means_another_server() -> None:
    growth = Counters(accepted_per_position=(9,)) - Counters(accepted_per_position=(3, 1))

    assert growth.accepted_per_position is None


@given(start=st.integers(0, 10**9), grown=st.integers(0, 10**9), seconds=st.floats(0, 1e6))
def test_growth_gives_back_what_was_added(start: int, grown: int, seconds: float) -> None:
    before = Counters(drafts=start, generation_tokens=start, decode_time_sum=0.0)
    after = Counters(drafts=start + grown, generation_tokens=start, decode_time_sum=seconds)

    growth = after - before

    assert (growth.drafts, growth.generation_tokens) == (grown, 0)
    assert growth.decode_time_sum == seconds


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('block_size="128",num_gpu_blocks="204",kv_cache_size_tokens="26000"', 26000),
        ('block_size="16",num_gpu_blocks="1000"', 16000),
        ('block_size="16",num_gpu_blocks="1000",kv_cache_size_tokens="None"', 16000),
        ('block_size="16",num_gpu_blocks="None"', None),
    ],
)
def test_kv_tokens_from_the_labels_of_the_cache_configuration(
    labels: str, tokens: int | None
) -> None:
    assert read_kv_tokens(f'vllm:cache_config_info{{engine="0",{labels}}} 1.0\n') == tokens


def test_kv_tokens_are_summed_over_engines_and_unknown_without_the_metric() -> None:
    text = "\n".join(
        f'vllm:cache_config_info{{engine="{engine}",kv_cache_size_tokens="4096"}} 1.0'
        for engine in range(2)
    )

    assert read_kv_tokens(text + "\n") == 8192
    assert read_kv_tokens(SPECULATING) is None
