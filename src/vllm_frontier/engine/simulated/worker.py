"""The worker of the simulated server: loads, profiles, captures graphs, and answers pings."""

from __future__ import annotations

import select
from collections.abc import Callable

from vllm_frontier.engine.simulated import log
from vllm_frontier.engine.simulated.card import (
    budget_gib,
    free_gib,
    gib,
    graphs_gib,
    oom_text,
    simulate_start,
)
from vllm_frontier.engine.simulated.processes import Channel, Launch, become_child, commit_fault
from vllm_frontier.outcome import FailureClass


class Worker:
    """The worker process; talks with EngineCore over `engine`."""

    def __init__(self, launch: Launch, engine: Channel) -> None:
        """Take the process over."""
        become_child("VLLM::Worker")
        self._launch = launch
        self._engine = engine
        self._log = log.Log("Worker")
        self._start = simulate_start(launch.card, launch.cell)
        launch.segment.attach()

    def run(self) -> int:
        """Do what EngineCore says until it is gone; returns the exit code."""
        steps: dict[str, Callable[[], str]] = {
            "load": self._load,
            "profile": self._profile,
            "capture": self._capture,
            "ping": lambda: "pong",
            "oom": lambda: self._out_of_memory("serve", 0.5),
        }
        while (word := self._engine.receive()) is not None:
            if word in steps:
                self._engine.send(steps[word]())
            else:
                commit_fault(word, self._launch)
        return 0

    def _load(self) -> str:
        launch = self._launch
        failure = self._start.failure
        if failure is not None and failure.failure_class is FailureClass.UTILIZATION_ABOVE_FREE:
            return self._fail("WorkerProc failed to start.", "device", failure.evidence)
        self._log.info(
            "parallel_state.py:1906",
            "world_size=1 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:0 "
            "backend=nccl",
        )
        self._log.info(
            "gpu_model_runner.py:5040", f"Starting to load model {launch.options.model}..."
        )
        self._wait(launch.card.time.load_s * 0.9)
        if (failed := self._fault("load")) is not None:
            return failed
        if launch.cell.depth:
            self._log.info("gpu_model_runner.py:5071", "Loading drafter model...")
        self._wait(launch.card.time.load_s * 0.1)
        weights = gib(self._start.facts.weights_gib or 0.0)
        self._log.info(
            "gpu_model_runner.py:5150",
            f"Model loading took {weights} GiB memory and {launch.card.time.load_s:.6f} seconds",
        )
        return "loaded"

    def _profile(self) -> str:
        launch, facts = self._launch, self._start.facts
        self._wait(launch.card.time.profile_s)
        if (failed := self._fault("profile")) is not None:
            return failed
        if launch.cell.graphs and launch.card.memory.graphs_counted:
            self._log.info(
                "gpu_model_runner.py:6475",
                f"Estimated CUDA graph memory: {facts.graph_gib or 0.0:.2f} GiB total",
            )
        self._log.info(
            "gpu_worker.py:760",
            f"Available KV cache memory: {gib(facts.kv_available_gib or 0.0)} GiB",
        )
        return "profiled"

    def _capture(self) -> str:
        launch, failure = self._launch, self._start.failure
        if launch.cell.graphs:
            log.write_line("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|      ")
            self._wait(launch.card.time.capture_s)
            if (failed := self._fault("capture_graphs")) is not None:
                return failed
            if failure is not None:
                return self._fail("WorkerProc failed.", "capture_graphs", failure.evidence)
            size = gib(graphs_gib(launch.card, launch.cell))
            self._log.info(
                "gpu_model_runner.py:6582",
                f"Graph capturing finished in {launch.card.time.capture_s:.0f} secs, took "
                f"{graphs_gib(launch.card, launch.cell):.2f} GiB",
            )
            if launch.card.memory.graphs_counted:
                self._log.info(
                    "gpu_worker.py:972",
                    f"CUDA graph pool memory: {size} GiB (actual), {size} GiB (estimated), "
                    "difference: 0.0 GiB (0.0%).",
                )
        if (failed := self._fault("warm_up")) is not None:
            return failed
        self._tell_usage()
        return "captured"

    def _tell_usage(self) -> None:
        card, cell, facts = self._launch.card, self._launch.cell, self._start.facts
        self._log.info(
            "gpu_worker.py:1030",
            f"Free memory on device ({gib(free_gib(card))}/{gib(card.card.total_gib)} GiB) on "
            f"startup. Desired GPU memory utilization is ({cell.utilization}, "
            f"{gib(budget_gib(card, cell))} GiB). Actual usage is {gib(facts.weights_gib or 0.0)} "
            f"GiB for consumed memory (weights + non-torch), {gib(facts.activation_gib or 0.0)} "
            f"GiB for peak activation, and {gib(facts.graph_gib or 0.0)} GiB for CUDAGraph memory. "
            f"Current kv cache memory in use is {gib(facts.kv_available_gib or 0.0)} GiB.",
        )

    def _wait(self, seconds: float) -> None:
        """Wait for simulated seconds; go at once when EngineCore does."""
        # EngineCore says nothing while it waits for us, so what can be read is its end.
        if select.select([self._engine], [], [], seconds * self._launch.card.time.scale)[0]:
            raise SystemExit(1)

    def _fault(self, phase: str) -> str | None:
        kind = self._launch.faults.take(phase)
        if kind == "oom":
            return self._out_of_memory(phase, 1.0)
        if kind == "contended":
            return self._fail("WorkerProc failed.", "profile", self._contended())
        if kind is not None:
            commit_fault(kind, self._launch)
        return None

    def _contended(self) -> str:
        free = free_gib(self._launch.card)
        return (
            f"AssertionError: Error in memory profiling. Initial free memory {gib(free)} GiB, "
            f"current free memory {gib(free + 1.5)} GiB. This happens when other processes sharing "
            "the same container release GPU memory while vLLM is profiling during initialization."
        )

    def _out_of_memory(self, phase: str, wanted_gib: float) -> str:
        title = "WorkerProc failed to start." if phase == "load" else "WorkerProc failed."
        if phase == "serve":
            wanted_gib = self._launch.card.memory.fill_extra or wanted_gib
            title = "WorkerProc hit an exception."
        return self._fail(title, phase, oom_text(self._launch.card, wanted_gib))

    def _fail(self, title: str, phase: str, error: str) -> str:
        self._log.failure("multiproc_executor.py:953", title, log.WORKER_FRAMES[phase], error)
        return f"failed {error.partition(': ')[2]}"
