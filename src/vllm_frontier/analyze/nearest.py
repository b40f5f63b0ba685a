"""Which cells come nearest, where none satisfies all that is asked for."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from vllm_frontier.analyze.task_speeds import of_task
from vllm_frontier.dominance import TIE

CONTEXT, DECODE, UTILIZATION = "min_context", "min_decode", "max_utilization"
OVERALL = "overall"

_ROUNDING = 1e-12


def nearest(
    cells: pl.LazyFrame,
    *,
    task: str | None = None,
    min_context: int | None = None,
    min_decode: float | None = None,
    max_utilization: float | None = None,
) -> pl.LazyFrame:
    """The cells that miss least when one constraint gives way, and in all.

    Args:
        cells: as of `candidates`.
        task: whose speed counts; None for the median over tasks.
        min_context: shortest window, tokens.
        min_decode: slowest decoding, tokens/s.
        max_utilization: largest share of the card's memory.

    Returns:
        The columns of `cells`, with the speed that counts, and first `nearest_in` (list): the
        constraints in which the cell comes nearest of those that satisfy all others, and
        `overall` for the cell whose shares of what is asked for that it misses have the smallest
        sum. Of cells that are equally near it is the fastest, and of those that tie with it that
        with the longest window. Then what it misses (null: nothing), `missing_context` (tokens),
        `missing_decode` (tokens/s) and `missing_utilization`. A constraint is not there where no
        cell satisfies the others.
    """
    names = cells.collect_schema().names()
    wanted = {CONTEXT: min_context, DECODE: min_decode, UTILIZATION: max_utilization}
    asked = {name: float(each) for name, each in wanted.items() if each is not None}
    found = of_task(cells, task).with_columns(_missed(name, each) for name, each in asked.items())
    picks = [_first(found.filter(_satisfied(asked, but=name)), f"_{name}", name) for name in asked]
    # Of a limit of 0 there are no shares.
    shares = [pl.col(f"_{name}") / (abs(each) or 1.0) for name, each in asked.items()]
    total = pl.sum_horizontal(shares) if shares else pl.lit(0.0)
    picks.append(_first(found.with_columns(_total=total), "_total", OVERALL))
    named = pl.concat(picks).group_by("cell_id", maintain_order=True).agg("nearest_in")
    return named.join(found, on="cell_id", how="left", maintain_order="left").select(
        "nearest_in", *(_missing(name, given=name in asked) for name in wanted), *names
    )


def _missed(name: str, wanted: float) -> pl.Expr:
    """By how much a cell misses a constraint; 0 where it does not."""
    missed = {
        CONTEXT: wanted - pl.col("context"),
        DECODE: wanted - pl.col("decode_tok_s"),
        UTILIZATION: pl.col("utilization") - wanted,
    }
    return missed[name].clip(lower_bound=0.0).alias(f"_{name}")


def _satisfied(asked: Iterable[str], *, but: str) -> pl.Expr:
    others = [pl.col(f"_{name}") <= 0 for name in asked if name != but]
    return pl.all_horizontal(others) if others else pl.lit(value=True)


def _first(found: pl.LazyFrame, by: str, name: str) -> pl.LazyFrame:
    """The cell with the smallest value; of equals that which is best otherwise."""
    equal = found.filter(pl.col(by) <= pl.col(by).min() + _ROUNDING)
    fast = equal.filter(pl.col("decode_tok_s") >= (1 - TIE) * pl.col("decode_tok_s").max())
    order = ["context", "decode_tok_s", "utilization", "cell_id"]
    ordered = fast.sort(order, descending=[True, True, False, False])
    return ordered.head(1).select("cell_id", pl.lit(name).alias("nearest_in"))


def _missing(name: str, *, given: bool) -> pl.Expr:
    missed = pl.when(pl.col(f"_{name}") > 0).then(f"_{name}") if given else pl.lit(None)
    return missed.cast(pl.Float64).alias(f"missing_{name.partition('_')[2]}")
