"""Sweeps that were never measured: tables with known truth, many sweeps at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vllm_frontier.store.tables import frame

TASKS = {"edit": 1.18, "code": 1.0, "prose": 0.85}  # over the speed of the cell
# Of four cells the second is as fast as the first, the third and fourth are apart from both.
QUARTET = (1.0, 1.0, 1.05, 0.95)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Model:
    """How launches and runs come out.

    Attributes:
        replicates: launches of every cell, in blocks: seeded, every second one reversed.
        reference: the first cell is launched again in the middle and at the end.
        repeats: runs of each task in a launch.
        launch_sd: relative standard deviation between launches of a cell.
        graphs_sd: the same of cells with graphs, the second half of them; None: as `launch_sd`.
        run_sd: the same between runs of a launch.
        slow: share of runs that are a tenth slower.
        drift: the most by which speed moves over the sweep, either way.
        shape: of the drift: `linear`, `step` (at any time) or `warm` (most of it at the start).
        uneven: how much faster the first and the last task are in the second cell of four.
    """

    replicates: int = 3
    reference: bool = True
    repeats: int = 9
    launch_sd: float = 0.02
    graphs_sd: float | None = None
    run_sd: float = 0.02
    slow: float = 1 / 50
    drift: float = 0.05
    shape: str = "linear"
    uneven: float = 0.0
    cells: int = 12


@dataclass(frozen=True)
class Sweeps:
    """The tables of some sweeps, whose cells have ids of their own.

    `truth` has `sweep`, `cell_id`, `number` (of the cell in its sweep) and `speed`: without launch
    effect and noise, at the mean drift of its sweep, tokens/s.
    """

    trials: pl.DataFrame
    runs: pl.DataFrame
    truth: pl.DataFrame


def sweeps(count: int, model: Model, seed: int) -> Sweeps:
    """Draw sweeps."""
    rng = np.random.default_rng(seed)
    order = _order(rng, count, model)
    launches = order.shape[1]
    at = (np.arange(launches) + rng.uniform(0, 0.5, order.shape)) / launches
    drift = _drift(rng, at, model)
    speed = np.repeat(rng.uniform(80, 120, (count, model.cells // 4)), 4, axis=1)
    speed *= np.tile(QUARTET, model.cells // 4)
    number = np.arange(model.cells)
    factors = np.tile(list(TASKS.values()), (model.cells, 1))
    factors[np.ix_(number % 4 == 1, [0, 2])] *= 1 + model.uneven

    rows = np.arange(count)[:, None]
    graphs = order >= model.cells // 2
    graphs_sd = model.launch_sd if model.graphs_sd is None else model.graphs_sd
    effect = drift + rng.normal(0, 1, order.shape) * np.where(graphs, graphs_sd, model.launch_sd)
    shape = (*order.shape, len(TASKS), model.repeats)
    noise = rng.normal(0, model.run_sd, shape) + np.log(0.9) * (rng.random(shape) < model.slow)
    means = np.log(speed[rows, order])[..., None] + np.log(factors)[order] + effect[..., None]
    runs = np.exp(means[..., None] + noise)

    attempt = _attempts(order)
    seconds = (at * launches * 300).ravel()
    trials = _as_table(
        "trials",
        **_names(rows, order),
        attempt=attempt.ravel(),
        depth=order.ravel() % 4,
        context=1024 * (1 + order.ravel()),
        graphs=graphs.ravel(),
        utilization=0.9,
        extra="{}",
        status="measured",
        started_at=(seconds * 1e6).astype(np.int64) + int(BEGIN.timestamp() * 1e6),
    )
    each = len(TASKS) * model.repeats
    repeat = np.tile(np.arange(model.repeats), order.size * len(TASKS))
    table = _as_table(
        "runs",
        **{name: np.repeat(column, each) for name, column in _names(rows, order).items()},
        attempt=np.repeat(attempt.ravel(), each),
        task=np.tile(np.repeat(list(TASKS), model.repeats), order.size),
        repeat=repeat,
        variant=repeat % 3,
        kind="decode",
        concurrency=1,
        decode_tok_s=runs.ravel(),
    )
    every = np.tile(number, (count, 1))
    truth = pl.DataFrame(
        {
            **_names(rows, every),
            "number": every.ravel(),
            "speed": (speed * np.exp(drift.mean(axis=1, keepdims=True))).ravel(),
        }
    )
    return Sweeps(trials, table, truth)


def _order(rng: np.random.Generator, count: int, model: Model) -> NDArray[np.int64]:
    """The cells in the order of their launches: sweeps by launches."""
    blocks: list[NDArray[np.int64]] = []
    for number in range(model.replicates):
        drawn = np.tile(np.arange(model.cells), (count, 1))
        blocks.append(blocks[-1][:, ::-1] if number % 2 else rng.permuted(drawn, axis=1))
    order = np.concatenate(blocks, axis=1)
    if not model.reference:
        return order
    first, half = order[:, :1], order.shape[1] // 2
    return np.concatenate([order[:, :half], first, order[:, half:], first], axis=1)


def _drift(rng: np.random.Generator, at: NDArray[np.float64], model: Model) -> NDArray[np.float64]:
    """How much faster each launch is for when it was made; `at` is from 0 to 1."""
    size = rng.uniform(-model.drift, model.drift, (at.shape[0], 1))
    shapes = {
        "linear": at,
        "step": (at > rng.uniform(0, 1, (at.shape[0], 1))).astype(float),
        "warm": 1 - np.exp(-5 * at),
    }
    return np.asarray(size * shapes[model.shape])


def _attempts(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which launch of its cell each is, from 1."""
    seen = order[:, :, None] == order[:, None, :]
    return np.asarray(np.tril(seen).sum(axis=2))


def _names(sweep: NDArray[np.int64], cells: NDArray[np.int64]) -> dict[str, NDArray[np.str_]]:
    sweep = np.broadcast_to(sweep, cells.shape).ravel()
    names = [f"{one}-{other}" for one, other in zip(sweep, cells.ravel(), strict=True)]
    return {"sweep": sweep.astype(str), "cell_id": np.array(names)}


def _as_table(table: str, **columns: Any) -> pl.DataFrame:
    """The columns of a table; those that are not told are null."""
    whole = frame(table)
    told = pl.DataFrame(columns).cast({name: whole.schema[name] for name in columns})
    return pl.concat([whole, told], how="diagonal")
