"""What the client makes of a server process that is stopped or killed in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from vllm_frontier.measure.client import FailureKind, RequestFailure, ServerClient

# Streams a chunk every 50 ms for as long as it lives.
SERVER = r"""
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b'data: {"choices": [{"text": "tick ", "finish_reason": null}]}\n\n')
            self.wfile.flush()
            time.sleep(0.05)

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        port = process.stdout.readline().strip()
        yield process, f"http://127.0.0.1:{port}"
        process.kill()
        process.wait()


def _after(delay_s: float, process: subprocess.Popen[str], number: signal.Signals) -> None:
    timer = threading.Timer(delay_s, os.kill, (process.pid, number))
    timer.start()


def test_a_server_that_is_killed_while_it_streams(
    server: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = server
    with ServerClient(url, "m", request_timeout_s=60.0) as client:
        _after(0.4, process, signal.SIGKILL)
        began = time.monotonic()
        failure = client.complete([1, 2], max_tokens=4)
        took = time.monotonic() - began

        assert isinstance(failure, RequestFailure)
        assert failure.kind is FailureKind.DISCONNECTED
        assert 0.3 < took < 10
        assert not client.healthy()


def test_a_server_that_is_stopped_while_it_streams(
    server: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = server
    with ServerClient(url, "m", request_timeout_s=1.5) as client:
        _after(0.4, process, signal.SIGSTOP)
        began = time.monotonic()
        failure = client.complete([1, 2], max_tokens=4)
        took = time.monotonic() - began

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.TIMEOUT
    assert 1.4 < took < 4


def test_a_server_that_never_stops_talking(server: tuple[subprocess.Popen[str], str]) -> None:
    _, url = server
    with ServerClient(url, "m", request_timeout_s=1.0) as client:
        failure = client.complete([1, 2], max_tokens=4)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.TIMEOUT
    chunks = int(failure.message.split("; ")[1].split()[0])
    assert 2 <= chunks <= 25
