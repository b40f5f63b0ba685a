"""Why cells have no result: by class, with the line that decided and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_frontier.outcome import Status
from vllm_frontier.report import remedies
from vllm_frontier.report.disagreement import axes
from vllm_frontier.report.pages import codes
from vllm_frontier.report.pages.links import Folder
from vllm_frontier.report.pages.tabular import apart
from vllm_frontier.report.result import Result
from vllm_frontier.report.wording import several
from vllm_frontier.store.paths import SweepPaths
from vllm_frontier.store.rows import outcome_of

Row = Mapping[str, Any]

_COLOURS = {
    Status.INFEASIBLE: "refused",
    Status.INVALID: "invalid",
    Status.FAILED: "failed",
    Status.INTERRUPTED: "unknown",
}


@dataclass(frozen=True, slots=True)
class Failing:
    """A reason why cells have no result; of one of them the line that decided, and its log.

    `cells` says how many there are, and which one is told of. `log` is the path of the log from
    the page, empty where there is none.
    """

    reason: str
    code: str  # empty where there is no class
    status: str
    kind: str
    cells: str
    phase: str
    evidence: str
    line: int | None
    log: str
    help: str


def failing(found: Result, document: Row, folder: Folder) -> list[Failing]:
    """Every reason, the most frequent first.

    Args:
        found: the sweep.
        document: from `documents.show_document`.
        folder: of the page.
    """
    inferred = Counter(
        cell["failure_class"] for cell in document["grid"] if cell["status"] == Status.INFERRED
    )
    rows = {(row["cell_id"], row["attempt"]): row for row in found.trials.iter_rows(named=True)}
    return [
        _failing(each, rows[each["cell_id"], each["attempt"]], inferred, folder)
        for each in document["failures"]
    ]


def _failing(row: Row, trial: Row, inferred: Mapping[str, int], folder: Folder) -> Failing:
    reason = row["failure_class"]
    cells = several(row["cells"], "cell", "cells")
    more = inferred.get(reason, 0)
    if more:
        cells += f", and {more:,} more inferred from {'it' if row['cells'] == 1 else 'them'}"
    cells += ": " if row["cells"] == 1 and not more else "; one of them: "
    outcome = outcome_of(trial)
    log = SweepPaths(folder.sweep).attempt(row["cell_id"], row["attempt"]).server_log
    return Failing(
        reason=codes.failure(reason) or row["status"].capitalize(),
        code=reason or "",
        status=row["status"],
        kind=_COLOURS.get(row["status"], "unknown"),
        cells=f"{cells}{apart(axes(row))}",
        phase=codes.phase(row["phase"]) if row["phase"] else "",
        evidence=row["evidence"] or "",
        line=row["evidence_line"],
        log=folder.link(log) if log.is_file() else "",
        help=remedies.advice(outcome.failure, outcome.facts) if outcome.failure else "",
    )
