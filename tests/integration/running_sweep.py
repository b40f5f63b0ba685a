"""A simulated sweep of two cells as a real command, watched from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from vllm_frontier.engine.simulated.card_file import card_folder

# Long enough for something to happen in the middle of a phase.
TIME = {"load_s": 20, "profile_s": 4, "capture_s": 4, "scale": 0.06}


def command(folder: Path, *more: str, out: str = "s") -> list[str]:
    card = yaml.safe_load((card_folder() / "tiny-8gib.yaml").read_text()) | {"time": TIME}
    (folder / "card.yaml").write_text(yaml.safe_dump(card))
    return [
        *(sys.executable, "-m", "vllm_frontier", "run", "rtx5090-qwen3.8-27b-nvfp4"),
        *("engine=simulated", f"engine.card_file={folder / 'card.yaml'}", "--out", out),
        "search=exhaustive",
        *("grid.depth=[0]", "grid.context=[8192]", "grid.utilization=[0.9]", "workload.repeats=1"),
        *more,
    ]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "FRONTIER_TEST": str(folder)}


@contextmanager
def running(
    folder: Path,
    *more: str,
    out: str = "s",
    env: Mapping[str, str] | None = None,
    **popen: Any,
) -> Iterator[subprocess.Popen[str]]:
    """A sweep of two cells; whatever is left of it is killed in the end."""
    sweep = subprocess.Popen(
        command(folder, *more, out=out), cwd=folder, env={**environment(folder), **(env or {})},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **popen,
    )  # fmt: skip
    try:
        yield sweep
    finally:
        for process in marked(folder):
            process.kill()
        sweep.wait(30)
        if sweep.stdout is not None:
            sweep.stdout.close()


def marked(folder: Path) -> list[psutil.Process]:
    """Live processes that inherited the test's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("FRONTIER_TEST") == str(folder)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def launched(folder: Path) -> list[psutil.Process]:
    """Those of them that are a supervisor's or a server's."""
    words = ("supervisor.py", "simulated.server")
    found = []
    for process in marked(folder):
        try:
            if any(word in " ".join(process.cmdline()) for word in words):
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(condition: Callable[[], object], timeout_s: float) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - started


def nothing_left(folder: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while (left := marked(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [" ".join(process.cmdline())[:150] for process in left] == []


def until_serving(folder: Path) -> None:
    logs = folder.glob
    until(
        lambda: any("startup complete" in p.read_text() for p in logs("s/attempts/*/*/server.log")),
        60,
    )


def loading(folder: Path) -> None:
    until(lambda: any(p.stat().st_size for p in folder.glob("s/attempts/*/*/server.log")), 60)


def started(folder: Path) -> None:
    until((folder / "s/sweep.yaml").exists, 60)
