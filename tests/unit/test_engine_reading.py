"""Every log with a known answer, and what growing logs say before they are complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_frontier.engine.following import LogFollower
from vllm_frontier.engine.reading import LogReader, read
from vllm_frontier.outcome import FailureClass, Phase, Status

LOGS = Path(__file__).parent / "logs"
ALL = sorted(LOGS.rglob("*.log"))
# Of other versions, reconstructed from their sources, and written to mislead: read whole, once.
WHOLE_ONLY = ("versions", "reconstructed", "misleading")
CLOSELY = [log for log in ALL if not any(part in WHOLE_ONLY for part in log.parts)]
NO_FACTS = ("status", "failure_class", "phase", "evidence")


def answer(log: Path) -> tuple[int | None, dict[str, Any]]:
    data = json.loads(log.with_suffix(".json").read_text())
    return data["exit_code"], data["expected"]


def allowed(expected: dict[str, Any], key: str = "failure_class") -> list[str]:
    words = expected.get(key, [])
    return [words] if isinstance(words, str) else list(words)


@pytest.mark.parametrize("log", ALL, ids=lambda log: log.stem)
def test_log_gets_its_answer(log: Path) -> None:
    exit_code, expected = answer(log)
    reading = read(log, exit_code)
    if expected["status"] == "started":
        assert reading.started
        assert reading.phase is Phase.READY
        assert reading.failure is None
    elif exit_code is None and expected["failure_class"] == "unknown":
        # It may still live: nothing is decided, least of all by what it got over.
        assert not reading.started
        assert reading.failure is None
    else:
        assert reading.failure is not None
        assert reading.failure.failure_class in allowed(expected)
        assert reading.failure.failure_class.status in allowed(expected, "status")
        assert reading.failure.phase == expected.get("phase", reading.failure.phase)
        assert reading.failure.evidence.startswith(expected.get("evidence", ""))
    facts = {key: value for key, value in expected.items() if key not in NO_FACTS}
    assert {key: getattr(reading.facts, key) for key in facts} == pytest.approx(facts)


@pytest.mark.parametrize("log", ALL, ids=lambda log: log.stem)
def test_evidence_stands_in_the_line_it_names(log: Path) -> None:
    failure = read(log, answer(log)[0]).failure
    if failure is None or failure.evidence.startswith("ended by signal"):
        return
    assert failure.evidence_line is not None
    line = log.read_bytes().split(b"\n")[failure.evidence_line - 1].decode("utf-8", "replace")
    assert failure.evidence[:200] in line


@pytest.mark.parametrize("log", CLOSELY, ids=lambda log: log.stem)
def test_an_exit_code_changes_nothing_about_a_decided_failure(log: Path) -> None:
    exit_code, expected = answer(log)
    with_code = read(log, exit_code)
    without = read(log)
    decided_by_ending = {"killed_while_loading", "terminated", "unknown_silent", "kill9_api_load"}
    if log.stem in decided_by_ending:
        assert without.failure is None
        assert not without.started
    elif log.stem == "host_oom_kernel":
        assert without.failure is not None
    else:
        assert without == with_code
    assert expected["status"] != "started" or without.failure is None


@pytest.mark.parametrize("log", CLOSELY, ids=lambda log: log.stem)
@pytest.mark.parametrize("size", [7, 1000])
def test_pieces_of_any_size_read_the_same(log: Path, size: int) -> None:
    exit_code, _ = answer(log)
    reader = LogReader()
    data = log.read_bytes()
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    reader.close()
    assert reader.reading(exit_code) == read(log, exit_code)


def test_no_log_is_an_empty_log(tmp_path: Path) -> None:
    reading = read(tmp_path / "none.log")
    assert (reading.phase, reading.started, reading.failure) == (Phase.SPAWN, False, None)
    failure = read(tmp_path / "none.log", exit_code=127).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.UNKNOWN
    assert "127" in failure.evidence


@pytest.mark.parametrize(
    ("exit_code", "signal", "failure_class"),
    [
        (-9, None, FailureClass.KILLED),
        (None, 9, FailureClass.KILLED),
        (137, None, FailureClass.KILLED),
        (-15, None, FailureClass.KILLED),
        (-11, None, FailureClass.ENGINE_CRASHED),
        (134, None, FailureClass.ENGINE_CRASHED),
        (3, None, FailureClass.UNKNOWN),
        (0, None, FailureClass.UNKNOWN),
    ],
)
def test_an_ending_without_reason_decides_by_its_signal(
    tmp_path: Path, exit_code: int | None, signal: int | None, failure_class: FailureClass
) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO 09-14 10:21:11 [model.py:733] Resolved architecture: MiMoForCausalLM\n")
    failure = read(log, exit_code, signal).failure
    assert failure is not None
    assert failure.failure_class is failure_class
    assert failure.phase is Phase.CONFIGURE
    assert "Resolved architecture" in failure.evidence


def test_follower_sees_phases_and_a_decided_failure_before_the_end(tmp_path: Path) -> None:
    source = (LOGS / "kv_too_small.log").read_bytes()
    log = tmp_path / "server.log"
    follower = LogFollower(log)
    assert follower.poll() is Phase.SPAWN
    phases = []
    noticed_at = None
    lines = source.splitlines(keepends=True)
    with log.open("ab") as file:
        for number, line in enumerate(lines, start=1):
            # A line arrives in two halves, as it may when it is read while it is written.
            for part in (line[: len(line) // 2], line[len(line) // 2 :]):
                file.write(part)
                file.flush()
                phases.append(follower.poll())
            if follower.failure is not None and noticed_at is None:
                noticed_at = number
    assert list(dict.fromkeys(phases)) == [
        Phase.SPAWN,
        Phase.CONFIGURE,
        Phase.LOAD,
        Phase.ALLOCATE_KV,
    ]
    assert noticed_at is not None
    assert noticed_at <= 72  # the deciding line is the 70th of 161
    assert follower.failure is not None
    assert follower.failure.failure_class.status is Status.INFEASIBLE


@pytest.mark.parametrize(
    "name", ["healthy_after_caught_exception", "healthy_032_mtp_graphs", "healthy_v0"]
)
def test_follower_never_gives_up_on_a_start_that_succeeds(tmp_path: Path, name: str) -> None:
    log = tmp_path / "server.log"
    follower = LogFollower(log)
    with log.open("ab") as file:
        for line in (LOGS / "wordings" / f"{name}.log").read_bytes().splitlines(keepends=True):
            file.write(line)
            file.flush()
            follower.poll()
            follower.poll()
            assert follower.failure is None
    assert follower.poll() is Phase.READY


def test_follower_reports_a_graph_capture_that_overwrites_its_own_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    bar = "Capturing CUDA graphs (decode, FULL):  10%|█         | 1/10 [00:01<00:09,  1.0it/s]\r"
    log.write_text(f"INFO 09-14 10:21:11 [gpu_worker.py:1] Available KV cache memory: 1 GiB\n{bar}")
    assert LogFollower(log).poll() is Phase.CAPTURE_GRAPHS


def test_death_while_serving_is_found_behind_a_long_quiet_log(tmp_path: Path) -> None:
    source = (LOGS / "wordings" / "oom_serve.log").read_bytes()
    head, mark, tail = source.partition(b'"GET /health HTTP/1.1" 200 OK\n')
    log = tmp_path / "server.log"
    quiet = b'INFO:     127.0.0.1:42606 - "GET /metrics HTTP/1.1" 200 OK\n' * 20_000
    log.write_bytes(head + mark + quiet + tail)
    failure = read(log, exit_code=0).failure
    short = read(LOGS / "wordings" / "oom_serve.log", exit_code=0).failure
    assert failure is not None
    assert short is not None
    assert failure.failure_class is FailureClass.OOM_SERVE
    assert failure.evidence_line == (short.evidence_line or 0) + 20_000


def test_memory_stays_small_on_a_log_without_line_ends(tmp_path: Path) -> None:
    reader = LogReader()
    for _ in range(64):
        reader.feed(b"x" * 1_000_000)
    reader.feed(b"\nApplication startup complete.\n")
    assert reader.reading().started
    assert len(reader._splitter.pending) < 100_000


def test_a_server_that_was_told_to_stop_says_so() -> None:
    reading = read(LOGS / "term_idle.log", 0)
    assert reading.failure is None
    assert reading.stop_line is not None
    number, text = reading.stop_line
    assert "hut" in text
    assert text in (LOGS / "term_idle.log").read_text().splitlines()[number - 1]
    assert read(LOGS / "rlimit_as_4g.log").stop_line is None


@pytest.mark.parametrize(
    ("log", "free_gib"),
    [
        ("reconstructed/util_above_free_v0.33.0.log", 26.31),  # of `cuda:0`, in a refusal
        ("reconstructed/util_above_free_v0.10.2.log", 59.32),  # of the device, in a refusal
        ("wordings/free_memory_09.log", 29.8),
        ("wordings/healthy_032_mtp_graphs.log", 30.76),  # beside what is used
        ("term_idle.log", None),
    ],
)
def test_memory_that_was_free_before_the_launch(log: str, free_gib: float | None) -> None:
    assert read(LOGS / log).facts.free_gib == free_gib


def test_of_several_cards_the_fullest_says_what_was_free() -> None:
    reader = LogReader()
    for free in ("31.20", "30.10", "30.95"):
        reader.feed(
            f"(Worker pid=7) INFO 09-14 10:21:30 [gpu_worker.py:1040] Free memory on device "
            f"({free}/31.36 GiB) on startup. Desired GPU memory utilization is (0.93, 29.16 GiB). "
            "Actual usage is 22.41 GiB for consumed memory (weights + non-torch).\n".encode()
        )
    assert reader.reading().facts.free_gib == 30.1
