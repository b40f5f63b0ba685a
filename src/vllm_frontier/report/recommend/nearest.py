"""Where no cell satisfies what is asked for: what comes nearest, and what it misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from vllm_frontier.analyze.latest import counted, does_not_work, works
from vllm_frontier.analyze.nearest import CONTEXT, DECODE, OVERALL, UTILIZATION
from vllm_frontier.grid import shortest
from vllm_frontier.report.wording import listed, several

_GIVES_WAY = {
    CONTEXT: "a shorter window",
    DECODE: "less speed",
    UTILIZATION: "a larger utilization",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a choice must satisfy.

    Attributes:
        task: whose speed counts; None: the median over tasks.
        min_context: shortest window, tokens.
        min_decode: slowest decoding, tokens/s.
        max_utilization: largest share of the card's memory.
    """

    task: str | None = None
    min_context: int | None = None
    min_decode: float | None = None
    max_utilization: float | None = None

    def constraints(self) -> dict[str, str]:
        """The constraints that there are, in words, by name."""
        found = {}
        if self.min_context is not None:
            found[CONTEXT] = f"a window of at least {self.min_context} tokens"
        if self.min_decode is not None:
            of_task = f" for {self.task}" if self.task is not None else ""
            found[DECODE] = f"at least {self.min_decode:.6g} tokens/s{of_task}"
        if self.max_utilization is not None:
            found[UTILIZATION] = f"a utilization of at most {shortest(self.max_utilization)}"
        return found


def missing(row: Mapping[str, Any], wanted: Wanted) -> list[dict[str, Any]]:
    """What a cell misses: `constraint`, `wanted`, `found`, `by` and `words` of each.

    Args:
        row: of the frame `nearest`.
        wanted: what was asked for.
    """
    found = []
    if (by := row["missing_context"]) is not None:
        words = f"its window is {row['context']} tokens, {by:.0f} short of "
        found.append(_told(CONTEXT, wanted.min_context, row["context"], int(by), words))
    if (by := row["missing_decode"]) is not None:
        speed = row["decode_tok_s"]
        words = f"it decodes {_speed(speed)} tokens/s, {_speed(by)} short of "
        found.append(_told(DECODE, wanted.min_decode, speed, by, words))
    if (by := row["missing_utilization"]) is not None:
        share = row["utilization"]
        words = f"it needs a utilization of {shortest(share)}, {by:.4g} above "
        found.append(_told(UTILIZATION, wanted.max_utilization, share, by, words))
    return found


def headline(row: Mapping[str, Any]) -> str:
    """In what a cell comes nearest, in words."""
    gives = [_GIVES_WAY[name] for name in row["nearest_in"] if name != OVERALL]
    if not gives:
        return "nearest of all"
    of_all = " (and the nearest of all)" if OVERALL in row["nearest_in"] else ""
    return f"nearest if {listed(gives, 'or')} will do{of_all}"


def reason(wanted: Wanted, cells: pl.DataFrame) -> str:
    """Why there is nothing to recommend, though some cells work.

    Args:
        wanted: what was asked for.
        cells: every cell that works and has a speed, with the speed that counts.
    """
    asked = list(wanted.constraints().values())
    longest, fastest = cells.select(pl.col("context", "decode_tok_s").max()).row(0)
    # Each may well be satisfied by some cell, which then is no contradiction.
    together = f" {'both' if len(asked) == 2 else 'all'} at once" if len(asked) > 1 else ""
    alone = " taken alone," if together else ""
    return (
        f"no cell with a speed has {listed(asked)}{together}:{alone} the longest window with a "
        f"speed is {longest} tokens, the fastest cell decodes {_speed(fastest)} tokens/s"
    )


def notes(
    wanted: Wanted,
    trials: pl.DataFrame,
    grid: Mapping[str, Any],
    cells: pl.DataFrame,
    nearest: pl.DataFrame,
) -> Iterator[str]:
    """What the grid and the launches say about constraints that no cell satisfies by itself.

    Args:
        wanted: what was asked for.
        trials: the table `trials`.
        grid: of the configuration.
        cells: every cell that works and has a speed, with the speed that counts.
        nearest: the frame `nearest`.
    """
    known = counted(trials.lazy()).collect()
    yield from _in_vain(wanted, nearest)
    if wanted.min_context is not None:
        yield from _about_windows(wanted.min_context, known, max(grid["context"]), cells)
    if wanted.max_utilization is not None:
        yield from _about_shares(wanted.max_utilization, min(grid["utilization"]), cells)
    yield from _without_speed(wanted, known, cells)


def _in_vain(wanted: Wanted, nearest: pl.DataFrame) -> Iterator[str]:
    """Limits that may give way altogether without any cell satisfying the others."""
    asked = wanted.constraints()
    found = set(nearest["nearest_in"].explode())
    for name in asked:
        if name not in found and len(asked) > 1:
            yield f"{_GIVES_WAY[name]} alone does not help: no cell satisfies the other limits"


def _about_windows(least: int, known: pl.DataFrame, end: int, cells: pl.DataFrame) -> Iterator[str]:
    if least > end:
        yield f"the grid ends at a window of {end} tokens: longer ones were not tried"
    refused = known.lazy().filter(pl.col("context") >= least, does_not_work()).collect()
    if not refused.is_empty() and cells.filter(pl.col("context") >= least).is_empty():
        count = several(refused.height, "cell", "cells")
        does = "does" if refused.height == 1 else "do"
        yield f"{count} with such a window {does} not work ({_classes(refused)})"


def _classes(refused: pl.DataFrame) -> str:
    """Why cells do not work, the most frequent first; with counts where there are several."""
    classes = refused.group_by("failure_class").len()
    rows = classes.sort("len", "failure_class", descending=[True, False]).rows()
    return ", ".join(f"{count} {name}" for name, count in rows) if len(rows) > 1 else rows[0][0]


def _about_shares(most: float, least: float, cells: pl.DataFrame) -> Iterator[str]:
    if most < least:
        yield (
            f"the smallest utilization of the grid is {shortest(least)}: smaller ones were not "
            "tried"
        )
    elif not cells.is_empty() and (smallest := min(cells["utilization"])) > most:
        yield f"the smallest utilization of a cell with a speed is {shortest(smallest)}"


def _without_speed(wanted: Wanted, known: pl.DataFrame, cells: pl.DataFrame) -> Iterator[str]:
    """Cells that may satisfy it, of which no speed is known."""
    silent = known.lazy().filter(works()).collect()
    silent = silent.filter(~pl.col("cell_id").is_in(cells["cell_id"].to_list()))
    if wanted.min_context is not None:
        silent = silent.filter(pl.col("context") >= wanted.min_context)
    if wanted.max_utilization is not None:
        silent = silent.filter(pl.col("utilization") <= wanted.max_utilization)
    if not silent.is_empty():
        yield (
            f"{several(silent.height, 'more cell works', 'more cells work')} with such a window "
            "and utilization, but without a speed that counts"
        )


def _speed(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _told(name: str, wanted: float | None, found: float, by: float, words: str) -> dict[str, Any]:
    shown = shortest(wanted or 0)
    return {
        "constraint": name,
        "wanted": wanted,
        "found": found,
        "by": by,
        "words": f"{words}{shown}",
    }
