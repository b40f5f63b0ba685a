"""What follows from the launches of a sweep, as rows of `trials`.

Derived anew from the outcomes whenever tables are made, so that a later launch overrules it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_frontier.search import Inference, infer
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.store import rows
from vllm_frontier.store.records import RecordedOutcome, in_order


def inferred_rows(
    spec: SweepSpec, identity: SweepIdentity, records: Sequence[RecordedOutcome]
) -> list[dict[str, Any]]:
    """A row of `trials` for every cell of the grid that was not launched and need not be.

    Args:
        spec: the sweep.
        identity: of the sweep as it is now; cells get their ids from it.
        records: all its attempts, in any order. A cell is its axes: attempts under another
            identity that the sweep was allowed to go on with count as well.

    Returns:
        Rows with status `inferred` and attempt 0, in the order of the grid. `evidence` and
        `evidence_cell` are those of a launch; there are no times and no facts. None where every
        cell is launched, unless a search that infers began the sweep.
    """
    ended = in_order(records)
    found = infer(spec, ((record.cell, record.outcome()) for record in ended))
    answers = {record.cell: record for record in ended if record.status.is_final}
    by_cell = {each.cell: each for each in found.inferences}
    return [
        _row(spec, identity, by_cell[cell], answers[by_cell[cell].evidence])
        for cell in spec.grid.cells()
        if cell in by_cell
    ]


def _row(
    spec: SweepSpec, identity: SweepIdentity, inference: Inference, launched: RecordedOutcome
) -> dict[str, Any]:
    if inference.works:
        evidence = f"works: {launched.cell.label()} works and asks for at least as much"
    else:
        evidence = launched.evidence or ""
    return rows.inferred_row(
        spec,
        identity,
        inference.cell,
        failure_class=inference.failure_class,
        phase=inference.phase,
        evidence=evidence,
        evidence_cell=launched.cell_id,
        doubt=inference.doubt,
        engine_version=launched.row.get("engine_version"),
        changed=launched.row.get("changed"),
    )
