"""Whether two cells differ in speed: faster, slower, or no clear difference."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vllm_frontier.analyze.intervals import CONFIDENCE, LAUNCHES, RUNS, VALUES, Floats, t_quantile
from vllm_frontier.dominance import TIE

Places: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

# How sure it must be that headlines and means over tasks tell different things of two cells. Less
# would call too many differences where there is none, or miss those that are seen in the mean.
_DISAGREE = 0.99
_SLOWER, _FASTER = 0, 2


class Verdict(StrEnum):
    """What a cell is against another."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_CLEAR_DIFFERENCE = "no clear difference"


def verdicts(figures: pl.DataFrame, pairs: pl.LazyFrame, *, tie: float = TIE) -> pl.LazyFrame:
    """The verdict for each of some pairs of cells.

    Two cells differ where the difference of their launches' speeds exceeds, with 95 % confidence,
    what launches of one cell differ by, is at least `tie`, and their headlines say the same. For
    all tasks together the mean over tasks of their logarithms is compared, which is surer than the
    median over tasks; where the two clearly disagree, the median. Where the basis is `runs`, `tie`
    alone decides, on the headlines.

    Args:
        figures: of `cell_figures`.
        pairs: rows of `cell_id`, `other_cell_id` and `task` (null: all tasks).
        tie: speeds that differ by less than this share count as equal.

    Returns:
        A row for each pair of which both cells have a speed, in the same order: the columns of
        `pairs`, `ratio` (speed of `cell_id` over that of `other_cell_id`), `ratio_low` and
        `ratio_high` (its 95 % interval, null where `basis` is `runs`), `verdict` (of `cell_id`:
        `faster`, `slower` or `no clear difference`) and `basis`.
    """
    places = figures.select("cell_id", "task").with_row_index("_place")
    found = pairs.collect().with_row_index("_order")
    for name in ("cell_id", "other_cell_id"):
        found = found.join(
            places.rename({"cell_id": name, "_place": f"_{name}"}),
            on=[name, "task"],
            how="inner",
            nulls_equal=True,
        )
    found = found.sort("_order")
    one, other = (found[f"_{name}"].to_numpy() for name in ("cell_id", "other_cell_id"))
    compared = _compare(_Figures.of(figures), one, other, tie)
    names = np.array([Verdict.SLOWER, Verdict.NO_CLEAR_DIFFERENCE, Verdict.FASTER], dtype=object)
    with np.errstate(over="ignore"):
        lower, upper = (compared.ratio * np.exp(each * compared.half) for each in (-1, 1))
    # An end that no number can hold tells no more than none.
    ends = [np.where(np.isfinite(each), each, np.nan) for each in (compared.ratio, lower, upper)]
    return (
        found.drop("_order", "_cell_id", "_other_cell_id")
        .lazy()
        .with_columns(
            *(
                pl.Series(name, end, dtype=pl.Float64, nan_to_null=True)
                for name, end in zip(("ratio", "ratio_low", "ratio_high"), ends, strict=True)
            ),
            pl.Series("verdict", names[compared.sign + 1].tolist(), dtype=pl.String),
            pl.Series("basis", np.where(compared.pooled, LAUNCHES, RUNS).tolist(), dtype=pl.String),
        )
    )


class Differences:
    """Which cells are faster than others beyond doubt, for one task or for all."""

    def __init__(self, figures: pl.DataFrame, task: str | None = None, *, tie: float = TIE) -> None:
        """Of `cell_figures`; `task` None: for all tasks."""
        of_task = pl.col("task").eq_missing(pl.lit(task, dtype=pl.String))
        chosen = figures.filter(of_task)
        self._figures = _Figures.of(chosen)
        self._places = {name: place for place, name in enumerate(chosen["cell_id"])}
        self._tie = tie
        self._ahead: dict[int, bytes] = {}
        self._asked: set[int] = set()

    def faster(self, cell_id: str, than: str) -> bool:
        """Whether one cell is. Only ever true where its headline is higher, too.

        Raises:
            KeyError: one of them has no speed.
        """
        one, other = self._places[cell_id], self._places[than]
        if one not in self._ahead and other not in self._ahead:
            # All are compared at once with one that is asked for again and again.
            again = one if one in self._asked and other not in self._asked else other
            self._asked |= {one, other}
            self._ahead[again] = self._compared_with(again)
        if other in self._ahead:
            return self._ahead[other][one] == _FASTER
        return self._ahead[one][other] == _SLOWER

    def _compared_with(self, place: int) -> bytes:
        everyone = np.arange(len(self._places))
        sign = _compare(self._figures, everyone, np.full_like(everyone, place), self._tie).sign
        return (sign + 1).astype(np.uint8).tobytes()


@dataclass(frozen=True)
class _Figures:
    """The columns of `cell_figures` that decide, as arrays."""

    speed: Floats
    launches: Floats
    at: Floats
    spread: Floats
    df: Floats
    pool: Floats
    pooled: Mask
    tasks: Places
    values: dict[str, Floats]
    variances: dict[str, Floats]

    @classmethod
    def of(cls, figures: pl.DataFrame) -> _Figures:
        """Rows of `cell_figures` in their order."""

        def array(name: str) -> Floats:
            return figures[name].cast(pl.Float64).to_numpy()

        return cls(
            speed=array("decode_tok_s"),
            launches=array("launches"),
            at=array("at"),
            spread=array("spread"),
            df=array("df"),
            pool=array("pool"),
            pooled=(figures["basis"] == LAUNCHES).to_numpy(),
            tasks=figures["tasks"].list.join("\n").rank("dense").cast(pl.Int64).to_numpy(),
            values={name: array(name) for name in VALUES},
            variances={name: array(f"{name}_variance") for name in VALUES},
        )


@dataclass(frozen=True)
class _Pairs:
    """Pairs of cells, and how sure their difference is when its variance is one of `VALUES`."""

    figures: _Figures
    one: Places
    other: Places

    @cached_property
    def shared(self) -> Mask:
        """Whether both are of one pool, so that what is unsure of its drift is of both."""
        pool = self.figures.pool
        return np.asarray(pool[self.one] == pool[self.other])

    def difference(self, name: str) -> Floats:
        """Of the logarithms."""
        value = self.figures.values[name]
        return np.asarray(value[self.one] - value[self.other])

    def half(self, name: str, confidence: float = CONFIDENCE) -> Floats:
        """Half the width of the difference's interval."""
        own, others = self._variance(name, self.one), self._variance(name, self.other)
        df, others_df = self.figures.df[self.one], self.figures.df[self.other]
        with np.errstate(divide="ignore", invalid="ignore"):
            welch = (own + others) ** 2 / (own**2 / df + others**2 / others_df)
        total = np.where(self.shared, self._shared_variance(name), own + others)
        free = np.where(self.shared, df, welch)
        return np.asarray(t_quantile(free, confidence) * np.sqrt(total))

    def _variance(self, name: str, which: Places) -> Floats:
        """Of the figure of a cell."""
        found = self.figures
        drift = found.at[which] ** 2 / found.spread[which]
        return np.asarray(found.variances[name][which] * (1 / found.launches[which] + drift))

    def _shared_variance(self, name: str) -> Floats:
        """Of the difference of two cells of one pool, whose drift is the same."""
        found = self.figures
        drift = (found.at[self.one] - found.at[self.other]) ** 2 / found.spread[self.one]
        counts = 1 / found.launches[self.one] + 1 / found.launches[self.other]
        return np.asarray(found.variances[name][self.one] * (counts + drift))


@dataclass(frozen=True)
class _Compared:
    ratio: Floats
    half: Floats  # of the ratio's logarithm; NaN where the basis is runs
    sign: Places  # 1: the first is faster; -1: slower; 0: no clear difference
    pooled: Mask


def _compare(figures: _Figures, one: Places, other: Places, tie: float) -> _Compared:
    pairs = _Pairs(figures, one, other)
    speed, others = figures.speed[one], figures.speed[other]
    ahead = np.sign(speed - others).astype(np.int64)
    by_tie = np.where(np.minimum(speed, others) < (1 - tie) * np.maximum(speed, others), ahead, 0)

    alike = figures.tasks[one] == figures.tasks[other]
    pooled = figures.pooled[one] & figures.pooled[other] & alike
    # Where tasks gain differently, the mean over them says little about the median.
    agree = np.abs(pairs.difference("contrast")) <= pairs.half("contrast", _DISAGREE)
    gap = np.where(agree, pairs.difference("level"), pairs.difference("headline"))
    half = np.where(agree, pairs.half("level"), pairs.half("headline"))
    clear = (np.abs(gap) > half) & (np.abs(gap) > -np.log1p(-tie)) & (np.sign(gap) == ahead)

    with np.errstate(over="ignore"):
        ratio = np.where(pooled, np.exp(gap), speed / others)
    return _Compared(
        ratio=ratio,
        half=np.where(pooled, half, np.nan),
        sign=np.where(pooled, np.where(clear, ahead, 0), by_tie),
        pooled=pooled,
    )
