"""Find where windows end with few launches, prove it, and check what was inferred.

What is wanted of a launch, in this order: an answer that is missing, a speed that is missing, a
second look where launches disagree, a spot check. Only what was told decides, so that a sweep
that goes on after a crash goes on as it would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vllm_frontier.grid import Cell
from vllm_frontier.memory import MemoryPrior
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Purpose, Status
from vllm_frontier.search import audit, choice
from vllm_frontier.search.beliefs import Beliefs
from vllm_frontier.search.knowledge import Knowledge
from vllm_frontier.search.lattice import Floats, Lattice, Mask
from vllm_frontier.search.limits import Limits
from vllm_frontier.search.probes import next_probe
from vllm_frontier.search.proof import Evidence, Proofs, evidence_of
from vllm_frontier.search.protocol import Ask, Outlook
from vllm_frontier.search.relevance import leading_cells, promising, relevant
from vllm_frontier.search.speeds import GROUP_FAILURES, Speeds, group_of
from vllm_frontier.search.windows import ALL, FRONTIER, longest_windows, without_speed
from vllm_frontier.spec import SearchSpec

# A launch that is as likely as this among those needed in the end is no launch for speed only.
_LIKELY_NEEDED = 0.5
# So many deviations from the boundary there is no doubt left.
_SURELY = 8.0
# Where launches disagree, this share of the grid is looked at again, and a few cells more.
_SECOND_LOOKS_SHARE, _SECOND_LOOKS = 0.04, 12


@dataclass(frozen=True, slots=True)
class _View:
    """What is known, as if everything that is out had come back as expected.

    `mean` and `sd` are the expected margins, GiB; `likely` are the cells that work, or are
    expected to.
    """

    lattice: Lattice
    proofs: Proofs
    mean: Floats
    sd: Floats

    @property
    def likely(self) -> Mask:
        return self.proofs.works | (self.proofs.open & (self.mean > 0))

    def usefulness(self, needed: Mask) -> Floats:
        return choice.usefulness(self.lattice, needed, self.mean, self.sd)


class Boundary:
    """The search behind `search=boundary`.

    Args:
        cells: the grid.
        spec: what to prove, measure and check, and the budget.
        card_gib: memory of the card.
        retries: how often a failed cell is tried again.
        prior: what is believed of the memory before the first launch.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        spec: SearchSpec,
        *,
        card_gib: float,
        retries: int = 1,
        prior: MemoryPrior | None = None,
    ) -> None:
        self._spec = spec
        self._lattice = Lattice(cells)
        self._proofs = Proofs(self._lattice)
        self._beliefs = Beliefs(self._lattice, card_gib, prior)
        self._speeds = Speeds()
        self._retries = retries
        self._left = spec.max_launches
        self._out: dict[Cell, Ask] = {}
        self._failures: Counter[Cell] = Counter()
        self._again: dict[Cell, Ask] = {}
        self._audited: set[Cell] = set()
        self._unanswered: set[Cell] = set()  # spot checks that failed
        self._compared: set[Cell] = set()  # launched to compare speeds, with or without success
        self._answers: Counter[Cell] = Counter()
        self._limits = Limits(card_gib)
        self._next: Ask | None = None
        self._decided = False

    @property
    def finished(self) -> bool:
        """Whether nothing is left to ask for and nothing asked for is still out."""
        return not self._out and self._upcoming() is None

    @property
    def cut_short(self) -> bool:
        """Whether it would launch more, had its budget of launches not been used up."""
        return self._left == 0 and any(self._may_launch(each.cell) for each in self._wishes())

    @property
    def outlook(self) -> Outlook:
        """How many cells are known, and how many launches are still expected, about."""
        proofs = self._proofs
        known = proofs.works | proofs.refused | proofs.disputed | proofs.launched
        left, speeds = self._expected()
        return Outlook(known=int(known.sum()), launches_left=left, speeds_left=speeds)

    def ask(self) -> Ask | None:
        """The next launch; None while others have to end first, and at the end."""
        wanted = self._upcoming()
        if wanted is None:
            return None
        if self._left is not None:
            self._left -= 1
        self._out[wanted.cell] = wanted
        self._decided = False
        return wanted

    def tell(self, cell: Cell, outcome: Outcome) -> None:
        """Learn from an attempt that has ended."""
        self._out.pop(cell, None)
        self._decided = False
        if outcome.status is Status.INTERRUPTED:
            return
        if outcome.purpose is Purpose.SPEED_CHECK:
            self._compared.add(cell)
        found = evidence_of(cell, outcome)
        if found is not None:
            # Of a launch that broke down nobody knows how far its figures can be trusted.
            self._beliefs.observe(cell, outcome)
            self._limits.observe(cell, outcome.facts, works=found.works)
            self._take(found, outcome)
        elif cell in self._lattice:
            self._note_failure(cell, outcome)

    def knowledge(self) -> Knowledge:
        """What follows from the launches so far."""
        return self._proofs.knowledge()

    def _take(self, found: Evidence, outcome: Outcome) -> None:
        self._proofs.add(found)
        # A refusal that only a launch for speed met is looked at again like any other.
        self._answers[found.cell] += not outcome.purpose.repeats
        self._again.pop(found.cell, None)
        self._failures.pop(found.cell, None)
        if outcome.purpose is Purpose.AUDIT:
            self._audited.add(found.cell)
        if not found.works:
            self._speeds.forget(found.cell)
        elif outcome.with_speed and found.cell in self._lattice:
            self._speeds.add(found.cell, outcome.speed)

    def _note_failure(self, cell: Cell, outcome: Outcome) -> None:
        self._failures[cell] += 1
        self._again.pop(cell, None)  # its place is that of the last failure
        if outcome.purpose is Purpose.AUDIT:
            self._unanswered.add(cell)
        if self._failures[cell] > self._retries:
            self._proofs.give_up(cell)
            self._speeds.give_up(cell)
        else:
            self._again[cell] = Ask(cell, outcome.purpose, outcome.with_speed)

    # What is wanted next

    @property
    def _waiting(self) -> dict[Cell, Ask]:
        """What failed and is to be tried again, but for what is being tried."""
        return {cell: ask for cell, ask in self._again.items() if cell not in self._out}

    def _upcoming(self) -> Ask | None:
        if not self._decided:
            wishes = self._wishes() if self._left != 0 else iter(())
            self._next = next((each for each in wishes if self._may_launch(each.cell)), None)
            self._decided = True
        return self._next

    def _may_launch(self, cell: Cell) -> bool:
        return cell not in self._out and self._failures[cell] <= self._retries

    def _wishes(self) -> Iterator[Ask]:
        view = self._view()
        yield from self._proof(view)
        yield from self._speed(view)
        # What came back may still change what there is to look at.
        if not self._out:
            yield from self._second_look(view)
            yield from self._spot_check(view)
            yield from self._speed_check(view)
        yield from self._waiting.values()

    def _view(self) -> _View:
        mean, sd = self._beliefs.margins()
        exceeded = self._limits.exceeded(self._lattice.points)
        mean = np.where(exceeded, np.minimum(mean, -_SURELY * sd), mean)
        proofs = self._proofs.copy()
        for cell in self._out:
            fits = mean.flat[self._lattice.at(cell)] > 0
            why = None if fits else FailureClass.KV_TOO_SMALL
            if cell not in proofs:
                proofs.add(Evidence(cell, why, Phase.ALLOCATE_KV))
        for cell in self._waiting:
            proofs.give_up(cell)  # for the time being: its turn comes last
        return _View(self._lattice, proofs, mean, sd)

    def _proof(self, view: _View) -> Iterator[Ask]:
        probe = next_probe(view.proofs, self._limits)
        if probe is not None:
            yield self._for_proof(probe, view)
        if self._spec.verify == "all":
            needed = view.lattice.exists & ~view.proofs.launched & ~view.proofs.given_up
        else:
            needed = view.proofs.open
            if needed.any():
                yield from self._early_speeds(view)
            # What the frontier rests on comes first, so that an early end leaves that.
            leading = needed & relevant(view.lattice, view.proofs.works, self._speeds)
            if leading.any() or self._spec.verify == "frontier":
                needed = leading
        if needed.any():
            yield self._for_proof(self._pick(needed, view), view)

    def _pick(self, needed: Mask, view: _View) -> Cell:
        """The cell whose answer is worth most."""
        lattice, rank = view.lattice, promising(view.lattice, view.likely, self._speeds)
        if self._spec.verify == "all":  # all are launched: only their order is open
            return lattice.cell(choice.best(needed, needed.astype(float), rank))
        # What proves a needed cell best may be one that is not needed for its own sake.
        settles = choice.coverage(lattice, needed, view.mean)
        candidates = view.proofs.open & (settles > 0)
        score = view.usefulness(view.proofs.open)
        highest = float(np.where(candidates, score, 0.0).max())
        if not view.proofs.evidence and highest < _LIKELY_NEEDED:
            return self._first(needed, lattice)
        if highest < choice.AIM:
            return lattice.cell(choice.best(needed, choice.halving(lattice, needed), rank))
        score = score + np.where(score > choice.AIM, choice.teaches(view.proofs), 0.0)
        rank = np.where(view.mean > 0, rank, 1 + settles / settles.max())
        return lattice.cell(choice.best(candidates, score, rank))

    @staticmethod
    def _first(needed: Mask, lattice: Lattice) -> Cell:
        """What asks most with the largest share, its window in the middle: it tells most."""
        cells = list(lattice.chosen(needed))
        hardest = max((cell.utilization, cell.graphs, cell.depth) for cell in cells)
        top = [cell for cell in cells if (cell.utilization, cell.graphs, cell.depth) == hardest]
        return sorted(top, key=lambda cell: cell.context)[len(top) // 2]

    def _for_proof(self, cell: Cell, view: _View) -> Ask:
        """Measured as well where it would be anyhow, should it work as expected."""
        measure = self._measure
        ends = longest_windows(view.lattice, view.likely, measure)
        # A launch that fails while it measures tells nothing of the cell at all.
        worth = cell in ends and self._may_measure(cell)
        wanted = worth and bool(without_speed([cell], measure, self._speeds, self._out))
        return Ask(cell, Purpose.PROOF, with_speed=wanted)

    def _may_measure(self, cell: Cell) -> bool:
        """Whether a speed can be expected: what failed counts before it is tried again, too."""
        waiting = [ask.cell for ask in self._waiting.values() if ask.with_speed]
        return self._speeds.may_measure(cell, waiting)

    @property
    def _measure(self) -> str:
        """Where speed is measured: everywhere, once it turned out to depend on more."""
        return ALL if self._speeds.depends() else self._spec.measure

    def _early_speeds(self, view: _View) -> Iterator[Ask]:
        """Which cells the frontier can rest on depends on speeds, so they come first.

        As soon as it can be told where a window ends.
        """
        if not view.proofs.evidence:
            return
        score = view.usefulness(view.proofs.open)
        worth = view.likely & view.lattice.mask(self._may_measure)
        targets = longest_windows(view.lattice, worth, FRONTIER)
        for cell in without_speed(targets, FRONTIER, self._speeds, self._out):
            if cell in self._waiting:
                continue
            at = view.lattice.at(cell)
            if view.proofs.works.flat[at]:
                yield Ask(cell, Purpose.SPEED)
            elif score.flat[at] >= _LIKELY_NEEDED:
                yield Ask(cell, Purpose.PROOF)

    def _speed(self, view: _View) -> Iterator[Ask]:
        worth = view.proofs.works & view.lattice.mask(self._may_measure)
        targets = longest_windows(view.lattice, worth, self._measure)
        for cell in without_speed(targets, self._measure, self._speeds, self._out):
            if cell not in self._waiting:
                yield Ask(cell, Purpose.SPEED)

    def _second_look(self, view: _View) -> Iterator[Ask]:
        allowed = int(_SECOND_LOOKS + _SECOND_LOOKS_SHARE * len(self._lattice.cells))
        if len(self._audited) < self._spec.audit + allowed:
            for cell in audit.around(view.proofs, self._answers):
                yield Ask(cell, Purpose.AUDIT, with_speed=False)

    def _spot_check(self, view: _View) -> Iterator[Ask]:
        # Where checks fail one after another, more of them tell no more.
        tried = len(self._audited | self._unanswered)
        wanted = len(self._audited) < self._spec.audit and tried < 2 * self._spec.audit
        if wanted and self._spec.verify != "all":
            leading = leading_cells(view.lattice, view.proofs.works, self._speeds)
            cell = audit.least_certain(view.proofs, leading, view.mean, view.sd, self._spec.seed)
            if cell is not None:
                group = group_of(cell)
                compares = not self._speeds.compared() and self._speeds.of(group) is not None
                yield Ask(cell, Purpose.AUDIT, with_speed=compares)

    def _speed_check(self, view: _View) -> Iterator[Ask]:
        """One cell more, where nothing has shown yet that windows and shares do not matter.

        Where they seem to matter, both cells again: all are measured only if that holds.
        """
        for cell in self._speeds.in_doubt():
            yield Ask(cell, Purpose.SPEED_CHECK)
        if not self._speeds.compared() and len(self._compared) < GROUP_FAILURES:
            second = audit.second_speed(view.lattice, view.proofs.works, self._speeds)
            if second is not None:
                yield Ask(second, Purpose.SPEED_CHECK)

    def _expected(self) -> tuple[int, int]:
        """About how many launches are left, and how many of them are measured."""
        view = self._view()
        needed = view.proofs.open
        proofs = float(np.maximum(view.usefulness(needed), 0.0).sum()) if needed.any() else 0.0
        targets = longest_windows(view.lattice, view.likely, self._measure)
        speeds = without_speed(targets, self._measure, self._speeds, self._out)
        checks = max(0, self._spec.audit - len(self._audited))
        left = round(proofs) + len(speeds) + checks + len(self._out) + len(self._waiting)
        waiting = [*self._out.values(), *self._waiting.values()]
        measured = len(speeds) + sum(ask.with_speed for ask in waiting)
        allowed = left if self._left is None else min(left, self._left + len(self._out))
        return allowed, min(measured, allowed)
