"""A small sweep that is started as a real process, killed, resumed and looked at.

All that it puts outside its folder goes to a folder for temporary files of its own, and all its
processes carry a mark, so that whatever is left can be told from other programs' leavings.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from marked_processes import MARK, MarkedProcesses, Process, kill, roles

CARD = {
    "kind": "simulated",
    "card": {"name": "Card that is killed", "total_gib": 8.0, "in_use_gib": 0.25},
    "model": {"max_context": 65536, "name": "tiny", "quantization": "INT4"},
    "memory": {
        "weights": 3.5,
        "head": 0.25,
        "activation": 0.5,
        "graphs": 0.5,
        "kv_per_1k_tokens": 0.05,
        "head_kv_per_1k_tokens": 0.01,
        "state": 0.1,
        "state_per_depth": 0.1,
    },
    "speed": {
        "step_ms": {"eager": 20.0, "graphs": 10.0},
        "step_ms_per_depth": {"eager": 1.0, "graphs": 1.0},
        "acceptance": {
            "edit": [0.95, 0.90, 0.85],
            "code": [0.85, 0.70, 0.55],
            "prose": [0.70, 0.45, 0.25],
        },
        "prefill_tok_s": 1000,
        "noise": 0.02,
    },
    # A start takes half a second and a window 0.1 s, so that every phase can be hit.
    "time": {"load_s": 15, "profile_s": 10, "capture_s": 15, "scale": 0.012},
}
WORDS = (
    "rtx5090-qwen3.8-27b-nvfp4",
    "engine=simulated",
    "search=exhaustive",
    "workload.repeats=1",
    "workload.max_tokens=128",
    "workload.prefill_tokens=1024",
    "grid.depth=[0,2]",
    "grid.context=[8192,65536]",
    "grid.graphs=[true]",
    "grid.utilization=[0.9]",
)
WORDS_OF_VLLM = (
    "demo-cpu",
    "search=exhaustive",
    "workload.repeats=1",
    "grid.depth=[0,3]",
    "grid.context=[8192,32768]",
    "grid.graphs=[false]",
    "grid.utilization=[0.9]",
    "grid.exclude=[{graphs: true}, {depth: 0, context: 32768}]",
)
CELLS_OF_VLLM = 3  # two that work and one window that does not fit
CELLS = 6  # three that work, and with a window of 65536 three that do not fit

PYTHON = sys.executable
COMMAND = (PYTHON, "-m", "vllm_frontier")
IN_ONE_PROCESS = (PYTHON, str(Path(__file__).with_name("in_one_process.py")))
LIMIT_S = 600.0  # a few seconds, on a machine that nobody else uses
# The cache of compiled code is kept on purpose.
KEPT = re.compile(r"torchinductor_\d+")
# With such a file Python's tempfile tries out the folder, in the instant before it removes it.
TRIED = re.compile(r"[a-z0-9_]{8}")
TRIED_BYTES = 4
POLL_S = 0.001


def write_card(folder: Path, *, quick: bool = False) -> Path:
    """The card file; `quick` starts and serves ten times as fast, with the same results."""
    content = {**CARD, "time": {**CARD["time"], "scale": 0.001}} if quick else CARD
    file = folder / "card.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def _is_kept(path: Path) -> bool:
    tried = TRIED.fullmatch(path.name) and path.is_file() and path.stat().st_size <= TRIED_BYTES
    return bool(KEPT.fullmatch(path.name) or tried)


@dataclass(frozen=True)
class Ended:
    """How a process of the sweep ended, and what it said."""

    code: int
    output: str
    seconds: float


class SweepUnderTest:
    """One sweep: its folder, its processes, what it leaves outside.

    Args:
        cwd: an empty folder; the sweep's becomes `cwd/s`.
        words: of the command `run`.
        program: what stands before `run` and `resume`.
        cells: how many cells it has.
        limit_s: what it takes at most from a start to its end.
    """

    def __init__(
        self,
        cwd: Path,
        words: Sequence[str],
        *,
        program: Sequence[str] = COMMAND,
        cells: int = CELLS,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.cwd = cwd
        self.folder = cwd / "s"
        self.cells = cells
        self.limit_s = limit_s
        self._run = (*program, "run", *words, "--out", "s")
        self._resume = (*program, "resume", "s")
        # Short, because Ray's and vLLM's sockets lie in it.
        self.tmp = Path("/tmp") / f"k{secrets.token_hex(4)}"
        self.tmp.mkdir(mode=0o700)
        name = f"{self.tmp.name}-{cwd.name}"
        self.processes = MarkedProcesses(name)
        self._environment = {
            **os.environ,
            MARK: name,
            "TMPDIR": str(self.tmp),
            "SPT_NOENV": "1",  # a process that sets its title keeps the mark readable
            "COLUMNS": "200",
        }
        self.earlier: set[Path] = set()  # attempts that were there before the last start
        self._started = 0.0
        self.driver: subprocess.Popen[str] | None = None

    def start(self, *, resume: bool = False, environment: Mapping[str, str] = {}) -> None:
        """Start the command; its output is kept in a file beside the folder.

        A folder that is no sweep yet cannot be resumed, and is run again.
        """
        resume = resume and (self.folder / "sweep.yaml").exists()
        self.earlier = set(self.folder.glob("attempts/*/*"))
        output = self.cwd / "output.txt"
        with output.open("w") as file:
            self.driver = subprocess.Popen(
                self._resume if resume else self._run,
                cwd=self.cwd,
                env={**self._environment, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._started = time.monotonic()

    def wait(self, limit_s: float | None = None) -> Ended:
        """Wait for the driver to end.

        Raises:
            subprocess.TimeoutExpired: it does not; it is killed.
        """
        assert self.driver is not None
        try:
            code = self.driver.wait(limit_s or self.limit_s)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            raise
        text = (self.cwd / "output.txt").read_text(errors="replace")
        return Ended(code, text, time.monotonic() - self._started)

    def wait_until(self, reached: Callable[[], bool]) -> bool:
        """Look again and again, as fast as can be; False when the driver ended before."""
        assert self.driver is not None
        deadline = time.monotonic() + self.limit_s
        while not reached():
            if self.driver.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def roles(self) -> dict[str, list[Process]]:
        """The processes of the sweep by what they are."""
        assert self.driver is not None
        return roles(self.processes.alive(), self.driver.pid)

    def finished(self) -> dict[str, int]:
        """Cells that have their outcome, and the attempt that brought it."""
        found = {}
        for file in self.folder.glob("attempts/*/*/outcome.json"):
            if json.loads(file.read_text())["status"] in ("measured", "infeasible", "invalid"):
                found[file.parent.parent.name] = int(file.parent.name)
        return found

    def launched_again(self, finished: dict[str, int]) -> list[str]:
        """Of these cells, the ones that have a later attempt."""
        return [
            f"{cell} had its outcome from attempt {number} and was launched again"
            for cell, number in finished.items()
            if any(
                int(folder.name) > number for folder in (self.folder / "attempts" / cell).iterdir()
            )
        ]

    def clear(self) -> None:
        """Take the sweep's folder away, so that the next start begins anew."""
        shutil.rmtree(self.folder)

    def temporary_left(self) -> list[str]:
        """What lies in the folder for temporary files, what is kept on purpose left out."""
        return sorted(path.name for path in self.tmp.iterdir() if not _is_kept(path))

    def half_written(self) -> list[str]:
        """Temporary files in the sweep's own folder."""
        return sorted(
            str(path.relative_to(self.folder)) for path in self.folder.rglob(".*") if path.is_file()
        )

    def end(self) -> None:
        """Kill whatever is left and remove the folder for temporary files."""
        deadline = time.monotonic() + 60
        while (left := self.processes.alive()) and time.monotonic() < deadline:
            kill(left)
            time.sleep(0.02)
        if self.driver is not None:
            self.driver.wait(60)
        shutil.rmtree(self.tmp, ignore_errors=True)

    def __enter__(self) -> SweepUnderTest:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


NewSweep = Callable[..., SweepUnderTest]
"""Makes a sweep on a card, with the options of `SweepUnderTest`."""
