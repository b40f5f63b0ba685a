"""What one server log says, as JSON and for a terminal."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_frontier.engine.protocol import LogReading
from vllm_frontier.outcome import FailureClass
from vllm_frontier.report import remedies

STARTED = "started"
_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"
_EVIDENCE_WIDTH = 600  # characters shown in a terminal; the JSON document has all of them


def document(reading: LogReading) -> dict[str, Any]:
    """The reading as JSON values.

    Keys: `status` (`started`, or that of the outcome), `failure_class`, `phase`, `evidence` and
    `evidence_line` (what decided; 1-based), `retryable` (another try may end otherwise),
    `started` (the server became ready at some time), `facts` (under the names of columns of
    `trials`, null where the log does not say) and `advice`. A log that shows neither a ready
    server nor a failure is one of unknown reason.
    """
    failure = reading.failure
    if failure is not None:
        status = failure.failure_class.status
        verdict = {
            "status": status.value,
            "failure_class": failure.failure_class.value,
            "phase": failure.phase.value,
            "evidence": failure.evidence,
            "evidence_line": failure.evidence_line,
            "retryable": not status.is_final,
        }
        sentence = remedies.advice(failure, reading.facts)
    elif reading.started:
        verdict = _without_failure(reading, STARTED, None, retryable=False)
        sentence = remedies.healthy(reading.facts)
    else:
        unknown = FailureClass.UNKNOWN
        verdict = _without_failure(reading, unknown.status.value, unknown.value, retryable=True)
        sentence = remedies.unfinished(reading.phase)
    return {
        **verdict,
        "started": reading.started,
        "facts": dataclasses.asdict(reading.facts),
        "advice": sentence,
    }


def _without_failure(
    reading: LogReading, status: str, failure_class: str | None, *, retryable: bool
) -> dict[str, Any]:
    line = reading.ready_line if reading.started else reading.last_line
    return {
        "status": status,
        "failure_class": failure_class,
        "phase": reading.phase.value,
        "evidence": None if line is None else line[1],
        "evidence_line": None if line is None else line[0],
        "retryable": retryable,
    }


def show(explained: dict[str, Any], console: Console) -> None:
    """Print what `document` gave: the verdict, the line, the facts, the advice."""
    reason = explained["failure_class"]
    style = {"started": "green", "infeasible": "yellow"}.get(explained["status"], "red")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    headline = Text(explained["status"], style=f"bold {style}")
    if reason is not None:
        headline.append(f": {reason}")
    if explained["retryable"]:
        headline.append(" (another try may end otherwise)", style="not bold")
    table.add_row("outcome", headline)
    table.add_row("phase", explained["phase"])
    if explained["evidence"]:
        number = explained["evidence_line"]
        table.add_row(f"line {number}" if number else "evidence", _cut(explained["evidence"]))
    for name, value in explained["facts"].items():
        if value is not None:
            table.add_row(name, _figure(name, value))
    table.add_row("advice", Text(explained["advice"], style="bold"))
    console.print(table)


def _cut(evidence: str) -> Text:
    evidence = "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in evidence
    )
    cut = len(evidence) > _EVIDENCE_WIDTH
    return Text(f"{evidence[:_EVIDENCE_WIDTH]}..." if cut else evidence)


def _figure(name: str, value: Any) -> str:
    if name.endswith("_gib"):
        return f"{value:g} GiB"
    return f"{value:,} tokens" if isinstance(value, int) else str(value)
