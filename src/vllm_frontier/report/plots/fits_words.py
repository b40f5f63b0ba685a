"""What the picture of what fits says in words: cells, summary and legend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from vllm_frontier.analyze.cell_states import CellState, Reason
from vllm_frontier.report.plots import words
from vllm_frontier.report.wording import listed, several

_PANEL = ("extra", "graphs", "utilization")
_FIGURES = ("kv_needed_gib", "kv_available_gib", "max_context_estimate")
# Drawn in a cell and told in the legend, so that no colour has to be seen.
SIGNS = {
    Reason.CACHE.value: ("M-.6,-.6L.6,.6M-.6,.6L.6,-.6", "×"),
    Reason.OUT_OF_MEMORY.value: ("M-.7,.55L0,-.65L.7,.55Z", "△"),
    Reason.SHARE.value: ("M-.7,0L.7,0", "–"),
    Reason.INVALID.value: ("M0,-.75L.75,0L0,.75L-.75,0Z", "◇"),
    Reason.BROKE.value: ("M0,-.8L0,.25M0,.6L0,.8", "!"),
    CellState.INTERRUPTED.value: ("M-.5,-.35A.5,.5,0,1,1,0,.15L0,.3M0,.65L0,.8", "?"),
    CellState.RUNNING.value: ("M-.45,-.65L.65,0L-.45,.65Z", "▷"),
}


def description(row: Mapping[str, Any]) -> str:
    """What is read aloud and shown of a cell."""
    place = f"{words.tokens(row['context'])} tokens, {words.settings(row)}"
    state = row["state"]
    if row["failure_class"]:
        state += f": {row['failure_class']}"
    told = [f"{place}: {state}"]
    if row["evidence_cell"] is not None:
        told += _follows(row)
    told += _figures(row)
    if row["spec_state"] not in (None, "working"):
        told.append(f"speculation {row['spec_state']}")
    return "; ".join(told)


def _follows(row: Mapping[str, Any]) -> list[str]:
    if row["from_context"] is None:
        return [f"follows from cell {row['evidence_cell']}"]
    origin = {name: row[f"from_{name}"] for name in ("depth", *_PANEL)}
    differs = [f"{words.tokens(row['from_context'])} tokens", f"depth {origin['depth']}"]
    if any(origin[name] != row[name] for name in _PANEL):
        differs.append(words.panel(origin))
    figures = _figures({name: row[f"from_{name}"] for name in _FIGURES})
    told = f"follows from {', '.join(differs)}"
    return [f"{told} ({', '.join(figures)})" if figures else told]


def _figures(row: Mapping[str, Any]) -> list[str]:
    """What vLLM's log told of a launch's memory."""
    needed, available, longest = (row[name] for name in _FIGURES)
    told = []
    if needed is not None:
        told.append(f"needs {needed:.2f} GiB of KV cache")
    if available is not None:
        told.append(f"has {available:.2f} GiB" + ("" if needed else " of KV cache"))
    if longest is not None:
        told.append(f"{words.tokens(longest)} tokens would fit")
    return told


def summary(cells: pl.DataFrame, boundaries: pl.DataFrame) -> str:
    """How many cells work, why others do not, and how long a window gets."""
    states = cells["state"].value_counts()
    counts = dict(states.iter_rows())
    works = counts.get(CellState.WORKS, 0) + counts.get(CellState.INFERRED_WORKS, 0)
    refused = counts.get(CellState.REFUSED, 0) + counts.get(CellState.INFERRED_REFUSED, 0)
    text = [f"{works} of {several(cells.height, 'cell works', 'cells work')}"]
    if refused:
        text[0] += f", {refused} {'does' if refused == 1 else 'do'} not ({_because(cells)})"
    others = [
        f"{counts[state]} {state.value}"
        for state in (
            CellState.FAILED,
            CellState.INTERRUPTED,
            CellState.RUNNING,
            CellState.NOT_TRIED,
        )
        if state in counts
    ]
    text[0] += f"; {listed(others)}" if others else ""
    longest = boundaries["max_context_works"].max()
    if isinstance(longest, int):
        text.append(_longest(boundaries, longest))
    inferred = counts.get(CellState.INFERRED_WORKS, 0) + counts.get(CellState.INFERRED_REFUSED, 0)
    if inferred:
        text.append(f"{several(inferred, 'cell follows', 'cells follow')} from launches of others")
    return " ".join(words.sentence(each) for each in text)


def _because(cells: pl.DataFrame) -> str:
    refused = cells.filter(pl.col("state").is_in([CellState.REFUSED, CellState.INFERRED_REFUSED]))
    reasons = refused["reason"].drop_nulls().value_counts(sort=True)
    if reasons.height == 1:
        return str(reasons["reason"].item())
    return ", ".join(f"{count}: {reason}" for reason, count in reasons.iter_rows())


def _longest(boundaries: pl.DataFrame, longest: int) -> str:
    """The longest window that works, and with what."""
    settled = boundaries["verified"].all()
    text = "the longest window that works" if settled else "the longest window known to work"
    text += f" is {words.tokens(longest)} tokens"
    where = boundaries.filter(pl.col("max_context_works") == longest)
    deepest = where.sort(
        *("depth", "utilization", "graphs", "extra"), descending=[True, False, True, False]
    ).row(0, named=True)
    if where.height == 1:
        return f"{text}, with {words.settings(deepest)}"
    if where.height == boundaries.height:
        return f"{text}, with all other settings"
    return (
        f"{text}, in {where.height} of {boundaries.height} combinations of the other settings, "
        f"up to depth {deepest['depth']} (with {words.panel(deepest)})"
    )


def legend(drawn: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    """What is in the picture, what works first."""
    states = list(CellState)
    kinds = drawn.select("state", "reason", "colour").unique()
    order = sorted(kinds.rows(), key=lambda each: (states.index(CellState(each[0])), str(each[1])))
    return tuple(
        dict.fromkeys((colour, _meaning(state, reason)) for state, reason, colour in order)
    )


def _meaning(state: str, reason: str | None) -> str:
    sign = SIGNS.get(reason or state, ("", ""))[1]
    if state == CellState.WORKS:
        return "■ works, launched"
    if state == CellState.INFERRED_WORKS:
        return "□ works, follows from a launch"
    if state == CellState.REFUSED:
        return f"{sign} filled: {reason}, launched"
    if state == CellState.INFERRED_REFUSED:
        return f"{sign} open: {reason}, follows from a launch"
    return f"{sign or '□'} {reason or state}"
