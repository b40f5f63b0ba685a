"""What checks look at: the launches that were measured, and their runs in handy shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from vllm_frontier.analyze.checks.baseline import baselines
from vllm_frontier.analyze.digest import SETTING, Digest, medians
from vllm_frontier.analyze.latest import AXES, CELL
from vllm_frontier.analyze.output import likelihoods
from vllm_frontier.outcome import Purpose, Status

LAUNCHES_DIFFER = 0.03
"""Share by which launches of a cell commonly differ, where a sweep does not tell by how much."""


@dataclass(frozen=True)
class Evidence:
    """The measured launches of a sweep and their runs; speeds are natural logarithms.

    Attributes:
        digest: the launches and runs; all that is here is made of it.
        method: how tokens are drafted, where that is known.
    """

    digest: Digest
    method: str | None = None

    @property
    def launches(self) -> pl.DataFrame:
        """One row each; see `Digest`."""
        return self.digest.launches

    @property
    def runs(self) -> pl.DataFrame:
        """Every run of these."""
        return self.digest.measured

    @property
    def decode(self) -> pl.DataFrame:
        """Those of them that tell a decode speed, as `log_speed`."""
        return self.digest.decode

    @property
    def by_launch(self) -> pl.DataFrame:
        """Of each launch and task what its decode runs come to; see `Digest`."""
        return self.digest.by_launch

    @property
    def by_request(self) -> pl.DataFrame:
        """Of each launch and what was asked (`request`) the median `log_speed`."""
        return self.digest.by_request

    @cached_property
    def by_cell(self) -> pl.DataFrame:
        """Of each cell and task the median over launches; `pair` numbers the rows.

        Also the `variance` of that figure as far as launches of this cell show it, `launches`, and
        counters.
        """
        return _by_cell(self.by_launch, self.launches)

    @cached_property
    def cell_requests(self) -> pl.DataFrame:
        """Of each `cell` (a number) and `request` the median over launches."""
        cells = self.launches.select("launch", "cell")
        return medians(self.by_request.join(cells, on="launch", how="inner"), "cell", "request")

    @cached_property
    def baselines(self) -> pl.DataFrame:
        """What cells with speculation are held against."""
        return baselines(self.by_cell, self.cell_requests, self.digest)

    @cached_property
    def rated(self) -> pl.DataFrame:
        """How probable the texts of cells are; see `likelihoods`."""
        return likelihoods(self.digest)

    @cached_property
    def unwatched(self) -> int:
        """Launches to watch the speed of the reference cell that were not measured."""
        return _unwatched(self.digest.trials)

    def real(self) -> pl.DataFrame:
        """The launches that were not simulated: machine and clock tell something about these."""
        return self.launches.filter(pl.col("engine").ne_missing("simulated"))

    @property
    def drafts_now_and_then(self) -> bool:
        """Whether a step without a draft, or with a short one, is nothing special."""
        return self.method == "ngram"


def _unwatched(trials: pl.LazyFrame) -> int:
    lost = [each.value for each in (Status.FAILED, Status.INFEASIBLE, Status.INVALID)]
    watching = pl.col("purpose") == Purpose.REFERENCE.value
    found = trials.filter(pl.col("attempt") > 0, watching, pl.col("status").is_in(lost))
    return found.select(pl.col(CELL)).unique().collect().height


def _by_cell(by_launch: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    cells = launches.select("launch", "cell_id", "cell", *AXES, SETTING)
    return (
        by_launch.lazy()
        .join(cells.lazy(), on="launch", how="inner")
        .group_by("cell_id", "cell", *AXES, SETTING, "task")
        .agg(
            pl.col("log_speed").median(),
            (pl.col("log_speed").var().fill_null(0.0) / pl.len()).alias("variance"),
            pl.len().cast(pl.Int64).alias("launches"),
            pl.col(
                *("drafts", "accepted", "runs"),
                *("told_drafts", "told_accepted", "told_tokens", "told_runs"),
            ).sum(),
            pl.col("shortest").min(),
        )
        .sort("cell_id", "task")
        .with_row_index("pair")
        .collect()
    )
