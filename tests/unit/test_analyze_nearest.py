"""Which cell comes nearest to what is asked for, where none satisfies it."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.analyze.nearest import nearest


def working(*cells: tuple[int, float, float]) -> pl.LazyFrame:
    """Cells with a speed: context, tokens/s, utilization."""
    rows = [
        {"cell_id": f"{context}/{share}/{speed}", "context": context, "decode_tok_s": speed}
        | {"utilization": share}
        for context, speed, share in cells
    ]
    return pl.LazyFrame(rows)


def picked(cells: pl.LazyFrame, **limits: Any) -> dict[str, float]:
    """The speed of the nearest cell, by what it is nearest in."""
    rows = nearest(cells, **limits).collect().iter_rows(named=True)
    return {name: row["decode_tok_s"] for row in rows for name in row["nearest_in"]}


def test_of_equally_near_cells_the_faster_is_offered() -> None:
    cells = working((131072, 50.0, 0.9), (65536, 242.0, 0.9), (65536, 250.0, 0.95))
    found = picked(cells, max_utilization=0.85)
    assert found == {"max_utilization": 242.0, "overall": 242.0}
    # What ties with the fastest may have the longer window.
    tied = working((4096, 242.0, 0.9), (65536, 240.0, 0.9), (131072, 230.0, 0.9))
    assert picked(tied, max_utilization=0.85)["overall"] == 240.0
    far = working((4096, 300.0, 0.9), (8192, 100.0, 0.9), (8192, 90.0, 0.9))
    assert picked(far, min_context=9000) == {"min_context": 100.0, "overall": 100.0}


@given(
    st.sampled_from([None, 0, 10, 5000]),
    st.sampled_from([None, 0.0, 10.0, 150.0]),
    st.sampled_from([None, 0.0, 0.5, 0.7]),
)
def test_any_limits_have_a_nearest_cell(
    context: int | None, decode: float | None, share: float | None
) -> None:
    cells = working((4096, 100.0, 0.6), (2048, 120.0, 0.6), (8192, 50.0, 0.9))
    found = nearest(cells, min_context=context, min_decode=decode, max_utilization=share).collect()
    assert "overall" in found["nearest_in"].explode().to_list()
    for row in found.iter_rows(named=True):
        short = (context or 0) - row["context"]
        assert row["missing_context"] == (short if short > 0 else None)
        over = row["utilization"] - (1.0 if share is None else share)
        assert row["missing_utilization"] == (pytest.approx(over) if over > 0 else None)
