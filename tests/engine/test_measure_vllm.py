"""Measuring a real vLLM: the server's counters against its own usage figures."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import vllm_frontier
from vllm_frontier.measure.client import FailureKind, Reply, RequestFailure, ServerClient
from vllm_frontier.measure.pace import SLOWEST
from vllm_frontier.measure.prompts import PromptSource, load_prompts
from vllm_frontier.measure.runs import settled_growth
from vllm_frontier.measure.session import fill, measure, planned_runs
from vllm_frontier.measure.task import load_task
from vllm_frontier.outcome import Run
from vllm_frontier.spec import WorkloadSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON") or sys.executable
MODEL = Path(vllm_frontier.__file__).parent / "models" / "demo-mtp"
SERVED_NAME = "measured-here"
CONTEXT = 2048
DEPTH = 2
READY_TIMEOUT_S = 600.0  # a start takes 22 s on a machine that nobody else uses
REQUEST_TIMEOUT_S = 60.0
FILL_TIMEOUT_S = 120.0


def _command(port: int) -> list[str]:
    flags = {
        "--model": str(MODEL),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--served-model-name": SERVED_NAME,
        "--max-model-len": str(CONTEXT),
        "--max-num-seqs": "4",
        "--kv-cache-memory-bytes": str(256 << 20),
        "--speculative-config": f'{{"method": "mtp", "num_speculative_tokens": {DEPTH}}}',
    }
    words = [word for pair in flags.items() for word in pair]
    module = "vllm.entrypoints.openai.api_server"
    switches = ["--enforce-eager", "--enable-prompt-tokens-details"]
    return [PYTHON, "-m", module, *words, *switches]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole tree: the server leads a process group of its own."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerClient]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("vllm")
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_CI_ENV": "1"}
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(port),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | quiet,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        with ServerClient(url, SERVED_NAME, request_timeout_s=REQUEST_TIMEOUT_S) as made:
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not made.healthy():
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
                assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
                time.sleep(0.5)
            yield made
    finally:
        _end(process)


@pytest.fixture(scope="module")
def runs(client: ServerClient) -> list[Run]:
    items = list(measure(client, WorkloadSpec(repeats=2, score=False), CONTEXT))
    failures = [item for item in items if isinstance(item, RequestFailure)]
    assert failures == []
    return [item for item in items if isinstance(item, Run)]


def test_the_server_tells_its_name_and_the_size_of_its_cache(client: ServerClient) -> None:
    tokens = client.kv_tokens()

    assert client.served_models() == [SERVED_NAME]
    assert tokens is not None
    assert tokens >= CONTEXT


def test_tokens_of_a_text_are_a_prompt_of_that_length(client: ServerClient) -> None:
    tokens = client.tokenize("def load(path):\n    return path.read_text()\n")
    assert isinstance(tokens, list)

    reply = client.complete(tokens, max_tokens=4, ignore_eos=True)

    assert isinstance(reply, Reply)
    assert reply.prompt_tokens == len(tokens)
    assert (reply.completion_tokens, reply.finish_reason) == (4, "length")
    assert 0 < reply.ttft_s < REQUEST_TIMEOUT_S


def test_the_counters_grow_by_what_usage_says(client: ServerClient) -> None:
    before = client.counters()
    assert before is not None
    reply = client.complete(list(range(300, 400)), max_tokens=50, ignore_eos=True)
    assert isinstance(reply, Reply)

    growth = settled_growth(client, before, timeout_s=REQUEST_TIMEOUT_S)

    assert growth is not None
    assert growth.requests_finished == growth.decode_time_count == 1
    assert growth.prompt_tokens == reply.prompt_tokens == 100
    assert growth.generation_tokens == reply.completion_tokens == 50
    assert growth.drafts is not None
    assert growth.accepted_tokens is not None
    # Every step drafts once and yields one token more than it accepts; the last may be cut.
    yielded = 1 + growth.drafts + growth.accepted_tokens
    assert 50 <= yielded <= 50 + DEPTH
    assert growth.accepted_per_position is not None
    assert sum(growth.accepted_per_position) == growth.accepted_tokens
    assert growth.preemptions == 0


def test_fill_serves_exactly_the_window(client: ServerClient) -> None:
    run = fill(client, CONTEXT, FILL_TIMEOUT_S)

    assert isinstance(run, Run)
    assert (run.prompt_tokens, run.completion_tokens) == (CONTEXT - 16, 16)
    assert run.cached_tokens == 0
    assert run.prefill_tok_s is not None
    assert run.prefill_tok_s > (CONTEXT - 16) / FILL_TIMEOUT_S


def test_a_prompt_beyond_the_window_is_refused(client: ServerClient) -> None:
    prompts = load_prompts(client)
    assert isinstance(prompts, PromptSource)

    failure = client.complete(prompts.prompt(CONTEXT + 1, 0), max_tokens=1)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.HTTP_ERROR
    assert failure.http_status == 400
    assert str(CONTEXT) in failure.message


def test_every_run_is_measured_on_the_server_s_clock(runs: list[Run]) -> None:
    assert len(runs) == planned_runs(WorkloadSpec(repeats=2)) == 8
    for run in (run for run in runs if run.kind == "decode"):
        assert run.decode_tok_s_server is not None
        assert run.decode_tok_s == run.decode_tok_s_server
        # No answer takes as long as a request may, and no machine here is as fast.
        assert ((run.completion_tokens or 0) - 1) / 400 < run.decode_tok_s < 100_000
        assert run.decode_s is not None
        assert run.decode_s * run.decode_tok_s == pytest.approx((run.completion_tokens or 0) - 1)


def test_nothing_that_is_measured_was_cached(runs: list[Run]) -> None:
    assert [run.cached_tokens for run in runs] == [0] * len(runs)
    prefill = [run for run in runs if run.kind == "prefill"]
    assert [run.prompt_tokens for run in prefill] == [CONTEXT // 2] * 2
    slowest = CONTEXT // 2 / SLOWEST.limit_s(CONTEXT // 2, 1)  # more would have been too late
    assert all(run.prefill_tok_s is not None and run.prefill_tok_s > slowest for run in prefill)


def test_a_salt_keeps_the_prefix_cache_away_and_greedy_answers_repeat(
    client: ServerClient, runs: list[Run]
) -> None:
    first = next(run for run in runs if (run.task, run.repeat) == ("edit", 1))
    prompt = [{"role": "user", "content": load_task("edit").prompt(1)}]

    salted = client.chat(prompt, max_tokens=256, cache_salt="another")
    again = client.chat(prompt, max_tokens=256, cache_salt="another")

    assert isinstance(salted, Reply)
    assert isinstance(again, Reply)
    assert salted.text == first.output
    assert salted.completion_tokens == first.completion_tokens
    assert salted.cached_tokens == 0
    assert again.cached_tokens is not None
    assert 128 <= again.cached_tokens < again.prompt_tokens
