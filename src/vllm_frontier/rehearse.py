"""The whole search of a sweep against a described card, without a server.

The search sees what it is told of its launches and nothing else; what it came to is then held
against the card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from vllm_frontier.dominance import Point, leaders
from vllm_frontier.engine.simulated.attempt import simulate_attempt
from vllm_frontier.engine.simulated.card import SimulatedCard
from vllm_frontier.engine.simulated.faults import FaultBook
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome, Purpose, Status
from vllm_frontier.search import Ask, Knowledge, create_search, infer
from vllm_frontier.search.proof import is_in_doubt, is_uncertain
from vllm_frontier.search.speeds import group_of, lenders
from vllm_frontier.spec import SweepSpec


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch of a rehearsal: what was asked for, and what came of it."""

    ask: Ask
    outcome: Outcome


@dataclass(frozen=True)
class Rehearsal:
    """What a search came to.

    Attributes:
        launches: in order, failed ones included.
        knowledge: what was inferred.
        answers: whether a cell works, for every cell that is known.
        speeds: tokens/s of every cell that works and has a speed, its own or a lent one.
        truth: what each cell does on the card when it is launched by itself.
    """

    launches: tuple[Launched, ...]
    knowledge: Knowledge
    answers: Mapping[Cell, bool]
    speeds: Mapping[Cell, float]
    truth: Mapping[Cell, Outcome]

    @property
    def frontier(self) -> list[Cell]:
        """The cells that lead for the median over tasks, longest window first."""
        return frontier_of(self.speeds)

    @property
    def wrong(self) -> list[Cell]:
        """Launched cells whose answer is not that of the card."""
        inferred = {each.cell for each in self.knowledge.inferences}
        return [cell for cell in self._mistaken() if cell not in inferred]

    @property
    def inferred_wrong(self) -> list[Cell]:
        """Inferred cells whose answer is not that of the card."""
        inferred = {each.cell for each in self.knowledge.inferences}
        return [cell for cell in self._mistaken() if cell in inferred]

    @property
    def firm(self) -> list[Cell]:
        """Inferred cells that vLLM's own arithmetic refuses."""
        return [each.cell for each in self.knowledge.inferences if each.doubt is None]

    @property
    def uncertain(self) -> list[Cell]:
        """Inferred cells that may be wrong: all that are not firm."""
        return [each.cell for each in self.knowledge.inferences if is_uncertain(each.doubt)]

    @property
    def in_doubt(self) -> list[Cell]:
        """Of the uncertain cells those that something speaks against."""
        return [each.cell for each in self.knowledge.inferences if is_in_doubt(each.doubt)]

    @cached_property
    def status(self) -> dict[Cell, Status]:
        """How each launched cell ended: by its last launch with an answer, else by its last."""
        found: dict[Cell, Status] = {}
        for each in self.launches:
            status = each.outcome.status
            if status.is_final or not found.get(each.ask.cell, status).is_final:
                found[each.ask.cell] = status
        return found

    @property
    def seconds(self) -> float:
        """Simulated seconds of all launches, one after another."""
        return sum(each.outcome.wall_s or 0.0 for each in self.launches)

    @property
    def seconds_again(self) -> float:
        """Of these, seconds of replicates and of the reference cell."""
        again = [each.outcome for each in self.launches if each.ask.purpose.repeats]
        return sum(outcome.wall_s or 0.0 for outcome in again)

    def count(self, *purposes: Purpose) -> int:
        """How many launches were made for these purposes."""
        made = Counter(each.ask.purpose for each in self.launches)
        return sum(made[purpose] for purpose in purposes)

    def _mistaken(self) -> list[Cell]:
        """Cells that do otherwise when they are launched for the same.

        A launch without speed, and an inference, say that the window can be filled; a launch that
        measures says more.
        """
        measured = {each.ask.cell: each.ask.with_speed for each in self.launches}
        return [
            cell
            for cell, works in self.answers.items()
            if works
            != (works_on(self.truth[cell]) if measured.get(cell) else self.truth[cell].filled)
        ]


def works_on(outcome: Outcome) -> bool:
    """Whether a cell works, by the outcome of its own launch."""
    return outcome.status is Status.MEASURED


def frontier_of(speeds: Mapping[Cell, float]) -> list[Cell]:
    """The cells that lead, longest window first."""
    points = [
        Point(cell, cell.context, cell.utilization, speed, cell.depth)
        for cell, speed in speeds.items()
    ]

    def place(cell: Cell) -> tuple[float, float, float, int, str]:
        return -cell.context, -speeds[cell], cell.utilization, cell.depth, str(cell.extra)

    return sorted(leaders(points), key=place)


def rehearse(spec: SweepSpec, card: SimulatedCard) -> Rehearsal:
    """Run the search of a sweep on a described card.

    Args:
        spec: the sweep; its card has the memory of the described one. Its budget of hours is
            one of simulated hours.
        card: faults happen in the order in which cells are launched.
    """
    search = create_search(spec)
    faults = FaultBook(card.faults)
    launches: list[Launched] = []
    seconds, limit_h = 0.0, spec.search.max_hours
    while limit_h is None or seconds <= 3600 * limit_h:
        ask = search.ask()
        if ask is None:
            break
        outcome = simulate_attempt(
            card, ask.cell, purpose=ask.purpose, with_speed=ask.with_speed, faults=faults
        )
        search.tell(ask.cell, outcome)
        seconds += outcome.wall_s or 0.0
        launches.append(Launched(ask, outcome))
    told = [(each.ask.cell, each.outcome) for each in launches]
    knowledge = infer(spec, told)
    answers = {
        cell: works_on(outcome)
        for cell, outcome in told
        if outcome.status in (Status.MEASURED, Status.INFEASIBLE, Status.INVALID)
    }
    answers |= {each.cell: each.works for each in knowledge.inferences}
    return Rehearsal(
        launches=tuple(launches),
        knowledge=knowledge,
        answers=answers,
        speeds=_speeds(launches, answers),
        truth=truth_of(spec, card),
    )


def truth_of(spec: SweepSpec, card: SimulatedCard) -> dict[Cell, Outcome]:
    """What each cell does when it is launched by itself; passing faults are left out."""
    lasting = tuple(fault for fault in card.faults if fault.times is None)
    lasting_card = replace(card, faults=lasting)
    book = FaultBook(lasting)
    return {cell: simulate_attempt(lasting_card, cell, faults=book) for cell in spec.grid.cells()}


def _speeds(launches: list[Launched], answers: Mapping[Cell, bool]) -> dict[Cell, float]:
    """Own speeds, and for other cells that of the one that lends it to their group."""
    own = {
        each.ask.cell: each.outcome.speed.decode_tok_s
        for each in launches
        if each.outcome.speed is not None
    }
    lent = {group: own[cell] for group, cell in lenders(own).items()}
    found: dict[Cell, float] = {}
    for cell, works in answers.items():
        speed = own.get(cell, lent.get(group_of(cell)))
        if works and speed is not None:
            found[cell] = speed
    return found
