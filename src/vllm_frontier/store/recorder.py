"""Writes `attempt.json` in the process that launches, which need not be the one that stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.store import records, rows
from vllm_frontier.store.paths import AttemptPaths


@dataclass(frozen=True, slots=True)
class AttemptRecorder:
    """A callable value that can be sent to another process.

    Called with an attempt's folder and a description of its launch (JSON values, among them
    `axes`, `attempt` and `started_at`), it puts both the description and the row of `trials`
    that stands until there is an outcome on disk. OSError when the folder cannot be written.
    """

    spec: SweepSpec
    identity: SweepIdentity
    engine_version: str | None

    def __call__(self, folder: Path, launch: Mapping[str, Any]) -> None:
        """Write `attempt.json` into `folder`."""
        cell = rows.cell_of_axes(launch["axes"])
        number = int(launch["attempt"])
        row = rows.interrupted_row(
            self.spec,
            self.identity,
            cell,
            number,
            started_at=float(launch["started_at"]),
            engine_version=self.engine_version,
        )
        records.write_attempt(AttemptPaths(folder, row["cell_id"], number), row, launch)
