"""The server's own counters, read from `/metrics`.

The names are those of vLLM 0.11 to 0.33. A counter that a server does not have is None, which is
not the same as zero: speculation counters only exist where something is drafted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

_COUNTS: Mapping[str, str] = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "vllm:prefix_cache_queries_total": "prefix_cache_queries",
    "vllm:prefix_cache_hits_total": "prefix_cache_hits",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:request_decode_time_seconds_count": "decode_time_count",
    "vllm:request_success_total": "requests_finished",
    "vllm:num_preemptions_total": "preemptions",
}
_SECONDS: Mapping[str, str] = {
    "vllm:request_decode_time_seconds_sum": "decode_time_sum",
    "vllm:request_prefill_time_seconds_sum": "prefill_time_sum",
    "vllm:time_to_first_token_seconds_sum": "ttft_sum",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_CACHE_CONFIG = "vllm:cache_config_info"

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a server at one moment, or what they grew by between two.

    Token and request figures are counts, `*_sum` are seconds on the server's clock, and
    `kv_cache_usage` is the share of the KV cache in use, in [0, 1] (of the fullest engine where
    there are several; everything else is summed over engines). None: the server does not say.
    """

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_per_position: tuple[int, ...] | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    decode_time_sum: float | None = None
    decode_time_count: int | None = None
    prefill_time_sum: float | None = None
    ttft_sum: float | None = None
    requests_finished: int | None = None
    preemptions: int | None = None
    kv_cache_usage: float | None = None

    def __sub__(self, before: Counters) -> Counters:
        """What was counted since `before`; the KV cache usage is the later one.

        A counter that was not there before counts from zero. One that went down (another server
        answers now) is None.
        """
        names = (*_COUNTS.values(), *_SECONDS.values())
        growth: dict[str, Any] = {
            name: _growth(getattr(before, name), getattr(self, name)) for name in names
        }
        return Counters(
            **growth,
            accepted_per_position=self._positions_since(before),
            kv_cache_usage=self.kv_cache_usage,
        )

    def _positions_since(self, before: Counters) -> tuple[int, ...] | None:
        after = self.accepted_per_position
        if not after:
            return None
        earlier = before.accepted_per_position or ()
        pairs = itertools.zip_longest(earlier, after, fillvalue=0)
        growths = [new - old for old, new in pairs]
        return tuple(growths) if min(growths) >= 0 else None


def read_counters(text: str) -> Counters:
    """Read the counters out of the text of `/metrics`.

    Raises:
        ValueError: the text is not in the Prometheus text format.
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    usage: float | None = None
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _COUNTS or sample.name in _SECONDS:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            elif sample.name == _PER_POSITION:
                position = int(sample.labels["position"])
                positions[position] = positions.get(position, 0.0) + sample.value
            elif sample.name == _KV_USAGE:
                usage = sample.value if usage is None else max(usage, sample.value)
    figures: dict[str, Any] = {
        field: round(sums[name]) for name, field in _COUNTS.items() if name in sums
    }
    figures |= {field: sums[name] for name, field in _SECONDS.items() if name in sums}
    return Counters(
        **figures,
        accepted_per_position=tuple(round(positions[key]) for key in sorted(positions)) or None,
        kv_cache_usage=usage,
    )


def read_kv_tokens(text: str) -> int | None:
    """How many tokens the KV cache holds, from the text of `/metrics`; None where it is not said.

    Newer servers tell it outright; for older ones it is blocks times block size, which for models
    with more than one kind of cache is only an upper bound.

    Raises:
        ValueError: the text is not in the Prometheus text format.
    """
    samples = (
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == _CACHE_CONFIG
    )
    tokens = [_cache_tokens(sample.labels) for sample in samples]
    known = [count for count in tokens if count is not None]
    return sum(known) if known else None


def _growth(before: _Number | None, after: _Number | None) -> _Number | None:
    if after is None:
        return None
    if before is None:
        return after
    return after - before if after >= before else None


def _cache_tokens(labels: Mapping[str, str]) -> int | None:
    told = labels.get("kv_cache_size_tokens", "")
    if told.isdigit():
        return int(told)
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else None
