"""What happens to a log on its way must not change what it means."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_frontier.engine.reading import read
from vllm_frontier.outcome import FailureClass

LOGS = Path(__file__).parent / "logs"
ANSWERS = {log: json.loads(log.with_suffix(".json").read_text()) for log in LOGS.rglob("*.log")}
# Decided by what ended the server, not by a line: nothing to mutate around.
BY_ENDING = {log for log in ANSWERS if read(log).failure is None}
# A record of JSON is that of one collector: no other one's words stand before it.
PLAIN = sorted(log for log in ANSWERS if not log.read_bytes().startswith(b'{"'))
DECIDED = sorted(
    log
    for log, answer in ANSWERS.items()
    if answer["expected"]["status"] != "started" and log not in BY_ENDING
)
# A server that served and whose end is not told may still live, whatever went wrong before.
CUTTABLE = [
    log for log in DECIDED if ANSWERS[log]["exit_code"] is not None or not read(log).started
]
STARTED = sorted(
    log for log, answer in ANSWERS.items() if answer["expected"]["status"] == "started"
)

HARMLESS = (
    b"(APIServer pid=9) INFO 11-30 01:13:35 [launcher.py:195] Route: /health, Methods: GET",
    b"(EngineCore pid=9) WARNING 11-30 01:13:35 [gpu_model_runner.py:1] If out-of-memory error "
    b"occurs during cudagraph capture, consider decreasing `gpu_memory_utilization`",
    b"(EngineCore pid=9) WARNING 11-30 01:13:35 [x.py:1] [Autotuner]: Skipping tactic 3, due to "
    b"failure while profiling: CUDA out of memory. Tried to allocate 2.00 GiB.",
    b"INFO 11-30 01:13:35 [api.py:1] No available memory for the cache blocks would be an error",
    b'INFO:     127.0.0.1:42606 - "GET /metrics HTTP/1.1" 200 OK',
    b"/opt/venv/lib/python3.11/site-packages/x.py:24: DeprecationWarning: `Address already in use`",
    b"Triton is installed, but doesn't include CPU backend. Disabling Triton.",
    b"\x1b[33mWARNING 11-30 01:13:35 [x.py:1] EADDRINUSE, says an old note\x1b[0m",
    b"",
)
WRAPPERS = (
    b"(EngineCore pid=9) ERROR 11-30 01:13:53 [multiproc_executor.py:315] Worker proc VllmWorker-0 "
    b"died unexpectedly (exit code: None), shutting down executor.",
    b"Traceback (most recent call last):\n"
    b'  File "/x/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup\n'
    b"    raise RuntimeError(\n"
    b"RuntimeError: Engine core initialization failed. See root cause above. "
    b"Failed core proc(s): {'EngineCore': 1}",
    b"(APIServer pid=9) ERROR 11-30 01:13:53 [async_llm.py:9] vllm.v1.engine.exceptions."
    b"EngineDeadError: EngineCore encountered an issue.",
    b"nanobind: leaked 4 instances!",
)


def read_bytes(data: bytes, exit_code: int | None) -> FailureClass | None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        log.write_bytes(data)
        failure = read(log, exit_code).failure
        return None if failure is None else failure.failure_class


def class_of(log: Path) -> FailureClass:
    failure = read(log, ANSWERS[log]["exit_code"]).failure
    assert failure is not None
    return failure.failure_class


def deciding_line(log: Path) -> int:
    failure = read(log, ANSWERS[log]["exit_code"]).failure
    assert failure is not None
    assert failure.evidence_line is not None
    return failure.evidence_line


def test_only_what_no_line_decides_is_left_out() -> None:
    for log, answer in ANSWERS.items():
        if log in BY_ENDING and answer["expected"]["status"] != "started":
            classes = answer["expected"]["failure_class"]
            assert {"killed", "unknown"} & set([classes] if isinstance(classes, str) else classes)


@st.composite
def positions(draw: st.DrawFn, lines: list[bytes]) -> int:
    """A place between two messages, not inside a traceback that has no prefix of its own."""
    free = [
        index
        for index, line in enumerate(lines)
        if re.match(rb"\x1b?.*\(?[A-Za-z].*(?:INFO|WARNING) \d\d-\d\d", line)
    ]
    return draw(st.sampled_from(free or [0]))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_harmless_lines_change_nothing(data: st.DataObject) -> None:
    log = data.draw(st.sampled_from(DECIDED))
    lines = log.read_bytes().split(b"\n")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(positions(lines))
        lines.insert(place, data.draw(st.sampled_from(HARMLESS)))
    assert read_bytes(b"\n".join(lines), ANSWERS[log]["exit_code"]) is class_of(log)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_wrappers_change_nothing(data: st.DataObject) -> None:
    log = data.draw(st.sampled_from(DECIDED))
    extra = data.draw(st.lists(st.sampled_from(WRAPPERS), max_size=4))
    text = log.read_bytes() + b"\n" + b"\n".join(extra)
    assert read_bytes(text, ANSWERS[log]["exit_code"]) is class_of(log)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_comes_after_the_deciding_line_is_not_needed(data: st.DataObject) -> None:
    log = data.draw(st.sampled_from(CUTTABLE))
    lines = log.read_bytes().split(b"\n")
    keep = data.draw(st.integers(deciding_line(log), len(lines)))
    exit_code = ANSWERS[log]["exit_code"]
    assert read_bytes(b"\n".join(lines[:keep]), exit_code) is class_of(log)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_collectors_prefixes_change_nothing(data: st.DataObject) -> None:
    log = data.draw(st.sampled_from(PLAIN))
    prefix = data.draw(
        st.sampled_from(
            [
                b"2026-09-14T10:21:19.123456789Z ",
                b"[2026-02-24T20:21:58Z] ",
                b"vllm-server_1  | ",
                b"Nov 30 01:13:50 host vllm[812]: ",
                b"Nov 30 01:13:50.123456 host vllm[812]: ",
                b"2026-11-30T01:13:50+0000 host vllm[812]: ",
                b"2026-11-30T01:13:50.123456789Z stderr F ",
                b"[pod/vllm-0/server] ",
                b"\x1b[0m",
            ]
        )
    )
    text = b"\n".join(prefix + line for line in log.read_bytes().split(b"\n"))
    answer = ANSWERS[log]
    failure = read(log, answer["exit_code"]).failure
    expected = failure.failure_class if failure is not None else None
    assert read_bytes(text, answer["exit_code"]) is expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_process_names_of_other_versions_change_nothing(data: st.DataObject) -> None:
    log = data.draw(st.sampled_from(DECIDED + STARTED))
    engine = data.draw(st.sampled_from([b"EngineCore_DP0", b"EngineCore_0", b"EngineCore"]))
    worker = data.draw(st.sampled_from([b"Worker_TP1", b"VllmWorker", b"Worker_DP0_TP0_EP0"]))
    text = log.read_bytes()
    text = re.sub(rb"\(EngineCore\w* pid=", b"(" + engine + b" pid=", text)
    text = re.sub(rb"\(Worker\w* pid=", b"(" + worker + b" pid=", text)
    answer = ANSWERS[log]
    expected = None if answer["expected"]["status"] == "started" else class_of(log)
    assert read_bytes(text, answer["exit_code"]) is expected


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 10**7),
    needed=st.integers(1, 10**5),
    available=st.integers(0, 10**5),
    estimate=st.integers(1, 10**7),
    separators=st.booleans(),
)
def test_other_numbers_are_other_facts_of_the_same_class(
    length: int, needed: int, available: int, estimate: int, separators: bool
) -> None:
    text = (LOGS / "kv_too_small.log").read_text()
    comma = "," if separators else ""
    text = text.replace("(65536)", f"({length:{comma}})")
    text = text.replace("(0.06 GiB", f"({needed / 100:{comma}.2f} GiB")
    text = text.replace("(0.02 GiB)", f"({available / 100:{comma}.2f} GiB)")
    text = text.replace("is 19328", f"is {estimate:{comma}}")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        log.write_text(text)
        reading = read(log, 1)
    assert reading.failure is not None
    assert reading.failure.failure_class is FailureClass.KV_TOO_SMALL
    assert reading.facts.kv_needed_gib == pytest.approx(needed / 100)
    assert reading.facts.kv_available_gib == pytest.approx(available / 100)
    assert reading.facts.max_context_estimate == estimate


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_no_bytes_are_too_odd_to_be_read(data: bytes) -> None:
    assert read_bytes(data, None) in (None, *FailureClass)
