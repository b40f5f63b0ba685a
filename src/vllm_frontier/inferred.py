"""What follows from the launches of a sweep, as rows of `trials`.

Derived anew from the outcomes whenever tables are made, so that a later launch overrules it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_frontier.search import Inference, infer
from vllm_frontier.search.proof import DISAGREEMENT
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.store import rows
from vllm_frontier.store.manifest import identity_differences
from vllm_frontier.store.records import RecordedOutcome, in_order


def inferred_rows(
    spec: SweepSpec,
    identities: Sequence[SweepIdentity],
    records: Sequence[RecordedOutcome],
    *,
    now: SweepIdentity | None = None,
) -> list[dict[str, Any]]:
    """A row of `trials` for every cell of the grid that was not launched and need not be.

    Args:
        spec: the sweep.
        identities: all under which it ran.
        records: all its attempts, in any order. A cell is its axes: attempts under another
            identity that the sweep was allowed to go on with count as well, but what follows from
            them is in doubt.
        now: the identity of the sweep as it is now; cells get their ids from it. None: that of
            its last attempt.

    Returns:
        Rows with status `inferred` and attempt 0, in the order of the grid. `evidence` and
        `evidence_cell` are those of a launch; there are no times and no facts. None where every
        cell is launched, unless a search that infers began the sweep.
    """
    if not records:
        return []
    ordered = in_order(records)
    now = now or _identity_of(ordered[-1], identities)
    found = infer(spec, ((record.cell, record.outcome()) for record in ordered))
    answers = {record.cell: record for record in ordered if record.status.is_final}
    by_cell = {each.cell: each for each in found.inferences}
    return [
        _row(spec, now, by_cell[cell], answers[by_cell[cell].evidence], identities)
        for cell in spec.grid.cells()
        if cell in by_cell
    ]


def _identity_of(record: RecordedOutcome, identities: Sequence[SweepIdentity]) -> SweepIdentity:
    """The identity under which an attempt was made; where none is known, that of the beginning."""
    made = (each for each in identities if each.cell_id(record.cell) == record.cell_id)
    return next(made, identities[0])


def _row(
    spec: SweepSpec,
    now: SweepIdentity,
    inference: Inference,
    launched: RecordedOutcome,
    identities: Sequence[SweepIdentity],
) -> dict[str, Any]:
    if inference.works:
        evidence = f"works: {launched.cell.label()} works and asks for at least as much"
    else:
        evidence = launched.evidence or ""
    doubt, changed = inference.doubt, launched.row.get("changed")
    if launched.cell_id != now.cell_id(launched.cell):
        differs = identity_differences(_identity_of(launched, identities), now)
        changed = "; ".join(each.as_change() for each in differs) or None
        # That launches disagree says more than that one of them was made otherwise.
        if doubt != DISAGREEMENT:
            names = ", ".join(each.key for each in differs) or "identity"
            doubt = f"follows from a launch with another {names}"
    return rows.inferred_row(
        spec,
        now,
        inference.cell,
        failure_class=inference.failure_class,
        phase=inference.phase,
        evidence=evidence,
        evidence_cell=launched.cell_id,
        doubt=doubt,
        engine_version=launched.row.get("engine_version"),
        changed=changed,
    )
