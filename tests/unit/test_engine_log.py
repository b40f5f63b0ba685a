"""Lines as several processes and collectors write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.engine.log import MAX_LINE_BYTES, LineSplitter, clean


@pytest.mark.parametrize(
    ("raw", "process", "level", "text"),
    [
        ("(EngineCore pid=7) INFO 11-30 01:13:50 [a.py:7] hello", "EngineCore/7", "INFO", "hello"),
        ("(EngineCore_DP0 pid=7) Traceback", "EngineCore_DP0/7", "", "Traceback"),
        (
            "(VllmWorker rank=1 pid=9) ERROR 05-10 16:00:15 [m.py:4]   File",
            "VllmWorker/9",
            "ERROR",
            "  File",
        ),
        (
            "(RayWorkerWrapper pid=4, ip=192.0.2.1) INFO 03-27 10:29:01 [worker.py:267] x",
            "RayWorkerWrapper/4",
            "INFO",
            "x",
        ),
        (
            "(Worker pid=4) (Worker_DP0_EP0 pid=4) ERROR 03-13 12:01:42 [m.py:9] x",
            "Worker_DP0_EP0/4",
            "ERROR",
            "x",
        ),
        ("ERROR 06-30 13:53:19 [core.py:515] x", "", "ERROR", "x"),
        ("INFO 12-20 20:25:46 worker.py:241] x", "", "INFO", "x"),
        ("INFO:     Started server process [1]", "", "INFO", "Started server process [1]"),
        (
            "2026-08-26 11:09:23,104 - WARNING - autotuner.py:829 - flashinfer.jit: x",
            "",
            "WARNING",
            "flashinfer.jit: x",
        ),
        ("[rank0]:[W914 10:22:24.88 C.cpp:3] oom", "", "WARNING", "C.cpp:3] oom"),
        (
            "2026-02-24T20:21:58Z (Worker_TP1 pid=6) ValueError: x",
            "Worker_TP1/6",
            "",
            "ValueError: x",
        ),
        ("[2026-02-24T20:21:58.123+01:00] ValueError: x", "", "", "ValueError: x"),
        ('vllm-1  |   File "x", line 1', "", "", '  File "x", line 1'),
        ("Nov 30 01:13:50 host vllm[812]: ValueError: x", "", "", "ValueError: x"),
        (
            "\x1b[0;36m(Worker_TP0 pid=5)\x1b[0;0m \x1b[31mERROR 09-14 10:21:24 [c.py:1] x\x1b[0m",
            "Worker_TP0/5",
            "ERROR",
            "x",
        ),
        ("KeyError: 'a | b'", "", "", "KeyError: 'a | b'"),
    ],
)
def test_prefixes_are_taken_off(raw: str, process: str, level: str, text: str) -> None:
    line = clean(3, raw.encode())
    assert (line.process, line.level, line.text) == (process, level, text)
    assert line.number == 3


def test_invalid_utf8_and_overlong_lines_are_read() -> None:
    assert clean(1, b"ValueError: \xff\xfe x").text == "ValueError: \ufffd\ufffd x"
    assert len(clean(1, b"x" * 10 * MAX_LINE_BYTES).text) == MAX_LINE_BYTES


def test_progress_bars_share_the_number_of_their_line() -> None:
    splitter = LineSplitter()
    data = b"one\n\rload:   0%|  | 0/2\rload: 100%|##| 2/2 [00:01<00:00,  1.2it/s]"
    data += b"(Worker pid=5) INFO 11-30 01:13:50 [a.py:7] hello\nlast"
    lines = [*splitter.feed(data), *splitter.close()]
    assert [number for number, _ in lines] == [1, 2, 2, 2, 3]
    assert lines[3][1] == b"(Worker pid=5) INFO 11-30 01:13:50 [a.py:7] hello"
    assert lines[4][1] == b"last"


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 17))
def test_splitting_does_not_depend_on_the_pieces(lines: list[bytes], size: int) -> None:
    data = b"\n".join(lines).replace(b"\r", b"")
    splitter = LineSplitter()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    read = [line for piece in pieces for line in splitter.feed(piece)]
    read += splitter.close()
    expected = [(n, line) for n, line in enumerate(data.split(b"\n"), start=1) if line]
    assert [(n, line) for n, line in read if line and b"%|" not in line] == [
        (n, line) for n, line in expected if b"%|" not in line
    ]
