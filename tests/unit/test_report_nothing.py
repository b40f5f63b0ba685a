"""What is said where no cell has a speed."""

from typing import Any

import pytest

from vllm_frontier.report.nothing import why_nothing
from vllm_frontier.store.tables import frame

BASE = {"sweep": "s", "attempt": 1, "graphs": True, "extra": "{}", "phase": "stop", "depth": 0}


def row(context: int, status: str, reason: str | None = None, **others: Any) -> dict[str, Any]:
    cell = {"cell_id": str(context), "context": context, "utilization": 0.9}
    return {**BASE, **cell, "status": status, "failure_class": reason, **others}


def refused(context: int, needed: float | None, free: float) -> dict[str, Any]:
    reason = "kv_none" if needed is None else "kv_too_small"
    memory = {"kv_needed_gib": needed, "kv_available_gib": free}
    return row(context, "infeasible", reason, **memory)


CRASH = row(8192, "failed", "engine_crashed", evidence="Segfault\n  here")
INFERRED = row(65536, "inferred", "kv_too_small", attempt=0)
ARGUMENT = row(8192, "invalid", "invalid_argument", evidence="no such dtype")


@pytest.mark.parametrize(
    ("rows", "left", "told"),
    [
        ([], 4, "no cell has a measured speed yet"),
        (
            [refused(16384, 2.0, 0.5), refused(8192, 1.0, 0.5), INFERRED],
            0,
            "nothing in the grid fits: kv_too_small (3 of 3 cells refused); a window of 8192 "
            "tokens needs 1.00 GiB of KV cache, and 0.50 GiB are left",
        ),
        (
            [refused(8192, None, -1.25)],
            0,
            "nothing in the grid fits: kv_none (1 of 1 cell refused); for a window of 8192 tokens "
            "-1.25 GiB are left for the KV cache",
        ),
        (
            [refused(8192, 1.0, 0.5)],
            3,
            "no cell has a measured speed yet: nothing that was tried fits: kv_too_small (1 of 1 "
            "cell refused); a window of 8192 tokens needs 1.00 GiB of KV cache, and 0.50 GiB are "
            "left",
        ),
        ([CRASH], 0, "every launch failed: engine_crashed (1 of 1); Segfault here"),
        (
            [CRASH, refused(16384, 2.0, 0.5)],
            0,
            "nothing that was tried fits: kv_too_small (1 of 1 cell refused); a window of 16384 "
            "tokens needs 2.00 GiB of KV cache, and 0.50 GiB are left; 1 cell failed: "
            "engine_crashed (1 of 1); Segfault here",
        ),
        (
            [ARGUMENT],
            0,
            "vLLM refuses every cell: invalid_argument (1 of 1 cell refused); no such dtype",
        ),
        ([row(8192, "measured")], 0, "1 cell works, but no speed was measured"),
    ],
)
def test_the_reason_is_told(rows: list[dict[str, Any]], left: int, told: str) -> None:
    assert why_nothing(frame("trials", rows), left) == told
