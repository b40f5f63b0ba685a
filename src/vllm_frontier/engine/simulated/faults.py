"""Faults on purpose: which one is due, and how often it has happened.

A fault with `times: n` happens n times in a sweep, not n times in every launch, so the count
outlives the server: it is kept in a small JSON file. Which file, in this order:
`--simulated-state FILE`; `simulated-faults.json` in the folder that the environment variable
VLLM_FRONTIER_SWEEP_DIR names; the same in the folder of the sweep whose log the server writes
(standard output is `SWEEP/attempts/CELL/N/server.log`). Without any, the count is that of the
launch alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_frontier.engine.simulated.card import SPOILING, Fault
from vllm_frontier.grid import Cell

STATE_VARIABLE = "VLLM_FRONTIER_SWEEP_DIR"
STATE_FILE = "simulated-faults.json"


@dataclass
class FaultBook:
    """The faults of a card, and the file that counts them (None: this process counts).

    `axes` are what faults are selected by: the axes of a cell and further arguments.
    """

    faults: tuple[Fault, ...]
    axes: Mapping[str, Any] = field(default_factory=dict)
    state: Path | None = None
    _own: dict[str, int] = field(default_factory=dict)

    def at(self, cell: Cell) -> FaultBook:
        """The book for a cell; it counts together with this one."""
        if not self.faults:
            return self
        # A server sees extra axes as arguments, whose names it writes with underscores.
        extra = {name.replace("-", "_"): value for name, value in cell.extra}
        return replace(self, axes={**self.axes, **extra, **cell.axes()})

    def take(self, phase: str) -> str | None:
        """The kind of the fault that is due in a phase and ends it, which is thereby counted."""
        for fault in self.faults:
            ends = fault.kind not in SPOILING
            if ends and fault.at == phase and fault.matches(self.axes) and self._due(fault):
                return fault.kind
        return None

    def spoils(self, *, sampled: bool) -> bool:
        """Whether what is written makes no sense."""
        kinds = SPOILING if sampled else SPOILING[:1]
        return any(fault.kind in kinds and fault.matches(self.axes) for fault in self.faults)

    def _due(self, fault: Fault) -> bool:
        if fault.times is None:
            return True
        text = json.dumps(asdict(fault), sort_keys=True, default=str)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        if self.state is None:
            return _count(self._own, key, fault.times)
        # Several cards may run cells of one sweep at once.
        with self.state.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            counts: dict[str, int] = json.loads(file.read() or "{}")
            due = _count(counts, key, fault.times)
            if due:
                file.seek(0)
                file.truncate()
                json.dump(counts, file)
        return due


def _count(counts: dict[str, int], key: str, times: int) -> bool:
    if counts.get(key, 0) >= times:
        return False
    counts[key] = counts.get(key, 0) + 1
    return True


def state_file(argument: str | None) -> Path | None:
    """The file that counts: the argument's, else the sweep's, else none."""
    if argument:
        return Path(argument)
    folder = os.environ.get(STATE_VARIABLE) or _folder_of_log()
    return Path(folder) / STATE_FILE if folder else None


def _folder_of_log() -> Path | None:
    """The folder of the sweep whose attempt writes the log that is our standard output."""
    try:
        log = Path("/proc/self/fd/1").readlink()
    except OSError:
        return None
    folders = log.parents
    if log.name != "server.log" or len(folders) < 4 or folders[2].name != "attempts":
        return None
    return folders[3]
