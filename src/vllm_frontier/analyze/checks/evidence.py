"""What checks look at: the launches that were measured, and their runs in handy shape."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from vllm_frontier.analyze.latest import AXES, CELL
from vllm_frontier.analyze.speed import decode_runs
from vllm_frontier.outcome import Purpose, Status

SETTING = "setting"
"""What must be the same of two cells beside depth, graphs, window and share, to be compared:
further axes, engine and card, and what was measured."""

REQUEST = ("task", "variant", "repeat")
"""What was asked. Prompts differ, and are the same in every launch of a workload, so that launches
are compared pair by pair."""

LAUNCHES_DIFFER = 0.03
"""Share by which launches of a cell commonly differ, where a sweep does not tell by how much."""

_OF_A_LAUNCH = ("spec_state", "purpose", "started_at", "sequence", "engine", "card")
_OF_A_RUN = (
    *(
        "row",
        "launch",
        "task",
        "repeat",
        "kind",
        "temperature",
        "variant",
        "concurrency",
        "started_at",
    ),
    *("prompt_tokens", "completion_tokens", "cached_tokens", "decode_tok_s", "prefill_tok_s"),
    *("decode_tok_s_server", "decode_tok_s_client", "drafts", "draft_tokens", "accepted_tokens"),
    *("accepted_per_position", "throttle_reasons", "throttled_share", "memory_used_gib"),
    *("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "gpu_utilization"),
    *("foreign_processes", "foreign_gib", "cpu_cores", "foreign_cores", "cpu_mhz"),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The measured launches of a sweep and their runs; speeds are natural logarithms.

    Attributes:
        launches: one row each: `launch` (a number, in the order of time), cell_id, attempt, the
            axes, `setting`, and what `trials` has of them.
        runs: every run of these, with `launch` in the place of cell and attempt.
        decode: those of them that tell a decode speed, as `log_speed`; `accepted` by any counter.
        by_request: of each launch and what was asked (`REQUEST`) the median `log_speed`.
        by_launch: of each launch and task the median `log_speed`, `runs`, counters (sums) and the
            tokens of the `shortest` run.
        by_cell: of each cell and task the median over launches, `variance` of that figure as far
            as launches of this cell show it, `launches`, and counters.
        method: how tokens are drafted, where that is known.
        unwatched: launches to watch the speed of the reference cell that were not measured.
        texts: `output` and `output_token_ids` of the table `runs`; `row` of `runs` and `decode` is
            the place in it.
    """

    launches: pl.DataFrame
    runs: pl.DataFrame
    decode: pl.DataFrame
    by_request: pl.DataFrame
    by_launch: pl.DataFrame
    by_cell: pl.DataFrame
    method: str | None
    unwatched: int
    texts: pl.DataFrame

    def real(self) -> pl.DataFrame:
        """The launches that were not simulated: machine and clock tell something about these."""
        return self.launches.filter(pl.col("engine").ne_missing("simulated"))

    @property
    def drafts_now_and_then(self) -> bool:
        """Whether a step without a draft, or with a short one, is nothing special."""
        return self.method == "ngram"


def gather(trials: pl.LazyFrame, runs: pl.LazyFrame, method: str | None = None) -> Evidence:
    """The evidence in the tables `trials` and `runs`; `method` is that of speculation."""
    launches = _launches(trials)
    names = launches.lazy().select(*CELL, "launch")
    numbered = runs.with_row_index("row")
    measured = numbered.join(names, on=CELL, how="inner").select(_OF_A_RUN).collect()
    texts = runs.select("output", "output_token_ids").collect()
    decode = _decode(measured)
    by_request = decode.group_by("launch", *REQUEST).agg(pl.col("log_speed").median())
    by_launch = _by_launch(decode)
    by_cell = _by_cell(by_launch, launches)
    tables = (launches, measured, decode, by_request, by_launch, by_cell)
    return Evidence(*tables, method, _unwatched(trials), texts)


def _unwatched(trials: pl.LazyFrame) -> int:
    lost = [each.value for each in (Status.FAILED, Status.INFEASIBLE, Status.INVALID)]
    watching = pl.col("purpose") == Purpose.REFERENCE.value
    found = trials.filter(pl.col("attempt") > 0, watching, pl.col("status").is_in(lost))
    return found.select(pl.col(CELL)).unique().collect().height


def _launches(trials: pl.LazyFrame) -> pl.DataFrame:
    words = [pl.col("extra").fill_null("{}")]
    words += [pl.col(name).fill_null("") for name in ("changed", "workload")]
    return (
        trials.filter(pl.col("status") == Status.MEASURED.value, pl.col("attempt") > 0)
        .filter(pl.col("cell_id").is_not_null())
        .unique(CELL, keep="last", maintain_order=True)
        .sort("started_at", "sequence", "cell_id", "attempt", nulls_last=True)
        .select(*CELL, *AXES, pl.concat_str(words, separator="\n").alias(SETTING), *_OF_A_LAUNCH)
        .with_row_index("launch")
        .collect()
    )


def _decode(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs of one request at a time that tell a speed."""
    positions = pl.col("accepted_per_position").list
    whole = positions.drop_nulls().list.len() == positions.len()
    return (
        decode_runs(runs.lazy())
        .with_columns(
            log_speed=pl.col("decode_tok_s").log(),
            accepted=pl.coalesce("accepted_tokens", pl.when(whole).then(positions.sum())),
        )
        .collect()
    )


def _by_launch(decode: pl.DataFrame) -> pl.DataFrame:
    counted = pl.col("drafts").is_not_null() & pl.col("accepted").is_not_null()
    told = counted & (pl.col("completion_tokens") > 0)
    return (
        decode.lazy()
        .group_by("launch", "task")
        .agg(
            pl.col("log_speed").median(),
            pl.len().cast(pl.Int64).alias("runs"),
            pl.col("drafts", "accepted").filter(counted).sum(),
            pl.col("drafts", "accepted").filter(told).sum().name.prefix("told_"),
            (pl.col("completion_tokens") - 1).filter(told).sum().alias("told_tokens"),
            told.sum().cast(pl.Int64).alias("told_runs"),
            pl.col("completion_tokens").min().alias("shortest"),
        )
        .collect()
    )


def _by_cell(by_launch: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    cells = launches.select("launch", "cell_id", *AXES, SETTING)
    return (
        by_launch.lazy()
        .join(cells.lazy(), on="launch", how="inner")
        .group_by("cell_id", *AXES, SETTING, "task")
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
        .collect()
    )
