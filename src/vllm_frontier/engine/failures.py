"""Which lines of a failing log can be its reason at all, and what a rule that matches stands for.

What the words mean is in `rules`; which line of a log decides is the business of `reading`.
"""

from __future__ import annotations

import re

from vllm_frontier.engine.phases import later, phase_of_frames
from vllm_frontier.engine.rules import PARSER, Rule
from vllm_frontier.outcome import FailureClass, Phase

# Lines that name no reason: they follow from another failure, and which one is said elsewhere.
WRAPPERS = re.compile(
    r"Engine core initialization failed"
    r"|Engine process failed to start"
    r"|EngineDeadError"
    r"|EngineCore encountered an issue"
    r"|WorkerProc initialization failed"
    r"|died unexpectedly"
    r"|Engine process \(pid \d+\) died"
    r"|Failed core proc\(s\)"
    r"|^RuntimeError: (?:cancelled$|Executor failed)"
    r"|Background loop has errored"
    r"|ProcessExitedException|ProcessRaisedException"
    r"|^(?:asyncio\.exceptions\.)?CancelledError"
    r"|^(?:EOFError|BrokenPipeError|ConnectionResetError|KeyboardInterrupt|SystemExit)\b"
    r"|^zmq\.error\.(?:ContextTerminated|Again)"
    r"|^FileNotFoundError: .*'/(?:psm|sem)_"
)

# Lines that tell, at level ERROR or without a level, that the engine is beyond recovery.
FATAL = re.compile(
    r"EngineCore failed to start"
    r"|WorkerProc failed to start"
    r"|EngineCore (?:encountered a fatal error|hit an exception)"
    r"|Engine core initialization failed"
    r"|Engine process failed to start"
    r"|EngineDeadError"
    r"|died unexpectedly"
    r"|Engine process \(pid \d+\) died"
    r"|LLMEngine is already dead"
    r"|Failed to load model - not enough GPU memory"
    r"|AsyncLLM output_handler failed"
)
# The last word of a server whose engine did not start: nothing of interest comes after it.
FINAL = re.compile(r"Engine core initialization failed|Engine process failed to start")

# Functions by whose frames the exception of a serving engine is told from that of a request, which
# it survives; and what its loop does beside serving.
ENGINE_LOOP = re.compile(
    r"busy_loop|_process_engine_step|run_engine_loop|run_engine_core|run_mp_engine|engine_step"
    r"|execute_model|_log_task_completion"
)
ASIDE = re.compile(
    r"lora|_handle_client_request|sleep|wake_up|save_|run_asgi|create_(?:chat_)?completion"
)

# How Python's argument parser refuses, before the server says anything.
USAGE = re.compile(
    rf"^{PARSER}: error: "
    r"(?:argument|unrecognized|the following|ambiguous|expected|invalid)"
)

# What decides although it stands in no traceback and has no level.
STANDALONE = re.compile(
    rf"{USAGE.pattern}"
    r"|^!+ Segfault encountered"
    r"|^Segmentation fault"
    r"|^Fatal Python error: "
    r"|^terminate called after throwing"
    r"|[Oo]ut of memory: Killed process"
    r"|oom-kill:"
    r"|GPU has fallen off the bus"
    r"|^docker: Error response from daemon"
)

# Probing that fails by design, at whatever level and with whatever traceback.
HARMLESS = re.compile(
    r"[Aa]uto-?[Tt]un(?:er|ing|e\b)|Ignoring this choice|No valid triton configs|Skipping tactic"
)

# An exception without its traceback, as people paste it. Only where nothing better is there.
BARE_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ")

_CHILD_EXIT = re.compile(r"died unexpectedly \(exit code: (?P<code>-?\d+)\)")

_OF_KV_CACHE = (FailureClass.KV_TOO_SMALL, FailureClass.KV_NONE, FailureClass.STATE_SLOTS_TOO_FEW)
_OOM_OF_PHASE = {
    Phase.SPAWN: FailureClass.OOM_LOAD,
    Phase.CONFIGURE: FailureClass.OOM_LOAD,
    Phase.LOAD: FailureClass.OOM_LOAD,
    Phase.PROFILE: FailureClass.OOM_PROFILE,
    Phase.ALLOCATE_KV: FailureClass.OOM_PROFILE,
    Phase.CAPTURE_GRAPHS: FailureClass.OOM_GRAPH_CAPTURE,
    Phase.WARM_UP: FailureClass.OOM_WARMUP,
}
_PHASE_OF_OOM = {
    FailureClass.OOM_LOAD: Phase.LOAD,
    FailureClass.OOM_PROFILE: Phase.PROFILE,
    FailureClass.OOM_GRAPH_CAPTURE: Phase.CAPTURE_GRAPHS,
    FailureClass.OOM_WARMUP: Phase.WARM_UP,
}


def name_of(
    rule: Rule, functions: tuple[str, ...], phase: Phase, *, started: bool
) -> tuple[FailureClass, Phase]:
    """The class that a rule stands for, and the phase in which it happened.

    Args:
        rule: the rule that matched.
        functions: those of the traceback, outermost first.
        phase: the last phase that the log had shown.
        started: whether the server had come up.
    """
    by_frames = None if started else phase_of_frames(functions)
    if not rule.out_of_memory:
        least = by_frames or Phase.CONFIGURE
        if rule.failure_class in _OF_KV_CACHE:
            least = Phase.ALLOCATE_KV
        return rule.failure_class, later(least, phase)
    if started:
        return FailureClass.OOM_SERVE, phase
    if by_frames is not None:
        return _OOM_OF_PHASE.get(by_frames, FailureClass.OOM_SERVE), by_frames
    generic = rule.pattern.search("torch.OutOfMemoryError") is not None
    if generic:
        failure_class = _OOM_OF_PHASE.get(phase, FailureClass.OOM_SERVE)
    else:
        failure_class = rule.failure_class
    return failure_class, _PHASE_OF_OOM.get(failure_class, phase)


def child_exit_code(text: str) -> int | None:
    """The exit code of a worker that a line says has died; negative for a signal."""
    match = _CHILD_EXIT.search(text)
    return int(match["code"]) if match else None
