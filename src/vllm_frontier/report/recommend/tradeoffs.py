"""What a choice costs against the others, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from vllm_frontier.analyze.checks.evidence import LAUNCHES_DIFFER
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.analyze.verdicts import Verdict, verdicts

_SAME_GIB = 0.005

Choice = Mapping[str, Any]


def against(
    chosen: Sequence[Choice], figures: pl.DataFrame, task: str | None = None
) -> list[list[dict[str, Any]]]:
    """Each choice against each other one.

    Args:
        chosen: the choices, as objects.
        figures: of `cell_figures`.
        task: whose speed counts; None for all.

    Returns:
        For each choice an object for each other: `choice` (what that is), `cell_id` (its own),
        `context_ratio` and `decode_ratio` (with `decode_ratio_low` and `_high`, null where
        launches do not show how much they differ), `verdict` (of the speed: `faster`, `slower`
        or `no clear difference`), `basis` (of the verdict: `launches`, or `runs` where only runs
        within launches tell it), `utilization` and `kv_headroom_gib` (how much more it has;
        null: not known) and `words`.
    """
    places = [(one, other) for one in chosen for other in chosen if one is not other]
    pairs = pl.LazyFrame(
        {
            "cell_id": [one["speed_cell"] for one, _ in places],
            "other_cell_id": [other["speed_cell"] for _, other in places],
            "task": [task] * len(places),
        },
        schema={"cell_id": pl.String, "other_cell_id": pl.String, "task": pl.String},
    )
    told = verdicts(figures, pairs).collect().iter_rows(named=True)
    found = {(each["cell_id"], each["other_cell_id"]): each for each in told}
    return [
        [
            _compared(one, other, found[one["speed_cell"], other["speed_cell"]])
            for other in chosen
            if other is not one
        ]
        for one in chosen
    ]


def _compared(one: Choice, other: Choice, speed: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {
        "context_ratio": one["context"] / other["context"],
        "decode_ratio": speed["ratio"],
        "decode_ratio_low": speed["ratio_low"],
        "decode_ratio_high": speed["ratio_high"],
        "verdict": speed["verdict"],
        "basis": speed["basis"],
        "utilization": _more(one, other, "utilization"),
        "kv_headroom_gib": _more(one, other, "kv_headroom_gib"),
    }
    parts = [_window(one, other), _speed(numbers), *_memory(numbers)]
    names = ", ".join(other["choices"])
    return {
        "choice": names,
        "cell_id": other["cell_id"],
        **numbers,
        "words": f"against the {names}: {', '.join(parts)}",
    }


def _more(one: Choice, other: Choice, name: str) -> float | None:
    if one[name] is None or other[name] is None:
        return None
    return float(one[name] - other[name])


def _window(one: Choice, other: Choice) -> str:
    more = one["context"] - other["context"]
    return f"{abs(more)} tokens {_word(more)} window" if more else "the same window"


def _speed(numbers: Mapping[str, Any]) -> str:
    ratio, verdict = numbers["decode_ratio"], numbers["verdict"]
    if ratio is None:
        return str(verdict)
    if verdict == Verdict.NO_CLEAR_DIFFERENCE:
        return f"no clear difference in speed ({ratio:.2f} x)"
    # What commonly lies between two launches is no proof within one.
    small = numbers["basis"] == RUNS and abs(math.log(ratio)) <= math.log1p(LAUNCHES_DIFFER)
    luck = " within launches, which may be luck" if small else ""
    return f"{ratio:.2f} x as fast (verdict: {verdict}{luck})"


def _memory(numbers: Mapping[str, Any]) -> list[str]:
    told = []
    share, spare = numbers["utilization"], numbers["kv_headroom_gib"]
    if share:
        told.append(f"{abs(share):.6g} {_word(share)} utilization")
    if spare is not None and abs(spare) >= _SAME_GIB:
        told.append(f"{abs(spare):.2f} GiB {_word(spare)} KV cache to spare")
    return told


def _word(more: float) -> str:
    return "more" if more > 0 else "less"
