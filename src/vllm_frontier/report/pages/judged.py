"""What the checks found, for a page: problems first, then how often what was judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_frontier.analyze.checks import NAMES, Verdict
from vllm_frontier.report import checks
from vllm_frontier.report.pages.tabular import Table, from_rows

Row = Mapping[str, Any]

_SHOWN = 3  # findings of a kind that are not folded


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one kind: sentences, the first few apart from the rest."""

    check: str
    verdict: str
    count: int
    first: tuple[str, ...]
    rest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """All checks of a sweep."""

    summary: str
    findings: tuple[Finding, ...]
    told: tuple[str, ...]  # what is as it should be, and yet to be known
    counts: Table


def judged(rows: Sequence[Row]) -> Judged | None:
    """What the checks found; None where nothing was judged.

    Args:
        rows: of the table `checks`, as objects.
    """
    if not checks.are_told(rows):
        return None
    return Judged(
        summary=checks.summary(rows),
        findings=tuple(_finding(group) for group in checks.groups(rows)),
        told=tuple(checks.of_sweep(rows)),
        counts=_counts(rows),
    )


def _finding(group: Sequence[Row]) -> Finding:
    lines = [checks.line(row) for row in group]
    return Finding(
        check=group[0]["check"],
        verdict=group[0]["verdict"],
        count=len(group),
        first=tuple(lines[:_SHOWN]),
        rest=tuple(lines[_SHOWN:]),
    )


def _counts(rows: Sequence[Row]) -> Table:
    counts = Counter((row["check"], row["verdict"]) for row in rows)
    names = [name for name in NAMES if any(counts[name, verdict] for verdict in Verdict)]
    return from_rows(
        "How often each check came to which verdict",
        [("check", False), *((verdict.value, True) for verdict in Verdict)],
        [[name, *(str(counts[name, verdict] or "") for verdict in Verdict)] for name in names],
    )
