"""Counters of the simulated server, and `/metrics` in Prometheus' text format."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator, Sequence

from vllm_frontier.engine.simulated.options import Options
from vllm_frontier.engine.simulated.requests import Decoding
from vllm_frontier.outcome import StartupFacts

_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_STEP_TOKENS = tuple(float(n) for n in (1, *(2**power for power in range(3, 15))))
_FEW = (1.0, 2.0, 5.0, 10.0, 20.0)
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...] | None]] = {  # None: up to the window
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _PER_TOKEN),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _PER_TOKEN,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _SECONDS),
    "request_queue_time_seconds": (
        "Histogram of time spent in WAITING phase for request.",
        _SECONDS,
    ),
    "request_inference_time_seconds": (
        "Histogram of time spent in RUNNING phase for request.",
        _SECONDS,
    ),
    "request_prefill_time_seconds": (
        "Histogram of time spent in PREFILL phase for request.",
        _SECONDS,
    ),
    "request_decode_time_seconds": (
        "Histogram of time spent in DECODE phase for request.",
        _SECONDS,
    ),
    "request_prompt_tokens": ("Number of prefill tokens processed.", None),
    "request_generation_tokens": ("Number of generation tokens processed.", None),
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _STEP_TOKENS),
    "request_max_num_generation_tokens": (
        "Histogram of maximum number of requested generation tokens.",
        None,
    ),
    "request_params_n": ("Histogram of the n request parameter.", _FEW),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", None),
    "request_num_preemptions": (
        "Histogram of the number of times a request was preempted.",
        _FEW,
    ),
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        None,
    ),
}
_COUNTERS = {
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "external_prefix_cache_queries": (
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms "
        "of number of queried tokens."
    ),
    "external_prefix_cache_hits": (
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of "
        "number of cached tokens."
    ),
    "mm_cache_queries": "Multi-modal cache queries, in terms of number of queried items.",
    "mm_cache_hits": "Multi-modal cache hits, in terms of number of cached items.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
_REASONS = ("stop", "length", "abort", "error", "repetition")


class Metrics:
    """What the server has counted since it started; may be used from several threads."""

    def __init__(
        self, *, model: str, depth: int, block: int, facts: StartupFacts, options: Options
    ) -> None:
        """Count from nothing.

        Args:
            model: the name that is served.
            depth: tokens drafted per step.
            block: tokens of a block of the KV cache.
            facts: those of the start.
            options: the command line.
        """
        self._labels = f'engine="0",model_name="{model}"'
        self._depth = depth
        self._block = block
        self._facts = facts
        self._options = options
        self._lock = threading.Lock()
        self._sums = dict.fromkeys(_HISTOGRAMS, 0.0)
        window = options.context if options.context and options.context > 0 else facts.kv_tokens
        self._bounds = {
            name: _up_to(window or 1) if bounds is None else bounds
            for name, (_, bounds) in _HISTOGRAMS.items()
        }
        self._buckets = {name: [0] * (len(bounds) + 1) for name, bounds in self._bounds.items()}
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
        self,
        decoding: Decoding,
        *,
        prompt: int,
        cached: int,
        completion: int,
        reason: str,
        limit: int,
    ) -> None:
        """Count a request that was answered to its end; `limit` tokens were allowed."""
        once = {
            "time_to_first_token_seconds": decoding.prefill_s,
            "request_time_per_output_token_seconds": decoding.decode_s / max(1, completion - 1),
            "e2e_request_latency_seconds": decoding.prefill_s + decoding.decode_s,
            "request_queue_time_seconds": 0.0,
            "request_inference_time_seconds": decoding.prefill_s + decoding.decode_s,
            "request_prefill_time_seconds": decoding.prefill_s,
            "request_decode_time_seconds": decoding.decode_s,
            "request_prompt_tokens": prompt,
            "request_generation_tokens": completion,
            "iteration_tokens_total": prompt - cached + 1,
            "request_max_num_generation_tokens": completion,
            "request_params_n": 1,
            "request_params_max_tokens": limit,
            "request_num_preemptions": 0,
            "request_prefill_kv_computed_tokens": prompt - cached,
        }
        with self._lock:
            for name, value in once.items():
                self._observe(name, value)
            ends = [0.0, *decoding.ends_s()]
            for step, (start, end) in zip(decoding.steps, itertools.pairwise(ends), strict=True):
                self._observe("inter_token_latency_seconds", end - start)
                self._observe("iteration_tokens_total", step)
            counts = self._counts
            counts["prompt_tokens"] += prompt
            counts["prompt_tokens_cached"] += cached
            counts["generation_tokens"] += completion
            counts["prefix_cache_queries"] += prompt
            counts["prefix_cache_hits"] += cached
            counts["spec_decode_num_drafts"] += decoding.drafts
            counts["spec_decode_num_draft_tokens"] += decoding.draft_tokens
            counts["spec_decode_num_accepted_tokens"] += decoding.accepted_tokens
            for position, accepted in enumerate(decoding.accepted_per_position):
                self._accepted[position] += accepted
            self._finished[reason] += 1

    def _observe(self, name: str, value: float) -> None:
        self._sums[name] += value
        self._buckets[name][bisect.bisect_left(self._bounds[name], value)] += 1

    def text(self) -> str:
        """The whole of `/metrics`."""
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        running = sum(self._running.values())
        usage = min(1.0, running / (self._facts.kv_tokens or 1))
        told = "Number of requests in model execution batches."
        yield from self._gauge("num_requests_running", told, [("", len(self._running))])
        told = "Number of requests waiting to be processed."
        yield from self._gauge("num_requests_waiting", told, [("", 0)])
        told = "Number of waiting requests by reason."
        reasons = [(f',reason="{reason}"', 0) for reason in ("capacity", "deferred")]
        yield from self._gauge("num_requests_waiting_by_reason", told, reasons)
        states = [
            (f',sleep_state="{state}"', state == "awake")
            for state in ("awake", "weights_offloaded", "discard_all")
        ]
        yield from self._gauge("engine_sleep_state", "Engine sleep state.", states)
        told = "KV-cache usage. 1 means 100 percent usage."
        yield from self._gauge("kv_cache_usage_perc", told, [("", usage)])
        for name, told in _COUNTERS.items():
            if self._depth or not name.startswith("spec_decode"):
                yield from self._counter(name, told, [("", self._counts[name])])
        if self._depth:
            rows = [(f',position="{at}"', count) for at, count in enumerate(self._accepted)]
            name = "spec_decode_num_accepted_tokens_per_pos"
            yield from self._counter(name, "Accepted tokens per draft position.", rows)
        told = "Count of successfully processed requests."
        ends = [(f',finished_reason="{name}"', count) for name, count in self._finished.items()]
        yield from self._counter("request_success", told, ends)
        told, cached = "Number of prompt tokens by source.", self._counts["prompt_tokens_cached"]
        sources = {
            "local_compute": self._counts["prompt_tokens"] - cached,
            "local_cache_hit": cached,
            "external_kv_transfer": 0,
        }
        rows = [(f',source="{name}"', count) for name, count in sources.items()]
        yield from self._counter("prompt_tokens_by_source", told, rows)
        for name, (told, _) in _HISTOGRAMS.items():
            yield from self._histogram(name, told)
        yield from self._cache_config()

    def _gauge(self, name: str, told: str, rows: Sequence[tuple[str, float]]) -> Iterator[str]:
        yield f"# HELP vllm:{name} {told}"
        yield f"# TYPE vllm:{name} gauge"
        for label, value in rows:
            yield f"vllm:{name}{{{self._labels}{label}}} {float(value)}"

    def _counter(self, name: str, told: str, rows: list[tuple[str, int]]) -> Iterator[str]:
        yield f"# HELP vllm:{name}_total {told}"
        yield f"# TYPE vllm:{name}_total counter"
        for label, value in rows:
            yield f"vllm:{name}_total{{{self._labels}{label}}} {float(value)}"

    def _histogram(self, name: str, told: str) -> Iterator[str]:
        yield f"# HELP vllm:{name} {told}"
        yield f"# TYPE vllm:{name} histogram"
        total = 0
        bounds = [*(str(bound) for bound in self._bounds[name]), "+Inf"]
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
            f'block_size="{self._block}",cache_dtype="auto",'
            f'enable_prefix_caching="{self._options.prefix_caching}",engine="0",'
            f'gpu_memory_utilization="{self._options.utilization}",'
            f'kv_cache_max_concurrency="{concurrency:.4f}",kv_cache_size_tokens="{tokens}",'
            f'num_gpu_blocks="{tokens // self._block}"'
        )
        yield "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig"
        yield "# TYPE vllm:cache_config_info gauge"
        yield f"vllm:cache_config_info{{{labels}}} 1.0"


def _up_to(longest: int) -> tuple[float, ...]:
    """Bounds 1, 2, 5, 10, 20, 50 ... as far as the longest window."""
    found: list[float] = []
    for power in range(12):
        for step in (1, 2, 5):
            if step * 10**power > longest:
                return tuple(found)
            found.append(float(step * 10**power))
    return tuple(found)
