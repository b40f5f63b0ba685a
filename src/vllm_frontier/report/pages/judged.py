"""What the checks found, for a page: problems first, then how often what was judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_frontier.analyze.checks import NAMES, Verdict
from vllm_frontier.report import checks
from vllm_frontier.report.pages import codes
from vllm_frontier.report.pages.tabular import Table, apart, from_rows, sentence
from vllm_frontier.report.wording import several

Row = Mapping[str, Any]

_SHOWN = 3  # findings of a kind that are not folded


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one kind: sentences, the first few apart from the rest."""

    check: str
    title: str
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
    passed: str  # how often which check passed, in a line
    counts: Table


def judged(rows: Sequence[Row]) -> Judged | None:
    """What the checks found; None where nothing was judged.

    Args:
        rows: of the table `checks`, as objects.
    """
    if not checks.are_told(rows):
        return None
    return Judged(
        summary=_summary(rows),
        findings=tuple(_finding(group) for group in checks.groups(rows)),
        told=tuple(apart(line) for line in checks.of_sweep(rows)),
        passed=_passed(rows),
        counts=_counts(rows),
    )


def _summary(rows: Sequence[Row]) -> str:
    counts = Counter(row["verdict"] for row in rows)
    found = [(counts[each], each.value) for each in (Verdict.FAIL, Verdict.WARN) if counts[each]]
    if not found:
        return "Nothing to report."
    told = several(sum(count for count, _ in found), "finding", "findings")
    if len(found) == 1:
        return f"{told}, verdict {found[0][1]}."
    return f"{told}: {', '.join(f'{count} {name}' for count, name in found)}."


def _passed(rows: Sequence[Row]) -> str:
    counts = Counter(row["check"] for row in rows if row["verdict"] == Verdict.PASS)
    return ", ".join(f"{name} {counts[name]}" for name in NAMES if counts[name])


def _finding(group: Sequence[Row]) -> Finding:
    lines = [_line(row) for row in group]
    return Finding(
        check=group[0]["check"],
        title=codes.check(group[0]["check"]),
        verdict=group[0]["verdict"],
        count=len(group),
        first=tuple(lines[:_SHOWN]),
        rest=tuple(lines[_SHOWN:]),
    )


def _line(row: Row) -> str:
    """What was found, and where; the check stands above."""
    line = checks.line(row).removeprefix(row["check"])
    return sentence(apart(line.removeprefix(", ").removeprefix(": ")))


def _counts(rows: Sequence[Row]) -> Table:
    counts = Counter((row["check"], row["verdict"]) for row in rows)
    names = [name for name in NAMES if any(counts[name, verdict] for verdict in Verdict)]
    return from_rows(
        "How often each check came to which verdict",
        [("check", False), *((verdict.value, True) for verdict in Verdict)],
        [
            [
                f"{codes.check(name)} ({name})",
                *(str(counts[name, verdict] or "") for verdict in Verdict),
            ]
            for name in names
        ],
    )
