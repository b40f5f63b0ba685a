"""Where the memory of one card goes against that of another."""

from __future__ import annotations

import polars as pl

from vllm_frontier.analyze.boundaries import OTHER_AXES
from vllm_frontier.analyze.comparison.matching import matchable
from vllm_frontier.analyze.latest import AXES, is_inferred
from vllm_frontier.analyze.memory_split import Part, Source

FOR_CACHE = "left for KV cache"
"""The part that state, cache and what is left over make up: it does not depend on the window."""

_OF_CACHE = (Part.STATE, Part.CACHE, Part.LEFT)
_SPLIT_BY_WINDOW = (*_OF_CACHE, Part.MISSING)
_GRAPHS = (Part.GRAPHS.value, Part.OUTSIDE.value)
_WEIGHTS = (Part.WEIGHTS.value, Part.HEAD.value)
_SUFFIXES = ("", "_other")
_UNTOLD = [part.value for part in (Part.OTHER, Part.NOT_KNOWN, Part.MISSING, Part.STATE, Part.LEFT)]
ORDER = (
    *(part.value for part in Part if part not in (*_SPLIT_BY_WINDOW, Part.OUTSIDE)),
    FOR_CACHE,
    Part.OUTSIDE.value,
)
"""The parts, in the order in which they are told: what is beside the share last."""


def matched_memory(base: pl.LazyFrame, other: pl.LazyFrame) -> pl.DataFrame:
    """The parts of the memory for every combination of the other axes, in both sweeps.

    What is taken does not depend on the window, so each sweep tells it by one cell of its own: that
    of which it knows most parts, and of these the longest window. A launch that is refused early
    tells few parts; what it does not tell is in `other` or `not known`.

    Args:
        base: of `memory_split`, of the sweep that is compared with.
        other: of the sweep that is compared.

    Returns:
        A row per combination and `part`: the axes but `context`, `budget_gib`, `gib` and `source`
        of the base, the same of the other with `_other`, and `difference` (GiB, other less base).
        It is null where one of them does not tell the part, and for `other` where not both tell
        the same parts. Graphs that one counts in the share and the other beside it are 0 there
        where they are not, and weights are told with the head where not both tell them apart.
        Where a sweep does not have the combination, or knows nothing of its memory, its
        `budget_gib` is null.
    """
    own, others = _alike_weights(_parts(base), _parts(other))
    budgets = [each.select(*OTHER_AXES, "budget_gib").unique() for each in (own, others)]
    keys = [*OTHER_AXES, "part"]
    told = own.drop("budget_gib").join(
        others.drop("budget_gib"), on=keys, how="full", coalesce=True, suffix="_other"
    )
    told = told.join(budgets[0], on=OTHER_AXES, how="left").join(
        budgets[1], on=OTHER_AXES, how="left", suffix="_other"
    )
    told = told.with_columns(each for suffix in _SUFFIXES for each in _nothing(suffix))
    unlike = pl.col("gib").is_null() | pl.col("gib_other").is_null()
    rest = pl.col("part") == Part.OTHER.value
    together = (unlike & ~rest).any().over(OTHER_AXES)
    return (
        told.with_columns(
            difference=pl.when(rest & together)
            .then(None)
            .when(rest)
            .then(pl.col("gib_other").fill_null(0.0) - pl.col("gib").fill_null(0.0))
            .otherwise(pl.col("gib_other") - pl.col("gib")),
            _place=pl.col("part").replace_strict(
                {part: place for place, part in enumerate(ORDER)}, return_dtype=pl.Int64
            ),
        )
        .sort("extra", "depth", "graphs", "utilization", "_place")
        .select(
            *keys,
            *("budget_gib", "gib", "source", "budget_gib_other", "gib_other", "source_other"),
            "difference",
        )
        .collect()
    )


def matched_needs(base: pl.LazyFrame, other: pl.LazyFrame) -> pl.DataFrame:
    """What one full window takes of the KV cache, at the longest window of which both know it.

    Args:
        base: of `memory_split`, of the sweep that is compared with.
        other: of the sweep that is compared.

    Returns:
        A row for each combination of the other axes: these, `context` (tokens), `needed_gib` and
        `needed_gib_other`.
    """
    own, others = (
        matchable(each).select(*AXES, "needed_gib").drop_nulls("needed_gib").unique(AXES)
        for each in (base, other)
    )
    return (
        own.join(others, on=AXES, how="inner", suffix="_other")
        .sort("context", descending=True)
        .unique(OTHER_AXES, keep="first", maintain_order=True)
        .sort("extra", "depth", "graphs", "utilization")
        .select(*OTHER_AXES, "context", "needed_gib", "needed_gib_other")
        .collect()
    )


def _alike_weights(*sides: pl.LazyFrame) -> list[pl.LazyFrame]:
    """The parts of both, with weights and head as one part where one does not tell them apart."""
    whole = pl.lit(Part.WEIGHTS_AND_HEAD.value)
    merged = pl.concat(
        [each.filter(pl.col("part") == whole).select(OTHER_AXES) for each in sides]
    ).unique()
    found = []
    for each in sides:
        apart = pl.col("part").is_in(_WEIGHTS)
        within = each.filter(apart).join(merged, on=OTHER_AXES, how="semi")
        kept = each.join(within, on=[*OTHER_AXES, "part"], how="anti")
        sums = within.with_columns(part=whole)
        found.append(pl.concat([kept, _summed(sums)]))
    return found


def _nothing(suffix: str) -> list[pl.Expr]:
    """0 for what a sweep does not take: a part that it tells to be elsewhere, or none of.

    Graphs are counted in the share or beside it, a launch without a head tells its weights alone,
    and what is left for the KV cache is nothing where all that comes before it is known.
    """
    gib, source, part = pl.col(f"gib{suffix}"), pl.col(f"source{suffix}"), pl.col("part")

    def told(*parts: str) -> pl.Expr:
        return (gib.is_not_null() & part.is_in(parts)).any().over(OTHER_AXES)

    there = pl.col(f"budget_gib{suffix}").is_not_null()
    none = (
        (part.is_in(_GRAPHS) & told(*_GRAPHS))
        | ((part == Part.HEAD.value) & told(Part.WEIGHTS.value))
        | ((part == FOR_CACHE) & there & ~told(Part.NOT_KNOWN.value))
    )
    fill = gib.is_null() & none
    return [
        pl.when(fill).then(0.0).otherwise(gib).alias(f"gib{suffix}"),
        pl.when(fill).then(pl.lit(Source.DERIVED.value)).otherwise(source).alias(f"source{suffix}"),
    ]


def _parts(split: pl.LazyFrame) -> pl.LazyFrame:
    """The parts of one cell of each combination, those that depend on its window together."""
    told = matchable(split)
    parts = pl.col("part").filter(~pl.col("part").is_in(_UNTOLD)).n_unique()
    chosen = (
        told.group_by(AXES)
        .agg(_parts=parts, _launched=(~is_inferred()).first())
        .sort("_parts", "_launched", "context", descending=True)
        .unique(OTHER_AXES, keep="first", maintain_order=True)
        .select(AXES)
    )
    together = pl.col("part").is_in([part.value for part in _OF_CACHE])
    return _summed(
        told.join(chosen, on=AXES, how="semi")
        .filter(pl.col("part") != Part.MISSING.value)
        .with_columns(part=pl.when(together).then(pl.lit(FOR_CACHE)).otherwise("part"))
    )


def _summed(parts: pl.LazyFrame) -> pl.LazyFrame:
    """Rows of one part of a combination together."""
    return parts.group_by(*OTHER_AXES, "part", maintain_order=True).agg(
        pl.col("budget_gib").first(),
        pl.col("gib").sum(),
        # A sum is only as good as what is least known of it; the parts of the cache add up
        # to a figure of the log all the same.
        pl.col("source").sort().first(),
    )
