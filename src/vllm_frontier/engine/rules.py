"""What the words of a failing vLLM mean: an ordered table of rules.

To add a failure class: one member of `FailureClass`, one rule here, one log as a fixture. The
first rule that matches a line decides about that line; which line of a log decides is the
business of `reading`. The wordings are those of vLLM 0.6 to 0.33.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from vllm_frontier.outcome import FailureClass


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording.

    Attributes:
        failure_class: what it means; for a generic out-of-memory error what it means when
            neither frames nor phase tell more.
        pattern: searched for in a line.
        frames: when given, one function of the traceback must match too.
        out_of_memory: the class is named after the phase in which it happened.
        vague: also the consequence of failures elsewhere, so that any other rule goes first.
    """

    failure_class: FailureClass
    pattern: re.Pattern[str]
    frames: re.Pattern[str] | None = None
    out_of_memory: bool = False
    vague: bool = False


def _rule(
    failure_class: FailureClass,
    *wordings: str,
    frames: str | None = None,
    out_of_memory: bool = False,
    vague: bool = False,
) -> Rule:
    return Rule(
        failure_class,
        re.compile("|".join(wordings)),
        re.compile(frames) if frames else None,
        out_of_memory,
        vague,
    )


# Never for a RuntimeError: CUDA's own errors are of that kind, and "operation not supported" of a
# driver may pass.
_REFUSALS = tuple(
    rf"^(?:ValueError|NotImplementedError|AssertionError): .*{words}"
    for words in (
        r"\b(?:is|are) (?:currently )?not (?:yet |currently )?supported",
        r"\bnot supported (?:yet|with|for|when)\b",
        r"\bdoes(?: not|n't) support\b",
        r"\b[Uu]nsupported\b",
        r"\bonly supports?\b",
        r"\b(?:must be|is not) divisible by\b",
        r"\b(?:cannot|can't) be (?:used|combined|enabled) (?:with|together|when)\b",
        r"\bis incompatible with\b",
    )
)
# The names under which vLLM's argument parser speaks; compilers complain in the same form.
PARSER = r"(?:vllm(?: \w+)?|(?:[\w./-]*/)?[\w-]+\.py|python[\d.]* -m [\w.]+)"
_CONFIG_FRAMES = r"create_engine_config|create_model_config|from_cli_args|create_speculative_config"

RULES: tuple[Rule, ...] = (
    # -- memory for the KV cache ---------------------------------------------------------------
    _rule(
        FailureClass.KV_TOO_SMALL,
        r"To serve at least one request with the model.{0,6} max seq len",
        r"is larger than the maximum number of tokens that can be stored in KV cache",
    ),
    _rule(
        FailureClass.KV_NONE,
        r"No available memory for the cache blocks",
        r"is less than requested memory for kv \(-",
        r"Cannot auto-fit max_model_len: not enough GPU memory",
    ),
    _rule(FailureClass.STATE_SLOTS_TOO_FEW, r"exceeds available Mamba cache blocks"),
    _rule(
        FailureClass.UTILIZATION_ABOVE_FREE,
        r"on startup is less than desired (?:GPU|CPU|XPU) memory utilization",
        r"on kv cache allocation is less than requested memory for kv",
    ),
    _rule(FailureClass.MEMORY_CONTENDED, r"Error in memory profiling\. Initial free memory"),
    # -- the host, before the card: these words contain those of the card ----------------------
    _rule(
        FailureClass.HOST_OOM,
        r"[Oo]ut of memory: Killed process",
        r"oom-kill:",
        r"oom_reaper: reaped process",
        r"ray\.exceptions\.OutOfMemoryError",
        r"\[Errno 12\]",
        r"Cannot allocate memory",
        r"DefaultCPUAllocator: (?:can't|not enough)",
        r"^MemoryError",
        r"std::bad_alloc",
        r"(?:numpy\S*|ArrayMemoryError): Unable to allocate",
        r"failed to map segment from shared object$",
    ),
    _rule(FailureClass.DISK_FULL, r"No space left on device", r"Disk quota exceeded"),
    _rule(
        FailureClass.PORT_IN_USE,
        r"EADDRINUSE",
        r"[Aa]ddress already in use",
        r"\[Errno (?:98|48)\]",
        r"port is already allocated",
    ),
    # -- the card's memory, by phase -----------------------------------------------------------
    _rule(
        FailureClass.OOM_WARMUP,
        r"CUDA out of memory occurred when warming up",
        out_of_memory=True,
    ),
    _rule(
        FailureClass.OOM_LOAD,
        r"Failed to load model - not enough GPU memory",
        out_of_memory=True,
    ),
    _rule(
        FailureClass.OOM_LOAD,
        r"torch(?:\.cuda)?\.OutOfMemoryError",
        r"^OutOfMemoryError\b(?!: out of resource)",
        r"(?:CUDA|HIP|XPU|ROCm) out of memory",
        r"(?:CUDA|HIP)(?: driver)? [Ee]rror: out of memory",
        r"Triton Error \[CUDA\]: out of memory",
        r"Cuda failure \d+ 'out of memory'",
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"cudaErrorMemoryAllocation",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"Failed to CUDA calloc",
        out_of_memory=True,
    ),
    # -- this card, this machine ---------------------------------------------------------------
    _rule(
        FailureClass.UNSUPPORTED_ON_CARD,
        r"no kernel image is available",
        r"out of resource: ",
        r"not supported for the current GPU",
        r"Bfloat16 is only supported on GPUs with compute capability",
        r"[Rr]equires? (?:a GPU with )?compute capability",
        r"[Mm]inimum (?:compute )?capability",
        r"compiled with an unsupported toolchain",
        r"is not supported on (?:this|the current) (?:GPU|device|platform)",
        r"not supported (?:on|for) (?:compute capability|SM ?\d+|sm_?\d+)",
    ),
    _rule(
        FailureClass.UNSUPPORTED_ON_CARD,
        r"No valid \w+(?: \w+)* backend found",
        r"is not valid for this configuration.*(?:compute capability|device)",
        r"quantization is currently not supported in",
        r"not supported in this architecture",
        r"is only supported on \w+ (?:devices|GPUs)",
        r"is not implemented for the current platform",
        r"PTXASError|ptxas fatal",
        r"\b0 active drivers",
        # A build of vLLM whose compiled part does not load, or lacks the operation here.
        r"'_OpNamespace' '\w+' object has no attribute",
        r"_C\w*::\w+\(\) expected at most",
    ),
    _rule(
        FailureClass.TOOLCHAIN_MISSING,
        r"Could not find nvcc",
        r"nvcc: (?:command )?not found",
        r"No such file or directory: '[^']*(?:nvcc|ninja|gcc|g\+\+|cc1plus|cl\.exe)'",
        r"CUDA_HOME environment variable is not set",
        r"Failed to find C compiler",
        r"No working C\+\+ compiler found",
        r"Python\.h: No such file",
        r"Ninja is required to load C\+\+ extensions",
        r"libcuda\.so cannot found",
        r"cannot find -lcuda",
        r"could not select device driver",
        r"requires Triton\b",
        r"libtcmalloc is not found",
    ),
    _rule(
        FailureClass.GPU_LOST,
        r"[Ff]allen off the bus",
        r"GPU is lost",
        r"GPU_IS_LOST",
        r"uncorrectable ECC error",
        r"No CUDA GPUs are available",
        r"Unexpected error from cudaGetDeviceCount",
        r"no CUDA-capable device is detected",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        r"Failed to infer device type",
        r"NVIDIA driver (?:on your system is too old|was not found)|no NVIDIA driver on your",
    ),
    # -- speculation ---------------------------------------------------------------------------
    _rule(
        FailureClass.SPEC_UNSUPPORTED,
        r"Unsupported speculative method",
        r"MTP speculative decoding layer \d+ weights",
        r"does not contain MTP weights",
        r"(?i:\bspec(?:ulative)? decod(?:e|ing))[^.]{0,60} (?:is|are) not (?:yet )?supported",
        r"(?i:does not support)[^.]{0,40}(?i:speculative|MTP|EAGLE|drafter)",
        r"(?i:MTP|EAGLE3?|[Dd]raft model|speculative)[^.]{0,60} (?:is|are) (?:only|not) supported",
        r"must be divisible by n_predict",
        r"^AttributeError: .*num_nextn_predict_layers",
        r"(?:target and draft|draft and target) models? (?:must|should) have the same vocab",
    ),
    # -- the model -----------------------------------------------------------------------------
    _rule(
        FailureClass.CONTEXT_EXCEEDS_MODEL,
        r"User-specified max_model_len \([\d,]+\) is greater than the derived max_model_len",
    ),
    _rule(
        FailureClass.MODEL_CORRUPT,
        r"SafetensorError",
        r"Error while deserializing header",
        r"There is no module or parameter named",
        r"[Ww]eights were not initialized from checkpoint",
        r"Cannot find any (?:safetensors )?model weights",
        r"PytorchStreamReader failed",
        r"UnpicklingError",
        r"size mismatch for ",
        r"Attempted to load weight",
        r"is not a valid JSON file",
    ),
    _rule(
        FailureClass.MODEL_CORRUPT,
        r"^(?:KeyError|AssertionError|IndexError)\b",
        r"^RuntimeError: .*(?:must match the size of tensor|exceeds dimension size)",
        r"^RuntimeError: .*[Ss]ize mismatch",
        r"^RuntimeError: shape '.*' is invalid for input of size",
        frames=r"load_weights|weight_loader|load_\w*weight",
    ),
    _rule(
        FailureClass.MODEL_CORRUPT,
        r"JSONDecodeError: ",
        r"^Exception: .* at line \d+ column \d+",
        r"^Exception: data did not match any variant of untagged enum",
        frames=r"from_pretrained|get_tokenizer|get_config|load_json|get_config_dict|from_file",
    ),
    # A hub that has had enough for now: nothing about the model, and it passes.
    _rule(FailureClass.UNKNOWN, r"429 Client Error|Too Many Requests"),
    _rule(
        FailureClass.MODEL_UNAVAILABLE,
        r"HFValidationError",
        r"LocalEntryNotFoundError",
        r"(?:Repository|Revision|Entry)NotFoundError",
        r"GatedRepo(?:Error)?",
        r"[Gg]ated repo",
        r"OfflineModeIsEnabled",
        r"Repo id must (?:be|use)",
        r"is not a local folder and is not a valid model identifier",
        r"Invalid repository ID or local directory",
        r"does not appear to have a file named",
        r"[Cc]ouldn't connect to 'https?://huggingface",
        r"(?:401|403|404) Client Error",
        r"Can't load (?:the configuration|tokenizer|the model)",
        r"No such file or directory: '[^']*(?:config|tokenizer\w*|index)\.json'",
    ),
    _rule(
        FailureClass.MODEL_UNSUPPORTED,
        r"does not recognize this architecture",
        r"Model architectures .* are not supported",
        r"Cannot find model module",
        r"Unrecognized model in",
        r"Unknown quantization method",
        r"has no vLLM implementation",
        r"requires you to execute the configuration file",
        r"trust_remote_code=True",
    ),
    # -- other refusals of the configuration ---------------------------------------------------
    _rule(
        FailureClass.INVALID_ARGUMENT,
        rf"^{PARSER}: error: ",
        r"ValidationError: \d+ validation errors? for \w+",
        r"max_num_batched_tokens \(\d+\) (?:must be|is smaller)",
        r"is not supported with .* backend.*please try cudagraph_mode",
        r"is not valid for this configuration",
        r"Invalid environment variable",
        r"invalid device ordinal",
        r"No enough allowed NUMA nodes",
    ),
    _rule(
        FailureClass.INVALID_ARGUMENT,
        r"^(?:ValueError|NotImplementedError|TypeError|AssertionError)\b",
        frames=_CONFIG_FRAMES,
    ),
    _rule(
        FailureClass.INVALID_ARGUMENT,
        r"^(?:FileNotFoundError|PermissionError|ssl\.SSLError|IsADirectoryError)\b",
        frames=r"load_cert_chain|load_verify_locations|create_ssl_context",
    ),
    # -- crashes -------------------------------------------------------------------------------
    _rule(
        FailureClass.STARTUP_TIMEOUT,
        r"TimeoutError: Timed out waiting for engine",
        r"[Tt]imed out waiting for .*(?:engine core|initialization|startup)",
    ),
    _rule(
        FailureClass.ENGINE_CRASHED,
        r"illegal memory access",
        r"illegal instruction",
        r"misaligned address",
        r"unspecified launch failure",
        r"device-side assert",
        r"CUDA error: ",
        r"CUDA driver error: ",
        r"cudaError[A-Z]",
        r"CUBLAS_STATUS_\w+",
        r"CUDNN_STATUS_\w+",
        r"Segfault encountered",
        r"Segmentation fault",
        r"Fatal Python error",
        r"terminate called after throwing",
        r"\bcore dumped\b",
    ),
    _rule(
        FailureClass.ENGINE_CRASHED,
        r"NCCL error",
        r"ncclSystemError|ncclUnhandledCudaError|ncclRemoteError",
        r"Watchdog caught collective operation timeout",
        r"DistBackendError",
        r"RPC call to \w+ timed out",
        # A child that says nothing: what it was to find out is said to have failed.
        r"^RuntimeError: Error raised in subprocess:$",
        vague=True,
    ),
    _rule(
        FailureClass.MODEL_UNSUPPORTED,
        r"Model architectures .* failed to be inspected",
        vague=True,
    ),
    # -- refusals in words of their own, when nothing else says why -----------------------------
    _rule(
        FailureClass.MODEL_UNSUPPORTED,
        *_REFUSALS,
        frames=r"create_weights|get_quant_method|get_quant_config|process_weights_after_loading",
        vague=True,
    ),
    _rule(FailureClass.INVALID_ARGUMENT, *_REFUSALS, vague=True),
)


@lru_cache(maxsize=512)
def rule_for(text: str, functions: tuple[str, ...] = ()) -> Rule | None:
    """The first rule that matches a line raised from these functions."""
    for rule in RULES:
        if rule.pattern.search(text) and (
            rule.frames is None or any(rule.frames.search(name) for name in functions)
        ):
            return rule
    return None
