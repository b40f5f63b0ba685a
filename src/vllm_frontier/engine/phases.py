"""Which phase of a start a log line belongs to.

The markers are ordered by phase; a log shows a phase when one of the markers of that phase or
of a later one has been seen, so that the phase never goes back (workers of a tensor-parallel
server write at their own pace). `configure` ends when weights are loaded, `load` when the
loader says what they take, `profile` when the memory for the KV cache is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_frontier.outcome import Phase

# The first words of a server: its version (as text, later beside a picture) and arguments.
_OPENING = re.compile(r"vLLM API server version |[ ▀▄█]+version \d|non-default args: ")

_ORDER = {phase: index for index, phase in enumerate(Phase)}


def later(one: Phase, other: Phase) -> Phase:
    """The later of two phases."""
    return one if _ORDER[one] >= _ORDER[other] else other


def is_before(one: Phase, other: Phase) -> bool:
    """Whether a phase comes before another one."""
    return _ORDER[one] < _ORDER[other]


_ENGINE_BEGINS = re.compile(r"Initializing an? (?:V1 )?LLM engine")


def begins_engine(text: str) -> bool:
    """Whether a cleaned line is the first of an engine, which each writes once."""
    return _ENGINE_BEGINS.match(text) is not None


def opens_launch(text: str) -> bool:
    """Whether a cleaned line is among the first that a server writes."""
    return _OPENING.match(text) is not None


@dataclass(frozen=True, slots=True)
class Marker:
    """How a line begins that shows a phase.

    `whole_engine` marks lines that vLLM writes only after all workers came that far.
    """

    begins: str
    phase: Phase
    whole_engine: bool = False


MARKERS = (
    Marker("vLLM API server version", Phase.CONFIGURE),
    Marker("non-default args:", Phase.CONFIGURE),
    Marker("Resolved architecture", Phase.CONFIGURE),
    Marker("Using max model len", Phase.CONFIGURE),
    Marker("Initializing a V1 LLM engine", Phase.CONFIGURE),
    Marker("Initializing an LLM engine", Phase.CONFIGURE),
    Marker("Starting to load model", Phase.LOAD),
    Marker("Loading model from scratch", Phase.LOAD),
    Marker("Loading safetensors checkpoint shards", Phase.LOAD),
    Marker("Loading pt checkpoint shards", Phase.LOAD),
    Marker("Loading weights took", Phase.LOAD),
    Marker("Loading drafter model", Phase.LOAD),
    Marker("Initializing model took", Phase.LOAD),
    Marker("Model loading took", Phase.PROFILE),
    Marker("Loading model weights took", Phase.PROFILE),
    Marker("Encoder cache will be initialized", Phase.PROFILE),
    Marker("Warming up model for the compilation", Phase.PROFILE),
    Marker("Dynamo bytecode transform time", Phase.PROFILE),
    Marker("Compiling a graph for", Phase.PROFILE),
    Marker("torch.compile takes", Phase.PROFILE),
    Marker("Profiling CUDA graph memory", Phase.PROFILE),
    Marker("Estimated CUDA graph memory", Phase.PROFILE),
    Marker("Memory profiling takes", Phase.PROFILE),
    Marker("Available KV cache memory", Phase.ALLOCATE_KV),
    Marker("Explicitly set (", Phase.ALLOCATE_KV),
    Marker("Auto set (", Phase.ALLOCATE_KV),
    Marker("Auto-fit max_model_len", Phase.ALLOCATE_KV, whole_engine=True),
    Marker("GPU KV cache size", Phase.ALLOCATE_KV, whole_engine=True),
    Marker("CPU KV cache size", Phase.ALLOCATE_KV, whole_engine=True),
    Marker("XPU KV cache size", Phase.ALLOCATE_KV, whole_engine=True),
    Marker("Maximum concurrency for", Phase.ALLOCATE_KV, whole_engine=True),
    Marker("# GPU blocks", Phase.ALLOCATE_KV, whole_engine=True),
    Marker("# cpu blocks", Phase.ALLOCATE_KV, whole_engine=True),
    Marker("# cuda blocks", Phase.ALLOCATE_KV, whole_engine=True),
    Marker("Capturing CUDA graph", Phase.CAPTURE_GRAPHS),
    Marker("Capturing cudagraphs", Phase.CAPTURE_GRAPHS),
    Marker("Capturing the model for CUDA graphs", Phase.CAPTURE_GRAPHS),
    Marker("Capturing model for", Phase.CAPTURE_GRAPHS),
    Marker("Graph capturing finished", Phase.WARM_UP),
    Marker("CUDA graph pool memory", Phase.WARM_UP),
    Marker("init engine (profile, create kv cache, warmup model) took", Phase.WARM_UP, True),
    Marker("Supported tasks", Phase.WARM_UP, True),
    Marker("Supported_tasks", Phase.WARM_UP, True),
    Marker("Starting vLLM API server", Phase.WARM_UP, True),
    Marker("Starting vLLM server", Phase.WARM_UP, True),
    Marker("Application startup complete", Phase.READY, True),
    Marker("Uvicorn running on", Phase.READY, True),
)


def _by_first_word() -> dict[str, tuple[Marker, ...]]:
    words = {marker.begins.partition(" ")[0] for marker in MARKERS}
    return {word: tuple(m for m in MARKERS if m.begins.partition(" ")[0] == word) for word in words}


_BY_FIRST_WORD = _by_first_word()


def marker_of(text: str) -> Marker | None:
    """The marker that a cleaned line begins with, if any."""
    candidates = _BY_FIRST_WORD.get(text.partition(" ")[0])
    if candidates:
        for marker in candidates:
            if text.startswith(marker.begins):
                return marker
    return None


# Functions of vLLM by the phase in which they run, in the order in which they are looked for: a
# serving engine is known by its loop, whatever it calls; profiling runs the sampler too, and all
# of it happens below `_initialize_kv_caches`.
_FRAMES = (
    (Phase.READY, re.compile(r"run_busy_loop|_process_engine_step|run_engine_loop")),
    (
        Phase.PROFILE,
        re.compile(
            r"determine_available_memory|determine_num_available_blocks|profile_run"
            r"|profile_cudagraph_memory"
        ),
    ),
    (Phase.CAPTURE_GRAPHS, re.compile(r"capture_model|capture_cudagraphs?|_capture_|cudagraph")),
    (Phase.LOAD, re.compile(r"load_model|load_weights|initialize_model|process_weights_after")),
    (
        Phase.WARM_UP,
        re.compile(r"compile_or_warm_up_model|warm_?up|_dummy_sampler_run|_dummy_pooler_run"),
    ),
    (Phase.ALLOCATE_KV, re.compile(r"^_?allocate_kv_cache|^initialize_kv_cache(?:_tensors)?$")),
)


def phase_of_frames(functions: tuple[str, ...]) -> Phase | None:
    """The phase in which a traceback with these functions, outermost first, was raised."""
    for phase, pattern in _FRAMES:
        if any(pattern.search(function) for function in functions):
            return phase
    return None
