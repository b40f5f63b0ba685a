"""Counters of the simulated server, and `/metrics` in Prometheus' text format."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from vllm_frontier.engine.simulated.requests import Decoding
from vllm_frontier.outcome import StartupFacts

_BUCKETS = (0.1, 1.0, 10.0, 100.0)
_HISTOGRAMS = {
    "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
    "request_queue_time_seconds": "Histogram of time spent in WAITING phase for request.",
    "request_inference_time_seconds": "Histogram of time spent in RUNNING phase for request.",
    "request_prefill_time_seconds": "Histogram of time spent in PREFILL phase for request.",
    "request_decode_time_seconds": "Histogram of time spent in DECODE phase for request.",
}
_COUNTERS = {
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
_REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """What the server has counted since it started; may be used from several threads."""

    def __init__(self, *, model: str, depth: int, block: int, facts: StartupFacts) -> None:
        self._labels = f'engine="0",model_name="{model}"'
        self._depth = depth
        self._block = block
        self._facts = facts
        self._lock = threading.Lock()
        self._sums = dict.fromkeys(_HISTOGRAMS, 0.0)
        self._buckets = {name: [0] * (len(_BUCKETS) + 1) for name in _HISTOGRAMS}
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._accepted = [0] * depth
        self._finished = dict.fromkeys(_REASONS, 0)
        self._running: dict[int, int] = {}

    def begin(self, request: int, tokens: int) -> None:
        """A request runs that will hold so many tokens of KV cache."""
        with self._lock:
            self._running[request] = tokens

    def end(self, request: int) -> None:
        """The request no longer runs, however it ended."""
        with self._lock:
            self._running.pop(request, None)

    def finish(
        self, decoding: Decoding, *, prompt: int, cached: int, completion: int, reason: str
    ) -> None:
        """Count a request that was answered to its end."""
        times = {
            "time_to_first_token_seconds": decoding.prefill_s,
            "e2e_request_latency_seconds": decoding.prefill_s + decoding.decode_s,
            "request_queue_time_seconds": 0.0,
            "request_inference_time_seconds": decoding.prefill_s + decoding.decode_s,
            "request_prefill_time_seconds": decoding.prefill_s,
            "request_decode_time_seconds": decoding.decode_s,
        }
        with self._lock:
            for name, seconds in times.items():
                self._sums[name] += seconds
                self._buckets[name][sum(seconds > bound for bound in _BUCKETS)] += 1
            counts = self._counts
            counts["prompt_tokens"] += prompt
            counts["generation_tokens"] += completion
            counts["prefix_cache_queries"] += prompt
            counts["prefix_cache_hits"] += cached
            counts["spec_decode_num_drafts"] += decoding.drafts
            counts["spec_decode_num_draft_tokens"] += decoding.draft_tokens
            counts["spec_decode_num_accepted_tokens"] += decoding.accepted_tokens
            for position, accepted in enumerate(decoding.accepted_per_position):
                self._accepted[position] += accepted
            self._finished[reason] += 1

    def text(self) -> str:
        """The whole of `/metrics`."""
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        running = sum(self._running.values())
        usage = min(1.0, running / (self._facts.kv_tokens or 1))
        yield from self._gauge("num_requests_running", len(self._running), "Number of requests.")
        yield from self._gauge("num_requests_waiting", 0, "Number of requests waiting.")
        yield from self._gauge("kv_cache_usage_perc", usage, "KV-cache usage, 1 is all.")
        for name, told in _COUNTERS.items():
            if self._depth or not name.startswith("spec_decode"):
                yield from self._counter(name, told, [("", self._counts[name])])
        if self._depth:
            rows = [(f',position="{at}"', count) for at, count in enumerate(self._accepted)]
            name = "spec_decode_num_accepted_tokens_per_pos"
            yield from self._counter(name, "Accepted tokens per draft position.", rows)
        reasons = [(f',finished_reason="{name}"', n) for name, n in self._finished.items()]
        yield from self._counter("request_success", "Count of finished requests.", reasons)
        for name, told in _HISTOGRAMS.items():
            yield from self._histogram(name, told)
        yield from self._cache_config()

    def _gauge(self, name: str, value: float, told: str) -> Iterator[str]:
        yield f"# HELP vllm:{name} {told}"
        yield f"# TYPE vllm:{name} gauge"
        yield f"vllm:{name}{{{self._labels}}} {float(value)}"

    def _counter(self, name: str, told: str, rows: list[tuple[str, int]]) -> Iterator[str]:
        yield f"# HELP vllm:{name}_total {told}"
        yield f"# TYPE vllm:{name}_total counter"
        for label, value in rows:
            yield f"vllm:{name}_total{{{self._labels}{label}}} {float(value)}"

    def _histogram(self, name: str, told: str) -> Iterator[str]:
        yield f"# HELP vllm:{name} {told}"
        yield f"# TYPE vllm:{name} histogram"
        total = 0
        bounds = [*(str(bound) for bound in _BUCKETS), "+Inf"]
        for bound, count in zip(bounds, self._buckets[name], strict=True):
            total += count
            yield f'vllm:{name}_bucket{{{self._labels},le="{bound}"}} {float(total)}'
        yield f"vllm:{name}_count{{{self._labels}}} {float(total)}"
        yield f"vllm:{name}_sum{{{self._labels}}} {self._sums[name]!r}"

    def _cache_config(self) -> Iterator[str]:
        tokens = self._facts.kv_tokens or 0
        available = self._facts.kv_available_gib or 0.0
        concurrency = available / (self._facts.kv_needed_gib or 1.0)
        labels = (
            f'block_size="{self._block}",engine="0",kv_cache_max_concurrency="{concurrency:.4f}",'
            f'kv_cache_size_tokens="{tokens}",num_gpu_blocks="{tokens // self._block}"'
        )
        yield "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig"
        yield "# TYPE vllm:cache_config_info gauge"
        yield f"vllm:cache_config_info{{{labels}}} 1.0"
