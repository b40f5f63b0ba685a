"""How pictures write lengths, shares and settings."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_frontier.grid import shortest
from vllm_frontier.report.wording import K, in_k, on_off

_HEADING = 42  # letters of a heading in bold that a panel has room for
_LINES_MAX = 5


def tokens(count: int) -> str:
    """A length in full, such as `130,000`."""
    return f"{count:,}"


def short_tokens(counts: Iterable[int]) -> dict[int, str]:
    """Lengths for an axis, such as `130k`: in as few digits as keep them apart."""
    lengths = sorted(set(counts))
    for digits in (0, 1, 2, 3):
        labels = [_thousands(each, digits) for each in lengths]
        if len(set(labels)) == len(lengths):
            return dict(zip(lengths, labels, strict=True))
    return {each: tokens(each) for each in lengths}


def windows(grid: Iterable[int]) -> tuple[dict[int, str], int]:
    """Names of windows for an axis, and how many tokens their `k` stands for.

    Args:
        grid: all windows of the grid: where each is a multiple of 1024, so is `k`, as in the map
            of the terminal.
    """
    lengths = sorted(set(grid))
    if in_k(lengths):
        return {each: f"{each // K}k" for each in lengths}, K
    return short_tokens(lengths), 1000


def further(extra: str | None) -> str:
    """Further axes, such as `max_num_seqs=4, block_size=16`; empty where there are none."""
    axes: Mapping[str, Any] = json.loads(extra or "{}")
    return ", ".join(f"{name}={_value(value)}" for name, value in axes.items())


def settings(row: Mapping[str, Any]) -> str:
    """A cell but for its window, such as `depth 3, graphs on, utilization 0.9`."""
    return f"depth {row['depth']}, {panel(row)}"


def panel(row: Mapping[str, Any]) -> str:
    """Graphs, utilization and further axes, such as `graphs on, utilization 0.9`."""
    told = [f"graphs {on_off(row['graphs'])}", f"utilization {shortest(row['utilization'])}"]
    more = further(row["extra"])
    return ", ".join([*told, more] if more else told)


def lines(text: str, width: int = _HEADING) -> list[str]:
    """A heading in lines that are no longer than a panel is wide, and not many."""
    return textwrap.wrap(
        text,
        width,
        break_on_hyphens=False,
        max_lines=_LINES_MAX,
        placeholder="\N{HORIZONTAL ELLIPSIS}",
    )


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "?", "!")) else ".")


def _thousands(count: int, digits: int) -> str:
    if count < 1000:
        return str(count)
    text = f"{count / 1000:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "k"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return on_off(value)
    return shortest(value) if isinstance(value, int | float) else str(value)
