"""What a search would do if everything came as expected."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_frontier.grid import Cell
from vllm_frontier.memory import MemoryModel
from vllm_frontier.outcome import Failure, FailureClass, Outcome, Phase, Speed, Status
from vllm_frontier.search.protocol import Ask, Search
from vllm_frontier.search.speeds import Speeds, assumed_speed, group_of


def dry_run(
    search: Search, model: MemoryModel, told: Iterable[tuple[Cell, Outcome]] = ()
) -> list[Ask]:
    """The launches of a search on a card that is exactly as a model expects.

    Args:
        search: it is used up.
        model: of the memory; it is asked, not taught.
        told: earlier attempts of the sweep.

    Returns:
        The launches in order.
    """
    speeds = Speeds()
    for cell, outcome in told:
        search.tell(cell, outcome)
        speeds.add(cell, outcome.speed)
    asked = []
    while (ask := search.ask()) is not None:
        asked.append(ask)
        known = speeds.of(group_of(ask.cell))
        search.tell(ask.cell, _expected(model, ask, known))
    return asked


def _expected(model: MemoryModel, ask: Ask, known_speed: float | None) -> Outcome:
    facts = model.imagined_facts(ask.cell)
    if model.predict(ask.cell).margin_gib < 0:
        why = FailureClass.KV_NONE if (facts.kv_available_gib or 0) < 0 else None
        failure = Failure(why or FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, "expected")
        return Outcome(
            Status.INFEASIBLE,
            Phase.ALLOCATE_KV,
            failure,
            facts=facts,
            purpose=ask.purpose,
            with_speed=ask.with_speed,
        )
    speed = known_speed or assumed_speed(ask.cell.depth, ask.cell.graphs)
    return Outcome(
        Status.MEASURED,
        Phase.STOP,
        started=True,
        filled=True,
        facts=facts,
        purpose=ask.purpose,
        with_speed=ask.with_speed,
        speed=Speed(speed, speed, speed) if ask.with_speed else None,
    )
