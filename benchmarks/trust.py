"""How far intervals and verdicts are to be trusted, on sweeps whose truth is known.

    python benchmarks/trust.py [--sweeps 1000] [--seeds 10]

Draws sweeps of 12 cells and holds what the program's own functions make of their tables against
the truth. Prints a table in Markdown; figures have a Monte Carlo error behind `±` (one standard
error, over sweeps). Half of the cells have graphs. What is wanted is wanted of three launches with
9 repeats, which is what `workload.replicates=3 workload.precision=0.02` comes to; there are 3
repeats by default, of which another row tells. The exit code is 1 where all seeds together miss it
by more than two of these errors.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))

from synthetic_sweeps import Model, Sweeps, sweeps

from vllm_frontier.analyze.intervals import cell_figures, pooled_speeds
from vllm_frontier.analyze.launches import launch_figures
from vllm_frontier.analyze.verdicts import Verdict, verdicts

# Numbers of cells within a quartet; see `QUARTET`.
SAME, FASTER, SLOWER = ((0, 1),), ((2, 0), (2, 1)), ((3, 0), (3, 1))

PLAIN = Model()
JUDGED = "three launches, 9 repeats (`workload.replicates=3 workload.precision=0.02`)"
INFORMATION = {
    "launches differ by 1.5 %, with graphs by 3 %": Model(launch_sd=0.015, graphs_sd=0.03),
    "launches differ by 2 %, with graphs by 4 %": Model(launch_sd=0.02, graphs_sd=0.04),
    "three launches, 3 repeats (the default)": Model(repeats=3),
    "two launches, 9 repeats": Model(replicates=2),
    "one launch, and the reference cell three times": Model(replicates=1),
    "one launch and nothing else (basis `runs`)": Model(replicates=1, reference=False),
    "drift in one step": Model(shape="step"),
    "drift mostly at the start": Model(shape="warm"),
    "no drift": Model(drift=0.0),
    "equal headlines, two of three tasks 2 % apart": Model(uneven=0.02),
    "equal headlines, two of three tasks 8 % apart": Model(uneven=0.08),
}


@dataclass(frozen=True)
class Shares:
    """What came of some sweeps: a mean for each sweep."""

    cover: np.ndarray
    width: np.ndarray
    faster: np.ndarray
    slower: np.ndarray
    same: np.ndarray

    @property
    def called(self) -> np.ndarray:
        """Differences of 5 % that were called, either way."""
        return (self.faster + self.slower) / 2

    @staticmethod
    def joined(parts: list[Shares]) -> Shares:
        """Of all seeds."""
        names = ("cover", "width", "faster", "slower", "same")
        return Shares(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def shares(drawn: Sweeps) -> Shares:
    """Intervals and verdicts of sweeps against their truth."""
    figures = cell_figures(drawn.trials.lazy(), drawn.runs.lazy())
    low, high = pl.col("decode_tok_s_low"), pl.col("decode_tok_s_high")
    intervals = (
        drawn.truth.lazy()
        .join(pooled_speeds(figures), on="cell_id")
        .group_by("sweep")
        .agg(
            cover=pl.col("speed").is_between(low, high).mean(),
            width=((high - low) / pl.col("decode_tok_s") / 2).mean(),
        )
        .sort("sweep")
        .collect()
    )
    return Shares(
        intervals["cover"].to_numpy(),
        intervals["width"].to_numpy(),
        called(figures, drawn, FASTER, Verdict.FASTER),
        called(figures, drawn, SLOWER, Verdict.SLOWER),
        1 - called(figures, drawn, SAME, Verdict.NO_CLEAR_DIFFERENCE),
    )


def called(
    figures: pl.DataFrame, drawn: Sweeps, pairs: tuple[tuple[int, int], ...], verdict: Verdict
) -> np.ndarray:
    """Share of pairs with that verdict, for each sweep."""
    wanted = pl.DataFrame(pairs, schema=["_one", "_other"], orient="row")
    places = drawn.truth.select(
        "sweep", "cell_id", _of=pl.col("number") % 4, _group=pl.col("number") // 4
    )
    asked = (
        places.join(wanted, left_on="_of", right_on="_one")
        .join(
            places,
            left_on=["sweep", "_group", "_other"],
            right_on=["sweep", "_group", "_of"],
            suffix="_other",
        )
        .select("cell_id", other_cell_id="cell_id_other", task=pl.lit(None, dtype=pl.String))
    )
    found = verdicts(figures, asked.lazy()).join(drawn.truth.lazy(), on="cell_id")
    by_sweep = found.group_by("sweep").agg((pl.col("verdict") == verdict.value).mean())
    return by_sweep.sort("sweep").collect()["verdict"].to_numpy()


def bootstrap_cover(drawn: Sweeps) -> np.ndarray:
    """How often a percentile bootstrap of a cell's first three launches covers, by sweep."""
    headlines = (
        launch_figures(drawn.trials.lazy(), drawn.runs.lazy())
        .filter(pl.col("task").is_null(), pl.col("attempt") <= 3)
        .sort("attempt")
        .group_by("cell_id")
        .agg("decode_tok_s")
        .collect()
    )
    table = drawn.truth.join(headlines, on="cell_id").sort("sweep", "number")
    three = np.array(table["decode_tok_s"].to_list())
    draws = np.array(list(itertools.product(range(3), repeat=3)))
    low, high = np.quantile(np.median(three[:, draws], axis=2), (0.025, 0.975), axis=1)
    truth = table["speed"].to_numpy()
    covered = (low <= truth) & (truth <= high)
    return covered.reshape(-1, table["number"].n_unique()).mean(axis=1)


def percent(values: np.ndarray) -> str:
    """A mean and its Monte Carlo error."""
    return f"{100 * values.mean():.1f} % ± {100 * error_of(values):.1f}"


def error_of(values: np.ndarray) -> float:
    """The standard error of a mean over sweeps."""
    return float(values.std(ddof=1) / np.sqrt(values.size))


def reaches(values: np.ndarray, least: float) -> bool:
    """Whether a mean is not below a limit by more than twice its Monte Carlo error."""
    return bool(values.mean() + 2 * error_of(values) >= least)


def line(name: str, found: Shares) -> str:
    """A row of the table."""
    figures = (found.cover, found.called, found.faster, found.slower, found.same)
    width = f"±{100 * found.width.mean():.1f} %"
    return " | ".join(("", name, width, *(percent(each) for each in figures), "")).strip()


def table(count: int, seeds: int) -> Iterator[tuple[str, bool]]:
    """The rows, and whether what is wanted of each was found."""
    parts = [shares(sweeps(count, PLAIN, seed)) for seed in range(1, seeds + 1)]
    yield line(f"{JUDGED}, the first seed", parts[0]), True
    found = Shares.joined(parts)
    kept = (
        reaches(found.cover, 0.93)
        and reaches(-found.cover, -0.97)
        and reaches(found.called, 0.80)
        and reaches(-found.same, -0.05)
    )
    yield line(f"**the same, {seeds} seeds**", found), kept
    for name, model in INFORMATION.items():
        yield line(name, shares(sweeps(count, model, 1))), True
    cover = bootstrap_cover(sweeps(count, PLAIN, 1))
    yield f"| percentile bootstrap of three launches | | {percent(cover)} | | | | |", True


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sweeps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    begin, missed = time.perf_counter(), False
    print("| sweeps | interval | covers | 5 % called | 5 % faster | 5 % slower | 0 % called |")
    print("|---|---|---|---|---|---|---|")
    print("| wanted | | 93 to 97 % | at least 80 % | | | at most 5 % |")
    for row, kept in table(arguments.sweeps, arguments.seeds):
        print(row if kept else f"{row} MISSED", flush=True)
        missed |= not kept
    print(f"\n{time.perf_counter() - begin:.0f} s")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
