"""Rows of `trials` and `runs` for the checks, and what a check says of them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from vllm_frontier.analyze.checks import checks
from vllm_frontier.store.tables import frame

Row = dict[str, Any]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def launch(depth: int = 0, attempt: int = 1, hours: float = 0.0, **more: Any) -> Row:
    """A measured launch; its cell_id tells its axes unless one is given."""
    axes = {"depth": depth, "context": 8192, "graphs": True, "utilization": 0.9, "extra": "{}"}
    axes |= {name: more.pop(name) for name in axes if name in more}
    row = {
        "sweep": "demo",
        "cell_id": "/".join(str(value) for value in axes.values()),
        "attempt": attempt,
        **axes,
        "status": "measured",
        "engine": "vllm",
        "started_at": BEGAN + timedelta(hours=hours),
    }
    return row | more


def decode(of: Row, *speeds: float, task: str = "edit", **more: Any) -> list[Row]:
    """A decode run of a launch for each speed."""
    return [
        {
            "cell_id": of["cell_id"],
            "attempt": of["attempt"],
            "task": task,
            "repeat": number,
            "variant": number,
            "kind": "decode",
            "concurrency": 1,
            "temperature": 0.0,
            "decode_tok_s": speed,
        }
        | more
        for number, speed in enumerate(speeds)
    ]


def drafting(of: Row, *speeds: float, accepted: int, drafts: int = 100, **more: Any) -> list[Row]:
    """Decode runs whose counters tally: `accepted` tokens of `drafts` drafts."""
    counters = {
        "drafts": drafts,
        "draft_tokens": drafts * of["depth"],
        "accepted_tokens": accepted,
        "completion_tokens": drafts + accepted + 1,
    }
    return decode(of, *speeds, **(counters | more))


def judged(
    check: str, trials: Iterable[Row], runs: Iterable[Row], method: str | None = None
) -> list[Row]:
    """What a check says."""
    tables = frame("trials", list(trials)).lazy(), frame("runs", list(runs)).lazy()
    found = checks(*tables, method=method).collect()
    return [row for row in found.iter_rows(named=True) if row["check"] == check]


def verdicts(
    check: str, trials: Iterable[Row], runs: Iterable[Row], method: str | None = None
) -> list[str]:
    """Only the words."""
    return [row["verdict"] for row in judged(check, trials, runs, method)]
