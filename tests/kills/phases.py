"""Where a sweep is, as its folder shows it from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAST_TABLE = "boundaries.parquet"


@dataclass(frozen=True, slots=True)
class State:
    """The folder of a sweep at one moment."""

    folder: Path
    cells: int
    attempt: Path | None  # that has no outcome yet, the latest one
    log: str  # its server's
    outcomes: int

    @classmethod
    def of(cls, folder: Path, cells: int, earlier: Container[Path] = ()) -> State:
        """Look at the folder; `earlier` attempts were there when the driver was started."""
        attempts = [*folder.glob("attempts/*/*")]
        open_ones = [each for each in attempts if not (each / "outcome.json").exists()]
        latest = max((each for each in open_ones if each not in earlier), key=_made, default=None)
        log = ""
        if latest is not None and (latest / "server.log").exists():
            log = (latest / "server.log").read_text(errors="replace")
        return cls(folder, cells, latest, log, len(attempts) - len(open_ones))

    def record(self) -> Mapping[str, Any]:
        """The `attempt.json` of the running attempt."""
        if self.attempt is None:
            return {}
        try:
            content: dict[str, Any] = json.loads((self.attempt / "attempt.json").read_text())
        except (OSError, ValueError):
            return {}
        return content

    def tables_due(self) -> bool:
        """Whether all cells have their outcome and the last table is older."""
        table = self.folder / LAST_TABLE
        outcomes = [*self.folder.glob("attempts/*/*/outcome.json")]
        if len({each.parent.parent for each in outcomes}) < self.cells or self.attempt:
            return False
        return not table.exists() or _made(table) < max(_made(each) for each in outcomes)


def _made(path: Path) -> float:
    try:
        return path.stat().st_mtime if path.is_file() else path.stat().st_ctime
    except OSError:
        return 0.0


def _between(first: str, then: str) -> Callable[[State], bool]:
    return lambda state: first in state.log and then not in state.log


SERVING = "Application startup complete"
FILLED = '"POST /v1/completions'
ANSWERING = '"POST /v1/chat/completions'
STOPPING = "shutdown triggered"

PHASES: Mapping[str, Callable[[State], bool]] = {
    "begin": lambda state: (
        (state.folder / "lock.json").exists() and state.attempt is None and not state.outcomes
    ),
    "open": lambda state: state.attempt is not None and "supervisor" not in state.record(),
    "spawn": lambda state: "supervisor" in state.record() and not state.log,
    "load": _between("Starting to load model", "Model loading took"),
    "profile": _between("Model loading took", "Available KV cache memory"),
    "capture": _between("Capturing CUDA graphs", "Graph capturing finished"),
    "fill": _between(SERVING, FILLED),
    "measure": lambda state: (
        FILLED in state.log and ANSWERING in state.log and STOPPING not in state.log
    ),
    "stop": lambda state: STOPPING in state.log,
    "record": lambda state: (
        state.attempt is not None and (state.attempt / "trial.parquet").exists()
    ),
    "between": lambda state: 0 < state.outcomes < state.cells and state.attempt is None,
    "tables": State.tables_due,
}
"""The phases of a sweep in which it can be killed."""

PHASES_OF_VLLM: Mapping[str, Callable[[State], bool]] = {
    **PHASES,
    # Most of a start on a CPU is three processes that import, one after another.
    "configure": _between("(APIServer pid=", "(EngineCore pid="),
    "load": _between("(EngineCore pid=", "KV cache size"),
}
"""The same on real vLLM for CPU, whose log has other marks."""
