"""A simulated sweep of two cells as a real command, watched from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import yaml

from vllm_frontier.engine.simulated.card_file import card_folder
from vllm_frontier.engine.simulated.faults import STATE_FILE

PROGRAM = (sys.executable, "-m", "vllm_frontier")
TIME = {"load_s": 20, "profile_s": 4, "capture_s": 4, "scale": 0.06}
Faults: TypeAlias = Sequence[Mapping[str, Any]]

# A launch waits where a test has something to do to it: however slow this machine is, it is
# still there then.
HELD_LOADING: Faults = ({"at": "load", "kind": "hang"},)
HELD_SERVING: Faults = ({"at": "measure", "kind": "hang"},)
FIRST_HELD_LOADING: Faults = ({"at": "load", "kind": "hang", "times": 1},)

# What a test waits for never comes where the program is wrong, and soon where it is right; how
# soon is a matter of how much else this machine has to do.
PATIENCE_S = 120.0


def write_card(folder: Path, faults: Faults = ()) -> Path:
    """The card of a folder's sweeps; once it is there it is let be, as servers may read it."""
    file = folder / "card.yaml"
    if not file.exists():
        card = yaml.safe_load((card_folder() / "tiny-8gib.yaml").read_text())
        file.write_text(yaml.safe_dump(card | {"time": TIME, "faults": [*map(dict, faults)]}))
    return file


def command(folder: Path, *more: str, out: str = "s") -> list[str]:
    return [
        *(*PROGRAM, "run", "rtx5090-qwen3.8-27b-nvfp4"),
        *("engine=simulated", f"engine.card_file={write_card(folder)}", "--out", out),
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
    faults: Faults = (),
    program: Sequence[str] = PROGRAM,
    **popen: Any,
) -> Iterator[subprocess.Popen[str]]:
    """A sweep of two cells; whatever is left of it is killed in the end.

    Args:
        folder: where it runs, and what marks its processes.
        more: further words.
        out: the sweep's folder.
        env: further variables.
        faults: of the card.
        program: in place of the installed one.
        popen: further options of the process.
    """
    write_card(folder, faults)
    words = command(folder, *more, out=out)[len(PROGRAM) :]
    sweep = subprocess.Popen(
        [*program, *words], cwd=folder, env={**environment(folder), **(env or {})},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **popen,
    )  # fmt: skip
    try:
        yield sweep
    finally:
        kill_all(marked(folder))
        sweep.wait(PATIENCE_S)
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


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it went with one that was killed before
            process.kill()


def launched(
    folder: Path, words: tuple[str, ...] = ("supervisor.py", "simulated.server")
) -> list[psutil.Process]:
    """Those of them that are a supervisor's or a server's."""
    found = []
    for process in marked(folder):
        try:
            if any(word in " ".join(process.cmdline()) for word in words):
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_server(folder: Path) -> None:
    """End the server that runs: its attempt fails."""
    kill_all(launched(folder, ("simulated.server",)))


def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def nothing_left(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (left := marked(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [" ".join(process.cmdline())[:150] for process in left] == []


def until_serving(folder: Path) -> None:
    logs = folder.glob
    until(
        lambda: any("startup complete" in p.read_text() for p in logs("s/attempts/*/*/server.log"))
    )


def loading(folder: Path) -> None:
    until(lambda: any(p.stat().st_size for p in folder.glob("s/attempts/*/*/server.log")))


def held(sweep: Path) -> None:
    """A launch waits, and that was counted: no other one will."""
    counted = sweep / STATE_FILE
    until(lambda: counted.exists() and counted.stat().st_size > 0)


def started(folder: Path) -> None:
    until((folder / "s/sweep.yaml").exists)
