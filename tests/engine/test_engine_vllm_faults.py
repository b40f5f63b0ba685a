"""Real vLLM is disturbed from outside: each is one attempt, and its row is right."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from real_attempt import (
    API_SERVER,
    DEMO,
    ENGINE_CORE,
    WORKER,
    Live,
    assert_row,
    attempt,
    slow_to_load,
    sweep,
)

from vllm_frontier.grid import Cell
from vllm_frontier.launch import launch as launches
from vllm_frontier.outcome import FailureClass, Phase
from vllm_frontier.spec import ModelSpec, WorkloadSpec
from vllm_frontier.trial import Progress

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CELL = Cell(depth=0, context=4096, graphs=False, utilization=1.0)
REQUEST_TIMEOUT_S = 8.0
# Without its weights, the bundled model never ends by itself: every answer takes some seconds.
MODEL = ModelSpec("demo-mtp", str(DEMO), args={"dtype": "float32", "load_format": "dummy"})
WORKLOAD = WorkloadSpec(
    tasks=("prose",),
    repeats=1,
    warmups=0,
    max_tokens=3000,  # more than it can write before the request's limit
    prefill_tokens=64,
    request_timeout_s=REQUEST_TIMEOUT_S,
)


# Waits without sleeping: on a virtual machine whose cores are all at work on an answer, timers
# were seen to fire ten seconds late, those of every process.
STRIKER = """
import os, sys, time
at, pid, number = time.time() + float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
while time.time() < at:
    pass
os.kill(pid, number)
print(time.time())
"""


class Strike:
    """Sends one signal to one process of a launch, at a moment that is told by its progress."""

    def __init__(self, role: str, number: signal.Signals) -> None:
        self._role = role
        self._number = number
        self._striker: subprocess.Popen[str] | None = None
        self.sent_at: float | None = None

    def while_it_loads(self, progress: Progress, live: Live) -> None:
        if progress.phase is Phase.LOAD and self._striker is None:
            self._send(live, after_s=0.0)

    def while_a_task_is_answered(self, progress: Progress, live: Live) -> None:
        if progress == Progress(Phase.MEASURE, "prefill 1"):
            self._send(live, after_s=1.0)  # into the answer, which lasts much longer

    def before_a_task(self, progress: Progress, live: Live) -> None:
        """Between two requests, at once: what comes next meets what is left."""
        if progress == Progress(Phase.MEASURE, "prefill 1"):
            self._send(live, after_s=0.0)
            self.join()

    def join(self) -> None:
        """Wait for the one who strikes; it must have struck."""
        assert self._striker is not None
        if self.sent_at is not None:
            return
        told, _ = self._striker.communicate(timeout=30)
        assert self._striker.returncode == 0
        self.sent_at = float(told)

    def _send(self, live: Live, *, after_s: float) -> None:
        live.look()
        pid = live.pid(self._role)
        if pid is not None:
            words = (str(after_s), str(pid), str(int(self._number)))
            self._striker = subprocess.Popen(
                [sys.executable, "-S", "-c", STRIKER, *words], stdout=subprocess.PIPE, text=True
            )


def test_a_worker_killed_while_it_loads(tmp_path: Path) -> None:
    strike = Strike(WORKER, signal.SIGKILL)
    spec = sweep(slow_to_load(tmp_path))
    finished = attempt(spec, CELL, tmp_path, step=strike.while_it_loads)
    strike.join()
    assert_row(
        finished, FailureClass.ENGINE_CRASHED, Phase.LOAD, words=("EngineCore failed to start",)
    )
    assert finished.row["signal"] is None
    assert finished.runs == []


@pytest.mark.parametrize(
    ("role", "words"),
    [(WORKER, "Worker proc VllmWorker-0 died"), (ENGINE_CORE, "AsyncLLM output_handler failed")],
)
def test_a_part_of_the_engine_killed_while_measuring(role: str, words: str, tmp_path: Path) -> None:
    strike = Strike(role, signal.SIGKILL)
    spec = sweep(MODEL, workload=WORKLOAD)
    finished = attempt(spec, CELL, tmp_path, step=strike.before_a_task)
    strike.join()
    evidence = finished.row["evidence"] or ""
    assert_row(
        finished,
        # vLLM does not always learn which signal it was; without that, the engine just ended.
        FailureClass.KILLED if "(exit code: -9)" in evidence else FailureClass.ENGINE_CRASHED,
        Phase.MEASURE,
        words=(words,),
        started=True,
        filled=True,
    )
    # vLLM itself ends in good order.
    assert (finished.row["exit_code"], finished.row["signal"]) == (0, None)
    assert [run["kind"] for run in finished.runs] == ["fill", "prefill"]
    assert finished.row["kv_tokens"] >= CELL.context


def test_the_api_server_killed_while_measuring(tmp_path: Path) -> None:
    strike = Strike(API_SERVER, signal.SIGKILL)
    spec = sweep(MODEL, workload=WORKLOAD)
    finished = attempt(spec, CELL, tmp_path, step=strike.before_a_task)
    strike.join()
    assert_row(
        finished,
        FailureClass.KILLED,
        Phase.MEASURE,
        words=("ended by signal 9 (SIGKILL)",),
        started=True,
        filled=True,
    )
    assert (finished.row["exit_code"], finished.row["signal"]) == (None, int(signal.SIGKILL))
    # Python's own process says this when the server is dead already.
    assert "resource_tracker" not in finished.row["evidence"]
    assert [run["kind"] for run in finished.runs] == ["fill", "prefill"]
    # Engine and worker would live on by themselves; ending them takes no waiting.
    assert len(finished.live.seen) >= 3
    assert finished.row["ended_at"].timestamp() - (strike.sent_at or 0.0) < 8.0


def test_a_server_told_to_stop_in_a_request(tmp_path: Path) -> None:
    strike = Strike(API_SERVER, signal.SIGTERM)
    spec = sweep(MODEL, workload=WORKLOAD)
    finished = attempt(spec, CELL, tmp_path, step=strike.while_a_task_is_answered)
    strike.join()
    # As the moment has it, vLLM closes the answer in good order after some tokens (finish reason
    # `abort`), ends it with an error, or leaves it open for ever. None of it was measured.
    assert [run["kind"] for run in finished.runs] == ["fill", "prefill"]
    told = finished.row["failure_class"]
    assert told in ("killed", "engine_crashed", "request_timeout")
    assert_row(
        finished,
        FailureClass(told),
        Phase.MEASURE,
        words=(),
        started=True,
        filled=True,
        in_log=finished.row["evidence_line"] is not None,
    )
    assert (finished.row["exit_code"], finished.row["signal"]) in ((0, None), (None, None))


def test_a_server_that_stands_still_when_a_request_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "STOPPED_S", 60.0)  # the request's limit is to be first
    strike = Strike(API_SERVER, signal.SIGSTOP)
    spec = sweep(MODEL, workload=WORKLOAD)
    finished = attempt(spec, CELL, tmp_path, step=strike.before_a_task)
    strike.join()
    # Its counters are asked for first, which it does not answer either, for ten seconds.
    limit_s = REQUEST_TIMEOUT_S + 10.0
    assert_row(
        finished,
        FailureClass.REQUEST_TIMEOUT,
        Phase.MEASURE,
        words=(f"within {REQUEST_TIMEOUT_S:g} s",),
        started=True,
        filled=True,
        in_log=False,
    )
    assert (finished.row["exit_code"], finished.row["signal"]) == (None, None)
    assert [run["kind"] for run in finished.runs] == ["fill", "prefill"]
    assert REQUEST_TIMEOUT_S <= finished.row["measure_s"] < limit_s + 10.0
    stopped_s = finished.row["wall_s"] - finished.row["ready_s"] - finished.row["measure_s"]
    assert stopped_s < 15.0


def test_a_port_that_was_taken_by_something_silent(tmp_path: Path) -> None:
    with socket.socket() as taker:

        def take(live: Live) -> None:
            taker.bind(("127.0.0.1", live.port))
            taker.listen()

        finished = attempt(sweep(MODEL), CELL, tmp_path, record=take)
    assert_row(
        finished, FailureClass.PORT_IN_USE, Phase.CONFIGURE, words=("ddress already in use",)
    )
    assert finished.runs == []


class OtherServer(BaseHTTPRequestHandler):
    """A healthy server, but one that serves another model."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(f"GET {self.path}")
        models = {"object": "list", "data": [{"id": "somebody-else's", "object": "model"}]}
        body = json.dumps(models).encode() if self.path == "/v1/models" else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.asked.append(f"POST {self.path}")
        self.send_error(500)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing on stderr."""


@contextmanager
def other_server(asked: list[str]) -> Iterator[Callable[[Live], None]]:
    """What takes a launch's port with a server of its own, and notes what that one is asked."""
    servers: list[ThreadingHTTPServer] = []
    handler = type("Handler", (OtherServer,), {"asked": asked})

    def take(live: Live) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", live.port), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    try:
        yield take
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def test_a_port_on_which_another_server_answers(tmp_path: Path) -> None:
    asked: list[str] = []
    with other_server(asked) as take:
        finished = attempt(sweep(MODEL), CELL, tmp_path, record=take)
    assert finished.row["failure_class"] == "port_in_use"
    assert_row(
        finished,
        FailureClass.PORT_IN_USE,
        Phase(finished.row["phase"]),
        words=("another program answers",),
        in_log=False,
    )
    assert finished.row["phase"] in ("spawn", "configure")
    assert set(asked) == {"GET /health", "GET /v1/models"}
    assert finished.runs == []
    assert finished.row["wall_s"] < 20
