"""EngineCore of the simulated server: tells the start in vLLM's words, then serves."""

from __future__ import annotations

import os
import select
import socket

from vllm_frontier.engine.simulated import log
from vllm_frontier.engine.simulated.card import AUTO_CONTEXT, gib, simulate_start
from vllm_frontier.engine.simulated.processes import (
    Channel,
    Launch,
    become_child,
    channel_pair,
    commit_fault,
)
from vllm_frontier.engine.simulated.worker import Worker
from vllm_frontier.outcome import FailureClass

_TEARDOWN_S = 5.0  # simulated seconds that vLLM takes to go after its deciding line
_WORKER_NAME = "VllmWorker-0"


def fork_engine(launch: Launch, listener: socket.socket) -> tuple[int, Channel]:
    """Fork EngineCore; the API server gets its pid and channel, the child never returns.

    The child lets go of the API server's socket, so that the port is free when that is killed.
    """
    near, far = channel_pair()
    pid = os.fork()
    if pid == 0:
        near.close()
        listener.close()
        raise SystemExit(engine_main(launch, far))
    far.close()
    return pid, near


def engine_main(launch: Launch, api: Channel) -> int:
    """Be EngineCore; returns the exit code."""
    become_child("VLLM::EngineCor")
    return _EngineCore(launch, api).run()


class _EngineCore:
    def __init__(self, launch: Launch, api: Channel) -> None:
        self._launch = launch
        self._api = api
        self._log = log.Log("EngineCore")
        self._start = simulate_start(launch.card, launch.cell)

    def run(self) -> int:
        self._launch.segment.create()
        code = self._run()  # the worker, which is forked there, leaves by SystemExit
        self._launch.segment.remove()
        return code

    def _run(self) -> int:
        self._announce()
        self._worker, far = channel_pair()
        self._worker_pid = os.fork()
        if self._worker_pid == 0:
            self._api.close()
            self._worker.close()
            raise SystemExit(Worker(self._launch, far).run())
        far.close()
        self._api.send(f"worker {self._worker_pid}")
        if not (self._load() and self._allocate() and self._capture()):
            return 1
        self._api.send("ready")
        return self._serve()

    def _announce(self) -> None:
        options = self._launch.options
        speculation = (
            f"SpeculativeConfig(method='{options.method}', model='{options.model}', "
            f"num_spec_tokens={options.depth})"
            if options.depth
            else "None"
        )
        mode = "NONE: 0" if options.eager else "FULL_AND_PIECEWISE: (2, 1)"
        length = self._start.context if self._start.context > 0 else "auto"
        self._log.info(
            "core.py:133",
            f"Initializing a V1 LLM engine (vsimulated-1) with config: model='{options.model}', "
            f"speculative_config={speculation}, tokenizer='{options.model}', dtype=torch.bfloat16, "
            f"max_seq_len={length}, tensor_parallel_size=1, enforce_eager={options.eager}, "
            f"kv_cache_dtype=auto, device_config=cuda, seed={options.seed}, "
            f"compilation_config={{'cudagraph_mode': <CUDAGraphMode.{mode}>}}",
        )

    def _load(self) -> bool:
        self._worker.send("load")
        answer = self._worker.receive()
        if answer == "loaded":
            return True
        self._report_start(log.ENGINE_WORKERS, _worker_wrapper(), answer)
        return False

    def _allocate(self) -> bool:
        """Profile, then divide what is left into KV cache."""
        self._worker.send("profile")
        answer = self._worker.receive()
        if answer != "profiled":
            self._report_start(log.ENGINE_CALL, _call_wrapper(answer), answer)
            return False
        self._fault("allocate_kv")
        failure = self._start.failure
        if failure is not None and failure.failure_class is not FailureClass.OOM_GRAPH_CAPTURE:
            self._report_start(log.ENGINE_KV_CHECK, failure.evidence, "refused")
            return False
        facts = self._start.facts
        if self._launch.cell.context == AUTO_CONTEXT:
            self._tell_auto_fit()
        tokens, context = facts.kv_tokens or 0, self._start.context
        concurrency = (facts.kv_available_gib or 0.0) / (facts.kv_needed_gib or 1.0)
        self._log.info(
            "kv_cache_utils.py:2327",
            f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {context:,} tokens per "
            f"request: {concurrency:.2f}x",
        )
        return True

    def _tell_auto_fit(self) -> None:
        longest, context = self._launch.card.model.max_context, self._start.context
        memory = f"{gib(self._start.facts.kv_available_gib or 0.0)} GiB GPU"
        text = (
            f"Auto-fit max_model_len: full model context length {longest} fits in available KV "
            f"cache memory ({memory})"
            if context == longest
            else f"Auto-fit max_model_len: reduced from {longest} to {context} to fit in available "
            f"KV cache memory ({memory})"
        )
        self._log.info("kv_cache_utils.py:2477", text)

    def _capture(self) -> bool:
        self._worker.send("capture")
        answer = self._worker.receive()
        if answer != "captured":
            self._report_start(log.ENGINE_CALL, _call_wrapper(answer), answer)
            return False
        times = self._launch.card.time
        seconds = times.profile_s + (times.capture_s if self._launch.cell.graphs else 0.0)
        self._log.info(
            "core.py:402",
            f"init engine (profile, create kv cache, warmup model) took {seconds:.2f} s",
        )
        return True

    def _report_start(self, frames: log.Frames, error: str, answer: str | None) -> None:
        """Write the failure of a start, wrappers behind the cause as vLLM has them."""
        if answer is None:
            self._tell_worker_died()
        self._log.failure("core.py:1510", "EngineCore failed to start.", frames, error)
        self._launch.wait(_TEARDOWN_S * 0.6)
        if answer is not None:
            self._log.error(
                "multiproc_executor.py:315",
                f"Worker proc {_WORKER_NAME} died unexpectedly (exit code: None), shutting down "
                "executor.",
            )
        log.write_traceback(frames, error, process="EngineCore")

    def _tell_worker_died(self) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(self._worker_pid, 0)[1])
        self._log.error(
            "multiproc_executor.py:315",
            f"Worker proc {_WORKER_NAME} died unexpectedly (exit code: {code}), shutting down "
            "executor.",
        )

    def _serve(self) -> int:
        """Carry words between the API server and the worker until one of them is gone."""
        channels = [self._api, self._worker]
        while True:
            for channel in select.select(channels, [], [])[0]:
                word = channel.receive()
                if channel is self._api and word is None:
                    channels.remove(channel)  # killed: nobody tells us to stop, so we stay
                elif channel is self._api:
                    self._worker.send(str(word))
                elif word == "pong":
                    self._api.send(word)
                else:
                    self._die_serving(word)
                    return 1

    def _die_serving(self, word: str | None) -> None:
        if word is None:
            self._tell_worker_died()
        error = "RuntimeError: cancelled" if word is None else _call_wrapper(word)
        title = "EngineCore encountered a fatal error."
        self._log.failure("core.py:1512", title, log.ENGINE_SERVE, error)
        log.write_traceback(log.ENGINE_SERVE, error, process="EngineCore")

    def _fault(self, phase: str) -> None:
        kind = self._launch.faults.take(phase)
        if kind is not None:
            commit_fault(kind, self._launch)


def _worker_wrapper() -> str:
    return (
        "Exception: WorkerProc initialization failed due to an exception in a background process. "
        "See stack trace for root cause."
    )


def _call_wrapper(answer: str | None) -> str:
    if answer is None:
        return "RuntimeError: cancelled"
    message = answer.partition(" ")[2]
    return (
        f"RuntimeError: Worker failed with error '{message}', please check the stack trace above "
        "for the root cause"
    )
