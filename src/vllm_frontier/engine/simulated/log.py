"""The lines a simulated server writes: vLLM's own, as far as anyone reads them.

Each line is one write to the standard output, so that lines of the three processes never mix.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

_VLLM = "/opt/vllm/lib/python3.12/site-packages/vllm"

# Where a traceback passes through, file:line function, outermost first.
Frames = Sequence[tuple[str, int, str]]

ENGINE_START: Frames = (
    ("v1/engine/core.py", 1482, "run_engine_core"),
    ("v1/engine/core.py", 1194, "__init__"),
)
ENGINE_KV: Frames = (
    *ENGINE_START,
    ("v1/engine/core.py", 157, "__init__"),
    ("v1/engine/core.py", 326, "_initialize_kv_caches"),
)
ENGINE_KV_CHECK: Frames = (
    *ENGINE_KV,
    ("v1/core/kv_cache_utils.py", 2642, "get_kv_cache_configs"),
    ("v1/core/kv_cache_utils.py", 1030, "_check_enough_kv_cache_memory"),
)
ENGINE_WORKERS: Frames = (
    *ENGINE_START,
    ("v1/engine/core.py", 144, "__init__"),
    ("v1/executor/abstract.py", 126, "__init__"),
    ("v1/executor/multiproc_executor.py", 215, "_init_executor"),
    ("v1/executor/multiproc_executor.py", 815, "wait_for_ready"),
)
ENGINE_CALL: Frames = (
    *ENGINE_KV,
    ("v1/executor/multiproc_executor.py", 455, "collective_rpc"),
    ("v1/executor/multiproc_executor.py", 440, "get_response"),
)
ENGINE_SERVE: Frames = (
    ("v1/engine/core.py", 1496, "run_engine_core"),
    ("v1/engine/core.py", 1555, "run_busy_loop"),
    ("v1/engine/core.py", 1606, "_process_engine_step"),
    ("v1/engine/core.py", 676, "step"),
    ("v1/executor/multiproc_executor.py", 357, "sample_tokens"),
    ("v1/executor/multiproc_executor.py", 440, "get_response"),
)
API_START: Frames = (
    ("entrypoints/openai/api_server.py", 59, "<module>"),
    ("entrypoints/launchers/api_server/entry.py", 232, "main"),
)
API_SOCKET: Frames = (
    *API_START,
    ("entrypoints/launchers/api_server/entry.py", 176, "run_server"),
    ("entrypoints/launchers/launcher.py", 398, "setup_server"),
    ("entrypoints/launchers/launcher.py", 348, "create_server_socket"),
)
API_CONFIG: Frames = (
    *API_START,
    ("entrypoints/launchers/api_server/entry.py", 195, "run_server_worker"),
    ("entrypoints/launchers/api_server/entry.py", 83, "build_async_engine_client_from_engine_args"),
    ("engine/arg_utils.py", 2240, "create_engine_config"),
)
API_ENGINE: Frames = (
    *API_START,
    ("entrypoints/launchers/api_server/entry.py", 195, "run_server_worker"),
    ("v1/engine/async_llm.py", 255, "from_vllm_config"),
    ("v1/engine/core_client.py", 1120, "__init__"),
    ("v1/engine/utils.py", 1351, "launch_core_engines"),
    ("v1/engine/utils.py", 1431, "wait_for_engine_startup"),
)
WORKER_FRAMES: dict[str, Frames] = {
    "device": (
        ("v1/executor/multiproc_executor.py", 920, "worker_main"),
        ("v1/executor/multiproc_executor.py", 671, "__init__"),
        ("v1/worker/gpu_worker.py", 412, "init_device"),
        ("v1/worker/utils.py", 762, "request_memory"),
    ),
    "load": (
        ("v1/executor/multiproc_executor.py", 920, "worker_main"),
        ("v1/executor/multiproc_executor.py", 680, "__init__"),
        ("v1/worker/gpu_worker.py", 512, "load_model"),
        ("v1/worker/gpu_model_runner.py", 5046, "load_model"),
        ("model_executor/model_loader/base_loader.py", 71, "load_model"),
    ),
    "profile": (
        ("v1/executor/multiproc_executor.py", 1041, "worker_busy_loop"),
        ("v1/worker/gpu_worker.py", 655, "determine_available_memory"),
        ("v1/worker/gpu_model_runner.py", 6302, "profile_run"),
        ("v1/worker/gpu_model_runner.py", 5905, "_dummy_run"),
    ),
    "capture_graphs": (
        ("v1/executor/multiproc_executor.py", 1041, "worker_busy_loop"),
        ("v1/worker/gpu_worker.py", 941, "compile_or_warm_up_model"),
        ("v1/worker/gpu_model_runner.py", 6548, "capture_model"),
        ("v1/worker/gpu_model_runner.py", 6671, "_capture_cudagraphs"),
        ("compilation/cuda_graph.py", 248, "__call__"),
    ),
    "warm_up": (
        ("v1/executor/multiproc_executor.py", 1041, "worker_busy_loop"),
        ("v1/worker/gpu_worker.py", 986, "compile_or_warm_up_model"),
        ("v1/worker/gpu_model_runner.py", 6210, "_dummy_sampler_run"),
    ),
    "serve": (
        ("v1/executor/multiproc_executor.py", 1041, "worker_busy_loop"),
        ("v1/worker/gpu_worker.py", 1102, "execute_model"),
        ("v1/worker/gpu_model_runner.py", 4201, "execute_model"),
        ("v1/worker/gpu_model_runner.py", 3622, "_model_forward"),
    ),
}


def write_line(text: str) -> None:
    """Write one line, or several in one piece, to the standard output."""
    data = text.encode() + b"\n"
    # A closed pipe must not end a server that goes on serving.
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(1, data) :]


class Log:
    """The log of one process, with vLLM's prefix."""

    def __init__(self, process: str) -> None:
        self._prefix = f"({process} pid={os.getpid()})"

    def info(self, where: str, text: str) -> None:
        """Write an INFO line; `where` is vLLM's file and line."""
        write_line(self._line("INFO", where, text))

    def warning(self, where: str, text: str) -> None:
        """Write a WARNING line."""
        write_line(self._line("WARNING", where, text))

    def error(self, where: str, *texts: str) -> None:
        """Write ERROR lines in one piece."""
        write_line("\n".join(self._line("ERROR", where, text) for text in texts))

    def failure(self, where: str, title: str, frames: Frames, error: str) -> None:
        """Write a logged exception: title, traceback, the exception's own line."""
        self.error(where, title, *traceback_lines(frames), error)

    def _line(self, level: str, where: str, text: str) -> str:
        return f"{self._prefix} {level} {time.strftime('%m-%d %H:%M:%S')} [{where}] {text}"


def traceback_lines(frames: Frames) -> list[str]:
    """A traceback as Python prints it, without source lines."""
    lines = ["Traceback (most recent call last):"]
    return lines + [
        f'  File "{_VLLM}/{file}", line {line}, in {name}' for file, line, name in frames
    ]


def write_traceback(frames: Frames, error: str, *, process: str | None = None) -> None:
    """Write an exception that nobody caught, as the interpreter does on its way out."""
    head = [f"Process {process}:"] if process else []
    write_line("\n".join([*head, *traceback_lines(frames), error]))


def write_segfault() -> None:
    """Write what vLLM's signal handler says of a segmentation fault."""
    write_line(
        "!!!!!!! Segfault encountered !!!!!!!\n"
        '  File "./signal/../sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c", line 0, in '
        '0x00007f553165a04f\n  File "<unknown>", line 0, in simulated_kernel\n'
    )
