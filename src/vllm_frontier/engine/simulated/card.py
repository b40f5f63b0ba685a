"""A described card: its figures, and the rules that say what a cell does on it.

Everything here is pure: the simulated server and a rehearsal of a sweep call the same
functions, so that what is rehearsed is what the server would do. Memory is in GiB, lengths in
tokens, times in simulated seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Failure, FailureClass, Phase, StartupFacts

AUTO_CONTEXT = -1  # `--max-model-len auto`: as long as the memory allows

# vLLM counts whole bytes: differences below one byte are noise of the arithmetic.
_BYTE_GIB = 2.0**-30


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """The card: its memory, and what of it others (a desktop, say) hold all the time."""

    name: str
    total_gib: float
    in_use_gib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """The model: the longest window it was made for; name and quantization are labels."""

    max_context: int
    name: str = "simulated"
    quantization: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Where the memory goes, GiB.

    `head*` counts when depth is above 0, `graphs*` when CUDA graphs are on. With
    `graphs_counted` the graphs are taken out of the KV budget before they are captured (as
    vLLM does from 0.21 on), otherwise they come on top of the budget. `fill_extra` is needed
    only while a full window is served.
    """

    weights: float
    head: float = 0.0
    activation: float = 0.0
    activation_per_depth: float = 0.0
    graphs: float = 0.0
    graphs_per_depth: float = 0.0
    graphs_counted: bool = True
    kv_per_1k_tokens: float
    head_kv_per_1k_tokens: float = 0.0
    state: float = 0.0
    state_per_depth: float = 0.0
    block_tokens: int = 16
    fill_extra: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """Milliseconds of a decoding step without and with CUDA graphs."""

    eager: float
    graphs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFigures:
    """How fast the card is.

    `acceptance` holds for each task the share of drafts whose first n tokens were all
    accepted, n = 1, 2, ...; a depth beyond the list accepts nothing more. `noise` is a relative
    standard deviation.
    """

    step_ms: StepFigures
    step_ms_per_depth: StepFigures = StepFigures(eager=0.0, graphs=0.0)
    acceptance: Mapping[str, tuple[float, ...]]
    prefill_tok_s: float
    noise: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFigures:
    """Simulated seconds of a start; every wait is multiplied by `scale`."""

    load_s: float = 45.0
    profile_s: float = 8.0
    capture_s: float = 12.0
    scale: float = 0.01


SPOILING = ("garbage", "garbage_sampled")
"""Faults that end nothing: what is written makes no sense, always or where it is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong on purpose: what, in which phase, for which cells, how often."""

    kind: str
    at: str
    when: Mapping[str, Any] = field(default_factory=dict)
    times: int | None = None  # None: every time

    def matches(self, axes: Mapping[str, Any]) -> bool:
        """Whether the fault is meant for a cell with these axis values."""
        return all(
            name in axes and axes[name] in (value if isinstance(value, list) else [value])
            for name, value in self.when.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCard:
    """One card file."""

    card: CardFigures
    model: ModelFigures
    memory: MemoryFigures
    speed: SpeedFigures
    time: TimeFigures = TimeFigures()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulatedStart:
    """What becomes of a launch.

    Attributes:
        facts: what the log tells, as far as the start came.
        failure: why it does not start; None when it does.
        fill_failure: why a started server dies on a full window; None when it serves it.
        context: the window served, which is the cell's unless that was `AUTO_CONTEXT`.
    """

    facts: StartupFacts
    failure: Failure | None
    fill_failure: Failure | None
    context: int


def simulate_start(card: SimulatedCard, cell: Cell) -> SimulatedStart:
    """Say whether a cell starts on the card, and with which memory; faults are left out.

    A cell with the context `AUTO_CONTEXT` gets the longest window that fits.
    """
    refusal = _refused_before_loading(card, cell)
    if refusal is not None:
        return SimulatedStart(StartupFacts(), refusal, None, cell.context)
    facts = _facts_of_loading(card, cell)
    available = kv_available_gib(card, cell)
    if available < -_BYTE_GIB:
        failure = Failure(FailureClass.KV_NONE, Phase.ALLOCATE_KV, kv_none_text())
        return SimulatedStart(facts, failure, None, cell.context)
    longest = longest_context(card, cell, available)
    if cell.context == AUTO_CONTEXT:
        if longest == 0:
            failure = Failure(FailureClass.KV_NONE, Phase.ALLOCATE_KV, auto_fit_text())
            return SimulatedStart(facts, failure, None, cell.context)
        cell = replace(cell, context=min(longest, card.model.max_context))
        facts = replace(facts, auto_context=cell.context)
    needed = kv_needed_gib(card, cell)
    facts = replace(facts, kv_needed_gib=needed)
    if needed - available > _BYTE_GIB:
        facts = replace(facts, max_context_estimate=longest or None)
        text = kv_too_small_text(cell.context, needed, available, longest)
        failure = Failure(FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, text)
        return SimulatedStart(facts, failure, None, cell.context)
    facts = replace(facts, kv_tokens=math.floor(available / needed * cell.context + 1e-6))
    if _graphs_do_not_fit(card, cell):
        text = oom_text(card, graphs_gib(card, cell))
        failure = Failure(FailureClass.OOM_GRAPH_CAPTURE, Phase.CAPTURE_GRAPHS, text)
        return SimulatedStart(facts, failure, None, cell.context)
    return SimulatedStart(facts, None, _fill_failure(card, cell), cell.context)


def _refused_before_loading(card: SimulatedCard, cell: Cell) -> Failure | None:
    if cell.context > card.model.max_context:
        text = context_text(cell.context, card.model.max_context)
        return Failure(FailureClass.CONTEXT_EXCEEDS_MODEL, Phase.CONFIGURE, text)
    if budget_gib(card, cell) - free_gib(card) > _BYTE_GIB:
        text = free_memory_text(card, cell)
        return Failure(FailureClass.UTILIZATION_ABOVE_FREE, Phase.CONFIGURE, text)
    return None


def _facts_of_loading(card: SimulatedCard, cell: Cell) -> StartupFacts:
    return StartupFacts(
        kv_available_gib=kv_available_gib(card, cell),
        weights_gib=weights_gib(card, cell),
        activation_gib=activation_gib(card, cell),
        graph_gib=graphs_gib(card, cell),
        graph_mode="FULL_AND_PIECEWISE" if cell.graphs else "NONE",
    )


def _graphs_do_not_fit(card: SimulatedCard, cell: Cell) -> bool:
    if card.memory.graphs_counted or not cell.graphs:
        return False
    wanted = budget_gib(card, cell) + graphs_gib(card, cell)
    return wanted - free_gib(card) > _BYTE_GIB


def _fill_failure(card: SimulatedCard, cell: Cell) -> Failure | None:
    extra = card.memory.fill_extra
    if extra <= 0 or budget_gib(card, cell) + extra - free_gib(card) <= _BYTE_GIB:
        return None
    return Failure(FailureClass.OOM_SERVE, Phase.FILL, oom_text(card, extra))


def free_gib(card: SimulatedCard) -> float:
    """Memory that is free before a launch."""
    return card.card.total_gib - card.card.in_use_gib


def budget_gib(card: SimulatedCard, cell: Cell) -> float:
    """Memory that the cell's utilization gives to vLLM."""
    return cell.utilization * card.card.total_gib


def graphs_gib(card: SimulatedCard, cell: Cell) -> float:
    """Memory of the CUDA graphs; 0 without them."""
    if not cell.graphs:
        return 0.0
    return card.memory.graphs + card.memory.graphs_per_depth * cell.depth


def weights_gib(card: SimulatedCard, cell: Cell) -> float:
    """Memory of the weights, those of the head included when it is used."""
    return card.memory.weights + (card.memory.head if cell.depth else 0.0)


def activation_gib(card: SimulatedCard, cell: Cell) -> float:
    """Memory of the largest step while the model is profiled."""
    return card.memory.activation + card.memory.activation_per_depth * cell.depth


def kv_available_gib(card: SimulatedCard, cell: Cell) -> float:
    """What the budget leaves for KV cache; below 0 when it leaves nothing."""
    counted = graphs_gib(card, cell) if card.memory.graphs_counted else 0.0
    taken = weights_gib(card, cell) + activation_gib(card, cell) + counted
    return budget_gib(card, cell) - taken


def kv_needed_gib(card: SimulatedCard, cell: Cell) -> float:
    """KV cache and state that one request needs which fills the window."""
    block = card.memory.block_tokens
    tokens = math.ceil(cell.context / block) * block
    return _kv_per_1k(card, cell) * tokens / 1000 + _state_gib(card, cell)


def longest_context(card: SimulatedCard, cell: Cell, available: float) -> int:
    """The longest window, in whole blocks, that `available` GiB hold; 0 for none."""
    block = card.memory.block_tokens
    left = available - _state_gib(card, cell)
    return max(0, math.floor((left + _BYTE_GIB) / (_kv_per_1k(card, cell) * block / 1000)) * block)


def _kv_per_1k(card: SimulatedCard, cell: Cell) -> float:
    head = card.memory.head_kv_per_1k_tokens if cell.depth else 0.0
    return card.memory.kv_per_1k_tokens + head


def _state_gib(card: SimulatedCard, cell: Cell) -> float:
    return card.memory.state + card.memory.state_per_depth * cell.depth


def acceptance(card: SimulatedCard, depth: int, task: str) -> tuple[float, ...]:
    """Shares of drafts whose first 1 ... depth tokens were accepted, on a task.

    A task that the card file does not name gets the figures of `prose`, or else of the first
    task in it.
    """
    by_task = card.speed.acceptance
    figures = by_task.get(task) or by_task.get("prose") or next(iter(by_task.values()))
    return tuple(figures[:depth]) + (0.0,) * max(0, depth - len(figures))


def decode_speed(card: SimulatedCard, cell: Cell, task: str) -> float:
    """Decode speed without noise, tokens per second."""
    speed = card.speed
    step = speed.step_ms.graphs if cell.graphs else speed.step_ms.eager
    deeper = speed.step_ms_per_depth.graphs if cell.graphs else speed.step_ms_per_depth.eager
    return 1000 * (1 + sum(acceptance(card, cell.depth, task))) / (step + deeper * cell.depth)


def noise_factor(card: SimulatedCard, cell: Cell, run: str, seed: int = 0) -> float:
    """The factor by which a run's speed differs from the formula; the same one every time.

    Args:
        card: the card; its `noise` is the relative standard deviation.
        cell: the cell; extra axes do not count.
        run: what tells one run from another, such as its prompt.
        seed: for another draw of the same sweep.
    """
    if card.speed.noise == 0:
        return 1.0
    key = json.dumps([cell.depth, cell.context, cell.graphs, cell.utilization, run, seed])
    draw = random.Random(hashlib.sha256(key.encode()).digest())
    # Cut at three deviations, so that no speed comes out absurd, let alone negative.
    return max(0.05, 1 + card.speed.noise * min(3.0, max(-3.0, draw.gauss(0, 1))))


def start_seconds(card: SimulatedCard, cell: Cell) -> float:
    """Simulated seconds from the launch to a server that answers."""
    capture = card.time.capture_s if cell.graphs else 0.0
    return card.time.load_s + card.time.profile_s + capture


def gib(value: float) -> str:
    """GiB as vLLM writes them: rounded to two places, trailing zeros dropped."""
    return f"{round(value, 2)}"


def kv_none_text() -> str:
    """What vLLM says when nothing is left for KV cache."""
    return (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine (this flag also controls CPU "
        "memory reservation on the CPU backend, despite its name). See "
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
    )


def auto_fit_text() -> str:
    """What vLLM says when no window at all fits."""
    return (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve "
        "even a single token. Try increasing `gpu_memory_utilization`."
    )


def kv_too_small_text(context: int, needed: float, available: float, longest: int) -> str:
    """What vLLM says when one full request does not fit; `longest` 0 leaves the advice out."""
    estimate = (
        f"Based on the available memory, the estimated maximum model length is {longest}. "
        if longest
        else ""
    )
    return (
        f"ValueError: To serve at least one request with the model's max seq len ({context}), "
        f"({gib(needed)} GiB KV cache is needed, which is larger than the available KV cache "
        f"memory ({gib(available)} GiB). {estimate}Try increasing `gpu_memory_utilization` "
        "(which also controls CPU memory on the CPU backend) or decreasing `max_model_len` when "
        "initializing the engine. See "
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
    )


def context_text(context: int, longest: int) -> str:
    """What vLLM says when the window is longer than the model's."""
    return (
        f"Value error, User-specified max_model_len ({context}) is greater than the derived "
        f"max_model_len (max_position_embeddings={longest} or model_max_length=None in model's "
        "config.json). To allow overriding this maximum, set the env var "
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. [type=value_error, input_value=ArgsKwargs((), "
        "{'model': ...nderer_num_workers': 1}), input_type=ArgsKwargs]"
    )


def free_memory_text(card: SimulatedCard, cell: Cell) -> str:
    """What vLLM says when the share asked for is more than what is free."""
    return (
        f"ValueError: Free memory on device cuda:0 ({gib(free_gib(card))}/"
        f"{gib(card.card.total_gib)} GiB) on startup is less than desired GPU memory utilization "
        f"({cell.utilization}, {gib(budget_gib(card, cell))} GiB). Decrease GPU memory "
        "utilization or reduce GPU memory used by other processes."
    )


def oom_text(card: SimulatedCard, wanted_gib: float) -> str:
    """What torch says when the card's memory does not hold `wanted_gib` more."""
    total = card.card.total_gib
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted_gib:.2f} GiB. "
        f"GPU 0 has a total capacity of {total:.2f} GiB of which 96.00 MiB is free. Including "
        f"non-PyTorch memory, this process has {max(0.0, free_gib(card) - 0.09):.2f} GiB memory "
        "in use. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )
