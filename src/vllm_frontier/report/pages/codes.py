"""Codes in words: why cells have no result, what checks look at, and the phases of a launch."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vllm_frontier.outcome import FailureClass, Phase

_COUNTED = re.compile(r"\b([a-z_]+) \((?=\d)")
_FAILURES: Mapping[str, str] = {
    FailureClass.KV_TOO_SMALL: "Too little memory for the window",
    FailureClass.KV_NONE: "No memory left for the KV cache",
    FailureClass.STATE_SLOTS_TOO_FEW: "Too little memory for the state of all sequences",
    FailureClass.OOM_LOAD: "Out of memory while weights were loaded",
    FailureClass.OOM_PROFILE: "Out of memory while a full batch was tried",
    FailureClass.OOM_GRAPH_CAPTURE: "Out of memory while CUDA graphs were captured",
    FailureClass.OOM_WARMUP: "Out of memory while it warmed up",
    FailureClass.OOM_SERVE: "Out of memory while a request was served",
    FailureClass.UTILIZATION_ABOVE_FREE: "More memory asked for than is free",
    FailureClass.INVALID_ARGUMENT: "Arguments that vLLM refuses",
    FailureClass.CONTEXT_EXCEEDS_MODEL: "A longer window than the model was made for",
    FailureClass.MODEL_UNAVAILABLE: "Model not found",
    FailureClass.MODEL_CORRUPT: "Weights that do not fit the model, or are damaged",
    FailureClass.MODEL_UNSUPPORTED: "A model that this vLLM does not know",
    FailureClass.SPEC_UNSUPPORTED: "A model that cannot draft this way",
    FailureClass.UNSUPPORTED_ON_CARD: "A kernel that this card does not have",
    FailureClass.TOOLCHAIN_MISSING: "No compiler",
    FailureClass.MEMORY_CONTENDED: "Something else used the card's memory",
    FailureClass.PORT_IN_USE: "Port in use",
    FailureClass.STARTUP_TIMEOUT: "Not ready in time",
    FailureClass.REQUEST_TIMEOUT: "Request not answered in time",
    FailureClass.ENGINE_CRASHED: "Engine crashed",
    FailureClass.HOST_OOM: "The machine's own memory ran out",
    FailureClass.KILLED: "Ended from outside",
    FailureClass.GPU_LOST: "Card lost",
    FailureClass.DISK_FULL: "Disk full",
    FailureClass.UNKNOWN: "Reason not known",
}

_CHECKS: Mapping[str, str] = {
    "speedup_bound": "Gain of speculation",
    "acceptance_explains": "Speed and accepted drafts",
    "clock_gap": "Clocks of client and server",
    "drift": "Drift",
    "series_gap": "Launches of the same cell",
    "repeat_launches": "How much launches differ",
    "precision": "Width of intervals",
    "outliers": "Runs far off",
    "lossless": "Text with and without speculation",
    "output_sane": "Output",
    "spec_state": "Speculation",
    "depth_applied": "Tokens drafted",
    "cache_leak": "Cached answers",
    "throttled": "Throttling",
    "foreign_load": "Other load on the card",
}

_PHASES: Mapping[str, str] = {
    Phase.SPAWN: "starting the process",
    Phase.CONFIGURE: "reading its settings",
    Phase.LOAD: "loading weights",
    Phase.PROFILE: "trying a full batch",
    Phase.ALLOCATE_KV: "allocating the KV cache",
    Phase.CAPTURE_GRAPHS: "capturing CUDA graphs",
    Phase.WARM_UP: "warming up",
    Phase.READY: "ready",
    Phase.FILL: "filling one window",
    Phase.MEASURE: "measuring",
    Phase.STOP: "stopping",
}


def failure(code: str | None) -> str:
    """A failure class in words; one that is not known stays as it is, none is empty."""
    return _FAILURES.get(code, code) if code else ""


def with_words(text: str) -> str:
    """A sentence that counts a class, as `kv_none (3 of 4)`, with its words before it."""

    def worded(found: re.Match[str]) -> str:
        words = _FAILURES.get(found[1])
        return f"{words[:1].lower()}{words[1:]} ({found[1]}, " if words else found[0]

    return _COUNTED.sub(worded, text)


def check(code: str) -> str:
    """A check in words; one that is not known stays as it is."""
    return _CHECKS.get(code, code)


def phase(code: str) -> str:
    """What a launch was doing in a phase."""
    return _PHASES.get(code, code)
