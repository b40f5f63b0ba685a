"""The tables of a page: frontier, boundaries, speeds, and every cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_frontier.analyze.frontier import ALL
from vllm_frontier.grid import shortest
from vllm_frontier.outcome import Status
from vllm_frontier.report.disagreement import axes
from vllm_frontier.report.pages import codes
from vllm_frontier.report.pages.tabular import Table, apart, fixed, from_rows, grouped, on_off
from vllm_frontier.report.result import Result
from vllm_frontier.report.terminal import frontier_table
from vllm_frontier.report.terminal.plain_table import NONE, extra_axes
from vllm_frontier.report.terminal.tables import boundary_doubts

Row = Mapping[str, Any]

_INFERRED = "~"


def _interval(row: Row) -> str:
    told = frontier_table.interval(row)
    return fixed(None, 1) if told == NONE else told.replace("-", " to ")


def leading(document: Row) -> list[Row]:
    """The cells of the frontier for the median over tasks.

    Args:
        document: from `documents.show_document`.
    """
    return [row for row in document["frontier"] if ALL in row["on_frontier_for"]]


def frontier(document: Row) -> Table | None:
    """The frontier for the median over tasks, marked as in a terminal; None where it is empty."""
    rows = leading(document)
    if not rows:
        return None
    chosen = {choice["cell_id"]: choice["choices"] for choice in document["choices"]}
    extra = extra_axes(rows)
    marks = frontier_table.marks(rows, document["checks"])
    return from_rows(
        "The frontier: cells that no other beats on window, speed and memory at once",
        [
            ("context", True),
            ("tokens/s", True),
            ("95 %", True),
            *_axis_columns(extra, context=False),
            ("x base", True),
            ("prefill", True),
            ("spare", True),
            ("marks", False),
        ],
        [
            [
                grouped(row["context"]),
                fixed(row["decode_tok_s"], 1),
                _interval(row),
                *_axes(row, extra),
                fixed(row["gain_no_graphs"], 2),
                fixed(row["prefill_tok_s"], 0),
                fixed(row["kv_headroom_gib"], 2),
                mark + "".join(name[0].upper() for name in chosen.get(row["cell_id"], ())),
            ]
            for row, mark in zip(rows, marks, strict=True)
        ],
    )


def frontier_notes(document: Row) -> list[str]:
    """What its columns and marks mean, a sentence each."""
    rows = leading(document)
    return [apart(text.plain) for text in frontier_table.notes(document["frontier"], rows)]


def frontier_warnings(document: Row) -> list[str]:
    """What is to be known of its cells before they are served."""
    rows = leading(document)
    return [text.plain for text in frontier_table.warnings(rows, document["checks"])]


def boundaries(document: Row) -> Table | None:
    """Where the window ends for every combination of the other axes; None without a grid."""
    rows = document["boundaries"]
    if not rows:
        return None
    extra = extra_axes(rows)
    follows = {
        (*_place(cell, extra), cell["context"])
        for cell in document["grid"]
        if cell["status"] == Status.INFERRED
    }

    def end(row: Row, name: str) -> str:
        inferred = (*_place(row, extra), row[name]) in follows
        return f"{grouped(row[name])}{_INFERRED if inferred else ''}"

    told = [
        [
            *_axes(row, extra),
            end(row, "max_context_works"),
            end(row, "min_context_fails"),
            codes.failure(row["failure_class"]),
            str(row["cells"]),
        ]
        for row in rows
    ]
    doubts = [_doubt(each) for each in boundary_doubts(rows, document["contested"])]
    doubted = any(doubts)
    return from_rows(
        f"Where the window ends, tokens; {_INFERRED} follows from launches of other cells",
        [
            *_axis_columns(extra, context=False),
            ("works up to", True),
            ("refused from", True),
            ("because of", False),
            ("cells", True),
            *([("remark", False)] if doubted else []),
        ],
        [[*row, doubt] if doubted else row for row, doubt in zip(told, doubts, strict=True)],
    )


def _place(row: Row, extra: Sequence[str]) -> tuple[object, ...]:
    return (row["depth"], row["graphs"], row["utilization"], *(row.get(name) for name in extra))


def _doubt(told: str) -> str:
    """What is to be known beside that it was inferred, which each end says itself."""
    return "" if told == "inferred" else told


def speeds(document: Row) -> Table | None:
    """How fast each depth is on each task; None where nothing was measured."""
    rows = document["speeds"]
    if not rows:
        return None
    extra = extra_axes(rows)
    return from_rows(
        "Speed by depth and task, tokens/s, and how often drafts are accepted",
        [
            ("depth", True),
            ("task", False),
            *((name, False) for name in extra),
            ("without graphs", True),
            ("with graphs", True),
            ("accepted at each position", False),
        ],
        [
            [
                str(row["depth"]),
                row["task"],
                *(str(row[name]) for name in extra),
                fixed(row["eager"], 1),
                fixed(row["graphs"], 1),
                " ".join(f"{share:.2f}" for share in row["acceptance"] or ()),
            ]
            for row in rows
        ],
    )


def every(found: Result, document: Row) -> Table | None:
    """What is known of every cell; None where nothing is."""
    cells = document["grid"]
    if not cells:
        return None
    extra = extra_axes(cells)
    trials = {(row["cell_id"], row["attempt"]): row for row in found.trials.iter_rows(named=True)}
    by_cell = {row["cell_id"]: row for row in trials.values() if row["attempt"]}
    return from_rows(
        "Every cell",
        [
            *_axis_columns(extra, context=True),
            ("outcome", False),
            ("reason", False),
            ("tokens/s", True),
            ("needed, GiB", True),
            ("available, GiB", True),
            ("estimated window", True),
            ("follows from", False),
        ],
        [
            [
                *_axes(cell, extra, context=True),
                _outcome(cell),
                codes.failure(cell["failure_class"]),
                *_figures(trials.get((cell["cell_id"], cell["attempt"]), {})),
                _from(cell, by_cell),
            ]
            for cell in cells
        ],
    )


def _axis_columns(extra: Sequence[str], *, context: bool) -> list[tuple[str, bool]]:
    names = [("depth", True), ("graphs", False), ("utilization", True)]
    return names + [(name, False) for name in extra] + ([("context", True)] if context else [])


def _axes(row: Row, extra: Sequence[str], *, context: bool = False) -> list[str]:
    told = [str(row["depth"]), on_off(row["graphs"]), shortest(row["utilization"])]
    told += [str(row[name]) if name in row else "" for name in extra]
    return told + ([grouped(row["context"])] if context else [])


def _outcome(cell: Row) -> str:
    if cell["status"] != Status.INFERRED:
        return str(cell["status"])
    return "inferred, works" if cell["failure_class"] is None else "inferred, refused"


def _figures(trial: Row) -> list[str]:
    """Of the launch itself: what follows from another has none."""
    return [
        fixed(trial.get("decode_tok_s"), 1),
        fixed(trial.get("kv_needed_gib"), 2),
        fixed(trial.get("kv_available_gib"), 2),
        grouped(trial.get("max_context_estimate")),
    ]


def _from(cell: Row, by_cell: Mapping[str, Row]) -> str:
    evidence = by_cell.get(cell["evidence_cell"] or "")
    if evidence is None:
        return ""
    doubt = f" ({cell['doubt']})" if cell["doubt"] else ""
    return f"{apart(axes(evidence))}{doubt}"
