"""The simulated server: `python -m vllm_frontier.engine.simulated.server`, called like vLLM.

A server that behaves like vLLM on a described card: the same log, the same endpoints, the same
failures, three processes. It answers within a fraction of a second and computes nothing; every
wait is the card's `time.scale` times the simulated time, and what it reports of times and
speeds is simulated, unscaled.

Signals are answered as vLLM does: SIGTERM ends a serving server and its tree; one that comes
while the engine loads is swallowed, a second one ends the tree; after SIGKILL of this process
EngineCore and the worker live on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from vllm_frontier.engine.simulated import log
from vllm_frontier.engine.simulated.card import context_text
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.engine.simulated.core import fork_engine
from vllm_frontier.engine.simulated.faults import FaultBook, state_file
from vllm_frontier.engine.simulated.http import ROUTES, VERSION, HttpServer
from vllm_frontier.engine.simulated.options import Refusal, parse_options
from vllm_frontier.engine.simulated.processes import Launch, commit_fault, with_context
from vllm_frontier.engine.simulated.refusals import ENGINE_DEAD
from vllm_frontier.engine.simulated.service import Service
from vllm_frontier.errors import ConfigError

_NOTICE_S = 5.0  # simulated seconds until a server whose engine died goes, too
_NOTICE_LEAST_S = 0.3  # real seconds: a client must be able to see the 503


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; returns the exit code of a start that is refused."""
    options = parse_options(sys.argv[1:] if argv is None else argv)
    if isinstance(options, Refusal):
        return _refuse(options)
    try:
        card = load_card(options.card)
    except ConfigError as error:
        log.write_line(f"simulated_server.py: error: {error}")
        return 2
    cell = options.cell(card.model.max_context)
    faults = FaultBook(card.faults, options.axes(card.model.max_context), state_file(options.state))
    launch = Launch(options, card, cell, faults, os.getpid())
    return _ApiServer(launch).run()


def _refuse(refusal: Refusal) -> int:
    if refusal.exit_code == 2:
        log.write_line(f"usage: api_server.py [-h] [model_tag]\n{refusal.text}")
    else:
        _tell_banner("simulated")
        log.write_traceback(log.API_CONFIG, refusal.text)
    return refusal.exit_code


def _tell_banner(model: str) -> None:
    api = log.Log("APIServer")
    for line in (
        "",
        "       █     █     █▄   ▄█",
        f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {VERSION}",
        f"  █▄█▀ █     █     █     █  model   {model}",
        "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
        "",
    ):
        api.info("api_utils.py:347", line)


class _ApiServer:
    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._log = log.Log("APIServer")
        self._serving = False
        self._swallowed = False
        self._stop = threading.Event()
        self._engine_pid: int | None = None
        self._worker_pid: int | None = None

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        port_taken = self._fault("spawn") == "port"
        self._announce()
        listener = None if port_taken else self._bind()
        if listener is None:
            error = "OSError: [Errno 98] Address already in use"
            log.write_traceback(log.API_SOCKET, error)
            return 1
        if not self._configure():
            return 1
        self._engine_pid, self._engine = fork_engine(self._launch, listener)
        if not self._wait_for_engine():
            return 1
        self._fault("ready")
        self._serve(listener)
        return 0

    def _announce(self) -> None:
        options = self._launch.options
        _tell_banner(options.model)
        asked = {
            "port": options.port,
            "model": options.model,
            "max_model_len": options.context,
            "gpu_memory_utilization": options.utilization,
            "enforce_eager": options.eager,
            "served_model_name": [options.served_name or options.model],
            "speculative_config": dict(options.speculation) or None,
        }
        self._log.info("api_utils.py:286", f"non-default args: {asked}")

    def _bind(self) -> socket.socket | None:
        """Take the port; connections are refused until the server listens."""
        options = self._launch.options
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, options.port))
        except OSError:
            listener.close()
            return None
        return listener

    def _configure(self) -> bool:
        self._fault("configure")
        launch = self._launch
        longest = launch.card.model.max_context
        if launch.cell.context > longest:
            head = (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
            )
            text = f"{head}\n  {context_text(launch.cell.context, longest)}"
            log.write_traceback(log.API_CONFIG, text)
            return False
        self._log.info("model.py:733", "Resolved architecture: SimulatedForCausalLM")
        shown = launch.cell.context if launch.cell.context > 0 else longest
        self._log.info("model.py:2152", f"Using max model len {shown}")
        if launch.options.eager:
            self._log.warning(
                "vllm.py:1703",
                "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. "
                "This is equivalent to setting -cc.mode=none -cc.cudagraph_mode=none and "
                "--kernel_config.enable_jit_warmup=False",
            )
        return True

    def _wait_for_engine(self) -> bool:
        while (word := self._engine.receive()) != "ready":
            if word is None:
                self._lose_engine()
                return False
            self._worker_pid = int(word.removeprefix("worker "))
        return True

    def _lose_engine(self) -> None:
        """The engine ended while it started: wrap up as vLLM does."""
        code = 0
        if self._engine_pid is not None:
            code = os.waitstatus_to_exitcode(os.waitpid(self._engine_pid, 0)[1])
            self._engine_pid = None
        self._launch.wait(_NOTICE_S * 0.4)
        failed = f"{{'EngineCore': {code}}}" if code > 0 else "{}"
        log.write_traceback(
            log.API_ENGINE,
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
            f"proc(s): {failed}",
        )

    def _serve(self, listener: socket.socket) -> None:
        options = self._launch.options
        service = Service(with_context(self._launch), self._engine)
        self._log.info("entry.py:136", "Supported tasks: ['generate']")
        url = f"http://{options.host}:{options.port}"
        self._log.info("entry.py:140", f"Starting vLLM server on {url}")
        self._log.info("launcher.py:186", "Available routes are:")
        for path, methods in ROUTES.items():
            text = f"Route: {path}, Methods: {', '.join(methods)}"
            self._log.info("launcher.py:195", text)
        server = HttpServer(listener, service)
        self._serving = True
        threading.Thread(target=self._watch_engine, args=(service,), daemon=True).start()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log.write_line(
            f"INFO:     Started server process [{os.getpid()}]\n"
            "INFO:     Waiting for application startup.\n"
            "INFO:     Application startup complete."
        )
        self._stop.wait()
        self._log.info("launcher.py:254", "[shutdown] API server: shutdown triggered")
        self._leave()

    def _watch_engine(self, service: Service) -> None:
        pid = self._engine_pid
        if pid is None:
            return
        os.waitpid(pid, 0)
        self._engine_pid = None
        if self._stop.is_set():
            return
        service.dead.set()
        frames = (("v1/engine/core_client.py", 1235, "get_output_async"),)
        error = f"vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}"
        title = "AsyncLLM output_handler failed."
        self._log.failure("async_llm.py:906", title, frames, error)
        time.sleep(max(_NOTICE_LEAST_S, _NOTICE_S * self._launch.card.time.scale))
        self._leave()

    def _leave(self) -> NoReturn:
        """Go, with the whole tree, as a server that was asked to."""
        log.write_line("INFO:     Shutting down\nINFO:     Application shutdown complete.")
        self._end_tree()
        log.write_line(f"INFO:     Finished server process [{os.getpid()}]")
        os._exit(0)

    def _end_tree(self) -> None:
        orderly = self._engine_pid is not None  # after a crash the segment stays, as vLLM's does
        for pid in (self._engine_pid, self._worker_pid):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if orderly:
            self._launch.segment.remove()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._serving:
            if self._launch.faults.take("stop") != "hang":
                self._stop.set()
        elif number == signal.SIGTERM and not self._swallowed:
            self._swallowed = True  # vLLM loses one that comes while its engine starts
        else:
            self._end_tree()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _fault(self, phase: str) -> str | None:
        kind = self._launch.faults.take(phase)
        if kind is not None:
            commit_fault(kind, self._launch)
        return kind


if __name__ == "__main__":
    sys.exit(main())
