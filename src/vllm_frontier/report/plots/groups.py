"""The words in which pictures of speed name groups of cells, and how sure what they tell is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.report.plots import setting as of_axes
from vllm_frontier.report.plots.setting import ALL_TASKS
from vllm_frontier.report.plots.words import further, lines

LUCK = "* within launches: does not hold what launches differ by, so that a difference may be luck."
"""The note on a sign of `star`."""

_LINE = 46  # letters of a line below a heading that a panel has room for


def star(basis: str | None) -> str:
    """A sign behind what only runs within launches tell; empty where launches tell it."""
    return " *" if basis == RUNS else ""


def identity(row: Mapping[str, Any]) -> str:
    """Further axes and what was launched: `block_size=32, after vllm 0.1 -> 0.2`; or nothing."""
    return ", ".join(each for each in (further(row["extra"]), _after(row)) if each)


def identity_lines(row: Mapping[str, Any]) -> list[str]:
    """The same in lines below a panel's heading."""
    return lines(identity(row), _LINE)


def setting(row: Mapping[str, Any]) -> str:
    """A group in full: `3 tokens drafted, with graphs, block_size=32`."""
    return ", ".join(each for each in (of_axes.setting(row), _after(row)) if each)


def overall(rows: pl.DataFrame) -> str:
    """What stands for all tasks together: the task itself where there is only one."""
    tasks = rows["task"].drop_nulls().unique().to_list()
    return tasks[0] if len(tasks) == 1 else ALL_TASKS


def over(name: str) -> str:
    """`over all tasks`, or `on code`."""
    return f"over {name}" if name == ALL_TASKS else f"on {name}"


def some(words: Sequence[str], most: int) -> list[str]:
    """The first few, and how many more there are."""
    rest = len(words) - most
    return [*words[:most], f"{rest} more"] if rest > 0 else list(words)


def _after(row: Mapping[str, Any]) -> str:
    """What changed before it was measured; empty where nothing did."""
    changed = row["changed"].replace("; ", " and ")
    return f"after {changed}" if changed else ""
