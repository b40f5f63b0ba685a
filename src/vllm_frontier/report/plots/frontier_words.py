"""What the picture of the frontier says in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from vllm_frontier.analyze.intervals import LAUNCHES
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.grid import shortest
from vllm_frontier.outcome import Status
from vllm_frontier.report.plots import words
from vllm_frontier.report.wording import listed, on_off, several

_TABLE = 24  # rows


def inferred(row: Mapping[str, Any]) -> bool:
    """Whether the cell was not launched itself."""
    return bool(row["status"] == Status.INFERRED.value)


def described(row: Mapping[str, Any]) -> str:
    """What is read aloud and shown of a cell."""
    told = []
    if row["choices"]:
        told.append(listed(row["choices"]))
    told.append(f"{words.tokens(row['context'])} tokens, {words.settings(row)}")
    speed = f"{row['decode_tok_s']:.1f} tokens/s"
    told.append(speed + _interval(row))
    if row["against_fastest"] == Verdict.NO_CLEAR_DIFFERENCE.value:
        told.append("no clear difference to the fastest")
    if row["room"] is not None:
        told.append(f"{row['room']:.2f} GiB left")
    if inferred(row):
        told.append("follows from a launch, with the speed of another window or share")
    elif row["speed_cell"] != row["cell_id"]:
        told.append("with the speed of another window or share")
    return "; ".join(told)


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["decode_tok_s_low"], row["decode_tok_s_high"]
    if low is None or high is None:
        return ""
    basis = "" if row["interval_basis"] == LAUNCHES else ", within launches"
    return f" (95 %: {low:.1f} to {high:.1f}{basis})"


def summary(leading: pl.DataFrame) -> str:
    """What the choices are, in words."""
    chosen = leading.filter(pl.col("choices").is_not_null())
    told = []
    for row in chosen.iter_rows(named=True):
        speed = f"{row['decode_tok_s']:.1f} tokens/s{_interval(row)}"
        window = f"{words.tokens(row['context'])} tokens"
        told.append(f"{listed(row['choices'])}: {window} at {speed}, with {words.settings(row)}")
    others = leading.filter(pl.col("choices").is_null())["utilization"].unique().sort().to_list()
    if others:
        more = several(leading.height - chosen.height, "more cell leads", "more cells lead")
        shares = " to ".join(shortest(each) for each in dict.fromkeys((others[0], others[-1])))
        told.append(f"{more}, with utilization {shares}")
    tied = (leading["against_fastest"] == Verdict.NO_CLEAR_DIFFERENCE.value).sum()
    if tied:
        cells = several(int(tied), "cell is", "cells are")
        told.append(f"{cells} as fast as the fastest, as far as the launches tell")
    return " ".join(words.sentence(each) for each in told)


def table(leading: pl.DataFrame) -> pl.DataFrame:
    """The cells that lead, as figures."""
    rows = leading.head(_TABLE)
    told = list(rows.iter_rows(named=True))
    columns: dict[str, Sequence[Any]] = {
        "context": [row["context"] for row in told],
        "depth": [row["depth"] for row in told],
        "graphs": [on_off(row["graphs"]) for row in told],
        "utilization": [shortest(row["utilization"]) for row in told],
        "further": [words.further(row["extra"]) for row in told],
        "tokens/s": [f"{row['decode_tok_s']:.1f}" for row in told],
        "95 %": [_interval(row).removeprefix(" (95 %: ").removesuffix(")") for row in told],
        "spare GiB": ["" if row["room"] is None else f"{row['room']:.2f}" for row in told],
        "": [_marks(row) for row in told],
    }
    return pl.DataFrame(columns).select(
        name for name, values in columns.items() if name != "further" or any(values)
    )


def _marks(row: Mapping[str, Any]) -> str:
    told = list(row["choices"] or ())
    if row["against_fastest"] == Verdict.NO_CLEAR_DIFFERENCE.value:
        told.append("as fast as the fastest")
    if inferred(row):
        told.append("inferred")
    return ", ".join(told)


def legend(cells: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    """What signs and colours are there."""
    leading = cells.filter(pl.col("leads"))
    graphs = set(leading["graphs"])
    told = []
    if True in graphs:
        told.append(("series-1", "● graphs on"))
    if False in graphs:
        told.append(("series-2", "■ graphs off"))
    if (leading["status"] == Status.INFERRED.value).any():
        told.append(("muted", "○ open: follows from a launch"))
    if leading.height < cells.height:
        told.append(("unknown", "• small: beaten by another cell"))
    if (leading["against_fastest"] == Verdict.NO_CLEAR_DIFFERENCE.value).any():
        told.append(("text", "= no clear difference to the fastest"))
    return tuple(told)


def notes(leading: pl.DataFrame, lines: int) -> tuple[str, ...]:
    """What must be known to read it; `lines`: how many shares of the card have one."""
    told = ["The line is the best that can be had of window and speed at once."]
    if lines > 1:
        told = [
            "The line is the best that can be had of window and speed at once; dashed ones are "
            "the best with a smaller share of the card, which stands beside them."
        ]
    rooms = leading.select(least=pl.col("room").min(), most=pl.col("room").max())
    least, most = rooms.row(0)
    if least is not None and leading.height > 1:
        told.append(
            "The larger a mark, the more memory is left beyond one full window: "
            f"{least:.2f} to {most:.2f} GiB."
        )
    if (leading["interval_basis"] != LAUNCHES).any():
        told.append(
            "Intervals within launches do not hold what launches differ by; the next may lie "
            "outside."
        )
    return tuple(told)
