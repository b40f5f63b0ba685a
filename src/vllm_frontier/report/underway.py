"""Which attempts run now: on disk they look like such that were interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from vllm_frontier.outcome import Status
from vllm_frontier.store.lock import Holder
from vllm_frontier.store.records import RecordedOutcome

_CLOCKS_S = 1.0


def under_way(
    writer: Holder | None, records: Sequence[RecordedOutcome]
) -> tuple[list[RecordedOutcome], list[RecordedOutcome]]:
    """Attempts that the writer of a sweep is running, and all others.

    Args:
        writer: the process that writes the sweep now; None: nobody does, so that nothing runs.
        records: the attempts of the sweep.
    """
    running: list[RecordedOutcome] = []
    others: list[RecordedOutcome] = []
    for each in records:
        (running if writer and _runs(writer, each) else others).append(each)
    return running, others


def _runs(writer: Holder, record: RecordedOutcome) -> bool:
    """Whether an attempt without an outcome began since the writer did."""
    began = record.row.get("started_at")
    if record.status is not Status.INTERRUPTED or not isinstance(began, datetime):
        return False
    return began.timestamp() >= writer.since - _CLOCKS_S
