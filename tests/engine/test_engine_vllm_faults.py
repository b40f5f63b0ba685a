"""Real vLLM is disturbed from outside: each is one attempt, and its row is right."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
    never_loaded,
    sweep,
)

from vllm_frontier.grid import Cell
from vllm_frontier.launch import launch as launches
from vllm_frontier.measure.reply import RequestFailure, StreamReader
from vllm_frontier.outcome import FailureClass, Phase
from vllm_frontier.spec import ModelSpec, WorkloadSpec
from vllm_frontier.trial import Progress, failures

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

CELL = Cell(depth=0, context=4096, graphs=False, utilization=1.0)
# Nothing of what is expected takes as long, on however busy a machine.
LONG_S = 120.0
# Without its weights, the bundled model never ends by itself: every answer takes some seconds.
MODEL = ModelSpec("demo-mtp", str(DEMO), args={"dtype": "float32", "load_format": "dummy"})
WORKLOAD = WorkloadSpec(
    tasks=("prose",),
    repeats=1,
    warmups=0,
    max_tokens=3000,
    prefill_tokens=64,
    request_timeout_s=LONG_S,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine vLLM takes longer to notice that a part of it is gone."""
    monkeypatch.setattr(failures, "DEATH_NOTICE_S", 120.0)


class Strike:
    """Sends one signal to one process of a launch, at a moment that is told by its progress."""

    def __init__(self, role: str, number: signal.Signals) -> None:
        self._role = role
        self._number = number
        self._live: Live | None = None
        self.sent_at: float | None = None

    def while_it_loads(self, progress: Progress, live: Live) -> None:
        if progress.phase is Phase.LOAD:
            self._send(live)

    def before_a_task(self, progress: Progress, live: Live) -> None:
        """Between two requests, at once: what comes next meets what is left."""
        if progress == Progress(Phase.MEASURE, "prefill 1"):
            self._send(live)

    def while_a_task_is_answered(self, progress: Progress, live: Live) -> None:
        """From the next request on, `in_an_answer` strikes."""
        if progress == Progress(Phase.MEASURE, "prefill 1"):
            self._live = live

    def in_an_answer(self) -> None:
        if self._live is not None:
            self._send(self._live)

    def _send(self, live: Live) -> None:
        live.look()
        pid = live.pid(self._role)
        if pid is not None and self.sent_at is None:
            self.sent_at = time.time()
            os.kill(pid, self._number)


def test_a_worker_killed_while_it_loads(tmp_path: Path) -> None:
    strike = Strike(WORKER, signal.SIGKILL)
    finished = attempt(never_loaded(tmp_path), CELL, tmp_path, step=strike.while_it_loads)
    assert strike.sent_at is not None
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
    assert strike.sent_at is not None
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
    assert strike.sent_at is not None
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
    # Engine and worker would live on by themselves; they are not waited for.
    assert len(finished.live.seen) >= 3
    assert finished.row["ended_at"].timestamp() - strike.sent_at < failures.DEATH_NOTICE_S / 2


def test_a_server_told_to_stop_in_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike = Strike(API_SERVER, signal.SIGTERM)
    feed = StreamReader.feed

    def feed_and_strike(reader: StreamReader, line: str, now: float) -> RequestFailure | None:
        failure = feed(reader, line, now)
        if reader.chunks == 2:
            strike.in_an_answer()
        return failure

    monkeypatch.setattr(StreamReader, "feed", feed_and_strike)
    # Half a minute's answer at its fastest, so that the signal meets it however late it is read.
    long = replace(WORKLOAD, max_tokens=15000, request_timeout_s=30.0)
    cell = replace(CELL, context=16384)
    spec = sweep(MODEL, workload=long)
    finished = attempt(spec, cell, tmp_path, step=strike.while_a_task_is_answered)
    assert strike.sent_at is not None
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
    monkeypatch.setattr(launches, "STOPPED_S", 5 * LONG_S)  # the request's limit is to be first
    strike = Strike(API_SERVER, signal.SIGSTOP)
    limit_s = 8.0
    spec = sweep(MODEL, workload=replace(WORKLOAD, request_timeout_s=limit_s))
    spec = replace(spec, engine=replace(spec.engine, stop_timeout_s=2 * LONG_S))
    finished = attempt(spec, CELL, tmp_path, step=strike.before_a_task)
    assert strike.sent_at is not None
    assert_row(
        finished,
        FailureClass.REQUEST_TIMEOUT,
        Phase.MEASURE,
        words=(f"within {limit_s:g} s",),
        started=True,
        filled=True,
        in_log=False,
    )
    assert (finished.row["exit_code"], finished.row["signal"]) == (None, None)
    assert [run["kind"] for run in finished.runs] == ["fill", "prefill"]
    # Its counters are asked for first, which it does not answer either.
    assert limit_s <= finished.row["measure_s"] < LONG_S
    # It is let go on, so that it ends when it is asked to.
    stopped_s = finished.row["wall_s"] - finished.row["ready_s"] - finished.row["measure_s"]
    assert stopped_s < LONG_S


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
    assert finished.row["wall_s"] < LONG_S  # and not until it would have to be ready
