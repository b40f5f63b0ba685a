"""What is said of sweeps side by side, for terminal and pages alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vllm_frontier.analyze.comparison.memory import ORDER
from vllm_frontier.analyze.comparison.windows import Reach
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.grid import shortest
from vllm_frontier.report.plots.words import short_tokens
from vllm_frontier.report.wording import several

_NONE = "-"
_NOTHING_GIB = 0.005
_ROWS_MAX = 60
_STATES = {"running": "running", "interrupted": "interrupted", "finished": "finished"}


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + "".join(words[-1:])


def value(of: Any) -> str:
    """A value of a setting in a line."""
    if isinstance(of, bool):
        return "on" if of else "off"
    if isinstance(of, int | float):
        return shortest(of)
    if isinstance(of, list | tuple):
        return ", ".join(value(each) for each in of) or "none"
    return _NONE if of is None else str(of)


def of_sweep(sweep: Mapping[str, Any]) -> str:
    """A sweep in a line: what it is, and how far."""
    state = _STATES[sweep["state"]] if sweep["reason"] is None else "stopped by its budget"
    cells = f"{sweep['done']} of {several(sweep['planned'], 'cell', 'cells')}"
    return f"{sweep['name']}: {sweep['folder']}, {state}, {cells}"


def signed(difference: int) -> str:
    """How many tokens more or less; 0 without a sign."""
    return f"{difference:+,d}" if difference else "0"


def windows_of(base: int, other: int) -> str:
    """The windows of two cells, where a line has little room."""
    if base == other:
        return str(base)
    short = short_tokens((base, other))
    return f"{short[base]}/{short[other]}"


def only_in(document: Mapping[str, Any]) -> Iterator[str]:
    """How many cells are not in all grids, and why."""
    for each in document["only_in"]:
        axes = [
            f"{name} {value(values)}" for name, values in each["axes"].items() if name != "extra"
        ]
        where = f" ({'; '.join(axes)})" if axes else ""
        cells = several(each["cells"], "cell", "cells")
        yield f"Only in the grid of {listed(each['sweeps'])}: {cells}{where}."


_REACHES = {
    Reach.LONGER: "reaches further",
    Reach.SHORTER: "reaches less far",
    Reach.SAME: "reaches as far",
    Reach.AT_END: "reaches the end of both grids",
    Reach.OPEN: "is not known well enough",
}


def windows(rows: Sequence[Mapping[str, Any]], base: str, name: str) -> str:
    """In how many combinations the window reaches how far."""
    both = [row for row in rows if row["reach"] in set(_REACHES)]
    counts = Counter(row["reach"] for row in rows)
    alone = ((base, counts[Reach.ONLY_BASE]), (name, counts[Reach.ONLY_OTHER]))
    only = [f"{count} only in {of}" for of, count in alone if count]
    if not both:
        return f"No combination of the other axes is in both grids ({', '.join(only)})."
    told = [f"{words} in {counts[each]}" for each, words in _REACHES.items() if counts[each]]
    combinations = several(len(both), "combination", "combinations")
    further = f"; {' and '.join(only)}" if only else ""
    return f"The window of {name} {listed(told)} of {combinations}{further}."


def reach(of: str, base: str, name: str) -> str:
    """What one window is against the other, in words."""
    if of == Reach.ONLY_BASE:
        return f"only in {base}"
    return f"only in {name}" if of == Reach.ONLY_OTHER else of


def speeds(told: Mapping[str, Any], base: str) -> str:
    """How many cells are faster, slower or neither, and by how much."""
    rows, name = told["rows"], told["against"]
    counts = Counter(row["verdict"] for row in rows)
    parts = []
    for verdict in (Verdict.FASTER, Verdict.SLOWER):
        ratios = sorted(row["ratio"] for row in rows if row["verdict"] == verdict)
        if ratios:
            low, high = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
            span = low if low == high else f"{low} to {high}"
            parts.append(f"{verdict.value} in {counts[verdict]} ({span} x)")
    if counts[Verdict.NO_CLEAR_DIFFERENCE]:
        parts.append(f"not clearly different in {counts[Verdict.NO_CLEAR_DIFFERENCE]}")
    cells = several(len(rows), "pair of measured cells", "pairs of measured cells")
    return f"{name} is {listed(parts)} of {cells}, held against {base}."


def telling(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    """Rows of speeds, as many as can be looked at, and a sentence where these are not all.

    Of many those with the lowest and the highest ratio of each depth, graphs and further axes.
    """
    if len(rows) <= _ROWS_MAX:
        return list(rows), None
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        further = tuple((name, row[name]) for name in row["extra_axes"])
        groups.setdefault((row["depth"], row["graphs"], further), []).append(row)
    kept: list[dict[str, Any]] = []
    for group in groups.values():
        ordered = sorted(group, key=lambda row: float(row["ratio"]))
        kept += ordered[:1] + ordered[1:][-1:]
    told = f"{len(kept)} of {len(rows)} pairs: the lowest and the highest ratio of each setting."
    return kept, told


def at_largest_share(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of combinations that differ in utilization only that with the largest both know."""
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        if None in row["budget_gib"].values():
            continue
        further = tuple((name, row[name]) for name in row["extra_axes"])
        key = (row["depth"], row["graphs"], further)
        if key not in found or row["utilization"] > found[key]["utilization"]:
            found[key] = row
    return list(found.values())


def parts_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parts of the memory that occur, in order."""
    told = {
        part["part"]
        for row in rows
        for part in row["parts"]
        if any(abs(part[side] or 0.0) >= _NOTHING_GIB for side in ("base", "other"))
    }
    return [part for part in ORDER if part in told]


def window_needs(rows: Sequence[Mapping[str, Any]], base: str, name: str) -> Iterator[str]:
    """What one window takes in both, of the combination that tells the longest."""
    told = [row["window"] for row in rows if row["window"] is not None]
    if told:
        window = max(told, key=lambda each: each["context"])
        yield (
            f"A window of {window['context']} tokens takes {window['base']:.2f} GiB of KV cache "
            f"in {base}, {window['other']:.2f} GiB in {name}."
        )
