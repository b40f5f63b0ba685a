"""Memory facts in a server log.

vLLM counts in binary units; where old versions print "GB" they divide by 2**30, so that GB and
GiB mean the same here. With several workers a figure is that of the fullest one: the largest
for what is taken, the smallest for what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from vllm_frontier.outcome import StartupFacts

_SIZE = r"(-?[\d,]*\.?\d+) ?([KMGT]i?B)"
# As versions before 0.12 print the mode: the number of the enum, or those of its two parts.
_GRAPH_MODES = {
    "0": "NONE",
    "1": "PIECEWISE",
    "2": "FULL",
    "[2,0]": "FULL_DECODE_ONLY",
    "[2,1]": "FULL_AND_PIECEWISE",
}
_FACTOR = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}


def gib(number: str, unit: str = "GiB") -> float:
    """A size as vLLM writes it, in GiB; thousands separators are allowed."""
    return float(number.replace(",", "")) * _FACTOR[unit[0]]


def _count(number: str) -> int:
    return int(number.replace(",", ""))


@dataclass(slots=True)
class _Figures:
    """What was read so far; the same names as `StartupFacts` where there is nothing to choose."""

    facts: StartupFacts
    graph_estimate_gib: float | None = None
    graph_measured_gib: float | None = None
    peak_activation_gib: float | None = None  # may contain the graphs' estimate
    estimate_applied: bool = False

    def set_version(self, match: re.Match[str]) -> None:
        if self.facts.engine_version is None:
            self.facts = replace(self.facts, engine_version=match[1])

    def set_weights(self, match: re.Match[str]) -> None:
        size = gib(match[1], match[2])
        self.facts = replace(self.facts, weights_gib=max(size, self.facts.weights_gib or size))

    def set_available(self, match: re.Match[str]) -> None:
        size, known = gib(match[1], match[2]), self.facts.kv_available_gib
        self.facts = replace(
            self.facts, kv_available_gib=size if known is None else min(size, known)
        )

    def set_kv_tokens(self, match: re.Match[str]) -> None:
        tokens = _count(match[1])
        self.facts = replace(self.facts, kv_tokens=min(tokens, self.facts.kv_tokens or tokens))

    def set_auto_context(self, match: re.Match[str]) -> None:
        self.facts = replace(self.facts, auto_context=_count(match[1]))

    def set_graph_estimate(self, match: re.Match[str]) -> None:
        self.graph_estimate_gib = gib(match[1], match[2])

    def set_graph_measured(self, match: re.Match[str]) -> None:
        size = gib(match[1], match[2])
        self.graph_measured_gib = max(size, self.graph_measured_gib or size)

    def set_estimate_applied(self, match: re.Match[str]) -> None:
        del match
        self.estimate_applied = True

    def set_peak_activation(self, match: re.Match[str]) -> None:
        size = gib(match[1], match[2])
        self.peak_activation_gib = max(size, self.peak_activation_gib or size)

    def set_profile(self, match: re.Match[str]) -> None:
        weights, activation, rest = (gib(match[i], match[i + 1]) for i in (1, 3, 5))
        self.peak_activation_gib = activation
        self.facts = replace(self.facts, weights_gib=weights, kv_available_gib=rest)

    def set_graph_mode(self, match: re.Match[str]) -> None:
        self.facts = replace(self.facts, graph_mode=match[1])

    def set_graph_number(self, match: re.Match[str]) -> None:
        mode = _GRAPH_MODES.get(match[1].replace(" ", ""))
        self.facts = replace(self.facts, graph_mode=mode or self.facts.graph_mode)

    def set_needed(self, match: re.Match[str]) -> None:
        self.facts = replace(
            self.facts,
            kv_needed_gib=gib(match[1], match[2]),
            kv_available_gib=gib(match[3], match[4]),
        )

    def set_estimate(self, match: re.Match[str]) -> None:
        self.facts = replace(self.facts, max_context_estimate=_count(match[1]))

    def set_free(self, match: re.Match[str]) -> None:
        size, known = gib(match[1]), self.facts.free_gib
        # Of several cards the one with the least.
        if known is None or size < known:
            self.facts = replace(self.facts, free_gib=size, device_gib=gib(match[2]))

    def set_model_context(self, match: re.Match[str]) -> None:
        self.facts = replace(self.facts, model_context=_count(match[1]))

    def set_requested_kv(self, match: re.Match[str]) -> None:
        self.facts = replace(self.facts, kv_available_gib=gib(match[1], match[2]))


_Setter = Callable[[_Figures, re.Match[str]], None]


def _facts(*entries: tuple[str, str, _Setter]) -> dict[str, list[tuple[re.Pattern[str], _Setter]]]:
    """Group patterns by the first word of the lines they can match, for speed."""
    table: dict[str, list[tuple[re.Pattern[str], _Setter]]] = {}
    for words, pattern, setter in entries:
        for word in words.split("|"):
            table.setdefault(word, []).append((re.compile(pattern), setter))
    return table


_MODE = r"(?:CUDAGraphMode\.)?([A-Z][A-Z_]+)\b"
_FREE_ON_CARD = r"Free memory on device (?:[\w:]+ )?\(([\d.,]+)/([\d.,]+) GiB\) on startup"
_STARTING = _facts(
    ("Initializing", r"LLM engine \(v([^)\s]+)\)", _Figures.set_version),
    ("vLLM", r"vLLM API server version (\S+)", _Figures.set_version),
    ("Model", rf"Model loading took {_SIZE}", _Figures.set_weights),
    ("Loading", rf"Loading model weights took {_SIZE}", _Figures.set_weights),
    ("Available", rf"Available KV cache memory: {_SIZE}", _Figures.set_available),
    ("Explicitly|Auto", r"set \((-?[\d.,]+)/[\d.,]+\) (GiB) for KV cache", _Figures.set_available),
    (
        "GPU|CPU|XPU|HPU|TPU|KV",
        r"KV cache size: ([\d,]+) tokens",
        _Figures.set_kv_tokens,
    ),
    ("Initial", rf"reserved {_SIZE} memory for KV Cache", _Figures.set_available),
    ("Auto-fit", r"reduced from [\d,]+ to ([\d,]+)", _Figures.set_auto_context),
    ("Auto-fit", r"full model context length ([\d,]+) fits", _Figures.set_auto_context),
    ("Estimated", rf"CUDA graph memory: {_SIZE} total", _Figures.set_graph_estimate),
    ("CUDA", rf"CUDA graph pool memory: {_SIZE} \(actual\)", _Figures.set_graph_measured),
    ("Graph", rf"Graph capturing finished in .* took {_SIZE}", _Figures.set_graph_measured),
    ("CUDA", r"memory profiling is enabled", _Figures.set_estimate_applied),
    ("Free", rf"{_SIZE} for peak activation", _Figures.set_peak_activation),
    ("Free", _FREE_ON_CARD, _Figures.set_free),
    (
        "model|the",
        rf"model weights take {_SIZE};.*activation peak memory takes {_SIZE};"
        rf".*reserved for KV Cache is {_SIZE}",
        _Figures.set_profile,
    ),
    # The configuration as resolved at first, then what an attention backend made of it.
    ("Initializing", rf"'cudagraph_mode': <?{_MODE}", _Figures.set_graph_mode),
    ("Initializing", r'"cudagraph_mode": ?(\d|\[\d, ?\d\])', _Figures.set_graph_number),
    ("CUDAGraphMode.", rf"setting cudagraph_mode={_MODE}", _Figures.set_graph_mode),
    ("Cudagraph", rf"Overriding to {_MODE}", _Figures.set_graph_mode),
)
_VERSION_BANNER = re.compile(r"[▀▄█]\s+version (\d[\w.+-]*)$")
_NEEDED = re.compile(rf"\({_SIZE} KV cache is needed, which is larger than .*?\({_SIZE}\)")
_ESTIMATE = re.compile(r"estimated maximum model length is ([\d,]+)")
_STORABLE = re.compile(r"number of tokens that can be stored in KV cache \(([\d,]+)\)")
_MODEL_CONTEXT = re.compile(r"greater than the derived max_model_len \(\w+=(\d+)(?:\.0)? ")
_REQUESTED_KV = re.compile(r"requested memory for kv \((-[\d.,]+)/[\d.,]+ (GiB)\)")


_FREE = re.compile(_FREE_ON_CARD)


class FactCollector:
    """Gathers facts from the lines of one log."""

    def __init__(self) -> None:
        self._figures = _Figures(StartupFacts())

    def observe(self, text: str) -> None:
        """Take a line that a starting server wrote."""
        word = text.partition(" ")[0]
        if word.startswith("CUDAGraphMode."):
            word = "CUDAGraphMode."
        for pattern, setter in _STARTING.get(word, ()):
            match = pattern.search(text)
            if match:
                setter(self._figures, match)
        if self._figures.facts.engine_version is None and " version " in text:
            banner = _VERSION_BANNER.search(text)
            if banner:
                self._figures.set_version(banner)

    def observe_refusal(self, text: str) -> None:
        """Take the line of an exception: vLLM says there what was missing."""
        for pattern, setter in _REFUSALS:
            match = pattern.search(text)
            if match:
                setter(self._figures, match)

    @property
    def facts(self) -> StartupFacts:
        """What is known so far."""
        figures = self._figures
        activation = figures.peak_activation_gib
        estimate = figures.graph_estimate_gib
        if activation is not None and estimate is not None and figures.estimate_applied:
            # From 0.21 on vLLM adds the estimate for graphs to what it calls peak activation.
            activation = max(round(activation - estimate, 4), 0.0)
        graphs = figures.graph_measured_gib
        return replace(
            figures.facts,
            activation_gib=activation,
            graph_gib=estimate if graphs is None else graphs,
        )


_REFUSALS: tuple[tuple[re.Pattern[str], _Setter], ...] = (
    (_NEEDED, _Figures.set_needed),
    (_ESTIMATE, _Figures.set_estimate),
    (_STORABLE, _Figures.set_estimate),
    (_REQUESTED_KV, _Figures.set_requested_kv),
    (_FREE, _Figures.set_free),
    (_MODEL_CONTEXT, _Figures.set_model_context),
)
