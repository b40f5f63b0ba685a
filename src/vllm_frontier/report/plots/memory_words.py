"""What the picture of the memory says in words: parts, cells, table and legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from vllm_frontier.analyze.cell_states import Reason, reason_of
from vllm_frontier.analyze.memory_split import BEYOND, Part, Source
from vllm_frontier.outcome import FailureClass
from vllm_frontier.report.plots import words
from vllm_frontier.report.plots.memory_bars import ROUNDED_GIB, Bar
from vllm_frontier.report.wording import listed

COLOURS = {
    Part.WEIGHTS: "series-1",
    Part.WEIGHTS_AND_HEAD: "series-1",
    Part.HEAD: "series-4",
    Part.ACTIVATION: "series-2",
    Part.GRAPHS: "series-7",
    Part.RESERVED: "series-1",
    Part.OTHER: "series-8",
    Part.NOT_KNOWN: "unknown",
    Part.STATE: "series-5",
    Part.CACHE: "series-3",
    Part.LEFT: "series-3",
    Part.MISSING: "refused",
    Part.OUTSIDE: "series-7",
}
SHORT = {
    Part.WEIGHTS: "W",
    Part.WEIGHTS_AND_HEAD: "W",
    Part.HEAD: "H",
    Part.ACTIVATION: "A",
    Part.GRAPHS: "G",
    Part.RESERVED: "R",
    Part.OTHER: "O",
    Part.NOT_KNOWN: "?",
    Part.STATE: "S",
    Part.CACHE: "K",
    Part.LEFT: "L",
    Part.MISSING: "M",
    Part.OUTSIDE: "G",
}
_FULL, _ALL_LEFT = "one full window", "all that is left for it"
_MEANING = {
    Part.WEIGHTS: "weights",
    Part.WEIGHTS_AND_HEAD: "weights, those of the speculative head included",
    Part.HEAD: "speculative head: what its weights add to those of depth 0",
    Part.ACTIVATION: "activation: peak of the largest step",
    Part.GRAPHS: "CUDA graphs",
    Part.RESERVED: "reserved for weights, head and activation",
    Part.OTHER: "other: what no log tells",
    Part.NOT_KNOWN: "not known: the launch ended before vLLM told",
    Part.STATE: "state: what a window needs however short it is",
    Part.CACHE: f"KV cache: {_FULL}, or {_ALL_LEFT}",
    Part.LEFT: "left over for more than one window",
    Part.MISSING: "missing: what one full window would need beyond that",
    Part.OUTSIDE: "CUDA graphs, which this version takes beside the share",
}
SOURCES = {
    Source.LOGGED: "as vLLM logged it",
    Source.DERIVED: "derived, not logged as such",
    Source.DECLARED: "as the card's configuration declares",
}
_ELSEWHERE = {
    FailureClass.OOM_LOAD: "ran out of memory while weights were loaded",
    FailureClass.OOM_PROFILE: "ran out of memory while the largest step was tried",
    FailureClass.OOM_GRAPH_CAPTURE: "ran out of memory while CUDA graphs were captured",
    FailureClass.OOM_WARMUP: "ran out of memory while it warmed up",
    FailureClass.OOM_SERVE: "ran out of memory while a request was served",
    FailureClass.STATE_SLOTS_TOO_FEW: "too few blocks of state fit",
}
_ALL_TAKEN = (
    FailureClass.OOM_GRAPH_CAPTURE,
    FailureClass.OOM_WARMUP,
    FailureClass.OOM_SERVE,
)
"""What happens when weights, activation and KV cache are there already."""


def meaning(part: Part, bar: Bar) -> str:
    """What a part of a bar is."""
    if part is Part.CACHE:
        return f"KV cache: {_ALL_LEFT if bar.refused else _FULL}"
    return _MEANING[part]


def summary(bar: Bar) -> str:
    """What a cell's bar says."""
    row = bar.row
    text = words.sentence(bar.title).removesuffix(".")
    if bar.refused:
        return words.sentence(f"{text}: {_why(row)}{_held_by_others(bar)}")
    sizes: dict[str, float] = dict(bar.parts.select("part", "gib").iter_rows())
    needed, available = row["needed_gib"], row["available_gib"]
    taken = [
        f"{part.value} {sizes[part]:.2f}"
        for part in Part
        if part in sizes and part not in (*BEYOND, Part.CACHE, Part.STATE, Part.LEFT)
        if sizes[part] >= ROUNDED_GIB
    ]
    text += f": of {row['budget_gib']:.2f} GiB, {listed(taken)} GiB" if taken else ""
    if available is not None:
        text += f"; {available:.2f} GiB are left for the KV cache"
    if needed is not None:
        text += f", of which one full window needs {needed:.2f}"
    return words.sentence(text)


def _why(row: Mapping[str, Any]) -> str:
    """Why a cell is refused, in figures where memory for the KV cache is what it lacks."""
    needed, available = row["needed_gib"], row["available_gib"]
    failure = row["failure_class"] and FailureClass(row["failure_class"])
    if failure == FailureClass.UTILIZATION_ABOVE_FREE and row["free_gib"]:
        return f"{row['budget_gib']:.2f} GiB are asked for, {row['free_gib']:.2f} are free"
    if failure in _ELSEWHERE:
        text = _ELSEWHERE[failure]
        if needed is None or available is None:
            return text
        return f"{text}; its KV cache has {available:.2f} GiB and needs {needed:.2f}"
    if failure and reason_of(failure) is not Reason.CACHE:
        return reason_of(failure).value
    if needed is None or available is None:
        return "how much is missing is not known"
    missing = needed - max(available, 0.0)
    told = f"{missing:.2f} GiB are missing" if missing >= 0.005 else "hardly anything is missing"
    over = f", and {-available:.2f} GiB before it" if available < 0 else ""
    return f"needs {needed:.2f} GiB of KV cache, {told}{over}"


def _held_by_others(bar: Bar) -> str:
    """Where memory ran out though the parts of the bar do not fill the card."""
    row = bar.row
    sizes = bar.parts.filter(
        pl.col("gib") > 0, ~pl.col("part").is_in([Part.MISSING.value, Part.NOT_KNOWN.value])
    )
    taken = float(sizes["gib"].sum())
    complete = Part.NOT_KNOWN.value not in set(bar.parts["part"])
    full = taken > row["card_gib"] - ROUNDED_GIB
    if row["failure_class"] not in _ALL_TAKEN or not complete or full:
        return ""
    return (
        f"; what is known of it comes to {taken:.2f} of the card's {row['card_gib']:.2f} GiB, so "
        "that others held memory, or something was taken that no log tells"
    )


def table(shown: Sequence[Bar]) -> pl.DataFrame:
    """A row for each part, a column for each bar; every figure says where it comes from."""
    present = [part for part in Part if any(part in set(bar.parts["part"]) for bar in shown)]
    columns: dict[str, list[str]] = {
        "GiB": [*(each.value for each in present), "of the card", "one full window needs"]
    }
    for bar in shown:
        told = {row["part"]: row for row in bar.parts.iter_rows(named=True)}
        cells = [
            f"{told[part]['gib']:.2f} {told[part]['source']}" if part in told else ""
            for part in present
        ]
        needed = bar.row["needed_gib"]
        cells += [
            f"{bar.row['budget_gib']:.2f} of {bar.row['card_gib']:.2f}",
            "" if needed is None else f"{needed:.2f}",
        ]
        columns[f"{bar.name}, {words.tokens(bar.row['context'])}"] = cells
    return pl.DataFrame(columns)


def legend(shown: Sequence[Bar]) -> tuple[tuple[str, str], ...]:
    """What colours and letters mean."""
    found = []
    for part in Part:
        told = {meaning(part, bar) for bar in shown if part in set(bar.parts["part"])}
        if told:
            found.append((COLOURS[part], f"{SHORT[part]} {_both(part, told)}"))
    return tuple(found)


def _both(part: Part, told: set[str]) -> str:
    """What a part is in all bars."""
    return _MEANING[part] if len(told) > 1 else "".join(told)


def notes(shown: Sequence[Bar]) -> Iterator[str]:
    """What must be known to read it."""
    yield (
        "A thick line ends the share of the card that vLLM may take, and what is left of it for "
        "the KV cache; the dashed line is the card."
    )
    if not any(bar.refused for bar in shown):
        yield "Nothing known of this grid is refused for want of memory."
    everything = pl.concat([bar.parts for bar in shown])
    if Source.DERIVED.value in set(everything["source"]):
        yield (
            "Derived figures are no lines of the log: differences of such lines, or what launches "
            "with the same depth and graphs logged."
        )
    if Part.RESERVED.value in set(everything["part"]):
        yield (
            "This engine does not log weights and activation; what the card's configuration "
            "declares stands for them."
        )
    over = everything.filter(pl.col("part") == Part.OTHER.value, pl.col("gib") < -ROUNDED_GIB)
    if not over.is_empty():
        most = -float(over.select(pl.col("gib").min()).item())
        yield f"The logged parts exceed their sum by up to {most:.2f} GiB: some are counted twice."
