"""Where the memory of a card goes, part by part, for every cell that a sweep knows.

vLLM may use a share of the card, the budget: weights, activation and graphs come off it, the KV
cache gets the rest, and a window fits if the rest holds it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vllm_frontier.analyze.latest import AXES, counted, does_not_work, is_inferred

Floats: TypeAlias = NDArray[np.float64]


class Part(StrEnum):
    """What memory is taken for, in the order in which it is drawn."""

    WEIGHTS = "weights"
    WEIGHTS_AND_HEAD = "weights and head"
    HEAD = "head"
    ACTIVATION = "activation"
    GRAPHS = "graphs"
    RESERVED = "reserved"
    OTHER = "other"
    NOT_KNOWN = "not known"
    STATE = "state"
    CACHE = "KV cache"
    LEFT = "left over"
    MISSING = "missing"
    OUTSIDE = "graphs beside the share"


BEYOND = (Part.MISSING, Part.OUTSIDE)
"""Parts that are not of the budget."""


class Source(StrEnum):
    """How a figure is known."""

    LOGGED = "logged"
    DERIVED = "derived"
    DECLARED = "declared"


_FACTS = (
    "weights_gib",
    "activation_gib",
    "graph_gib",
    "kv_needed_gib",
    "kv_available_gib",
    "kv_tokens",
    "max_context_estimate",
    "device_gib",
    "free_gib",
    "card_memory_gib",
)
_SAME = ("depth", "graphs", "extra")
"""Axes that decide what comes off the budget."""
_TOLD = ("weights_gib", "activation_gib", "graph_gib")

_SD_GIB = 0.004  # what vLLM's log prints is rounded to two decimals
_SURE_GIB = 0.04  # standard error of a state that is worth telling
_LEAST_GIB = 0.02  # what is less may be rounding
_SLACK_GIB = 0.03  # by which figures that are rounded may seem to exceed their sum
_NOTHING_GIB = 1e-9


def memory_split(trials: pl.LazyFrame, *, reserved_gib: float | None = None) -> pl.LazyFrame:
    """The parts of every cell that was launched or follows from launches, GiB.

    Weights with a head are split where a launch without drafting tells them (with the same further
    axes). What a cell's own launches do not tell is taken from launches of the same depth, graphs
    and further axes (`derived`). The state, which a window needs however short it is, is what is
    left of the needs of windows of several lengths at length 0; where that is not clear it is in
    `KV cache`. Graphs are of the budget unless what vLLM leaves for the KV cache says otherwise.

    Args:
        trials: the table `trials`.
        reserved_gib: what the card's configuration declares to be taken before the KV cache; on
            a CPU, where vLLM does not log it. None or 0: nothing.

    Returns:
        Rows of `cell_id`, the axes, `status`, `failure_class`, `budget_gib` (utilization of the
        card), `card_gib` (as vLLM sees it, else as declared), `free_gib` (of the card before the
        launch, null where unknown), `needed_gib` (KV cache and state of one full window) and
        `available_gib` (what is left for these), both null where unknown, and `part`, `gib` and
        `source`, ordered by axes and `Part`. All parts but those in `BEYOND` add up to the
        budget, or, where more than that is taken before the KV cache (`available_gib` below 0),
        to that. Of a refused cell `KV cache` is all that is left for it, and nothing is `left
        over`, whatever it was refused for. `other` is what no log tells, and below 0 where logged
        figures exceed their sum. `not known` is there instead where nothing tells what the KV
        cache gets.
    """
    cells = _with_facts(trials).collect()
    coefficients = [
        (extra, _needs(group)) for (extra,), group in cells.group_by("extra", maintain_order=True)
    ]
    predicted = [
        _predicted(cells.filter(pl.col("extra") == extra), found) for extra, found in coefficients
    ]
    needs = pl.concat([*predicted, _NO_NEEDS])
    told = cells.join(needs, on="_row", how="left", maintain_order="left").lazy()
    known = _shared(_typical(_budgets(told)), pl.lit(reserved_gib or None, dtype=pl.Float64))
    return _long(known)


# What launches tell


def _with_facts(trials: pl.LazyFrame) -> pl.LazyFrame:
    """The row of `trials` that counts of each cell, with the last figures that any launch told."""
    launched = trials.filter(~is_inferred()).sort("attempt", maintain_order=True)
    facts = launched.group_by(AXES).agg(pl.col(name).drop_nulls().last() for name in _FACTS)
    size = pl.coalesce("card_memory_gib", "_card_gib")
    return (
        counted(trials)
        .select(
            *("cell_id", *AXES, "status", "failure_class"),
            _card_gib="card_memory_gib",
            _refused=does_not_work(),
        )
        .join(facts, on=AXES, how="left")
        .with_columns(card_memory_gib=size)
        .sort("extra", "graphs", "utilization", "depth", "context")
        .with_row_index("_row")
    )


def _budgets(cells: pl.LazyFrame) -> pl.LazyFrame:
    card = pl.coalesce("device_gib", pl.col("device_gib").drop_nulls().max(), "card_memory_gib")
    return (
        cells.with_columns(card_gib=card)
        .filter(pl.col("card_gib").is_not_null())
        .with_columns(budget_gib=pl.col("utilization") * pl.col("card_gib"))
    )


def _typical(cells: pl.LazyFrame) -> pl.LazyFrame:
    """Adds what launches of the same depth, graphs and further axes told, where no own one did."""
    fixed = pl.col("budget_gib") - pl.col("kv_available_gib")
    others = {name: pl.col(name).median().over(_SAME) for name in _TOLD}
    base = pl.col("weights_gib").filter(pl.col("depth") == 0).median().over("extra")
    needed = pl.col("kv_available_gib") * pl.col("context") / pl.col("kv_tokens")
    needed = pl.when(needed > 0).then(needed)
    return cells.with_columns(
        *(pl.coalesce(name, other).alias(f"_{name}") for name, other in others.items()),
        base_weights=base,
        available_gib=pl.coalesce(
            "kv_available_gib", pl.col("budget_gib") - fixed.median().over(_SAME)
        ),
        needed_gib=pl.coalesce("kv_needed_gib", needed, "_needed_gib"),
    )


# What a window needs


_NO_NEEDS = pl.DataFrame(
    schema={"_row": pl.UInt32, "_needed_gib": pl.Float64, "_state_gib": pl.Float64}
)


def _needs(cells: pl.DataFrame) -> tuple[Floats, Floats, float] | None:
    """What one window of any length needs: figures, their covariance, and the residual's scale.

    By least squares over all that launches tell: what a window needs, and which window would need
    just what is there.
    """
    available = pl.col("kv_available_gib")
    per_window = available * pl.col("context") / pl.col("kv_tokens")
    depth = pl.col("depth").cast(pl.Float64)
    points = pl.concat(
        [
            cells.select(depth, _length="context", _need=pl.coalesce("kv_needed_gib", per_window)),
            cells.select(depth, _length="max_context_estimate", _need=available),
        ]
    ).drop_nulls()
    points = points.filter(pl.col("_need").is_finite() & (pl.col("_need") > 0))
    if points.is_empty():
        return None
    rows = _rows(points["_length"].to_numpy(), points["depth"].to_numpy())
    needs = points["_need"].to_numpy()
    inverse: Floats = np.asarray(np.linalg.pinv(rows.T @ rows, hermitian=True), dtype=np.float64)
    figures = inverse @ rows.T @ needs
    residual = needs - rows @ figures
    spare = max(len(needs) - int(np.linalg.matrix_rank(rows)), 1)
    return figures, inverse, max(_SD_GIB, float(np.sqrt(residual @ residual / spare)))


def _rows(lengths: NDArray[np.int64], depths: Floats) -> Floats:
    """What multiplies each figure, (n, figures); lengths in units of 100,000 tokens."""
    drafting = np.minimum(depths, 1.0)
    length = lengths / 1e5
    columns = (length, length * drafting, np.ones_like(depths), depths)
    return np.stack(columns, axis=1)


def _predicted(cells: pl.DataFrame, found: tuple[Floats, Floats, float] | None) -> pl.DataFrame:
    """What one window of each cell needs, and its state; null where launches do not tell."""
    if found is None:
        return _NO_NEEDS
    figures, inverse, sd = found
    depths = cells["depth"].cast(pl.Float64).to_numpy()
    whole = _rows(cells["context"].to_numpy(), depths)
    state = _rows(np.zeros(len(depths), dtype=np.int64), depths)
    needs = whole @ figures
    needed_sd, state_sd = (_error(rows, inverse, sd) for rows in (whole, state))
    states = state @ figures
    clear = (state_sd <= _SURE_GIB) & (states > np.maximum(2 * state_sd, _LEAST_GIB))
    return pl.DataFrame(
        {
            "_row": cells["_row"],
            "_needed_gib": np.where((needed_sd <= _SURE_GIB) & (needs > 0), needs, np.nan),
            "_state_gib": np.where(clear, states, np.nan),
        }
    ).with_columns(pl.col("_needed_gib", "_state_gib").fill_nan(None))


def _error(rows: Floats, inverse: Floats, sd: float) -> Floats:
    """Standard errors of some sums of figures; infinite where nothing tells a sum."""
    # A sum that launches tell is one of sums that they told.
    told = inverse @ np.linalg.pinv(inverse, hermitian=True)
    unknown = np.abs(rows - rows @ told).max(axis=1) > 1e-6
    variance = np.einsum("ij,jk,ik->i", rows, inverse, rows)
    return np.where(unknown, np.inf, sd * np.sqrt(np.maximum(variance, 0.0)))


# Parts


def _shared(cells: pl.LazyFrame, reserved: pl.Expr) -> pl.LazyFrame:
    """Adds a column for each part, null where there is none of it."""
    weights, activation = pl.col("_weights_gib"), pl.col("_activation_gib")
    drafting = pl.col("depth") > 0
    split = drafting & pl.col("base_weights").is_not_null()
    split = split & (pl.col("base_weights") <= weights)
    graphs = pl.when("graphs").then("_graph_gib")
    before = pl.sum_horizontal(weights, activation)
    available = pl.col("available_gib")
    taken = pl.col("budget_gib") - available
    # Versions before 0.21 capture graphs beside the share.
    inside = (taken - before - graphs >= -_SLACK_GIB).fill_null(True) | reserved.is_not_null()
    needed = pl.col("needed_gib")
    held = pl.when(available.is_not_null()).then(pl.max_horizontal(available, 0.0))
    both = needed.is_not_null() & available.is_not_null()
    stated = pl.min_horizontal("_state_gib", needed, held)
    state = pl.when(both & pl.col("_state_gib").is_not_null()).then(stated)
    # What is refused holds no window, so that nothing is left over for another.
    fits = both & ~pl.col("_refused")
    window = pl.when(fits).then(pl.min_horizontal(needed, held)).otherwise(held)
    declared = pl.when(reserved.is_not_null()).then(pl.max_horizontal(reserved - before, 0.0))
    parts = {
        Part.WEIGHTS: pl.when(split).then("base_weights").when(~drafting).then(weights),
        Part.WEIGHTS_AND_HEAD: pl.when(drafting & ~split).then(weights),
        Part.HEAD: pl.when(split).then(weights - pl.col("base_weights")),
        Part.ACTIVATION: activation,
        Part.GRAPHS: pl.when(inside).then(graphs),
        Part.RESERVED: declared,
        Part.STATE: state,
        Part.CACHE: window - state.fill_null(0.0),
        Part.LEFT: pl.when(fits).then(pl.max_horizontal(held - needed, 0.0)),
        Part.MISSING: pl.when(both).then(pl.max_horizontal(needed - held, 0.0)),
        Part.OUTSIDE: pl.when(~inside).then(graphs),
    }
    fixed = (Part.WEIGHTS, Part.WEIGHTS_AND_HEAD, Part.HEAD, Part.ACTIVATION, Part.GRAPHS)
    told = cells.with_columns(each.alias(_column(part)) for part, each in parts.items())
    before = pl.sum_horizontal(_column(part) for part in (*fixed, Part.RESERVED))
    unknown = pl.when(available.is_null()).then(pl.col("budget_gib") - before)
    return told.with_columns(
        (taken - before).alias(_column(Part.OTHER)),
        unknown.alias(_column(Part.NOT_KNOWN)),
        _split=split,
    )


def _column(part: Part) -> str:
    """The column of a part; `graphs` is an axis, too."""
    return f"part {part.value}"


def _long(cells: pl.LazyFrame) -> pl.LazyFrame:
    columns = (
        *("cell_id", *AXES, "status", "failure_class", "budget_gib", "card_gib", "free_gib"),
        *("needed_gib", "available_gib"),
    )
    logged = {
        Part.WEIGHTS: pl.col("weights_gib").is_not_null() & ~pl.col("_split"),
        Part.WEIGHTS_AND_HEAD: pl.col("weights_gib").is_not_null(),
        Part.ACTIVATION: pl.col("activation_gib").is_not_null(),
        Part.GRAPHS: pl.col("graph_gib").is_not_null(),
        Part.OUTSIDE: pl.col("graph_gib").is_not_null(),
        # All that is left, where a window needs more or it is not known how much.
        Part.CACHE: pl.col("kv_available_gib").is_not_null()
        & (pl.col(_column(Part.CACHE)) == pl.col("kv_available_gib")),
    }
    tables = []
    for place, part in enumerate(Part):
        source = pl.lit(Source.DECLARED if part is Part.RESERVED else Source.DERIVED)
        if part in logged:
            source = pl.when(logged[part]).then(pl.lit(Source.LOGGED)).otherwise(source)
        rows = cells.filter(pl.col(_column(part)).abs() > _NOTHING_GIB)
        tables.append(
            rows.select(
                *("_row", *columns),
                part=pl.lit(part.value),
                gib=pl.col(_column(part)),
                source=source,
                _place=pl.lit(place),
            )
        )
    return pl.concat(tables).sort("_row", "_place").drop("_row", "_place")
