"""The map and the frontier of a sweep that may still be running, read from few files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.checks import checks
from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.outcome import Status
from vllm_frontier.report import documents
from vllm_frontier.report.result import Result
from vllm_frontier.report.terminal.grid_map import with_planned
from vllm_frontier.spec import SweepSpec
from vllm_frontier.store import tables
from vllm_frontier.store.records import RecordedOutcome
from vllm_frontier.store.sweep_store import SweepStore


def so_far(
    store: SweepStore,
    spec: SweepSpec,
    records: Sequence[RecordedOutcome],
    inferred: Sequence[Mapping[str, Any]],
    running: Sequence[RecordedOutcome],
) -> dict[str, Any]:
    """What `status --json` tells of cells and speeds, as `show --json` does.

    Outcomes tell the rows of `trials`; of the tables of attempts only those are read that
    measured something, so that it stays quick beside a sweep that measures.

    Args:
        store: the sweep.
        spec: its configuration.
        records: its attempts that do not run.
        inferred: rows of `trials` that follow from these.
        running: its attempts that run now.
    """
    measured = [each for each in records if each.status is Status.MEASURED]
    _, runs = store.tables((), measured)
    rows = [*inferred, *(each.row for each in records)]
    order = ("started_at", "cell_id", "attempt")
    trials = tables.frame("trials", rows).sort(order, nulls_last=True)
    speeds = (trials.lazy(), runs.lazy())
    leading = frontier(*speeds).collect()
    method, precision = spec.model.speculation.method, spec.workload.precision
    judged = checks(*speeds, method=method, precision=precision).collect()
    checked = documents.objects(judged.lazy())
    rows_now = tables.frame("trials", [each.row for each in running])
    known = documents.objects(documents.known_cells(trials.lazy(), rows_now).lazy())
    cells = [cell.axes() for cell in spec.grid.cells()]
    under = [each.cell.axes() for each in running]
    reason = None
    if leading.is_empty():
        ends = boundaries(trials.lazy(), tables.planned(spec.grid.cells()).lazy()).collect()
        parts = (trials, runs, leading, ends, judged, rows_now)
        reason = Result(spec.name, store.config, *parts).nothing()
    found = documents.frontier_rows(leading.lazy(), *speeds)
    return {
        "simulated": spec.engine.kind == documents.SIMULATED or documents.is_simulated(trials),
        "without_frontier": reason,
        "frontier": documents.with_doubt(found, checked),
        "choices": documents.with_doubt(documents.objects(choices(leading.lazy())), checked),
        "checks": checked,
        "without_speed": documents.without_speed(*speeds),
        "grid": with_planned(known, cells, under),
    }
