"""How much of a gain is the graphs' and how much the speculation's.

Both together are one factor, which is what each gives alone times how well they go together:
`total = graphs_first * then_speculation = speculation_first * then_graphs`.
"""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.verdicts import verdicts

CORNERS = ("plain", "graphs_only", "speculation_only", "both")
"""The four settings that are compared: with and without graphs, with and without speculation."""

STEPS = {
    "graphs_first": ("graphs_only", "plain"),
    "then_speculation": ("both", "graphs_only"),
    "speculation_first": ("speculation_only", "plain"),
    "then_graphs": ("both", "speculation_only"),
    "total": ("both", "plain"),
}
"""Every factor, and the settings that it is the ratio of."""

_KEYS = ("extra", "task", "depth")


def gain_parts(groups: pl.DataFrame) -> pl.DataFrame:
    """What graphs and speculation are worth, alone and together, at every depth.

    Args:
        groups: of `speed_groups`.

    Returns:
        A row for every `extra`, `task` (null: all tasks) and `depth` above 0 that has a speed with
        or without graphs: the speeds of `CORNERS` (tokens/s); the factors `STEPS`, and of each
        `NAME_verdict`, whether it is beyond doubt (`faster`, `slower`, `no clear difference`);
        `interaction` (`total` over the product of what each gives alone: below 1, they are worth
        less together); `missing` (list; the `CORNERS` without a speed); `broken` (whether what is
        written at that depth is broken). What cannot be told is null.
    """
    wide = _corners(groups)
    ratios = {name: pl.col(one) / pl.col(other) for name, (one, other) in STEPS.items()}
    alone = pl.col("graphs_first") * pl.col("speculation_first")
    missing = pl.concat_list(
        pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in CORNERS
    ).list.drop_nulls()
    found = wide.with_columns(**ratios).with_columns(
        interaction=pl.col("total") / alone, missing=missing
    )
    for name, (one, other) in STEPS.items():
        found = _with_verdict(found, groups, name, one, other)
    told = [each for name in STEPS for each in (name, f"{name}_verdict")]
    return found.select(*_KEYS, *CORNERS, *told, "interaction", "missing", "broken").sort(
        _KEYS, nulls_last=False
    )


def _corners(groups: pl.DataFrame) -> pl.DataFrame:
    """Speed and name of the four settings, in a row for each depth that drafts."""
    cells = groups.select(*_KEYS, "graphs", "decode_tok_s", "cell_id", "broken")
    broken = (pl.col("broken") > 0).any()
    found = cells.filter(pl.col("depth") > 0).group_by(_KEYS).agg(broken)
    for name, (graphs, deep) in zip(
        CORNERS, ((False, False), (True, False), (False, True), (True, True)), strict=True
    ):
        own = cells.filter(pl.col("graphs") == graphs)
        own = own if deep else own.filter(pl.col("depth") == 0)
        keys = [*_KEYS] if deep else ["extra", "task"]
        corner = own.select(
            *keys, pl.col("decode_tok_s").alias(name), pl.col("cell_id").alias(f"_{name}")
        )
        found = found.join(corner, on=keys, how="left", nulls_equal=True)
    return found


def _with_verdict(
    found: pl.DataFrame, groups: pl.DataFrame, name: str, one: str, other: str
) -> pl.DataFrame:
    pairs = found.select(
        pl.col(f"_{one}").alias("cell_id"), pl.col(f"_{other}").alias("other_cell_id"), "task"
    )
    told = verdicts(groups, pairs.drop_nulls(["cell_id", "other_cell_id"]).unique().lazy())
    told = told.select(
        pl.col("cell_id").alias(f"_{one}"),
        pl.col("other_cell_id").alias(f"_{other}"),
        "task",
        pl.col("verdict").alias(f"{name}_verdict"),
    )
    return found.join(
        told.collect(), on=[f"_{one}", f"_{other}", "task"], how="left", nulls_equal=True
    )
