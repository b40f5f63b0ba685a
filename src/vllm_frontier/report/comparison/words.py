"""What is said of sweeps side by side, for terminal and pages alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from vllm_frontier.analyze.comparison.memory import FOR_CACHE, ORDER
from vllm_frontier.analyze.comparison.windows import Reach
from vllm_frontier.analyze.memory_split import Part
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.grid import shortest
from vllm_frontier.report.plots.words import windows as window_names
from vllm_frontier.report.wording import listed, several

_Key: TypeAlias = tuple[int, bool, tuple[tuple[str, Any], ...]]

_NONE = "-"
_NOTHING_GIB = 0.005
_ROWS_MAX = 60


def quoted(name: str) -> str:
    """The name of a sweep within a sentence: it may be any word."""
    return f'"{name}"'


def heading(names: Sequence[str]) -> str:
    """What is held against what, the base first in `names`."""
    return f"{listed([quoted(name) for name in names[1:]])} against {quoted(names[0])}"


def nothing_fast(base: str, name: str) -> str:
    """Where there is no speed to compare."""
    return f"No cell that works in {quoted(base)} and {quoted(name)} has a speed in both."


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
    state = sweep["state"] if sweep["reason"] is None else "stopped by its budget"
    cells = f"{sweep['done']} of {several(sweep['planned'], 'cell', 'cells')}"
    return f"{sweep['name']}: {sweep['folder']}, {state}, {cells}"


def share_of_base(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any window is longer or shorter than that of the base."""
    return any(row["share"] for row in rows)


def percent(share: float) -> str:
    """A share of the base, more or less; 0 without a sign."""
    return f"{100 * share:+.1f} %" if share else "0 %"


def windows_of(base: int, other: int) -> str:
    """The windows of two cells, where a line has little room."""
    if base == other:
        return str(base)
    short, _ = window_names((base, other))
    first, last = short[base], short[other]
    return f"{first.removesuffix('k') if last.endswith('k') else first}/{last}"


def shares_of(base: float, other: float) -> str:
    """The utilization of two cells, where a line has little room."""
    return shortest(base) if base == other else f"{shortest(base)}/{shortest(other)}"


def only_in(document: Mapping[str, Any]) -> Iterator[str]:
    """How many cells are not in all grids, and why."""
    for each in document["only_in"]:
        axes = [
            f"{name} {value(values)}" for name, values in each["axes"].items() if name != "extra"
        ]
        where = f" ({'; '.join(axes)})" if axes else ""
        cells = several(each["cells"], "cell", "cells")
        names = listed([quoted(name) for name in each["sweeps"]])
        yield f"Only in the grid of {names}: {cells}{where}."


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
    only = [f"{count} only in {quoted(of)}" for of, count in alone if count]
    if not both:
        return f"No combination of the other axes is in both grids ({', '.join(only)})."
    told = [f"{words} in {counts[each]}" for each, words in _REACHES.items() if counts[each]]
    combinations = several(len(both), "combination", "combinations")
    further = f"; {' and '.join(only)}" if only else ""
    return f"The window of {quoted(name)} {listed(told)} of {combinations}{further}."


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
    return f"{quoted(name)} is {listed(parts)} of {cells}, held against {quoted(base)}."


def telling(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    """Rows of speeds, as many as can be looked at, and a sentence where these are not all.

    Of many those with the lowest and the highest ratio of each depth, graphs and further axes.
    """
    if len(rows) <= _ROWS_MAX:
        return list(rows), None
    groups: dict[_Key, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_setting(row), []).append(row)
    kept: list[dict[str, Any]] = []
    for group in groups.values():
        ordered = sorted(group, key=lambda row: float(row["ratio"]))
        kept += ordered[:1] + ordered[1:][-1:]
    told = f"{len(kept)} of {len(rows)} pairs: the lowest and the highest ratio of each setting."
    return kept, told


def at_largest_share(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of combinations that differ in utilization only that with the largest both know."""
    found: dict[_Key, Mapping[str, Any]] = {}
    for row in rows:
        if None in row["budget_gib"].values():
            continue
        key = _setting(row)
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


def window_needs(document: Mapping[str, Any], name: str) -> Iterator[str]:
    """What one window takes in the base and in another sweep.

    What it takes depends on depth and graphs, so all sweeps are told at the same ones.
    """
    needs = _needs(document)
    if name not in needs:
        return
    own, told = needs[name], _told_at(document, needs)
    key = told if told in own else max(own, key=lambda each: _by_window(each, [own]))
    row, window = own[key], own[key]["window"]
    further = "".join(f", {axis} {value(row[axis])}" for axis in row["extra_axes"])
    graphs = "with" if row["graphs"] else "without"
    yield (
        f"At depth {row['depth']} {graphs} graphs{further} a window of {window['context']} tokens "
        f"takes {window['base']:.2f} GiB of KV cache in {quoted(document['base'])}, "
        f"{window['other']:.2f} GiB in {quoted(name)}."
    )


def _needs(document: Mapping[str, Any]) -> dict[str, dict[_Key, Mapping[str, Any]]]:
    """By sweep and setting the row with the longest window of which both know what it takes."""
    found: dict[str, dict[_Key, Mapping[str, Any]]] = {}
    for row in document["memory"]:
        if row["window"] is not None:
            own = found.setdefault(row["against"], {})
            known = own.get(_setting(row))
            if known is None or known["window"]["context"] < row["window"]["context"]:
                own[_setting(row)] = row
    return found


def _told_at(
    document: Mapping[str, Any], needs: Mapping[str, Mapping[_Key, Mapping[str, Any]]]
) -> _Key | None:
    """The setting that is told: that of the base's balanced choice where all know it."""
    known = set.intersection(*(set(each) for each in needs.values()))
    if not known:
        return None
    cells = {each["choice"]: each["sweeps"][document["base"]] for each in document["choices"]}
    balanced = cells.get("balanced")
    if balanced is not None and _setting(balanced) in known:
        return _setting(balanced)
    return max(known, key=lambda each: _by_window(each, needs.values()))


def _by_window(
    key: _Key, needs: Iterable[Mapping[_Key, Mapping[str, Any]]]
) -> tuple[int, int, bool, str]:
    """The order of settings: the longest window that all know, then what is deepest."""
    depth, graphs, further = key
    least = min(each[key]["window"]["context"] for each in needs)
    return least, depth, graphs, str(further)


def _setting(row: Mapping[str, Any]) -> _Key:
    """What decides how much a window takes, and how fast a cell is."""
    further = tuple((name, row[name]) for name in row["extra_axes"])
    return row["depth"], row["graphs"], further


def untold(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str | None]:
    """Combinations without those of which no difference is known, and a sentence about these."""
    kept = [row for row in rows if any(part["difference"] is not None for part in row["parts"])]
    left = len(rows) - len(kept)
    if not left:
        return kept, None
    combinations = several(left, "combination", "combinations")
    return kept, f"{combinations} more, of which not both sweeps tell where the memory goes."


def unlike(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The parts with a difference somewhere, and sentences about those of which none is known."""
    gaps: dict[str, list[float | None]] = {part: [] for part in parts_of(rows)}
    for row in rows:
        for part in row["parts"]:
            if part["part"] in gaps:
                gaps[part["part"]].append(part["difference"])
    gaps.pop(FOR_CACHE, None)
    unknown = [part for part, own in gaps.items() if all(gap is None for gap in own)]
    alike = [part for part, own in gaps.items() if all(_is_nothing(gap) for gap in own)]
    told = [f"No difference: {', '.join(alike)}."] if alike else []
    told += [f"Not known of both: {', '.join(unknown)}."] if unknown else []
    return [part for part in gaps if part not in (*alike, *unknown)], told


def _is_nothing(gap: float | None) -> bool:
    return gap is not None and abs(gap) < _NOTHING_GIB


def left_for_cache(rows: Iterable[Mapping[str, Any]], base: str, name: str) -> str:
    """How much more or less is left for the KV cache."""
    own, other = quoted(base), quoted(name)
    gaps = [
        part["difference"]
        for row in rows
        for part in row["parts"]
        if part["part"] == FOR_CACHE and part["difference"] is not None
    ]
    if not gaps:
        return "What is left for the KV cache is not known of both."
    low, high = min(gaps), max(gaps)
    if max(abs(low), abs(high)) < _NOTHING_GIB:
        return f"As much is left for the KV cache in {other} as in {own}."
    if low < 0 < high:
        return (
            f"From {-low:.2f} GiB less to {high:.2f} GiB more are left for the KV cache in {other}."
        )
    ends = sorted({f"{abs(each):.2f}" for each in (low, high)}, key=float)
    more = "less" if high <= 0 else "more"
    return f"{' to '.join(ends)} GiB {more} are left for the KV cache in {other} than in {own}."


def graphs_moved(rows: Iterable[Mapping[str, Any]], base: str, name: str) -> Iterator[str]:
    """Where one sweep counts its graphs in the share of the card and the other does not."""
    told = {
        (part["part"], side)
        for row in rows
        for part in row["parts"]
        for side in ("base", "other")
        if (part[side] or 0.0) >= _NOTHING_GIB
    }
    for inside, outside in (("base", "other"), ("other", "base")):
        if {(Part.GRAPHS.value, inside), (Part.OUTSIDE.value, outside)} <= told:
            names = {"base": quoted(base), "other": quoted(name)}
            within, beside = names[inside], names[outside]
            yield f"Graphs are counted in the share in {within}, beside it in {beside}."
