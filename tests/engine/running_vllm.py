"""One real vLLM for CPU that serves the bundled model, and what is done to those who ask it."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import vllm_frontier
from vllm_frontier.launch.processes import read_process
from vllm_frontier.measure.client import ServerClient
from vllm_frontier.measure.counters import Counters
from vllm_frontier.measure.runs import RunLabel, run_request, settled_growth
from vllm_frontier.measure.task import load_task
from vllm_frontier.outcome import Run

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON") or sys.executable
MODEL = Path(vllm_frontier.__file__).parent / "models" / "demo-mtp"
SERVED_NAME = "measured-here"
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_CI_ENV": "1"}
READY_TIMEOUT_S = 600.0  # a start takes 22 s on a machine that nobody else uses
# Until a request is answered and counted, on however busy a machine.
COUNTED_S = 120.0
# `vllm bench serve` where the console script does not start: that of vllm-cpu looks for a
# distribution of another name.
BENCH_SERVE = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main;"
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
# Sends one chat after another and tells of each what came of it; asked for by a line on stdin, its
# salt and how many pieces of the answer are read before it stops itself (null: all).
READER = """
import json, os, signal, sys
from vllm_frontier.measure.client import ServerClient
from vllm_frontier.measure.reply import StreamReader
from vllm_frontier.measure.runs import RunLabel, run_request
url, model, prompt, tokens = json.loads(sys.argv[1])
client = ServerClient(url, model)
feed, pieces = StreamReader.feed, None
def feed_and_stop(reader, line, now):
    global pieces
    failure = feed(reader, line, now)
    if pieces is not None and reader.chunks >= pieces:
        pieces = None
        os.kill(os.getpid(), signal.SIGSTOP)
    return failure
StreamReader.feed = feed_and_stop
for asked in sys.stdin:
    salt, pieces = json.loads(asked)
    def send():
        print("sent", flush=True)
        messages = [{"role": "user", "content": prompt}]
        return client.chat(messages, max_tokens=tokens, cache_salt=salt)
    run = run_request(client, RunLabel("code", 0, "decode"), send)
    figures = run.completion_tokens, run.decode_tok_s_server, run.decode_tok_s_client
    print(json.dumps([*figures, run.decode_tok_s]), flush=True)
"""


@contextmanager
def serving(
    folder: Path, *, depth: int, context: int = 2048, variables: Mapping[str, str] | None = None
) -> Iterator[ServerClient]:
    """Serve the bundled model, one request at a time; logs into the folder.

    `variables` are added to the server's environment.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = {
        "--model": str(MODEL),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--served-model-name": SERVED_NAME,
        "--max-model-len": str(context),
        "--max-num-seqs": "1",
        "--kv-cache-memory-bytes": str(128 << 20),
        "--dtype": "float32",
    }
    if depth:
        flags["--speculative-config"] = json.dumps(
            {"method": "mtp", "num_speculative_tokens": depth}
        )
    words = [word for pair in flags.items() for word in pair]
    module = "vllm.entrypoints.openai.api_server"
    log = folder / f"server-{depth}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PYTHON, "-m", module, *words, "--enforce-eager", "--enable-prompt-tokens-details"],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **QUIET, **(variables or {})},
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        with ServerClient(url, SERVED_NAME, request_timeout_s=60) as client:
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not client.healthy():
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
                assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
                time.sleep(0.5)
            yield client
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole tree: the server leads a process group of its own."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# Asked by us, and by `vllm bench serve`


@dataclass(frozen=True)
class Asked:
    """One request, speeds in tokens per second.

    Attributes:
        prompt: its number among those given.
        tokens: of its answer.
        server: by the growth of the server's histogram.
        client: by what who asked has measured itself.
    """

    prompt: int
    tokens: int
    server: float
    client: float


def bench_serve(
    client: ServerClient,
    prompts: Sequence[str],
    *,
    times: int,
    tokens: int,
    folder: Path,
    every_s: float | None = None,
    after_each: Callable[[int], int] = lambda _: 0,
) -> list[Asked]:
    """Let `vllm bench serve` ask all prompts in turn, one at a time, greedily.

    Args:
        client: of the server.
        prompts: what to ask.
        times: how often.
        tokens: of an answer, at most.
        folder: for its files.
        every_s: seconds from one request to the next; None: as soon as one has ended.
        after_each: called once a request is answered, with the number of its prompt; it may ask
            the same server, and tells how often it did.
    """
    data, result = folder / "prompts.jsonl", folder / "bench.json"
    rows = [{"prompt": prompt, "output_tokens": tokens} for prompt in prompts]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows * times))
    flags = {
        "--backend": "openai-chat",
        "--endpoint": "/v1/chat/completions",
        "--base-url": client.base_url,
        "--model": SERVED_NAME,
        "--tokenizer": str(MODEL),
        "--dataset-name": "custom",
        "--dataset-path": str(data),
        "--custom-output-len": "-1",
        "--num-prompts": str(len(rows) * times),
        "--max-concurrency": "1",
        "--temperature": "0",
        "--ready-check-timeout-sec": "0",
        "--result-dir": str(folder),
        "--result-filename": result.name,
    }
    if every_s is not None:
        flags |= {"--request-rate": f"{1 / every_s}", "--burstiness": "1e6"}  # evenly
    words = [word for pair in flags.items() for word in pair]
    switches = ("--disable-shuffle", "--skip-chat-template", "--save-result", "--save-detailed")
    argv = [PYTHON, "-c", BENCH_SERVE, *words, *switches, "--disable-tqdm"]
    count = len(rows) * times
    with _counting(client, count, lambda at: after_each(at % len(prompts))) as finished:
        done = subprocess.run(
            argv, cwd=folder, env=os.environ | QUIET, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(result.read_text())
    assert told["completed"] == len(finished) == count
    return [
        Asked(
            at % len(prompts),
            written,
            (written - 1) / (growth.decode_time_sum or math.inf),
            (written - 1) / sum(gaps),
        )
        for at, (written, gaps, growth) in enumerate(
            zip(told["output_lens"], told["itls"], finished, strict=True)
        )
        if growth is not None
    ]


@contextmanager
def _counting(
    client: ServerClient, count: int, after_each: Callable[[int], int]
) -> Iterator[list[Counters | None]]:
    """What the server's counters grow by with each of `count` requests that somebody else sends."""
    growths: list[Counters | None] = []
    ended = Event()
    before = client.counters()
    assert before is not None

    def ours(before: Counters) -> Counters:
        """Let others ask meanwhile; a request that ends while they do is told from none."""
        asked = after_each(len(growths) - 1)
        now = client.counters()
        assert now is not None
        growths.extend([None] * (((now - before).decode_time_count or 0) - asked))
        return now

    def look(before: Counters) -> None:
        while True:
            last = ended.is_set()
            now = client.counters()
            growth = None if now is None else now - before
            if now is not None and growth is not None and growth.decode_time_count:
                # Of two that ended between two looks nobody knows which took how long.
                alone = growth.decode_time_count == 1
                growths.extend([growth if alone else None] * growth.decode_time_count)
                before = now
                if alone and not last:
                    before = ours(before)
            if last:
                return
            ended.wait(0.05)

    thread = Thread(target=look, args=(before,))
    thread.start()
    try:
        yield growths
    finally:
        deadline = time.monotonic() + COUNTED_S  # the last one is counted a moment after its end
        while len(growths) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        ended.set()
        thread.join()


def ask_all(
    client: ServerClient, prompts: Sequence[str], *, times: int, tokens: int
) -> list[Asked]:
    """Measure all prompts in turn, as a sweep does; only what no other request ran beside."""
    asked = []
    for repeat in range(times):
        for number, prompt in enumerate(prompts):
            salt = f"{time.monotonic()}"
            run = run_request(
                client,
                RunLabel("asked", repeat, "decode"),
                lambda prompt=prompt, salt=salt: client.chat(  # type: ignore[misc]
                    [{"role": "user", "content": prompt}], max_tokens=tokens, cache_salt=salt
                ),
            )
            assert isinstance(run, Run)
            tokens_told, speed = run.completion_tokens, run.decode_tok_s_server
            if tokens_told is not None and speed is not None:
                by_client = run.decode_tok_s_client or math.inf
                asked.append(Asked(number, tokens_told, speed, by_client))
    return asked


# A client that is kept from running


@dataclass(frozen=True)
class Read:
    """A run as a reader told it, speeds in tokens per second."""

    tokens: int
    server: float
    client: float  # infinite where everything came at once
    told: float  # as `decode_tok_s`


@dataclass(frozen=True)
class Late:
    """A run of which the reader read the most when all of it had long been there.

    Attributes:
        read: as it told it.
        server_s: what it added to the server's histogram of decode times.
        took_s: until the server was done with it.
    """

    read: Read
    server_s: float
    took_s: float


class Reader:
    """A process of its own that measures runs, and can be stopped while it does."""

    def __init__(self, client: ServerClient, tokens: int) -> None:
        prompt = load_task("code").prompt(0)
        about = json.dumps([client.base_url, SERVED_NAME, prompt, tokens])
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER, about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._client = client
        self._salts = 0

    def read(self, stops: Sequence[tuple[float, float]] = ()) -> Read:
        """Measure one run; the process is stopped for some time after some time, seconds."""
        self._ask(None)
        for after, lasting in stops:
            time.sleep(after)
            self._process.send_signal(signal.SIGSTOP)
            time.sleep(lasting)
            self._process.send_signal(signal.SIGCONT)
        return self._answer()

    def read_late(self, pieces: int) -> Late:
        """Measure one run; from some piece on nothing is read until the server is long done.

        Args:
            pieces: so many are read before.
        """
        before = self._client.counters()
        assert before is not None
        began = time.monotonic()
        self._ask(pieces)
        _wait_for(lambda: (me := read_process(self._process.pid)) is not None and me.stopped)
        growth = settled_growth(self._client, before, timeout_s=COUNTED_S)
        took_s = time.monotonic() - began
        time.sleep(2 * took_s)
        self._process.send_signal(signal.SIGCONT)
        assert growth is not None
        assert growth.decode_time_sum is not None
        return Late(self._answer(), growth.decode_time_sum, took_s)

    def _ask(self, pieces: int | None) -> None:
        """Returns when it is about to send."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._salts += 1
        self._process.stdin.write(json.dumps([f"{os.getpid()}-{self._salts}", pieces]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "sent\n"

    def _answer(self) -> Read:
        assert self._process.stdout is not None
        tokens, server, client, told = json.loads(self._process.stdout.readline())
        return Read(tokens, server, client or math.inf, told)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()


def _wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COUNTED_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)
