"""What to change after a launch that did not work: one sentence, with the log's own numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

from vllm_frontier.outcome import Failure, FailureClass, Phase, StartupFacts

_WINDOW = re.compile(r"max seq len \(([\d,]+)\)")
_FREE = re.compile(
    r"\((?P<free>-?[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired "
    r"\w+ memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
)
_FREE_FOR_KV = re.compile(
    r"\((?P<free>-?[\d.]+)/[\d.]+ GiB\) on kv cache allocation is less than requested memory "
    r"for kv \((?P<wanted>[\d.]+) GiB\)"
)
_SEQUENCES = re.compile(r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)")
_DERIVED = re.compile(
    r"max_model_len \((\d+)\) is greater than the derived max_model_len \((.*?)\)"
)
_MODEL_LENGTH = re.compile(
    r"(?:max_position_embeddings|model_max_length|\w+_len\w*)=(\d+)(?:\.\d+)?"
)
_ALLOCATION = re.compile(
    r"Tried to allocate (?P<size>[\d.]+ [KMG]iB).*?total capacity of (?P<total>[\d.]+ [KMG]iB) "
    r"of which (?P<free>[\d.]+ [KMG]iB) is free"
)
_INPUT = re.compile(r" \[type=\w+, input_value=.*")
_SMALLEST_SHARE = 0.1  # below it a card is not one that can be shared, but one that is taken
_MESSAGE_LENGTH = 160  # characters of a quoted message


def advice(failure: Failure, facts: StartupFacts) -> str:
    """One sentence on what to change; with numbers where the log has them."""
    remedy = _REMEDIES[failure.failure_class]
    return remedy if isinstance(remedy, str) else remedy(failure, facts)


def healthy(facts: StartupFacts) -> str:
    """The sentence about a server that came up."""
    if facts.kv_tokens is None:
        return "Nothing: the server came up."
    return f"Nothing: the server came up, and its KV cache holds {facts.kv_tokens:,} tokens."


def unfinished(phase: Phase) -> str:
    """The sentence about a log that shows neither a ready server nor a failure."""
    return (
        f"The log ends in the phase `{phase.value}` without saying why: if the server has ended, "
        "give its exit code (--exit-code), else look again later."
    )


def _kv_too_small(failure: Failure, facts: StartupFacts) -> str:
    window = _WINDOW.search(failure.evidence)
    asked = f"{_number(window[1]):,}" if window else "one full window"
    need = "need" if window else "needs"
    fits, needed, available = (
        facts.max_context_estimate,
        facts.kv_needed_gib,
        facts.kv_available_gib,
    )
    missing = f"{asked} {need} more memory than is left"
    if needed is not None and available is not None:
        gap = needed - available
        more = f"{gap:.2f} GiB more" if gap >= 0.01 else "up to 0.01 GiB more"
        missing = f"{asked} {need} {more}"
    if not fits:
        return (
            f"At this utilization {missing}: lower --max-model-len, or raise "
            "--gpu-memory-utilization (or --kv-cache-memory-bytes, where that is set)."
        )
    return (
        f"At this utilization {fits:,} tokens fit; {missing}: lower --max-model-len to {fits} "
        "or less, or raise --gpu-memory-utilization (or --kv-cache-memory-bytes, where that is "
        "set)."
    )


def _kv_none(failure: Failure, facts: StartupFacts) -> str:
    del failure
    left = facts.kv_available_gib
    short = f" ({-left:.2f} GiB are missing before the first token)" if left and left < 0 else ""
    return (
        f"Weights, activation and graphs leave nothing for the KV cache{short}: raise "
        "--gpu-memory-utilization (or --kv-cache-memory-bytes, where that is set), turn CUDA "
        "graphs or the speculative head off, or take a smaller quantization."
    )


def _state_slots(failure: Failure, facts: StartupFacts) -> str:
    del facts
    found = _SEQUENCES.search(failure.evidence)
    if not found or int(found[2]) < 1:
        return "There is no room for state: raise --gpu-memory-utilization."
    return (
        f"There is state for {found[2]} sequences and {found[1]} were asked for: set "
        f"--max-num-seqs to {found[2]} or less, or raise --gpu-memory-utilization."
    )


def _above_free(failure: Failure, facts: StartupFacts) -> str:
    del facts
    found = _FREE.search(failure.evidence)
    if found:
        free, total = float(found["free"]), float(found["total"])
        # Rounded down: the figures in the log are rounded too.
        highest = int(free / total * 100) / 100 if total > 0 else 0.0
        if highest < _SMALLEST_SHARE:
            return (
                f"Only {free:.2f} of {total:.2f} GiB are free: end what else uses the card, then "
                "try again."
            )
        return (
            f"{free:.2f} of {total:.2f} GiB are free and {float(found['wanted']):.2f} were asked "
            f"for: lower --gpu-memory-utilization from {found['share']} to {highest:.2f} or less, "
            "or end what else uses the card."
        )
    found = _FREE_FOR_KV.search(failure.evidence)
    if found:
        return (
            f"{found['free']} GiB are free and {found['wanted']} were asked for the KV cache: ask "
            "for less, or end what else uses that memory."
        )
    return "Lower --gpu-memory-utilization, or end what else uses the card."


def _out_of_memory(change: str) -> Callable[[Failure, StartupFacts], str]:
    def remedy(failure: Failure, facts: StartupFacts) -> str:
        del facts
        found = _ALLOCATION.search(failure.evidence)
        if not found:
            return f"The card ran out of memory {change}."
        return (
            f"{found['size']} were asked for while {found['free']} of {found['total']} were free: "
            f"the card ran out of memory {change}."
        )

    return remedy


def _oom_profile(failure: Failure, facts: StartupFacts) -> str:
    change = (
        "while it tried a full batch; lower --max-num-batched-tokens or --max-num-seqs, or end "
        "what else uses the card"
    )
    if failure.phase is Phase.ALLOCATE_KV:
        change = (
            "while it allocated the KV cache; lower --gpu-memory-utilization, or end what else "
            "uses the card"
        )
    return _out_of_memory(change)(failure, facts)


def _context(failure: Failure, facts: StartupFacts) -> str:
    del facts
    found = _DERIVED.search(failure.evidence)
    lengths = [int(length) for length in _MODEL_LENGTH.findall(found[2])] if found else []
    if not found or not lengths:
        return "Lower --max-model-len to what the model was made for."
    longest = min(lengths)
    return (
        f"The model was made for {longest:,} tokens and {int(found[1]):,} were asked for: set "
        f"--max-model-len to {longest} or less."
    )


def _argument(failure: Failure, facts: StartupFacts) -> str:
    del facts
    said = _INPUT.sub("", failure.evidence)
    if failure.subject:
        said = f"{failure.subject}: {said}"
    said = said if len(said) <= _MESSAGE_LENGTH else f"{said[:_MESSAGE_LENGTH]}..."
    said = said if said.endswith(".") else f"{said}."
    return f"vLLM refuses this argument or combination on every card; put it right: {said}"


def _number(text: str) -> int:
    return int(text.replace(",", ""))


_Remedy = str | Callable[[Failure, StartupFacts], str]
_REMEDIES: dict[FailureClass, _Remedy] = {
    FailureClass.KV_TOO_SMALL: _kv_too_small,
    FailureClass.KV_NONE: _kv_none,
    FailureClass.STATE_SLOTS_TOO_FEW: _state_slots,
    FailureClass.UTILIZATION_ABOVE_FREE: _above_free,
    FailureClass.OOM_LOAD: _out_of_memory(
        "while it loaded weights; take a smaller quantization, leave the speculative head out, "
        "or spread the model over more cards"
    ),
    FailureClass.OOM_PROFILE: _oom_profile,
    FailureClass.OOM_GRAPH_CAPTURE: _out_of_memory(
        "while it captured CUDA graphs, which come on top of the share; lower "
        "--gpu-memory-utilization or --max-num-seqs, or turn graphs off with --enforce-eager"
    ),
    FailureClass.OOM_WARMUP: _out_of_memory(
        "while it warmed up; lower --max-num-seqs or --gpu-memory-utilization"
    ),
    FailureClass.OOM_SERVE: _out_of_memory(
        "while it served a request; lower --gpu-memory-utilization to leave room outside the KV "
        "cache, or lower --max-num-batched-tokens"
    ),
    FailureClass.INVALID_ARGUMENT: _argument,
    FailureClass.CONTEXT_EXCEEDS_MODEL: _context,
    FailureClass.MODEL_UNAVAILABLE: (
        "vLLM did not find the model: check the folder or hub id, the revision, access to the hub "
        "and its token."
    ),
    FailureClass.MODEL_CORRUPT: (
        "The weights do not fit the model's config or are damaged: download them again, or check "
        "that config and weights belong together."
    ),
    FailureClass.MODEL_UNSUPPORTED: (
        "This vLLM does not know the model's architecture or quantization: take another vLLM "
        "version, or another checkpoint."
    ),
    FailureClass.SPEC_UNSUPPORTED: (
        "The model cannot draft this way: use a method that it has a head for, or depth 0."
    ),
    FailureClass.UNSUPPORTED_ON_CARD: (
        "A kernel does not exist for this card: take another quantization, attention backend or "
        "vLLM build."
    ),
    FailureClass.TOOLCHAIN_MISSING: (
        "vLLM compiles at run time and found no compiler: install what the line names (nvcc, a C "
        "compiler, ninja, Python's headers)."
    ),
    FailureClass.MEMORY_CONTENDED: (
        "Something else took or freed card memory meanwhile, which says nothing about these "
        "settings: end it and try again."
    ),
    FailureClass.PORT_IN_USE: "Another program listens on the port: end it or take another port.",
    FailureClass.STARTUP_TIMEOUT: (
        "The server was not ready in time, which says nothing about its memory: try again with "
        "more time, or look at what its last phase waits for."
    ),
    FailureClass.REQUEST_TIMEOUT: (
        "A request was not answered in time: try again with more time, or look for a process "
        "that hangs."
    ),
    FailureClass.ENGINE_CRASHED: (
        "The engine crashed, which says nothing about its memory: try again; if it crashes again, "
        "change the backend or the version of vLLM, driver or PyTorch."
    ),
    FailureClass.HOST_OOM: (
        "The machine ran out of its own memory, not the card's: free some, add swap, or load with "
        "fewer workers."
    ),
    FailureClass.KILLED: (
        "Something ended the server from outside: try again; if it was SIGKILL, see in the "
        "kernel's log (dmesg) whether the machine's own memory ran out."
    ),
    FailureClass.GPU_LOST: (
        "The card is not there, or its driver does not fit: look at nvidia-smi, at "
        "CUDA_VISIBLE_DEVICES or the container's --gpus, and at the kernel's log; update the "
        "driver or reboot, then try again."
    ),
    FailureClass.DISK_FULL: "Make room on the disk that the line names, then try again.",
    FailureClass.UNKNOWN: (
        "No known reason: read the log around the line, and try again; this says nothing about "
        "the settings."
    ),
}
