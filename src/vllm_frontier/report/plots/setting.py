"""The words in which pictures of speed name a setting: its depth, graphs and further axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from vllm_frontier.report.plots import theme
from vllm_frontier.report.plots.words import further

ALL_TASKS = "all tasks"
GRAPHS = {True: "series-1", False: "series-2"}
"""The theme's colour for cells with and without graphs."""


def task_name(task: str | None) -> str:
    """A task, or all of them."""
    return ALL_TASKS if task is None else task


def heading(task: str | None) -> str:
    """What stands above the panel of a task."""
    return f"{ALL_TASKS} (median)" if task is None else task


def panel_title(above: str, *below: str) -> alt.TitleParams:
    """The title of a panel, and what stands below it, a line each; empty ones are left out."""
    lines = [line for line in below if line]
    if not lines:
        return alt.TitleParams(above)
    return alt.TitleParams(above, subtitle=lines, subtitleColor=theme.colour("text"))


def drafted(depth: int) -> str:
    """A depth: `no speculation`, `1 token drafted`."""
    if depth == 0:
        return "no speculation"
    return f"{depth} {'token' if depth == 1 else 'tokens'} drafted"


def graphs(on: bool) -> str:
    """Whether CUDA graphs are on."""
    return "with graphs" if on else "without graphs"


def setting(row: Mapping[str, Any]) -> str:
    """A depth with and without graphs: `3 tokens drafted, with graphs, block_size=32`."""
    words = (drafted(row["depth"]), graphs(row["graphs"]), further(row.get("extra")))
    return ", ".join(word for word in words if word)


def speed_words(speed: float) -> str:
    """Tokens/s, as exact as it can be told: `23.5`, `594.9`, `1,204`."""
    return f"{speed:,.1f}" if speed < 1000 else f"{speed:,.0f}"


def interval_words(low: float | None, high: float | None) -> str:
    """The ends of an interval: `461.9 to 780.8`; `not known` where nothing tells it."""
    if low is None or high is None:
        return "not known"
    return f"{speed_words(low)} to {speed_words(high)}"


def factor(ratio: float) -> str:
    """A ratio: `×1.49`."""
    return f"×{ratio:.2f}"


def doubts(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with a setting: output that is broken, speculation that does not work."""
    found = []
    if row["broken"]:
        whole = row["broken"] == row["cells"]
        share = "" if whole else f" in {row['broken']} of {row['cells']} cells"
        found.append(f"its output is broken{share}")
    if row["spec_state"] in ("ineffective", "suspect"):
        found.append(f"speculation is {row['spec_state']}")
    return found
