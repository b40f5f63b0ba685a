"""Real vLLM stands still, or another one answers: neither lends a cell its time or its numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_attempt import (
    DEMO,
    READY_TIMEOUT_S,
    WORKER,
    Live,
    assert_row,
    attempt,
    never_loaded,
    sweep,
)

from vllm_frontier.engine.registry import create_engine
from vllm_frontier.grid import Cell
from vllm_frontier.launch import launch as launches
from vllm_frontier.launch.ports import free_port
from vllm_frontier.measure.reply import RequestFailure, StreamReader
from vllm_frontier.outcome import FailureClass, Phase
from vllm_frontier.spec import ModelSpec, SweepSpec, WorkloadSpec
from vllm_frontier.trial import Progress, failures
from vllm_frontier.trial import attempt as trial

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

CELL = Cell(depth=0, context=2048, graphs=False, utilization=1.0)
MODEL = ModelSpec("demo-mtp", str(DEMO), args={"dtype": "float32"})
WORKLOAD = WorkloadSpec(tasks=("prose",), repeats=1, warmups=0, max_tokens=64, prefill_tokens=64)
# In place of ten seconds, so that the test does not take as long.
STOPPED_S = 3.0
# Until the launch has ended, on however busy a machine.
NOTICED_S = 60.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "STOPPED_S", STOPPED_S)
    monkeypatch.setattr(failures, "DEATH_NOTICE_S", NOTICED_S)


class Stop:
    """Stops the worker once, and keeps when that was."""

    def __init__(self) -> None:
        self.live: Live | None = None
        self.pid: int | None = None
        self.at = 0.0

    def keep(self, live: Live) -> None:
        self.live = live

    def __call__(self) -> None:
        if self.pid is None and self.live is not None:
            self.live.look()
            self.pid = self.live.pid(WORKER)
            if self.pid is not None:
                self.at = time.time()
                os.kill(self.pid, signal.SIGSTOP)


def assert_noticed(stop: Stop, row: dict[str, object]) -> None:
    assert f"process {stop.pid} (" in str(row["evidence"])
    assert f"was stopped for {STOPPED_S:g} s" in str(row["evidence"])
    ended_at = row["ended_at"].timestamp()  # type: ignore[attr-defined]
    assert STOPPED_S - 0.1 < ended_at - stop.at < STOPPED_S + NOTICED_S


def test_a_worker_that_is_stopped_while_it_loads(tmp_path: Path) -> None:
    stop = Stop()

    def step(progress: Progress, live: Live) -> None:
        stop.keep(live)
        if progress.phase is Phase.LOAD:
            stop()

    finished = attempt(never_loaded(tmp_path), CELL, tmp_path, step=step)
    assert_row(finished, FailureClass.STARTUP_TIMEOUT, Phase.LOAD, words=("stopped",), in_log=False)
    assert_noticed(stop, finished.row)


def test_a_worker_that_is_stopped_between_two_requests(tmp_path: Path) -> None:
    stop = Stop()

    def step(progress: Progress, live: Live) -> None:
        stop.keep(live)
        if progress == Progress(Phase.MEASURE, "prefill 1"):
            stop()

    finished = attempt(sweep(MODEL, workload=WORKLOAD), CELL, tmp_path, step=step)
    assert_row(
        finished, FailureClass.REQUEST_TIMEOUT, Phase.MEASURE,
        words=("stopped",), started=True, filled=True, in_log=False,
    )  # fmt: skip
    assert_noticed(stop, finished.row)
    assert [run["kind"] for run in finished.runs] == ["fill", "prefill"]


def test_a_worker_that_is_stopped_in_the_middle_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stop()
    feed = StreamReader.feed

    def feed_and_stop(reader: StreamReader, line: str, now: float) -> RequestFailure | None:
        failure = feed(reader, line, now)
        if reader.chunks == 2:
            stop()
        return failure

    monkeypatch.setattr(StreamReader, "feed", feed_and_stop)
    spec = sweep(MODEL, workload=WorkloadSpec(**{**_plain(WORKLOAD), "max_tokens": 1500}))
    finished = attempt(spec, CELL, tmp_path, step=lambda progress, live: stop.keep(live))
    assert_row(
        finished, FailureClass.REQUEST_TIMEOUT, Phase(finished.row["phase"]),
        words=("stopped",), started=True, filled=bool(finished.row["filled"]), in_log=False,
    )  # fmt: skip
    assert finished.row["phase"] in ("fill", "measure")
    assert_noticed(stop, finished.row)


def _plain(workload: WorkloadSpec) -> dict[str, object]:
    return {name: getattr(workload, name) for name in workload.__dataclass_fields__}


@pytest.fixture
def other(tmp_path: Path) -> Iterator[int]:
    """A real server that an earlier launch left, healthy; its port."""
    spec, port = sweep(MODEL), free_port()
    plan = create_engine(spec).plan_launch(CELL, port=port, served_name="earlier", cards=())
    given = {name: value for name, value in plan.env.items() if value is not None}
    with (tmp_path / "earlier.log").open("wb") as log:
        server = subprocess.Popen(
            plan.argv, env={**os.environ, **given}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not _healthy(port):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield port
    finally:
        server.terminate()  # in good order: nobody would remove its shared memory
        server.wait(300)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _served(port: int) -> tuple[str, float]:
    """The name of the model that answers, and how many requests it has answered."""
    url = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as answer:
        name = json.load(answer)["data"][0]["id"]
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("vllm:request_success_total{")]
    return name, sum(float(line.rpartition(" ")[2]) for line in counts)


def test_a_server_left_over_on_the_port_lends_nothing(
    other: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _served(other) == ("earlier", 0.0)
    spec: SweepSpec = sweep(MODEL, memory_gib=0.05)
    cell = Cell(0, 131072, graphs=False, utilization=1.0)  # which cannot start at all
    monkeypatch.setattr(trial, "free_port", lambda: other)
    # As if the port had been free when the launch looked.
    monkeypatch.setattr("vllm_frontier.launch.drain.is_released", lambda port: True)
    finished = attempt(spec, cell, tmp_path)
    assert finished.row["failure_class"] == "port_in_use", finished.row["evidence"]
    assert finished.row["status"] == "failed"
    assert finished.runs == []
    assert (finished.row["started"], finished.row["filled"]) == (False, False)
    assert _served(other) == ("earlier", 0.0)
    monkeypatch.setattr("vllm_frontier.launch.drain.is_released", lambda port: False)
    finished = attempt(spec, cell, tmp_path)
    assert finished.row["failure_class"] == "port_in_use"
    assert (finished.row["phase"], finished.row["spawn_s"]) == ("spawn", None)
