"""What the client makes of a server process that is stopped or killed in the middle of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from vllm_frontier.measure.client import FailureKind, RequestFailure, ServerClient

# Streams a chunk every 50 ms for as long as it lives; with the tenth it sends itself a signal.
SERVER = r"""
import os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        sent = 0
        while True:
            self.wfile.write(b'data: {"choices": [{"text": "tick ", "finish_reason": null}]}\n\n')
            self.wfile.flush()
            sent += 1
            if sent == 10 and int(sys.argv[1]):
                os.kill(os.getpid(), int(sys.argv[1]))
            time.sleep(0.05)

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def serving(number: int = 0) -> Iterator[str]:
    """A server's address; it sends itself a signal while it streams."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(int(number))], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        port = process.stdout.readline().strip()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def test_a_server_that_is_killed_while_it_streams() -> None:
    with serving(signal.SIGKILL) as url, ServerClient(url, "m", request_timeout_s=60.0) as client:
        began = time.monotonic()
        failure = client.complete([1, 2], max_tokens=4)
        took = time.monotonic() - began

        assert isinstance(failure, RequestFailure)
        assert failure.kind is FailureKind.DISCONNECTED
        assert took >= 9 * 0.05
        assert not client.healthy()


def test_a_server_that_is_stopped_while_it_streams() -> None:
    with serving(signal.SIGSTOP) as url, ServerClient(url, "m", request_timeout_s=1.5) as client:
        began = time.monotonic()
        failure = client.complete([1, 2], max_tokens=4)
        took = time.monotonic() - began

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.TIMEOUT
    assert took >= 1.4


def test_a_server_that_never_stops_talking() -> None:
    with serving() as url, ServerClient(url, "m", request_timeout_s=2.0) as client:
        failure = client.complete([1, 2], max_tokens=4)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.TIMEOUT
    chunks = int(failure.message.split("; ")[1].split()[0])
    assert 1 <= chunks <= 2.0 / 0.05 + 1
