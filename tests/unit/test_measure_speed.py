"""The speed of an attempt: as the tables tell it, without tables."""

from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_frontier.analyze.speed import cell_speeds
from vllm_frontier.measure.speed import decode_speed
from vllm_frontier.outcome import Run, Speed
from vllm_frontier.store import tables

SPEEDS = st.none() | st.floats(0.01, 1e5, allow_nan=False)
RUNS = st.lists(
    st.builds(
        Run,
        task=st.sampled_from(["edit", "code", "prose"]),
        repeat=st.integers(0, 3),
        kind=st.sampled_from(["decode", "decode", "decode", "prefill", "fill"]),
        concurrency=st.sampled_from([1, 1, 1, 4]),
        decode_tok_s=SPEEDS,
    ),
    max_size=15,
)


def decoded(*speeds: tuple[str, int, float]) -> list[Run]:
    return [Run(task, repeat, "decode", decode_tok_s=speed) for task, repeat, speed in speeds]


def test_median_over_tasks_of_medians_over_repeats() -> None:
    runs = decoded(
        *(("edit", 0, 10.0), ("edit", 1, 12.0), ("edit", 2, 50.0)),
        *(("code", 0, 20.0), ("code", 1, 24.0), ("code", 2, 22.0)),
        *(("prose", 0, 30.0), ("prose", 1, 31.0), ("prose", 2, 29.0)),
    )
    # medians of the tasks: 12, 22, 30; of the repeats: 20, 24, 29
    assert decode_speed(runs) == Speed(22.0, low=20.0, high=29.0)


def test_the_range_holds_the_speed() -> None:
    runs = decoded(("a", 0, 1.0), ("b", 1, 2.0), ("b", 2, 9.0), ("c", 0, 100.0), ("c", 1, 100.0))
    speed = decode_speed(runs)
    assert speed is not None
    assert speed.low <= speed.decode_tok_s <= speed.high


def test_without_decode_runs_there_is_no_speed() -> None:
    assert decode_speed([]) is None
    assert decode_speed([Run("fill", 0, "fill", decode_tok_s=5.0)]) is None
    assert decode_speed([Run("edit", 0, "decode")]) is None


@settings(deadline=None)  # the first time loads what reads tables
@given(RUNS)
def test_it_is_what_the_tables_tell(runs: list[Run]) -> None:
    rows = [
        {
            "cell_id": "c",
            "attempt": 1,
            "task": run.task,
            "repeat": run.repeat,
            "kind": run.kind,
            "concurrency": run.concurrency,
            "decode_tok_s": run.decode_tok_s,
        }
        for run in runs
    ]
    told = cell_speeds(tables.frame("runs", rows).lazy()).filter(
        pl.col("decode_tok_s").is_not_null()
    )
    found = decode_speed(runs)
    expected = [SimpleNamespace(**row) for row in told.collect().iter_rows(named=True)]
    if found is None:
        assert expected == []
    else:
        (row,) = expected
        assert found.decode_tok_s == pytest.approx(row.decode_tok_s, rel=1e-12)
        assert found.low == pytest.approx(row.decode_tok_s_low, rel=1e-12)
        assert found.high == pytest.approx(row.decode_tok_s_high, rel=1e-12)
