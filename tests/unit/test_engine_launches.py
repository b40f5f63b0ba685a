"""Several launches in one log: a container that restarts. The last one decides."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_frontier.engine.failures import USAGE
from vllm_frontier.engine.log import LineSplitter, clean
from vllm_frontier.engine.phases import begins_engine, opens_launch
from vllm_frontier.engine.protocol import LogReading
from vllm_frontier.engine.reading import read_stream

LOGS = Path(__file__).parent / "logs"
ALL = sorted(LOGS.rglob("*.log"))


def shows_its_beginning(log: Path) -> bool:
    """Whether the log shows that a launch begins; a fragment of a traceback does not."""
    splitter = LineSplitter()
    lines = [clean(*each).text for each in splitter.feed(log.read_bytes())]
    return any(opens_launch(text) or begins_engine(text) or USAGE.match(text) for text in lines)


WHOLE = [log for log in ALL if shows_its_beginning(log)]


def exit_code(log: Path) -> int | None:
    code: int | None = json.loads(log.with_suffix(".json").read_text())["exit_code"]
    return code


def reading(code: int | None, *parts: bytes) -> LogReading:
    return read_stream(io.BytesIO(b"\n".join(parts)), code)


def same(one: LogReading, other: LogReading) -> bool:
    def told(found: LogReading) -> tuple[object, ...]:
        failure = found.failure
        reason = (failure.failure_class, failure.phase, failure.evidence) if failure else None
        return found.started, found.phase, found.facts, reason

    return told(one) == told(other)


@settings(max_examples=250, deadline=None)
@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=3), st.sampled_from(WHOLE))
def test_what_happened_before_changes_nothing(earlier: list[Path], last: Path) -> None:
    alone = reading(exit_code(last), last.read_bytes())
    together = reading(exit_code(last), *(log.read_bytes() for log in earlier), last.read_bytes())
    assert same(alone, together)


def test_the_line_number_is_that_of_the_whole_file() -> None:
    first, last = LOGS / "term_idle.log", LOGS / "kv_too_small.log"
    before = first.read_bytes().count(b"\n") + 1
    failure = reading(1, first.read_bytes(), last.read_bytes()).failure
    assert failure is not None
    assert failure.evidence_line == before + 70


@pytest.mark.parametrize("cores", [2, 8])
def test_several_engines_of_one_server_are_one_launch(cores: int) -> None:
    lines = ["INFO 09-14 10:21:11 [api_server.py:1896] vLLM API server version 0.11.0"]
    for core in range(cores):
        who = f"(EngineCore_DP{core} pid={100 + core}) INFO 09-14 10:21:12 "
        lines.append(f"{who}[core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: x")
        lines.append(f"{who}[gpu_model_runner.py:2602] Starting to load model x...")
        lines.append(f"{who}[worker.py:298] Available KV cache memory: {4 + core}.00 GiB")
    found = reading(None, "\n".join(lines).encode())
    assert found.facts.kv_available_gib == 4.0  # of the first: nothing was forgotten since


@pytest.mark.parametrize(
    ("text", "opens"),
    [
        ("vLLM API server version 0.8.5", True),
        (" ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0", True),
        ("non-default args: {'port': 18501}", True),
        ("  █▄█▀ █     █     █     █  model   /models/x", False),
        ("Using Triton version 3.4.0", False),
    ],
)
def test_first_words_of_a_server(text: str, opens: bool) -> None:
    assert opens_launch(text) is opens
