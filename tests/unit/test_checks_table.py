"""The table of all checks: published figures, nothing at all, and nonsense."""

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from checked_sweep import Row, decode, launch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_frontier.analyze.checks import NAMES, Verdict, checks
from vllm_frontier.store.schema import SCHEMAS
from vllm_frontier.store.tables import frame, parquet

PUBLISHED = Path(__file__).parent / "data" / "decode_speed.csv"
WORDS = {verdict.value for verdict in Verdict}


def found(trials: list[Row], runs: list[Row], precision: float | None = 0.02) -> pl.DataFrame:
    tables = frame("trials", trials).lazy(), frame("runs", runs).lazy()
    return checks(*tables, precision=precision).collect()


@pytest.fixture(scope="module")
def published() -> pl.DataFrame:
    """Every launch as it was published: one figure a task, medians of three runs."""
    trials, runs = {}, []
    for line in csv.DictReader(PUBLISHED.read_text().splitlines()):
        depth, drafts = int(line["depth"]), 1000
        context, graphs = int(line["context"]), line["graphs"] == "true"
        attempt = "AB".index(line["series"]) + 1
        each = launch(depth, attempt=attempt, hours=attempt, context=context, graphs=graphs)
        trials[each["cell_id"], attempt] = each
        counters = {}
        if line["accepted_share"]:
            accepted = round(float(line["accepted_share"]) * depth * drafts)
            drafted = depth * drafts
            counters = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
        runs += decode(each, float(line["decode_tok_s"]), task=line["task"], **counters)
    return found(list(trials.values()), runs)


def test_a_baseline_that_is_too_low_is_noticed(published: pl.DataFrame) -> None:
    row = published.filter(check="speedup_bound", depth=1, task="edit").to_dicts()[0]
    assert (row["verdict"], row["expected"]) == ("fail", 2.0)
    assert row["value"] == pytest.approx(49.9 / 23.7)
    assert row["detail"].startswith("2.11 times the speed of depth 0, where 2.0 is the most")
    # The prose of depth 4 is within what is possible.
    row = published.filter(check="speedup_bound", depth=4, task="prose").to_dicts()[0]
    assert row["verdict"] == "pass"


def test_two_series_of_a_day_that_differ_by_a_sixth_are_noticed(published: pl.DataFrame) -> None:
    (row,) = published.filter(check="series_gap").to_dicts()
    assert (row["verdict"], row["depth"], row["graphs"], row["attempt"]) == ("warn", 4, False, 2)
    assert row["value"] == pytest.approx((97 / 115.4 * 81 / 96.9 * 70 / 83.9) ** (1 / 3))
    assert row["detail"].startswith("16 % slower than attempt 1 of the same cell (3 runs compared")


def test_the_table_has_the_columns_of_the_schema(published: pl.DataFrame) -> None:
    assert published.schema == frame("checks").schema
    assert parquet("checks", published)
    assert set(published["check"]) == set(NAMES)
    assert set(published["sweep"]) == {"demo"}
    assert set(published["engine"]) == {"vllm"}
    of_cells = published.filter(pl.col("cell_id").is_not_null())
    assert of_cells["extra"].null_count() == 0


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [launch(0, attempt=0, status="inferred")],
        [launch(0, status="infeasible"), launch(2, status="failed")],
    ],
)
def test_of_nothing_every_check_says_that_it_knows_nothing(trials: list[Row]) -> None:
    table = found(trials, [])
    assert table["check"].to_list() == list(NAMES)
    assert set(table["verdict"]) == {"unknown"}
    assert set(table["detail"]) == {"no cell is measured yet"}
    assert table["cell_id"].null_count() == len(NAMES)


def test_rows_without_any_figure_are_no_finding() -> None:
    each = launch(2)
    bare = {"cell_id": each["cell_id"], "attempt": 1}
    kinds = ("decode", "prefill", "fill", "probe", None)
    table = found([each], [bare | {"kind": kind} for kind in kinds])
    assert set(table["verdict"]) == {"unknown"}


def test_cells_that_cannot_be_judged_beside_others_are_counted() -> None:
    trials = [launch(0), *(launch(depth) for depth in (1, 2, 3, 4))]
    trials += [launch(5, extra='{"a": 1}')]
    runs = [run for each in trials for run in decode(each, 50.0, 51.0)]
    runs[:2] = [run | {"throttled_share": 0.0} for run in runs[:2]]
    table = found(trials, runs).filter(verdict="unknown")
    told = {row["check"]: row for row in table.iter_rows(named=True)}
    row = told["throttled"]
    assert row["detail"].startswith("5 of 6 measured cells could not be judged: their runs do not")
    assert row["cell_id"] is None
    row = told["speedup_bound"]
    assert (row["cell_id"], row["depth"]) == (trials[-1]["cell_id"], 5)
    assert row["detail"].startswith("1 of 5 measured cells could not be judged: nothing was")
    # Of a check that judged nothing one row says why.
    assert table.filter(check="clock_gap")["detail"].to_list() == [
        "no run was timed by both clocks"
    ]
    assert table.filter(check="repeat_launches")["detail"].to_list() == [
        "no cell was launched again"
    ]
    assert table["check"].is_unique().all()


def test_runs_that_are_far_off_are_told_of_each_launch_and_of_the_sweep() -> None:
    trials = [launch(0, attempt=number) for number in (1, 2)]
    near = [50.0 + number % 3 / 10 for number in range(20)]
    runs = decode(trials[0], *near, variant=0) + decode(trials[1], *near[:17], 40.1, variant=0)
    table = found(trials, runs).filter(check="outliers")
    sweep, one = table.to_dicts()
    assert (sweep["cell_id"], sweep["verdict"], sweep["value"]) == (None, "pass", 1 / 38)
    assert sweep["detail"].startswith("far off, and counted all the same: 1 of 38 runs (2.6 %), at")
    assert "at worst decode (edit) at 0.8 times the speed" in sweep["detail"]
    assert (one["attempt"], one["verdict"], one["value"]) == (2, "pass", pytest.approx(1 / 18))
    many = runs[:-2] + decode(trials[1], 40.1, 65.2, variant=0)
    table = found(trials, many).filter(check="outliers")
    assert table["verdict"].to_list() == ["pass", "warn"]
    assert "far off: 2 of 18 runs, at worst at 1.3 times" in table["detail"].item(1)
    (row,) = found(trials, runs[:20]).filter(check="outliers").to_dicts()
    assert (row["verdict"], row["detail"]) == ("pass", "none of 20 runs is far off")


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Anything that a column may hold, nulls often."""
    if pa.types.is_list(kind):
        return st.none() | st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_boolean(kind):
        return st.none() | st.booleans()
    if pa.types.is_integer(kind):
        return st.none() | st.integers(-2, 5)
    if pa.types.is_floating(kind):
        odd = [0.0, 1.0, 2.0, 50.0, 1e-300, 1e300, -1.0, float("nan"), float("inf")]
        return st.none() | st.sampled_from(odd)
    if pa.types.is_timestamp(kind):
        return st.none() | st.sampled_from([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)])
    return st.none() | st.sampled_from(["a", "b", "{}"])


def rows_of(table: str, **told: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Row]]:
    columns = {field.name: values(field.type) for field in SCHEMAS[table]}
    return st.lists(st.fixed_dictionaries(columns | told), max_size=6)


CELLS = {"cell_id": st.sampled_from(["a", "b", None]), "attempt": st.sampled_from([0, 1, 2, None])}
TRIALS = rows_of(
    "trials",
    **CELLS,
    status=st.sampled_from(["measured", "measured", "inferred", "failed", "infeasible", None]),
    purpose=st.sampled_from(["proof", "reference", "replicate", None]),
    spec_state=st.sampled_from(["working", "suspect", None]),
    depth=st.sampled_from([0, 1, 2, None]),
)
RUNS = rows_of(
    "runs",
    **CELLS,
    kind=st.sampled_from(["decode", "decode", "prefill", "fill", "probe", None]),
    concurrency=st.sampled_from([1, 1, 2, None]),
)


@settings(max_examples=40, deadline=None)
@given(TRIALS, RUNS)
def test_whatever_the_tables_hold_every_check_speaks(trials: list[Row], runs: list[Row]) -> None:
    table = found(trials, runs)
    assert set(table["check"]) == set(NAMES)
    assert set(table["verdict"]) <= WORDS
    assert table["detail"].null_count() == 0
    for name in ("value", "expected"):
        assert table[name].drop_nulls().is_finite().all()
    of_sweeps = pl.col("check").is_in(["outliers", "series_gap"]) & (pl.col("verdict") == "pass")
    of_sweeps |= pl.col("check").is_in(["repeat_launches", "precision"])
    subjects = table.filter(pl.col("verdict") != "unknown", ~of_sweeps)
    assert subjects["cell_id"].null_count() == 0
    assert parquet("checks", table)
