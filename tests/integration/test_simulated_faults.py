"""Simulated servers that go wrong: processes killed from outside, and faults of the card."""

import os
import signal
import time
from pathlib import Path

import pytest
from simulated_launch import CELL, PATIENCE_S, alive, card_file, gone, launched

from vllm_frontier.outcome import FailureClass, Phase

LOADING = {"load_s": 600.0, "scale": 0.1}  # for a minute
# It starts at once, but stays for three seconds after its engine died: a client gets its answer
# and sees that nothing is well.
LINGERING = {"load_s": 0.2, "profile_s": 0.1, "capture_s": 0.1, "scale": 0.6}
PROMPT = "Explain tides."


@pytest.mark.parametrize("victim", [0, 1], ids=["EngineCore", "worker"])
def test_child_killed_while_loading(tmp_path: Path, victim: int) -> None:
    with launched(card_file(tmp_path, time=LOADING), tmp_path / "log") as server:
        children = server.children()
        os.kill(children[victim], signal.SIGKILL)
        reading = server.reading()
        assert server.process.returncode == 1
        assert not reading.started
        assert reading.failure is not None
        assert reading.failure.failure_class in (FailureClass.ENGINE_CRASHED, FailureClass.KILLED)
        assert gone(children)
        assert "Engine core initialization failed. See root cause above" in server.log.read_text()


@pytest.mark.parametrize("victim", [0, 1], ids=["EngineCore", "worker"])
def test_child_killed_while_serving(tmp_path: Path, victim: int) -> None:
    with launched(card_file(tmp_path, time=LINGERING), tmp_path / "log") as server:
        assert server.ready()
        children = server.children()
        assert server.stream(PROMPT, max_tokens=2)[-1] == "[DONE]"
        os.kill(children[victim], signal.SIGKILL)
        events = server.stream(PROMPT, max_tokens=5000)
        assert events[-1] == "[DONE]"
        error = events[-2]
        assert isinstance(error, dict)
        assert error["error"]["code"] == 500
        assert error["error"]["type"] == "InternalServerError"
        assert server.health() == 503
        assert server.process.wait(PATIENCE_S) == 0
        assert server.health() is None
        assert gone(children)
        failure = server.reading().failure
        assert failure is not None
        assert failure.failure_class in (FailureClass.ENGINE_CRASHED, FailureClass.KILLED)


def test_children_outlive_a_killed_api_server(tmp_path: Path) -> None:
    with launched(card_file(tmp_path), tmp_path / "log") as server:
        assert server.ready()
        children = server.children()
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.process.wait(PATIENCE_S) == -signal.SIGKILL
        time.sleep(0.3)
        assert all(alive(pid) for pid in children)
        assert server.health() is None  # the port is free
        os.killpg(server.process.pid, signal.SIGKILL)
        assert gone(children)


def test_stopped_worker_hangs_requests_but_not_health(tmp_path: Path) -> None:
    with launched(card_file(tmp_path), tmp_path / "log") as server:
        assert server.ready()
        engine, worker = server.children()
        os.kill(worker, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            _hurry(server.port)
        assert server.health() == 200
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert gone([engine, worker])


def _hurry(port: int) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.5)
    try:
        body, kind = '{"prompt": "x", "max_tokens": 5}', {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", body, kind)
        connection.getresponse()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("at", "kind", "code", "failures"),
    [
        ("spawn", "port", 1, {FailureClass.PORT_IN_USE}),
        ("spawn", "exit", 1, {FailureClass.UNKNOWN, FailureClass.ENGINE_CRASHED}),
        ("spawn", "crash", -signal.SIGSEGV, {FailureClass.ENGINE_CRASHED}),
        ("configure", "kill", -signal.SIGKILL, {FailureClass.KILLED}),
        ("load", "crash", 1, {FailureClass.ENGINE_CRASHED}),
        ("load", "oom", 1, {FailureClass.OOM_LOAD}),
        ("load", "exit", 1, {FailureClass.UNKNOWN, FailureClass.ENGINE_CRASHED}),
        ("load", "kill", -signal.SIGKILL, {FailureClass.KILLED}),
        ("profile", "oom", 1, {FailureClass.OOM_PROFILE}),
        ("profile", "contended", 1, {FailureClass.MEMORY_CONTENDED}),
        ("allocate_kv", "crash", 1, {FailureClass.ENGINE_CRASHED}),
        ("capture_graphs", "oom", 1, {FailureClass.OOM_GRAPH_CAPTURE}),
        ("warm_up", "oom", 1, {FailureClass.OOM_WARMUP}),
        ("ready", "crash", -signal.SIGSEGV, {FailureClass.ENGINE_CRASHED}),
    ],
)
def test_faults_of_a_start(
    tmp_path: Path, at: str, kind: str, code: int, failures: set[FailureClass]
) -> None:
    card = card_file(tmp_path, faults=[{"at": at, "kind": kind, "when": {"depth": 2}}])
    with launched(card, tmp_path / "log") as server:
        assert not server.ready()
        failure = server.reading().failure
        assert server.process.returncode == code
        assert failure is not None
        assert failure.failure_class in failures


@pytest.mark.parametrize("at", ["spawn", "load", "allocate_kv", "warm_up", "ready"])
def test_a_start_that_hangs(tmp_path: Path, at: str) -> None:
    card = card_file(tmp_path, faults=[{"at": at, "kind": "hang"}])
    with launched(card, tmp_path / "log") as server:
        assert not server.ready(1.0)
        assert server.process.poll() is None
        assert server.health() is None


@pytest.mark.parametrize(
    ("kind", "failures"),
    [
        ("crash", {FailureClass.ENGINE_CRASHED}),
        ("exit", {FailureClass.UNKNOWN, FailureClass.ENGINE_CRASHED}),
        ("oom", {FailureClass.OOM_SERVE}),
    ],
)
@pytest.mark.parametrize("at", ["fill", "measure"])
def test_faults_while_serving(
    tmp_path: Path, at: str, kind: str, failures: set[FailureClass]
) -> None:
    card = card_file(tmp_path, faults=[{"at": at, "kind": kind}], time=LINGERING | {"scale": 0.2})
    with launched(card, tmp_path / "log") as server:
        assert server.ready()
        window = CELL.context
        filling = {"prompt": list(range(window - 16)), "max_tokens": 16, "ignore_eos": True}
        usual = {"prompt": PROMPT, "max_tokens": 40}
        good, bad = (usual, filling) if at == "fill" else (filling, usual)
        assert server.request("POST", "/v1/completions", good)[0] == 200
        status, text = server.request("POST", "/v1/completions", bad | {"stream": True})
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
        assert '"code":500' in text
        assert ('"text"' in text) == (at == "measure")  # half of it had come already
        reading = server.reading()
        assert server.process.returncode == 0
        assert reading.started
        assert reading.failure is not None
        assert reading.failure.failure_class in failures


def test_full_window_that_does_not_fit(tmp_path: Path) -> None:
    card = card_file(tmp_path, memory={"fill_extra": 0.6}, time=LINGERING | {"scale": 0.2})
    with launched(card, tmp_path / "log") as server:
        assert server.ready()
        server.complete(PROMPT, max_tokens=40)
        body = {"prompt": list(range(CELL.context - 16)), "max_tokens": 16, "ignore_eos": True}
        status, text = server.request("POST", "/v1/completions", body)
        assert status == 500
        assert "EngineCore encountered an issue" in text
        failure = server.reading().failure
        assert failure is not None
        assert failure.failure_class is FailureClass.OOM_SERVE
        assert "Tried to allocate 0.60 GiB" in failure.evidence


def test_measuring_that_hangs_and_stopping_that_hangs(tmp_path: Path) -> None:
    faults = [{"at": "measure", "kind": "hang"}, {"at": "stop", "kind": "hang"}]
    with launched(card_file(tmp_path, faults=faults), tmp_path / "log") as server:
        assert server.ready()
        with pytest.raises(TimeoutError):
            _hurry(server.port)
        assert server.health() == 200
        os.kill(server.process.pid, signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None


@pytest.mark.parametrize("told_by", ["environment", "log"])
def test_fault_happens_so_often_in_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    if told_by == "environment":
        monkeypatch.setenv("VLLM_FRONTIER_SWEEP_DIR", str(tmp_path))
    card = card_file(tmp_path, faults=[{"at": "load", "kind": "crash", "times": 2}])
    started = []
    for attempt in range(3):
        log = tmp_path / f"attempts/cell/{attempt}/server.log"
        log.parent.mkdir(parents=True)
        with launched(card, log) as server:
            started.append(server.ready())
    assert started == [False, False, True]
    assert (tmp_path / "simulated-faults.json").is_file()


def test_phase_of_a_fault_is_read(tmp_path: Path) -> None:
    card = card_file(tmp_path, faults=[{"at": "capture_graphs", "kind": "crash"}])
    with launched(card, tmp_path / "log") as server:
        assert not server.ready()
        reading = server.reading()
        assert reading.phase is Phase.CAPTURE_GRAPHS
        assert reading.failure is not None
        assert reading.failure.failure_class is FailureClass.ENGINE_CRASHED
