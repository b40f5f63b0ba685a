"""A simulated server in processes of its own, for tests."""

import contextlib
import copy
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vllm_frontier.engine.protocol import LogReading
from vllm_frontier.engine.simulated.card_file import card_folder
from vllm_frontier.engine.simulated.engine import SimulatedEngine, simulated_card_spec
from vllm_frontier.grid import Cell
from vllm_frontier.launch.ports import free_port
from vllm_frontier.launch.processes import process_table
from vllm_frontier.launch.segments import (
    Segment,
    remove_segments,
    segments_of,
    segments_there,
)
from vllm_frontier.spec import EngineSpec, ModelSpec

CELL = Cell(2, 16384, True, 0.9)
PATIENCE_S = 60.0  # what is waited for comes within moments, or never
TINY = yaml.safe_load((card_folder() / "tiny-8gib.yaml").read_text())


def card_file(folder: Path, **sections: Any) -> str:
    """Write a variant of the tiny card without noise; a mapping is laid over its section."""
    data = copy.deepcopy(TINY)
    data["speed"]["noise"] = 0.0
    for name, value in sections.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    file = folder / "card.yaml"
    file.write_text(yaml.safe_dump(data))
    return str(file)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def gone(pids: list[int], seconds: float = PATIENCE_S) -> bool:
    """Whether all processes end in time."""
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Launched:
    """A running server: its processes, its log, its answers."""

    def __init__(self, card: str, cell: Cell, log: Path, **args: Any) -> None:
        spec = EngineSpec(kind="simulated", card_file=card, args=args)
        self.engine = SimulatedEngine(spec, ModelSpec("m", "some/model"), simulated_card_spec(card))
        self.port = free_port()
        plan = self.engine.plan_launch(cell, port=self.port, served_name="served", cards=())
        self.log = log
        self.shared: set[Segment] = set()
        environment = os.environ | {k: v for k, v in plan.env.items() if v is not None}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                plan.argv, env=environment, stdout=file, stderr=file, start_new_session=True
            )

    def ready(self, seconds: float = PATIENCE_S) -> bool:
        """Wait until /health answers 200 (True) or the server has ended (False)."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self.note_segments()
            if self.health() == 200:
                return True
            time.sleep(0.01)
        return False

    def health(self) -> int | None:
        try:
            return self.request("GET", "/health")[0]
        except OSError:
            return None

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()

    def complete(self, prompt: Any, **body: Any) -> dict[str, Any]:
        status, text = self.request("POST", "/v1/completions", {"prompt": prompt} | body)
        assert status == 200, text
        return json.loads(text)

    def stream(self, prompt: str, **body: Any) -> list[dict[str, Any] | str]:
        """Events of a streamed chat, the last one as text."""
        messages = [{"role": "user", "content": prompt}]
        asked = {"model": "served", "messages": messages, "stream": True, **body}
        status, text = self.request("POST", "/v1/chat/completions", asked)
        assert status == 200, text
        events = [each.removeprefix("data: ") for each in text.strip().split("\n\n")]
        return [each if each == "[DONE]" else json.loads(each) for each in events]

    def metrics(self) -> dict[str, float]:
        """Values of /metrics by name and labels, without the labels all series have."""
        _, text = self.request("GET", "/metrics")
        common = '{engine="0",model_name="served"'
        result = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                result[name.replace(common, "{").replace("{}", "")] = float(value)
        return result

    def children(self) -> list[int]:
        """Pids of EngineCore and worker, once the log names both."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            pids = {}
            for line in self.log.read_text().splitlines():
                name, _, rest = line.partition(" pid=")
                if name in ("(EngineCore", "(Worker"):
                    pids[name] = int(rest.partition(")")[0])
            self.note_segments()
            if len(pids) == 2:
                return [pids["(EngineCore"], pids["(Worker"]]
            time.sleep(0.01)
        raise AssertionError("no children in the log")

    def members(self) -> list[int]:
        """Pids of all its processes."""
        table = process_table().values()
        return [each.pid for each in table if each.pgid == self.process.pid]

    def note_segments(self) -> None:
        """Remember the shared memory that its processes hold."""
        self.shared |= segments_of(self.members(), segments_there())

    def reading(self) -> LogReading:
        """What vLLM's log reader says when the server has ended."""
        code = self.process.wait(PATIENCE_S)
        if code < 0:
            return self.engine.read_log(self.log, signal=-code)
        return self.engine.read_log(self.log, exit_code=code)


@contextlib.contextmanager
def launched(card: str, log: Path, cell: Cell = CELL, **args: Any) -> Iterator[Launched]:
    """Launch a server; its whole group is killed in the end."""
    server = Launched(card, cell, log, **args)
    try:
        yield server
    finally:
        server.note_segments()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(PATIENCE_S)
        gone(server.members())
        remove_segments(server.shared)
