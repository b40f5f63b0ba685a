"""How much of a gain is the graphs' and how much the speculation's.

Both together are one factor, which is what each gives alone times how well they go together:
`total = graphs_first * then_speculation = speculation_first * then_graphs`.
"""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.intervals import LAUNCHES, RUNS
from vllm_frontier.analyze.speed_groups import IDENTITY
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

_KEYS = (*IDENTITY, "task", "depth")


def gain_parts(groups: pl.DataFrame) -> pl.DataFrame:
    """What graphs and speculation are worth, alone and together, at every depth.

    Args:
        groups: of `speed_groups`.

    Returns:
        A row for every `IDENTITY`, `task` (null: all tasks) and `depth` above 0 that has a speed
        with or without graphs: the speeds of `CORNERS` (tokens/s); the factors `STEPS`, and of each
        `NAME_verdict` (`faster`, `slower`, `no clear difference`) and `NAME_basis` (of the
        verdict); `interaction` (`total` over the product of what each gives alone: below 1, they
        are worth less together) with its 95 % interval `interaction_low` and `interaction_high`
        (as sure as the intervals of its corners, hence null where one has none) and
        `interaction_basis` (`runs` where that of a corner is); `missing` (list; the `CORNERS`
        without a speed); `broken` (whether what is written at that depth is broken). What cannot
        be told is null.
    """
    wide = _corners(groups)
    ratios = {name: pl.col(one) / pl.col(other) for name, (one, other) in STEPS.items()}
    missing = pl.concat_list(
        pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in CORNERS
    ).list.drop_nulls()
    found = wide.with_columns(**ratios, missing=missing).with_columns(_interaction())
    for name, (one, other) in STEPS.items():
        found = _with_verdict(found, groups, name, one, other)
    told = [each for name in STEPS for each in (name, f"{name}_verdict", f"{name}_basis")]
    together = [f"interaction{end}" for end in ("", "_low", "_high", "_basis")]
    return found.select(*_KEYS, *CORNERS, *told, *together, "missing", "broken").sort(
        _KEYS, nulls_last=False
    )


def _interaction() -> list[pl.Expr]:
    """The four speeds in one figure; their logarithms are unsure by themselves."""
    figure = pl.col("total") / (pl.col("graphs_first") * pl.col("speculation_first"))
    squares = [pl.col(f"_{name}_half").pow(2) for name in CORNERS]
    half = pl.sum_horizontal(squares, ignore_nulls=False).sqrt()
    within = pl.any_horizontal(pl.col(f"_{name}_basis") == RUNS for name in CORNERS)
    return [
        figure.alias("interaction"),
        (figure * (-half).exp()).alias("interaction_low"),
        (figure * half.exp()).alias("interaction_high"),
        pl.when(figure.is_not_null())
        .then(pl.when(within).then(pl.lit(RUNS)).otherwise(pl.lit(LAUNCHES)))
        .alias("interaction_basis"),
    ]


def _corners(groups: pl.DataFrame) -> pl.DataFrame:
    """Speed and name of the four settings, in a row for each depth that drafts."""
    half = ((pl.col("high") / pl.col("low")).log() / 2).alias("half")
    cells = groups.select(*_KEYS, "graphs", "decode_tok_s", "cell_id", "basis", half, "broken")
    broken = (pl.col("broken") > 0).any()
    found = cells.filter(pl.col("depth") > 0).group_by(_KEYS).agg(broken)
    for name, (graphs, deep) in zip(
        CORNERS, ((False, False), (True, False), (False, True), (True, True)), strict=True
    ):
        own = cells.filter(pl.col("graphs") == graphs)
        own = own if deep else own.filter(pl.col("depth") == 0)
        keys = [*_KEYS] if deep else [*IDENTITY, "task"]
        corner = own.select(
            *keys,
            pl.col("decode_tok_s").alias(name),
            pl.col("cell_id").alias(f"_{name}"),
            *(pl.col(what).alias(f"_{name}_{what}") for what in ("basis", "half")),
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
        pl.col("basis").alias(f"{name}_basis"),
    )
    return found.join(
        told.collect(), on=[f"_{one}", f"_{other}", "task"], how="left", nulls_equal=True
    )
