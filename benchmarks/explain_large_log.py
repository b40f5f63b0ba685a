"""How long a large server log takes to read, and how much memory.

    python benchmarks/explain_large_log.py [--mebibytes 200]

Writes five logs of that size to a temporary folder: a server that served for days and then ran
out of memory; the same with a failed request in every chunk; the same as JSON records of Docker;
one that wrote debug lines while it started; and one whose every line is part of a traceback.
Prints seconds and peak memory of `vllm-frontier explain --json` for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LOGS = Path(__file__).parents[1] / "tests" / "unit" / "logs"
MEASURE = """
import resource, subprocess, sys, time
begin = time.perf_counter()
done = subprocess.run([sys.executable, "-m", "vllm_frontier", "explain", "--json", "--exit-code",
                       "1", sys.argv[1]], capture_output=True, check=True)
seconds = time.perf_counter() - begin
mebibytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(f"{seconds:.2f} {mebibytes:.0f}")
print(done.stdout.decode())
"""

ACCESS = b'INFO:     127.0.0.1:42606 - "GET /metrics HTTP/1.1" 200 OK\n'
THROUGHPUT = (
    b"(APIServer pid=101) INFO 09-14 10:21:47 [loggers.py:271] Engine 000: Avg prompt throughput: "
    b"3201.2 tokens/s, Avg generation throughput: 61.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, "
    b"GPU KV cache usage: 97.1%, Prefix cache hit rate: 0.0%\n"
)
DEBUG = (
    b"(EngineCore pid=202) DEBUG 09-14 10:21:30 [backends.py:120] Traced graph 17 of 64 with "
    b"shapes [8192, 5120]\n"
)
REQUEST_ERROR = (
    b"(APIServer pid=101) ERROR 09-14 10:21:50 [serving_chat.py:279] Error in preprocessing\n"
    b"(APIServer pid=101) ERROR 09-14 10:21:50 [serving_chat.py:279] Traceback (most recent call "
    b"last):\n"
    b'(APIServer pid=101) ERROR 09-14 10:21:50 [serving_chat.py:279]   File "/x/serving_chat.py", '
    b"line 255, in create_chat_completion\n"
    b"(APIServer pid=101) ERROR 09-14 10:21:50 [serving_chat.py:279]     raise ValueError(\n"
    b"(APIServer pid=101) ERROR 09-14 10:21:50 [serving_chat.py:279] ValueError: This model's "
    b"maximum context length is 32768 tokens.\n"
)


def parts(name: str, mark: bytes) -> tuple[bytes, bytes]:
    """A log of the fixtures, cut behind the first line that contains a mark."""
    head, line, tail = (LOGS / f"{name}.log").read_bytes().partition(mark)
    rest, _, tail = tail.partition(b"\n")
    return head + line + rest + b"\n", tail


def write(path: Path, head: bytes, block: bytes, tail: bytes, size: int) -> None:
    """Write a log of about `size` bytes that repeats a block between its head and its tail."""
    with path.open("wb") as file:
        file.write(head)
        many = block * (2**20 // len(block) + 1)
        for _ in range(size // len(many)):
            file.write(many)
        file.write(tail)


def as_records(text: bytes) -> bytes:
    """Every line as a record of Docker's JSON log driver."""
    records = [{"log": f"{line}\n", "stream": "stdout"} for line in text.decode().splitlines()]
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def main() -> None:
    """Write and read the logs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mebibytes", type=int, default=200)
    size = parser.parse_args().mebibytes * 2**20
    serving = parts("wordings/oom_serve", b'"GET /health')
    starting = parts("wordings/kv_none_negative", b"Starting to load model")
    quiet = ACCESS * 4 + THROUGHPUT
    cases = {
        "quiet": (serving[0], quiet, serving[1]),
        "failed requests": (serving[0], quiet * 300 + REQUEST_ERROR, serving[1]),
        "json records": tuple(as_records(part) for part in (serving[0], quiet, serving[1])),
        "debug while starting": (starting[0], DEBUG, starting[1]),
        "only tracebacks": (serving[0], REQUEST_ERROR, serving[1]),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (head, block, tail) in cases.items():
            log = Path(folder) / "server.log"
            write(log, head, block, tail, size)
            process = subprocess.run(
                [sys.executable, "-c", MEASURE, log], capture_output=True, text=True, check=True
            )
            figures, _, document = process.stdout.partition("\n")
            seconds, mebibytes = figures.split()
            found = json.loads(document)
            print(
                f"{name:22} {seconds:>6} s {mebibytes:>5} MiB  {found['failure_class']} in line "
                f"{found['evidence_line']}"
            )


if __name__ == "__main__":
    main()
