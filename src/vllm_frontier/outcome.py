"""What an attempt can end in: closed sets of words, and the values that carry them.

The words are those of the tables `trials` and `runs`; every other module speaks of
outcomes through them. Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from vllm_frontier.conditions import Conditions, Sample


class Status(StrEnum):
    """How an attempt ended."""

    MEASURED = "measured"
    INFEASIBLE = "infeasible"
    INVALID = "invalid"
    FAILED = "failed"
    INFERRED = "inferred"
    INTERRUPTED = "interrupted"

    @property
    def is_final(self) -> bool:
        """True when a resumed sweep does not try the cell again."""
        return self in (Status.MEASURED, Status.INFEASIBLE, Status.INVALID, Status.INFERRED)


class Phase(StrEnum):
    """The phases of an attempt, in the order in which they happen."""

    SPAWN = "spawn"
    CONFIGURE = "configure"
    LOAD = "load"
    PROFILE = "profile"
    ALLOCATE_KV = "allocate_kv"
    CAPTURE_GRAPHS = "capture_graphs"
    WARM_UP = "warm_up"
    READY = "ready"
    FILL = "fill"
    MEASURE = "measure"
    STOP = "stop"


class FailureClass(StrEnum):
    """Why a cell has no speed."""

    # infeasible: this card cannot run this cell
    KV_TOO_SMALL = "kv_too_small"
    KV_NONE = "kv_none"
    STATE_SLOTS_TOO_FEW = "state_slots_too_few"
    OOM_LOAD = "oom_load"
    OOM_PROFILE = "oom_profile"
    OOM_GRAPH_CAPTURE = "oom_graph_capture"
    OOM_WARMUP = "oom_warmup"
    OOM_SERVE = "oom_serve"
    UTILIZATION_ABOVE_FREE = "utilization_above_free"
    # invalid: vLLM refuses the configuration whatever the card
    INVALID_ARGUMENT = "invalid_argument"
    CONTEXT_EXCEEDS_MODEL = "context_exceeds_model"
    MODEL_UNAVAILABLE = "model_unavailable"
    MODEL_CORRUPT = "model_corrupt"
    MODEL_UNSUPPORTED = "model_unsupported"
    SPEC_UNSUPPORTED = "spec_unsupported"
    UNSUPPORTED_ON_CARD = "unsupported_on_card"
    TOOLCHAIN_MISSING = "toolchain_missing"
    # failed: something else broke; says nothing about the cell
    MEMORY_CONTENDED = "memory_contended"
    PORT_IN_USE = "port_in_use"
    STARTUP_TIMEOUT = "startup_timeout"
    REQUEST_TIMEOUT = "request_timeout"
    ENGINE_CRASHED = "engine_crashed"
    HOST_OOM = "host_oom"
    KILLED = "killed"
    GPU_LOST = "gpu_lost"
    DISK_FULL = "disk_full"
    UNKNOWN = "unknown"

    @property
    def status(self) -> Status:
        """The status that goes with the class."""
        if self in _INFEASIBLE:
            return Status.INFEASIBLE
        return Status.INVALID if self in _INVALID else Status.FAILED


class Purpose(StrEnum):
    """What a launch was made for."""

    PROOF = "proof"  # to know whether the cell works
    AUDIT = "audit"  # to check what was inferred
    SPEED = "speed"  # only to measure: that the cell works was known
    SPEED_CHECK = "speed_check"  # whether a speed holds for another window and share
    REPLICATE = "replicate"  # a cell that was measured, once more: launches of one cell differ
    REFERENCE = "reference"  # the reference cell, once more: does its speed drift

    @property
    def repeats(self) -> bool:
        """Whether the cell was measured before, so that nothing but its speed is to be learned."""
        return self in (Purpose.REPLICATE, Purpose.REFERENCE)


class SpecState(StrEnum):
    """Whether the speculation of a measured cell really took place."""

    WORKING = "working"
    INEFFECTIVE = "ineffective"  # next to nothing is accepted: it costs time and yields nothing
    SUSPECT = "suspect"  # everything is accepted, or the counters contradict each other


_INFEASIBLE = frozenset(
    {
        FailureClass.KV_TOO_SMALL,
        FailureClass.KV_NONE,
        FailureClass.STATE_SLOTS_TOO_FEW,
        FailureClass.OOM_LOAD,
        FailureClass.OOM_PROFILE,
        FailureClass.OOM_GRAPH_CAPTURE,
        FailureClass.OOM_WARMUP,
        FailureClass.OOM_SERVE,
        FailureClass.UTILIZATION_ABOVE_FREE,
    }
)
_INVALID = frozenset(
    {
        FailureClass.INVALID_ARGUMENT,
        FailureClass.CONTEXT_EXCEEDS_MODEL,
        FailureClass.MODEL_UNAVAILABLE,
        FailureClass.MODEL_CORRUPT,
        FailureClass.MODEL_UNSUPPORTED,
        FailureClass.SPEC_UNSUPPORTED,
        FailureClass.UNSUPPORTED_ON_CARD,
        FailureClass.TOOLCHAIN_MISSING,
    }
)


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """What a server log (and `/metrics`) tells about memory, whether or not it started.

    Memory is in GiB, lengths are in tokens; None where the log does not say.
    """

    engine_version: str | None = None
    kv_needed_gib: float | None = None
    kv_available_gib: float | None = None
    max_context_estimate: int | None = None
    kv_tokens: int | None = None
    weights_gib: float | None = None
    activation_gib: float | None = None
    graph_gib: float | None = None
    graph_mode: str | None = None  # the mode vLLM resolved to, e.g. FULL_AND_PIECEWISE
    auto_context: int | None = None  # what `--max-model-len auto` was reduced to
    free_gib: float | None = None  # free on the card before the launch, where vLLM says so
    device_gib: float | None = None  # the card's memory as vLLM sees it, where it says so
    model_context: int | None = None  # the model's longest window, where vLLM refuses a longer one


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt has no result.

    `evidence` is the deciding line, `evidence_line` its number in the log, from 1; `subject` is
    what the line is about where only the line before it says so.
    """

    failure_class: FailureClass
    phase: Phase
    evidence: str
    evidence_line: int | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One measured request. Times in seconds, speeds in tokens per second.

    `decode_tok_s_server` comes from the growth of the server's own histogram,
    `decode_tok_s_client` from the arrival of stream chunks; `decode_tok_s` is the server's
    where it exists. `accepted_per_position[i]` counts the drafts whose first i+1 tokens were
    all accepted.

    `variant` is the number of the task's prompt: repeats with the same one asked for the same text.
    `output_logprob` is the mean natural logarithm of the probability of the generated tokens under
    the model without speculation, `output_logprob_expected` what that would be on average for text
    drawn from the model's own distribution; both only where the text was scored. A `probe` is a
    short sampled text that is only scored; its speed counts nowhere.
    """

    task: str
    repeat: int
    kind: str  # decode | prefill | fill | probe | load | agent
    concurrency: int = 1
    temperature: float = 0.0
    thinking: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    decode_tok_s: float | None = None
    decode_tok_s_server: float | None = None
    decode_tok_s_client: float | None = None
    prefill_tok_s: float | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_per_position: tuple[int, ...] | None = None
    output_sha256: str | None = None
    output: str | None = None
    started_at: float = 0.0  # seconds since the epoch, UTC
    variant: int | None = None
    output_token_ids: tuple[int, ...] | None = None
    output_logprob: float | None = None
    output_logprob_expected: float | None = None
    conditions: Conditions | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a launch decoded, tokens/s.

    The median over tasks of their medians over repeats; low and high are the range of repeats:
    of every repeat the median over its tasks, and of these the smallest and the largest.
    """

    decode_tok_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended. Times are seconds; `*_at` are seconds since the epoch, UTC.

    `with_speed` says whether its speed was to be measured, too; without, a server that filled
    its window has done all that was asked.

    `phase` is the phase in which the attempt ended (`stop` when everything was done).
    `exit_code` and `signal` are those of the server when it ended by itself; both are None
    when this attempt stopped it. `log_tail` is kept where the reason is unknown. `samples` are
    those of cards and machine while the server lived, `cuda` is the version that the driver has.
    """

    status: Status
    phase: Phase
    failure: Failure | None = None
    started: bool = False
    filled: bool = False
    facts: StartupFacts = field(default_factory=StartupFacts)
    runs: tuple[Run, ...] = ()
    spawn_s: float | None = None
    ready_s: float | None = None
    measure_s: float | None = None
    wall_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    memory_used_peak_gib: float | None = None
    driver: str | None = None
    spec_state: SpecState | None = None
    log_tail: str | None = None
    purpose: Purpose = Purpose.PROOF
    with_speed: bool = True
    speed: Speed | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    samples: tuple[Sample, ...] = ()
    cuda: str | None = None
    power_limit_w: float | None = None
