"""How sure speeds are: intervals over launches, and runs that are far off."""

import math
from datetime import UTC, datetime, timedelta
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from synthetic_sweeps import Model, sweeps

from vllm_frontier.analyze.by_depth import by_depth
from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.analyze.intervals import cell_figures, pooled_speeds
from vllm_frontier.analyze.outliers import outliers
from vllm_frontier.store.tables import frame

Launch = tuple[str, float]  # cell and speed
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def trials(*cells: str, times: list[float] | None = None, **columns: object) -> pl.LazyFrame:
    """One launch after another, at the given seconds."""
    rows = [
        {
            "sweep": "s",
            "cell_id": cell,
            "attempt": 1 + cells[:number].count(cell),
            "depth": 0,
            "context": 1024 * (1 + sorted(set(cells)).index(cell)),
            "graphs": False,
            "utilization": 0.9,
            "extra": "{}",
            "status": "measured",
            "started_at": None if times is None else BEGIN + timedelta(seconds=times[number]),
            **columns,
        }
        for number, cell in enumerate(cells)
    ]
    return frame("trials", rows).lazy()


def decode(cell: str, attempt: int, task: str, *speeds: float, variants: int | None = None) -> list:
    return [
        {
            "cell_id": cell,
            "attempt": attempt,
            "task": task,
            "repeat": repeat,
            "kind": "decode",
            "concurrency": 1,
            "decode_tok_s": speed,
            "variant": None if variants is None else repeat % variants,
        }
        for repeat, speed in enumerate(speeds)
    ]


def runs(*rows: list) -> pl.LazyFrame:
    return frame("runs", [row for each in rows for row in each]).lazy()


def single_runs(*launches: Launch) -> pl.LazyFrame:
    """Each launch with one run."""
    cells = [cell for cell, _ in launches]
    return runs(
        *(
            decode(cell, 1 + cells[:number].count(cell), "edit", speed)
            for number, (cell, speed) in enumerate(launches)
        )
    )


def interval(table: pl.LazyFrame, rows: pl.LazyFrame, cell: str = "a") -> dict:
    return (
        pooled_speeds(cell_figures(table, rows))
        .collect()
        .row(by_predicate=pl.col("cell_id") == cell, named=True)
    )


def test_a_cell_has_the_medians_of_its_launches() -> None:
    rows = runs(
        *(decode("a", 1, "edit", 90, 100, 500), decode("a", 1, "prose", 40, 41, 45)),
        *(decode("a", 2, "edit", 80), decode("a", 2, "prose", 30)),
        *(decode("a", 3, "edit", 90), decode("a", 3, "prose", 48)),
        [
            {"cell_id": "a", "attempt": 1, "kind": "prefill", "prefill_tok_s": speed}
            for speed in (900.0, 700.0)
        ],
        [{"cell_id": "a", "attempt": 3, "kind": "prefill", "prefill_tok_s": 500.0}],
    )
    row = interval(trials("a", "a", "a"), rows)
    assert row["decode_tok_s"] == 69  # of 70.5, 55 and 69
    assert row["task_decode_tok_s"] == [
        {"task": "edit", "decode_tok_s": 90},
        {"task": "prose", "decode_tok_s": 41},
    ]
    assert row["prefill_tok_s"] == 650
    assert (row["launches"], row["runs"], row["interval_basis"]) == (3, 10, "launches")


def test_the_variance_is_that_of_all_cells() -> None:
    pairs = [("a", 100, 110), ("b", 50, 53), ("d", 70, 71), ("e", 90, 86)]
    squares = sum(math.log(one / other) ** 2 / 2 for _, one, other in pairs)
    deviation = math.sqrt(squares / 4)  # four degrees of freedom
    t = stats.t.ppf(0.975, 4)
    first, second = [(cell, speed) for cell, speed, _ in pairs], [(c, x) for c, _, x in pairs]
    rows = single_runs(*first, *second, ("c", 70))
    table = trials(*"abde" * 2, "c", times=range(9))
    for cell, middle, launches in (("a", math.sqrt(100 * 110), 2), ("c", 70, 1)):
        row = interval(table, rows, cell)
        half = t * deviation / math.sqrt(launches)
        assert row["decode_tok_s_low"] == pytest.approx(middle * math.exp(-half))
        assert row["decode_tok_s_high"] == pytest.approx(middle * math.exp(half))
        assert row["interval_basis"] == "launches"


def test_three_launches_of_one_cell_say_nothing_of_another() -> None:
    rows = single_runs(("a", 100), ("b", 50), ("a", 110), ("a", 104))
    table = trials("a", "b", "a", "a", times=[0, 1, 2, 3])
    row = interval(table, rows, "a")
    half = stats.t.ppf(0.975, 2) * np.std(np.log([100, 110, 104]), ddof=1) / math.sqrt(3)
    middle = np.mean(np.log([100, 110, 104]))
    assert row["decode_tok_s_low"] == pytest.approx(math.exp(middle - half))
    assert row["interval_basis"] == "launches"
    assert interval(table, rows, "b")["interval_basis"] == "runs"


def test_intervals_are_those_of_a_regression_on_cells_and_time() -> None:
    draw = np.random.default_rng(3)
    cells = list("abcd" * 3 + "a")
    times = [*draw.uniform(0, 100, 12), 130.0]
    speeds = 50 * np.exp(draw.normal(0, 0.05, 13))
    figures = cell_figures(
        trials(*cells, times=times), single_runs(*zip(cells, speeds, strict=True))
    )
    # The same by least squares: an intercept for each cell at the mean time, and a slope.
    moment = np.array(times) - np.mean(times)
    design = np.column_stack([*(np.array(cells) == cell for cell in "abcd"), moment]).astype(float)
    coefficients, squares, *_ = np.linalg.lstsq(design, np.log(speeds), rcond=None)
    covariance = squares[0] / 8 * np.linalg.inv(design.T @ design)
    half = stats.t.ppf(0.975, 8) * np.sqrt(np.diag(covariance))
    found = figures.filter(pl.col("task") == "edit")
    assert found["df"].to_list() == [8] * 4
    assert found["headline"].to_numpy() == pytest.approx(coefficients[:4])
    # The median is within all of these, so that none of them is widened.
    assert np.log(found["high"].to_numpy()) == pytest.approx(coefficients[:4] + half[:4])
    assert np.log(found["low"].to_numpy()) == pytest.approx(coefficients[:4] - half[:4])


def test_a_drift_is_no_difference_between_launches() -> None:
    cells = "abcdabcdabcd"
    times = [60.0 * number for number in range(12)]
    speeds = [80.0 * math.exp(0.05 * number / 12) for number in range(12)]
    rows = single_runs(*zip(cells, speeds, strict=True))
    figures = cell_figures(trials(*cells, times=times), rows)
    assert figures["headline_variance"].max() == pytest.approx(0, abs=1e-20)
    # All four are equally fast at the middle of the sweep.
    assert figures["headline"].to_list() == pytest.approx([math.log(80) + 0.05 * 5.5 / 12] * 8)
    # Without times it cannot be told from what launches differ by.
    unknown = cell_figures(trials(*cells), rows)
    assert unknown["headline_variance"].min() > 1e-4
    assert unknown["spread"].to_list() == [math.inf] * 8


def test_launches_right_after_each_other_tell_no_drift() -> None:
    cells = "aaaabbbbcccc"
    times = [1000.0 * (number // 4) + number for number in range(12)]
    rows = single_runs(*((cell, 50.0 + number) for number, cell in enumerate(cells)))
    figures = cell_figures(trials(*cells, times=times), rows)
    assert figures["spread"].to_list() == [math.inf] * 6
    assert figures["df"].to_list() == [9] * 6


def test_graphs_have_a_variance_of_their_own_where_it_clearly_differs() -> None:
    def variances(wide: float) -> list[float]:
        tables, rows = [], []
        for graphs, off in ((False, 0.01), (True, wide)):
            cells = [f"{graphs}{number}" for number in range(6)] * 2
            tables.append(trials(*cells, graphs=graphs))
            speeds = [100.0] * 6 + [100.0 * math.exp(off * (-1) ** number) for number in range(6)]
            rows.append(single_runs(*zip(cells, speeds, strict=True)))
        figures = cell_figures(pl.concat(tables), pl.concat(rows))
        assert figures["pool"].n_unique() == 2 * figures["headline_variance"].n_unique()
        return sorted(figures["headline_variance"].unique())

    assert variances(0.1) == pytest.approx([0.01**2 / 2, 0.1**2 / 2])
    # Perhaps: the larger noise counts for itself, the smaller one may have been luck.
    assert variances(0.02) == pytest.approx([(0.01**2 + 0.02**2) / 4, 0.02**2 / 2])
    assert variances(0.015) == pytest.approx([(0.01**2 + 0.015**2) / 4])


def test_intervals_cover_with_and_without_graphs_where_their_noise_differs() -> None:
    drawn = sweeps(60, Model(repeats=3, launch_sd=0.02, graphs_sd=0.04), seed=4)
    figures = cell_figures(drawn.trials.lazy(), drawn.runs.lazy())
    found = pooled_speeds(figures).collect().join(drawn.truth, on="cell_id")
    inside = found["speed"].is_between(found["decode_tok_s_low"], found["decode_tok_s_high"])
    for half in (found["number"] < 6, found["number"] >= 6):
        assert inside.filter(half).mean() > 0.92  # type: ignore[operator]


def test_one_launch_only_knows_its_runs() -> None:
    # Prompts differ by much more than runs of one.
    rows = runs(decode("a", 1, "edit", 50, 80, 51, 82, variants=2))
    row = interval(trials("a"), rows)
    squares = (math.log(51 / 50) ** 2 + math.log(82 / 80) ** 2) / 2
    unit = math.pi / 2 / (4 + math.pi / 2 - 1)
    half = stats.t.ppf(0.975, 2) * math.sqrt(squares / 2 * unit)
    assert row["interval_basis"] == "runs"
    assert row["decode_tok_s_low"] == pytest.approx(65.5 * math.exp(-half))
    assert row["decode_tok_s_high"] == pytest.approx(65.5 * math.exp(half))


def test_of_prompts_asked_once_the_difference_counts() -> None:
    rows = runs(
        decode("a", 1, "edit", 50, 60, variants=2),
        decode("a", 1, "code", 40, 44, variants=2),
        decode("a", 1, "prose", 30, 31, variants=2),
    )
    row = interval(trials("a"), rows)
    squares = sum(math.log(one / other) ** 2 / 2 for one, other in ((60, 50), (44, 40), (31, 30)))
    unit = math.pi / 2 / (2 + math.pi / 2 - 1)
    half = stats.t.ppf(0.975, 3) * math.sqrt(squares / 3 * unit)
    assert row["decode_tok_s_high"] == pytest.approx(42 * math.exp(half))


def test_one_run_says_nothing_of_its_noise() -> None:
    row = interval(trials("a"), single_runs(("a", 50)))
    assert (row["decode_tok_s"], row["decode_tok_s_low"], row["decode_tok_s_high"]) == (
        50,
        None,
        None,
    )
    assert row["interval_basis"] == "runs"


def test_two_launches_are_not_enough_to_know_what_launches_differ_by() -> None:
    row = interval(trials("a", "a", "b"), single_runs(("a", 50), ("a", 60), ("b", 50)))
    assert (row["interval_basis"], row["decode_tok_s"], row["launches"]) == ("runs", 55, 2)


def test_a_launch_without_one_of_the_tasks_does_not_shift_the_level() -> None:
    rows = runs(
        *(decode("a", 1, "edit", 100), decode("a", 1, "prose", 40)),
        *(decode("a", 2, "edit", 110), decode("a", 2, "prose", 44)),
        decode("a", 3, "edit", 105),
    )
    figures = cell_figures(trials("a", "a", "a"), rows).filter(pl.col("task").is_null())
    # About that of the two others, and not half way to the level of the faster task.
    assert figures["level"].item() == pytest.approx(math.log(105 * 42) / 2, abs=2e-3)
    assert figures["level_variance"].item() < 0.003
    assert figures["tasks"].to_list()[0] == ["edit", "prose"]


SPEEDS = st.floats(0.01, 1e5)
RUNS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 3),
        st.sampled_from(["edit", "code"]),
        st.lists(st.none() | SPEEDS, max_size=4),
    ),
    max_size=8,
    unique_by=lambda each: each[:3],
)


@settings(deadline=None, max_examples=30)
@given(RUNS, st.booleans(), st.randoms(use_true_random=False))
def test_intervals_hold_the_headline_whatever_was_measured(
    drawn: list, timed: bool, random: Random
) -> None:
    cells = "aaabbbccc"
    table = trials(*cells, times=[float(each) for each in range(9)] if timed else None)
    rows = runs(*(decode(cell, attempt, task, *speeds) for cell, attempt, task, speeds in drawn))
    found = pooled_speeds(cell_figures(table, rows)).collect()
    assert set(found["cell_id"]) == {
        cell for cell, _, _, speeds in drawn if any(each is not None for each in speeds)
    }
    for row in found.iter_rows(named=True):
        low, high = row["decode_tok_s_low"], row["decode_tok_s_high"]
        assert (low is None) == (high is None)
        assert low is None or 0 <= low <= row["decode_tok_s"] <= high
    shuffled = rows.collect().sample(fraction=1, shuffle=True, seed=random.randrange(99))
    again = pooled_speeds(cell_figures(table, shuffled.lazy())).collect()
    columns = [name for name in found.columns if not name.endswith(("_low", "_high"))]
    assert again.select(columns).rows() == found.select(columns).rows()


@pytest.mark.parametrize("odd", [0.0, -3.0, math.inf, math.nan])
def test_what_cannot_be_a_speed_is_none(odd: float) -> None:
    rows = single_runs(("a", odd), ("a", odd), ("b", 10.0), ("b", 11.0), ("a", 1.0), ("b", 10.5))
    table = trials("a", "a", "b", "b", "a", "b")
    figures = cell_figures(table, rows)
    assert figures.filter(cell_id="a")["decode_tok_s"].to_list() == [1.0, 1.0]
    assert figures.filter(cell_id="b")["low"].null_count() == 0
    only = cell_figures(table, single_runs(("a", odd), ("b", 10.0)))
    assert only["cell_id"].unique().to_list() == ["b"]
    near = runs(decode("a", 1, "edit", *[10.0, 10.1, 9.9, 10.0, 10.1, 9.9], odd))
    assert outliers(near).collect().is_empty()
    shown = by_depth(table, runs(decode("a", 1, "edit", odd, odd))).collect()
    assert shown["eager"].to_list() == [None]


def test_the_speed_of_a_prompt_that_was_cached_is_no_prefill_speed() -> None:
    both = single_runs(("a", 10.0), ("b", 10.0))
    prefill = [
        {"cell_id": cell, "attempt": 1, "kind": "prefill", "prefill_tok_s": speed} | more
        for cell, speed, more in (
            ("a", 500.0, {"cached_tokens": 0}),
            ("a", 90_000.0, {"cached_tokens": 4000}),
            ("a", math.nan, {}),
            ("b", 90_000.0, {"cached_tokens": 4000}),
        )
    ]
    figures = cell_figures(trials("a", "b"), pl.concat([both, runs(prefill)]))
    told = dict(figures.select("cell_id", "prefill_tok_s").iter_rows())
    assert told == {"a": 500.0, "b": None}


def test_launches_that_do_not_differ_have_the_interval_of_their_runs() -> None:
    speeds = (9.8, 10.0, 10.3)
    once = interval(trials("a"), runs(decode("a", 1, "edit", *speeds)))
    cells = "aaabbb"
    table = trials(*cells)
    again = (decode(cell, attempt, "edit", *speeds) for cell in "ab" for attempt in (1, 2, 3))
    found = interval(table, runs(*again))
    assert (found["interval_basis"], found["launches"]) == ("runs", 3)
    # Copies of one launch make nothing surer.
    for end in ("decode_tok_s_low", "decode_tok_s_high"):
        assert found[end] == pytest.approx(once[end], rel=1e-12)


def test_intervals_cover_on_sweeps_with_known_truth() -> None:
    """The first rows of `benchmarks/trust.py` on fewer sweeps."""
    drawn = sweeps(40, Model(), seed=7)
    figures = cell_figures(drawn.trials.lazy(), drawn.runs.lazy())
    found = pooled_speeds(figures).collect().join(drawn.truth, on="cell_id")
    inside = found["speed"].is_between(found["decode_tok_s_low"], found["decode_tok_s_high"])
    assert 0.91 <= inside.mean() <= 0.985  # type: ignore[operator]
    alone = Model(replicates=1, reference=False)
    single = sweeps(40, alone, seed=7)
    narrow = pooled_speeds(cell_figures(single.trials.lazy(), single.runs.lazy())).collect()
    assert narrow["interval_basis"].unique().to_list() == ["runs"]
    narrow = narrow.join(single.truth, on="cell_id")
    inside = narrow["speed"].is_between(narrow["decode_tok_s_low"], narrow["decode_tok_s_high"])
    assert inside.mean() < 0.75  # type: ignore[operator]


def test_sweeps_are_pooled_apart() -> None:
    drawn = sweeps(2, Model(repeats=3), seed=1)
    both = cell_figures(drawn.trials.lazy(), drawn.runs.lazy())
    for sweep in ("0", "1"):
        of_one = pl.col("sweep") == sweep
        alone = cell_figures(drawn.trials.lazy().filter(of_one), drawn.runs.lazy().filter(of_one))
        together = both.filter(of_one)
        for name in ("low", "high", "level_variance"):
            assert alone[name].to_list() == pytest.approx(together[name].to_list(), rel=1e-9)


def test_the_frontier_tells_the_same_intervals() -> None:
    drawn = sweeps(1, Model(repeats=3), seed=2)
    speeds = pooled_speeds(cell_figures(drawn.trials.lazy(), drawn.runs.lazy())).collect()
    told = frontier(drawn.trials.lazy(), drawn.runs.lazy()).select(speeds.columns).collect()
    assert told.height
    assert told.sort("cell_id").rows() == speeds.join(told, on="cell_id", how="semi").rows()


# Outliers


def test_a_run_far_from_others_with_its_prompt_is_marked() -> None:
    rows = runs(
        *(
            decode("a", attempt, "edit", 50.0 + attempt / 10, 80.0 - attempt / 10, variants=2)
            for attempt in (1, 2, 3, 4)
        ),
        decode("a", 5, "edit", 45.0, 80.0, variants=2),
        decode("b", 1, "edit", 9.0, 90.0, variants=2),
    )
    assert outliers(rows).collect().rows() == [
        ("a", 5, "edit", 0, "decode", pytest.approx(45 / 50.2)),
    ]


def test_of_prompts_asked_once_five_runs_of_a_launch_are_enough() -> None:
    speeds = (50.0, 50.2, 49.9, 50.1, 40.0)
    (row,) = outliers(runs(decode("a", 1, "edit", *speeds, variants=9))).collect().rows()
    assert row == ("a", 1, "edit", 4, "decode", pytest.approx(0.8))
    assert outliers(runs(decode("a", 1, "edit", *speeds[1:], variants=9))).collect().is_empty()


def test_equal_runs_hide_no_outlier_and_two_percent_are_none() -> None:
    rows = decode("a", 1, "edit", *[50.0] * 6, 49.1, 30.0, variants=1)
    assert outliers(runs(rows)).collect()["repeat"].to_list() == [7]


def test_prefill_is_looked_at_and_other_kinds_are_not() -> None:
    def others(kind: str) -> list:
        return [
            {"cell_id": "a", "attempt": 1, "task": kind, "repeat": number, "kind": kind,
             "prefill_tok_s": speed, "decode_tok_s": speed}
            for number, speed in enumerate((900.0, 905.0, 895.0, 902.0, 300.0))
        ]  # fmt: skip

    found = outliers(runs(others("prefill"), others("probe"), others("fill"))).collect()
    assert found.rows() == [("a", 1, "prefill", 4, "prefill", pytest.approx(300 / 900))]


def test_nothing_has_no_outliers() -> None:
    assert outliers(runs()).collect().schema == {
        "cell_id": pl.String,
        "attempt": pl.Int64,
        "task": pl.String,
        "repeat": pl.Int64,
        "kind": pl.String,
        "ratio": pl.Float64,
    }


def test_most_slow_runs_are_found_and_few_others() -> None:
    drawn = sweeps(10, Model(launch_sd=0.0), seed=5)
    found = outliers(drawn.runs.lazy()).collect()
    slow = found.filter(pl.col("ratio") < 1)
    assert 0.01 < slow.height / drawn.runs.height < 0.025
    assert (found.height - slow.height) / drawn.runs.height < 0.005
