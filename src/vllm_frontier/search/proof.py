"""What launches prove about cells that were not launched.

A working cell proves every cell that asks for no more; what a refusal proves depends on why.
What vLLM works out (too little memory for the KV cache) holds for everything that asks for more.
Memory that runs out beside the share of the card (while graphs are captured, while a window is
served) runs out with a larger share as well, and with a smaller one perhaps not. Such a refusal
proves nothing by itself before a second launch agrees: anything may have been the matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Status
from vllm_frontier.search.knowledge import Contradiction, Inference, Knowledge
from vllm_frontier.search.lattice import Lattice, Mask, Points, apart

# vLLM's own arithmetic, or its own rules: another launch would be refused by the same words.
ARITHMETIC = frozenset(
    {
        FailureClass.KV_TOO_SMALL,
        FailureClass.KV_NONE,
        FailureClass.STATE_SLOTS_TOO_FEW,
        FailureClass.UTILIZATION_ABOVE_FREE,
        FailureClass.CONTEXT_EXCEEDS_MODEL,
    }
)
BESIDE_THE_SHARE = frozenset(
    {FailureClass.OOM_GRAPH_CAPTURE, FailureClass.OOM_WARMUP, FailureClass.OOM_SERVE}
)
_BY_SHARE = frozenset(
    {FailureClass.KV_TOO_SMALL, FailureClass.KV_NONE, FailureClass.STATE_SLOTS_TOO_FEW}
)
_FAR = np.iinfo(np.int64).max
_FARTHER = 1 << 20  # more steps than any grid has

MONOTONY = "presumes that nothing but memory decides"
"""Of every inferred cell that works: it was not launched, and nothing speaks against it."""

ELSEWHERE = "launches elsewhere disagree with such a refusal"
NOT_ARITHMETIC = "refused for a reason that need not hold here"
DISAGREEMENT = "launches near it disagree"
NEXT_TO_IT = "next to a refusal that another launch contradicts"


def is_uncertain(doubt: str | None) -> bool:
    """Whether an inferred cell may be wrong: all but what vLLM's own arithmetic refuses."""
    return doubt is not None


def is_in_doubt(doubt: str | None) -> bool:
    """Whether there is more to doubt of an inferred cell than that it was not launched itself."""
    return doubt not in (None, MONOTONY)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A launch with an answer: the cell works (no failure class), or is refused."""

    cell: Cell
    failure_class: FailureClass | None
    phase: Phase

    @property
    def works(self) -> bool:
        """Whether the cell works."""
        return self.failure_class is None


def evidence_of(cell: Cell, outcome: Outcome) -> Evidence | None:
    """What a launch is evidence of; None when it failed for a reason of its own."""
    if outcome.status is Status.MEASURED:
        return Evidence(cell, None, outcome.phase)
    if outcome.status in (Status.INFEASIBLE, Status.INVALID) and outcome.failure is not None:
        return Evidence(cell, outcome.failure.failure_class, outcome.phase)
    return None


def speaks_for(refusal: Evidence, points: Points) -> Mask:
    """For which of some points a refusal holds as well, by the kind of its failure.

    Args:
        refusal: a launch that was refused.
        points: where; `Lattice.points` for the whole grid.

    Returns:
        Booleans in the shape of the points.
    """
    one, why = refusal.cell, refusal.failure_class
    if why is FailureClass.UTILIZATION_ABOVE_FREE:
        return points.utilization >= one.utilization
    longer = points.has_extra(one.extra) & (points.context >= one.context)
    if why is FailureClass.CONTEXT_EXCEEDS_MODEL:
        return longer
    harder = longer & (points.depth >= one.depth) & (points.graphs >= one.graphs)
    if why in _BY_SHARE:
        return harder & (points.utilization <= one.utilization)
    if why in BESIDE_THE_SHARE:
        return harder & (points.utilization >= one.utilization)
    return harder


def holds_for(refusal: Evidence, cell: Cell) -> bool:
    """Whether a refusal holds for a cell, too."""
    return bool(np.all(speaks_for(refusal, Points.of(cell))))


class Proofs:
    """What follows from the launches so far.

    Attributes:
        lattice: the grid.
        launched: cells with an answer of their own.
        given_up: cells that failed for good, about which nothing can be learned.
        works: cells that work, by their own launch or proven.
        refused: cells that do not work, likewise.
        disputed: cells without a launch about which launches disagree; they are in neither.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.launched = lattice.nothing()
        self.given_up = lattice.nothing()
        self._evidence: dict[Cell, Evidence] = {}
        self._stale = True

    def copy(self) -> Proofs:
        """The same, to be added to on trial."""
        other = Proofs(self.lattice)
        other.launched, other.given_up = self.launched.copy(), self.given_up.copy()
        other._evidence = dict(self._evidence)
        return other

    def __contains__(self, cell: Cell) -> bool:
        """Whether a launch of the cell gave an answer."""
        return cell in self._evidence

    def add(self, evidence: Evidence) -> None:
        """Take an answer; a later one about the same cell replaces it."""
        self._evidence[evidence.cell] = evidence
        if evidence.cell in self.lattice:
            self.launched.flat[self.lattice.at(evidence.cell)] = True
            self.given_up.flat[self.lattice.at(evidence.cell)] = False
        self._stale = True

    def give_up(self, cell: Cell) -> None:
        """A cell failed for good; unless it has an answer, it never gets one."""
        if cell in self.lattice and cell not in self._evidence:
            self.given_up.flat[self.lattice.at(cell)] = True
            self._stale = True

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The answers, in the order in which they came."""
        return tuple(self._evidence.values())

    @property
    def works(self) -> Mask:
        """Cells that work."""
        self._settle()
        return self._works

    @property
    def refused(self) -> Mask:
        """Cells that do not work."""
        self._settle()
        return self._refused

    @property
    def disputed(self) -> Mask:
        """Cells about which launches disagree."""
        self._settle()
        return self._disputed

    @property
    def open(self) -> Mask:
        """Cells without an answer that can get one."""
        known = self.works | self.refused | self.disputed | self.given_up
        return self.lattice.exists & ~known

    @property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """Launches that disagree: every refused one with the nearest that works all the same."""
        self._settle()
        return self._contradictions

    def _settle(self) -> None:
        if not self._stale:
            return
        self._stale = False
        lattice = self.lattice
        worked = {each.cell for each in self._working()}
        self._launched_works = lattice.mask(worked.__contains__)
        self._works_elsewhere = [cell for cell in worked if cell not in lattice]
        by_work, by_refusal = lattice.nothing(), lattice.nothing()
        granted = self._granted()
        self._work_scopes = {
            each.cell: lattice.no_harder_than(each.cell)
            & (granted | (lattice.points.utilization <= each.cell.utilization))
            for each in self._working()
        }
        for scope in self._work_scopes.values():
            by_work |= scope
        self._refusal_scopes = {each.cell: self._spoken_for(each) for each in self._refusing()}
        for scope in self._refusal_scopes.values():
            by_refusal |= scope
        own = self.launched
        self._disputed = by_work & by_refusal & ~own & lattice.exists & ~self.given_up
        self._works = by_work & ~by_refusal & ~own
        self._refused = by_refusal & ~by_work & ~own
        for each in self._evidence.values():
            if each.cell in lattice:
                side = self._works if each.works else self._refused
                side.flat[lattice.at(each.cell)] = True
        self._works &= lattice.exists & ~self.given_up
        self._refused &= lattice.exists & ~self.given_up
        self._contradictions = self._disagreeing()
        self._contradicted = {each.fails for each in self._contradictions}
        self._broken = {self._evidence[cell].failure_class for cell in self._contradicted}

    def _working(self) -> list[Evidence]:
        return [each for each in self._evidence.values() if each.works]

    def _refusing(self) -> list[Evidence]:
        return [each for each in self._evidence.values() if not each.works]

    def _granted(self) -> Mask:
        """Points whose share of the card, or a larger one, served as deep a head and such graphs.

        A larger share leaves less for what lies beside it, so that a smaller one is no proof.
        """
        points, granted = self.lattice.points, self.lattice.nothing()
        for each in self._working():
            granted |= (
                points.has_extra(each.cell.extra)
                & (points.depth <= each.cell.depth)
                & (points.graphs <= each.cell.graphs)
                & (points.utilization <= each.cell.utilization)
            )
        return granted

    def _spoken_for(self, evidence: Evidence) -> Mask:
        """What a refusal proves: nothing but itself until another one agrees."""
        if evidence.failure_class in ARITHMETIC or self.confirmed(evidence):
            return speaks_for(evidence, self.lattice.points) & self.lattice.exists
        return self.lattice.nothing()

    def confirmed(self, refusal: Evidence) -> bool:
        """Whether another refusal is as this one leads to expect, and nothing works against it.

        One that is not vLLM's own arithmetic proves nothing before: anything may have been the
        matter.
        """
        alike = (
            each
            for each in self._evidence.values()
            if each.failure_class is refusal.failure_class and each.cell != refusal.cell
        )
        self._settle()
        return any(_second(refusal, each) for each in alike) and not self._against(refusal)

    def _against(self, refusal: Evidence) -> list[Cell]:
        """Launched cells that work, and would not if the refusal held for all it speaks for."""
        here = self._launched_works & speaks_for(refusal, self.lattice.points)
        return [
            *(self.lattice.chosen(here) if here.any() else ()),
            *(cell for cell in self._works_elsewhere if holds_for(refusal, cell)),
        ]

    def isolated(self) -> list[Cell]:
        """Refused launches that are no arithmetic, and that no other launch speaks for."""
        self._settle()
        sure = [
            each
            for each in self._refusing()
            if each.failure_class in ARITHMETIC or self.confirmed(each)
        ]
        return [
            each.cell
            for each in self._refusing()
            if each.failure_class not in ARITHMETIC
            and each not in sure
            and not any(holds_for(other, each.cell) for other in sure)
        ]

    def _disagreeing(self) -> tuple[Contradiction, ...]:
        found = []
        for refusal in self._refusing():
            against = self._against(refusal)
            if against:
                near = min(against, key=lambda cell: apart(refusal.cell, cell))
                found.append(Contradiction(works=near, fails=refusal.cell))
        return tuple(found)

    def knowledge(self) -> Knowledge:
        """Every inferred cell with the nearest launch that it follows from."""
        self._settle()
        lattice = self.lattice
        inferred = (self._works | self._refused | self._disputed) & ~self.launched
        nearest = np.full(lattice.shape, _FAR)
        number = np.full(lattice.shape, -1)
        evidence = self.evidence
        for index, each in enumerate(evidence):
            scopes = self._work_scopes if each.works else self._refusal_scopes
            # Where launches agree, firm evidence is named before any other.
            firm = each.failure_class in ARITHMETIC - self._broken
            steps = lattice.distance(each.cell) + (0 if firm else _FARTHER) * ~self._disputed
            distance = np.where(scopes[each.cell], steps, _FAR)
            closer = distance < nearest
            nearest[closer], number[closer] = distance[closer], index
        beside = lattice.nothing()
        for cell in self._contradicted:
            if cell in lattice:
                beside |= lattice.neighbours(cell)
        return Knowledge(
            inferences=tuple(
                self._inference(cell, evidence[number.flat[lattice.at(cell)]], beside)
                for cell in lattice.chosen(inferred)
            ),
            contradictions=self._contradictions,
        )

    def _inference(self, cell: Cell, evidence: Evidence, beside: Mask) -> Inference:
        doubt, at = None, self.lattice.at(cell)
        if self._disputed.flat[at] or evidence.cell in self._contradicted:
            doubt = DISAGREEMENT
        elif evidence.works:
            doubt = NEXT_TO_IT if beside.flat[at] else MONOTONY
        elif evidence.failure_class in self._broken:
            doubt = ELSEWHERE
        elif evidence.failure_class not in ARITHMETIC:
            doubt = NOT_ARITHMETIC
        return Inference(cell, evidence.cell, evidence.failure_class, evidence.phase, doubt)


def _second(refusal: Evidence, other: Evidence) -> bool:
    """Whether another refusal is of the same class, and what this one leads to expect."""
    cell = other.cell
    if refusal.failure_class in BESIDE_THE_SHARE:
        # What lies beside the share hardly depends on the window.
        cell = replace(cell, context=max(cell.context, refusal.cell.context))
    return other.failure_class is refusal.failure_class and holds_for(refusal, cell)


def prove(lattice: Lattice, outcomes: Iterable[tuple[Cell, Outcome]], retries: int) -> Proofs:
    """What the launches of a sweep prove.

    Args:
        lattice: the cells of the grid.
        outcomes: of every attempt, in the order in which they ended.
        retries: how often a failed cell is tried again before it is given up.
    """
    proofs = Proofs(lattice)
    failures: dict[Cell, int] = {}
    for cell, outcome in outcomes:
        found = evidence_of(cell, outcome)
        if found is not None:
            proofs.add(found)
        elif outcome.status is Status.FAILED:
            failures[cell] = failures.get(cell, 0) + 1
            if failures[cell] > retries:
                proofs.give_up(cell)
    return proofs
