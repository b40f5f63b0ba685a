"""A sweep as large as wanted that was never measured: `trials.parquet` and `runs.parquet`.

Every column that a sweep on a card fills is filled, with values of the usual size: texts and
tokens, counts by position, telemetry, and runs of each kind. Speeds follow depth, graphs, task,
prompt and launch, with noise, so that the tables made of it have something to tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vllm_frontier.store import tables

Array: TypeAlias = NDArray[Any]

TASKS = ("edit", "code", "prose")
PROMPTS = 3
DEPTHS = 10
SHARES = (0.8, 0.85, 0.9, 0.93, 0.95)
TOKENS = 256  # of an answer
_BEGAN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
_KINDS = ("fill", *["prefill"] * 3, *["probe"] * 4)  # runs of a launch beside those of its tasks
_SAMPLED = 4  # the place among these of the probe that is sampled
_REFUSED = 2  # windows of each line that do not fit
_LAUNCH_S = 180


@dataclass(frozen=True)
class Shape:
    """How large a sweep is.

    Attributes:
        cells: measured cells.
        launches: of each.
        repeats: runs of each task in a launch.
    """

    cells: int
    launches: int
    repeats: int

    @property
    def runs(self) -> int:
        """Rows of `runs`."""
        return self.cells * self.launches * self.per_launch

    @property
    def per_launch(self) -> int:
        """Rows of `runs` of a launch."""
        return len(TASKS) * self.repeats + len(_KINDS)

    @classmethod
    def of_runs(cls, cells: int, launches: int, runs: int) -> Shape:
        """With as many repeats as make about so many runs."""
        each = runs / (cells * launches) - len(_KINDS)
        return cls(cells, launches, max(1, round(each / len(TASKS))))


def write(folder: Path, shape: Shape, seed: int = 0) -> None:
    """Write both files, as the store writes them."""
    rng = np.random.default_rng(seed)
    trials = _trials(shape)
    (folder / "trials.parquet").write_bytes(tables.parquet("trials", trials))
    (folder / "runs.parquet").write_bytes(tables.parquet("runs", _runs(trials, shape, rng)))


def _trials(shape: Shape) -> pl.DataFrame:
    """Measured cells in lines of growing windows, each line with refused and inferred ends."""
    lines = 2 * DEPTHS * len(SHARES)
    cell = np.arange(shape.cells)
    line, step = cell % lines, cell // lines
    measured = _axes(line, step).with_columns(
        pl.Series("cell_id", [f"{number:016x}" for number in cell]),
        status=pl.lit("measured"),
        phase=pl.lit("stop"),
    )
    blocks = [
        measured.with_columns(attempt=pl.lit(number + 1), purpose=_purpose(number))
        for number in range(shape.launches)
    ]
    steps = -(-shape.cells // lines)
    beyond = np.repeat(np.arange(min(lines, shape.cells)), _REFUSED)
    refused = _axes(beyond, steps + np.arange(len(beyond)) % _REFUSED).with_columns(
        pl.Series("cell_id", [f"{shape.cells + number:016x}" for number in range(len(beyond))]),
        pl.Series("status", ["infeasible", "inferred"] * (len(beyond) // _REFUSED)),
        attempt=pl.Series([1, 0] * (len(beyond) // _REFUSED)),
        phase=pl.lit("allocate_kv"),
        failure_class=pl.lit("kv_too_small"),
        purpose=pl.lit("proof"),
    )
    told = pl.concat([*blocks, refused], how="diagonal_relaxed").with_row_index("_number")
    at = _BEGAN + pl.col("_number").cast(pl.Int64) * _LAUNCH_S * 1_000_000
    return _as_table(
        "trials",
        told.with_columns(
            sweep=pl.lit("large"),
            extra=pl.lit("{}"),
            started=pl.col("status") == "measured",
            filled=pl.col("status") == "measured",
            kv_available_gib=32 * pl.col("utilization") - 22,
            kv_tokens=pl.lit(400_000),
            weights_gib=pl.lit(20.9),
            memory_used_peak_gib=32 * pl.col("utilization"),
            engine=pl.lit("vllm"),
            engine_version=pl.lit("0.32.0"),
            model=pl.lit("models/large"),
            card=pl.lit("RTX 5090"),
            card_memory_gib=pl.lit(31.8),
            started_at=at,
            ended_at=at + _LAUNCH_S * 900_000,
            workload=pl.lit("17ea058b518758bd"),
            spec_state=pl.when(pl.col("status") == "measured", pl.col("depth") > 0).then(
                pl.lit("working")
            ),
            with_speed=pl.lit(value=True),
            sequence="_number",
        ).drop("_number"),
    )


def _axes(line: Array, step: Array) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "depth": line % DEPTHS,
            "graphs": line // DEPTHS % 2 == 1,
            "utilization": np.array(SHARES)[line // (2 * DEPTHS) % len(SHARES)],
            "context": 4096 * (step + 1),
        }
    )


def _purpose(number: int) -> pl.Expr:
    """The first cell is the reference."""
    first = pl.col("cell_id") == f"{0:016x}"
    again = pl.when(first).then(pl.lit("reference")).otherwise(pl.lit("replicate"))
    return pl.lit("speed") if number == 0 else again


def _runs(trials: pl.DataFrame, shape: Shape, rng: np.random.Generator) -> pl.DataFrame:
    launches = trials.filter(status="measured").with_row_index("launch")
    place = np.arange(shape.per_launch)
    decoding = place - len(_KINDS)
    kind = np.where(decoding < 0, np.array(_KINDS)[np.minimum(place, len(_KINDS) - 1)], "decode")
    number = np.where(decoding < 0, place, decoding // len(TASKS))
    task = np.where(np.isin(kind, ("decode", "probe")), np.array(TASKS)[place % len(TASKS)], kind)
    n = launches.height
    launch = np.repeat(np.arange(n), shape.per_launch)
    whole = pl.DataFrame(
        {
            "kind": np.tile(kind, n),
            "task": np.tile(task, n),
            "repeat": np.tile(number, n),
            "_task": np.tile(place % len(TASKS), n),
            "_second": np.tile(place, n),
        }
    )
    of_launch = launches.select("sweep", "cell_id", "attempt", "depth", "graphs", "started_at")
    whole = pl.concat([whole, of_launch[launch]], how="horizontal").with_columns(
        variant=pl.col("repeat") % PROMPTS
    )
    effect = rng.normal(0, 0.01, n)[launch]
    return _as_table("runs", _figures(whole, effect, rng))


def _figures(whole: pl.DataFrame, effect: Array, rng: np.random.Generator) -> pl.DataFrame:
    n, depth = whole.height, whole["depth"].to_numpy()
    kind, task = whole["kind"].to_numpy(), whole["_task"].to_numpy()
    decode, prefill, probe = (kind == name for name in ("decode", "prefill", "probe"))
    timed = decode | (kind == "fill")
    accepted = 0.8 ** np.arange(1, DEPTHS)
    step = (0.02 - 0.008 * whole["graphs"].to_numpy()) * (1 + 0.04 * depth)
    per_step = 1 + np.concatenate([[0], np.cumsum(accepted)])[depth] * (1 - 0.05 * task)
    noise = rng.normal(0, 0.015, n) + np.log(0.85) * (rng.random(n) < 0.005)
    variant = whole["variant"].to_numpy()
    speed = per_step / step * np.exp(effect + noise + 0.02 * (variant - 1))
    drafts = np.where(depth > 0, np.round((TOKENS - 1) / per_step), 0).astype(np.int64)
    positions = np.round(drafts[:, None] * accepted[None, :] * (1 - 0.05 * task)[:, None])
    positions = np.where(np.arange(1, DEPTHS)[None, :] <= depth[:, None], positions, 0)
    sampled = probe & (whole["_second"].to_numpy() == _SAMPLED)
    text = (task * PROMPTS + variant) * DEPTHS + np.where(rng.random(n) < 0.1, depth, 0)
    text[sampled] = len(TASKS) * PROMPTS * DEPTHS + np.arange(sampled.sum())
    words, ids, digests = _texts(int(sampled.sum()), rng)
    likely = rng.normal(-1, 0.1, n)
    some = pl.Series([[], ["power_cap"]], dtype=pl.List(pl.String))

    def where(told: Array, values: Array) -> pl.Series:
        return pl.select(pl.when(pl.Series(told)).then(pl.Series(values))).to_series()

    return whole.select(
        *("sweep", "cell_id", "attempt", "task", "repeat", "kind"),
        concurrency=pl.lit(1),
        temperature=pl.when(pl.Series(sampled)).then(1.0).otherwise(0.0),
        thinking=pl.lit(value=False),
        prompt_tokens=pl.lit(500) + 10 * pl.col("_task") + pl.col("variant"),
        completion_tokens=pl.Series(np.where(prefill, 1, TOKENS)),
        cached_tokens=where(~probe, np.where(rng.random(n) < 0.001, 64, 0)),
        ttft_s=where(~probe, rng.normal(0.05, 0.005, n)),
        decode_s=where(timed, TOKENS / speed),
        decode_tok_s=where(timed, speed),
        decode_tok_s_server=where(timed, speed),
        decode_tok_s_client=where(timed, speed * np.exp(rng.normal(0, 0.01, n))),
        prefill_tok_s=where(prefill, rng.normal(11_000, 200, n)),
        drafts=where(~probe, drafts),
        draft_tokens=where(~probe, drafts * depth),
        accepted_tokens=where(~probe, positions.sum(axis=1).astype(np.int64)),
        accepted_per_position=_lists(positions, depth),
        output_sha256=digests.gather(text),
        started_at=pl.col("started_at").dt.offset_by("30s")
        + pl.duration(milliseconds=300 * pl.col("_second")),
        output=words.gather(text),
        variant=pl.when(pl.col("kind").is_in(["decode", "probe"])).then("variant"),
        output_token_ids=ids.gather(text),
        output_logprob=where(probe, likely),
        output_logprob_expected=where(probe, likely + rng.normal(0, 0.05, n)),
        memory_used_gib=pl.Series(rng.normal(28, 0.01, n)),
        sm_clock_mhz=pl.Series(rng.normal(2500, 10, n)),
        memory_clock_mhz=pl.lit(14_001.0),
        power_w=pl.Series(rng.normal(420, 5, n)),
        temperature_c=pl.Series(rng.normal(60, 2, n).round()),
        gpu_utilization=pl.Series(rng.uniform(0.9, 1, n)),
        throttle_reasons=some.gather((rng.random(n) < 0.2).astype(np.int64)),
        foreign_processes=pl.lit(2),
        foreign_gib=pl.lit(0.5) + pl.Series(rng.uniform(0, 0.05, n)),
        cpu_cores=pl.Series(rng.uniform(1.0, 1.3, n)),
        foreign_cores=pl.Series(rng.uniform(0, 0.4, n)),
        cpu_mhz=pl.Series(rng.normal(4500, 100, n)),
        throttled_share=pl.Series((rng.random(n) < 0.2) * rng.random(n)),
    )


def _texts(more: int, rng: np.random.Generator) -> tuple[pl.Series, pl.Series, pl.Series]:
    """For each prompt of each task the text without speculation, and some that part from it.

    After these more texts, each of which is another.
    """
    ids = [rng.integers(0, 150_000, (more, TOKENS))]
    for _ in range(len(TASKS) * PROMPTS):
        common = np.tile(rng.integers(0, 150_000, TOKENS), (DEPTHS, 1))
        parts = rng.integers(50, TOKENS, (DEPTHS, 1))
        parts[0] = TOKENS
        ids.insert(-1, common + (np.arange(TOKENS) >= parts))
    tokens = np.concatenate(ids)
    words = [" ".join(f"{each:x}" for each in text) for text in (tokens % 4096).tolist()]
    told = pl.Series(tokens.astype(np.int32)).arr.to_list()
    return pl.Series(words), told, pl.Series([f"{each:064x}" for each in range(len(words))])


def _lists(positions: Array, depth: Array) -> pl.Series:
    """The first `depth` positions of each run."""
    table = pl.DataFrame({"all": positions.astype(np.int64), "depth": depth})
    return table.select(pl.col("all").arr.to_list().list.head("depth")).to_series()


def _as_table(name: str, told: pl.DataFrame) -> pl.DataFrame:
    """With the columns and types of a table; those that are not told are null."""
    whole = tables.frame(name)
    known = told.select(
        pl.col(column).cast(kind) for column, kind in whole.schema.items() if column in told.columns
    )
    return pl.concat([whole, known], how="diagonal")
