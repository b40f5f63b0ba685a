"""What `recommend` prints for a demo sweep, in every form, starts real vLLM and serves.

The sweep has known outcomes and was never launched; its text is pasted into a shell, in a folder
of its own, and only the port is another one. In the place of docker is a stand-in, which says what
it proves.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from demo_sweep import demo_sweep

from vllm_frontier.grid import Cell

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]  # six starts, two at a time

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON") or sys.executable
READY_TIMEOUT_S = 600.0  # one alone takes 22 s on a machine that nobody else uses
FORMS = ("command", "config file", "container")
# With speculation and compiled, and neither; both windows fit what the CPU's slice leaves them.
FASTEST = Cell(3, 8192, True, 0.6)
LONGEST = Cell(0, 24576, False, 0.9)
CELLS = {"fastest": FASTEST, "longest": LONGEST}
STARTED = tuple((name, form) for name in CELLS for form in FORMS)  # all that is printed
GRID = (
    "grid.depth=[0,3]",
    "grid.context=[8192,24576]",
    "grid.utilization=[0.6,0.9]",
    f"engine.python={PYTHON}",
)


@dataclass(frozen=True)
class Served:
    """What a server said."""

    model: dict[str, Any]
    completion: dict[str, Any]
    drafts: float | None  # made so far; None: there is no such counter


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Served]:
    """What came of `STARTED`."""
    folder = tmp_path_factory.mktemp("recommend")
    demo_sweep(folder / "sweep", {FASTEST: 300.0, LONGEST: 120.0}, *GRID)
    done = subprocess.run(
        [sys.executable, "-m", "vllm_frontier", "recommend", "sweep"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    pasted = forms_in(done.stdout)
    assert set(pasted) == {(name, form) for name in CELLS for form in FORMS}
    stand_in = folder / "bin" / "docker"
    stand_in.parent.mkdir()
    program = Path(__file__).with_name("docker_stand_in.py")
    stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
    stand_in.chmod(0o755)
    with ThreadPoolExecutor(2) as pool:  # most of a start is done by one core
        answers = pool.map(lambda name: ask(folder, name, pasted[name]), STARTED)
        return dict(zip(STARTED, answers, strict=True))


def forms_in(text: str) -> dict[tuple[str, str], str]:
    """The printed forms by choice and form: all from one title to the next blank line."""
    found, choice, form = {}, "", ""
    for block in text.split("\n\n"):
        if title := re.match(r"# (fastest|longest)\b", block):
            choice = title[1]
        if title := re.match(r"# as a (.+):\n", block):
            form = title[1]
            found[choice, form] = block
    return found


def ask(folder: Path, name: tuple[str, str], text: str) -> Served:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if name[1] == "container":
        assert "-p 8000:8000" in text
        text = text.replace("-p 8000:8000", f"-p {port}:8000")
    else:
        text = f"{text.rstrip()} --port {port}"
    place = folder / "-".join(name).replace(" ", "-")
    place.mkdir()
    with shell(text, place, folder / "bin") as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process, place / "log")
        (model,) = get(f"{url}/v1/models")["data"]
        prompt = "def add(a, b):\n    return a + b\n" * 8
        body = {"model": model["id"], "prompt": prompt, "max_tokens": 24, "temperature": 0}
        completion = get(f"{url}/v1/completions", body)
        return Served(model, completion, drafts(url))


@contextmanager
def shell(text: str, place: Path, programs: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "VLLM_CPU_CI_ENV": "1",  # graphs without their compiler, which takes a minute
    }
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", text], cwd=place, env=environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the shell and what it started, all of one process group."""
    deadline = time.monotonic() + 20
    with suppress(ProcessLookupError):  # once nothing of it is left
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        try:
            urllib.request.urlopen(f"{url}/health", timeout=60).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return


def get(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        told: dict[str, Any] = json.loads(answer.read())
    return told


def drafts(url: str) -> float | None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    found = re.findall(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found)) if found else None


@pytest.mark.parametrize(("name", "form"), STARTED)
def test_what_is_printed_serves_the_cell(
    served: dict[tuple[str, str], Served], name: str, form: str
) -> None:
    told, cell = served[name, form], CELLS[name]
    assert told.model["max_model_len"] == cell.context
    assert told.model["id"].endswith("models/demo-mtp")
    assert told.completion["usage"]["completion_tokens"] == 24
    assert told.completion["choices"][0]["text"]
    if cell.depth:
        # Greedily, at most four tokens come of one draft and its check.
        assert told.drafts is not None
        assert 24 / 4 - 1 <= told.drafts < 24
    else:
        assert not told.drafts


def test_all_forms_of_a_choice_write_the_same(served: dict[tuple[str, str], Served]) -> None:
    texts = {served["fastest", form].completion["choices"][0]["text"] for form in FORMS}
    assert len(texts) == 1
