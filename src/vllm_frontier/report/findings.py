"""What `doctor` found, as a table and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_frontier.doctor import Finding, Verdict

_MARKS = {
    Verdict.OK: ("✓", "green"),
    Verdict.NOTE: ("·", "yellow"),
    Verdict.MISSING: ("✗", "red"),
}


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as JSON values: `ready`, and `findings` with check, verdict, found, advice."""
    return {
        "ready": all(finding.verdict is not Verdict.MISSING for finding in findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def show(findings: Sequence[Finding], console: Console) -> None:
    """Print one line for each finding, and what to do under those that need it."""
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = _MARKS[finding.verdict]
        found = Text(finding.found)
        if finding.advice:
            found.append(f"\n→ {finding.advice}", style=style)
        table.add_row(Text(mark, style=style), Text(finding.check, style="bold"), found)
    console.print(table)
    missing = sum(finding.verdict is Verdict.MISSING for finding in findings)
    console.print("ready" if not missing else f"{missing} missing")
