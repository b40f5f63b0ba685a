"""Which launches are expected of a search, where running it dry would take too long as well."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vllm_frontier.grid import Cell
from vllm_frontier.memory import MemoryModel, MemoryPrior
from vllm_frontier.outcome import Failure, FailureClass, Outcome, Phase, Purpose, Speed, Status
from vllm_frontier.search import (
    Ask,
    Outlook,
    create_search,
    create_strategy,
    dry_run,
    infer,
    repeat,
)
from vllm_frontier.search.lattice import Lattice
from vllm_frontier.search.relevance import promising
from vllm_frontier.search.repeated import concerns_search
from vllm_frontier.search.speeds import Speeds, assumed_speed, group_of
from vllm_frontier.search.windows import ALL, FRONTIER, longest_windows
from vllm_frontier.spec import SweepSpec

# Spot checks come last, and a few show what they are like: of more, only the number matters.
_CHECKS_TRIED = 10

Told = Sequence[tuple[Cell, Outcome]]
"""Attempts that have ended, in the order in which they did."""


def expected_launches(
    spec: SweepSpec,
    prior: MemoryPrior | None,
    model: MemoryModel,
    told: Told,
) -> list[Ask]:
    """The launches of a sweep on a card that is as a model expects, in order.

    Args:
        spec: the sweep.
        prior: what its search believes of the memory before the first launch.
        model: of the memory; it is asked, not taught.
        told: earlier attempts of the sweep.
    """
    shortcut = _shortcut(spec, told)
    if shortcut is None:
        return dry_run(create_search(spec, prior), model, told)
    cells = spec.grid.cells()
    mean, _ = model.margins(cells)
    works = {cell: bool(mean[at] >= 0) for at, cell in enumerate(cells)}
    ended = ((cell, outcome) for cell, outcome in told if cell in works and outcome.status.is_final)
    works |= {cell: outcome.status is Status.MEASURED for cell, outcome in ended}
    unlimited = replace(spec, search=replace(spec.search, max_launches=None))
    heard = [each for each in told if concerns_search(each[1])]
    listed = Listed(shortcut(unlimited, prior, model, heard, works), works)
    return dry_run(repeat(listed, spec), model, told)


class Listed:
    """A search whose launches are known beforehand.

    Args:
        asks: the launches, in order.
        works: which cells are expected to work.
    """

    def __init__(self, asks: Sequence[Ask], works: Mapping[Cell, bool]) -> None:
        self._asks = deque(asks)
        self._works = works
        self._speeds = sum(ask.with_speed and works[ask.cell] for ask in asks)
        self.cut_short = False

    @property
    def finished(self) -> bool:
        """Whether nothing is left."""
        return not self._asks

    @property
    def outlook(self) -> Outlook:
        """What is left."""
        return Outlook(known=0, launches_left=len(self._asks), speeds_left=self._speeds)

    def ask(self) -> Ask | None:
        """The next one."""
        if not self._asks:
            return None
        ask = self._asks.popleft()
        self._speeds -= ask.with_speed and self._works[ask.cell]
        return ask

    def tell(self, cell: Cell, outcome: Outcome) -> None:
        """Nothing: it all was foreseen."""


_Shortcut = Callable[
    [SweepSpec, MemoryPrior | None, MemoryModel, Told, Mapping[Cell, bool]], list[Ask]
]


def _shortcut(spec: SweepSpec, told: Told) -> _Shortcut | None:
    """What lists the launches of a search that is too long to be run dry; None: it is not."""
    if spec.search.strategy != "boundary":
        return None
    if spec.search.verify == "all":
        return _every_cell
    if spec.search.measure == ALL:
        return _every_speed
    return _with_checks if spec.search.audit > _checks_made(told) + _CHECKS_TRIED else None


def _checks_made(told: Told) -> int:
    return sum(outcome.purpose is Purpose.AUDIT for _, outcome in told)


def _every_cell(
    spec: SweepSpec,
    prior: MemoryPrior | None,
    model: MemoryModel,
    told: Told,
    works: Mapping[Cell, bool],
) -> list[Ask]:
    """All cells are launched, whatever the others tell; only what follows them is run dry."""
    lattice, speeds = Lattice(list(works)), _speeds(told)
    failures = Counter(cell for cell, outcome in told if outcome.status is Status.FAILED)
    done = {cell for cell, outcome in told if outcome.status.is_final}
    done |= {cell for cell, failed in failures.items() if failed > spec.schedule.retries}
    likely = lattice.mask(works.__getitem__)
    rank = promising(lattice, likely, speeds)
    measured = set(longest_windows(lattice, likely, spec.search.measure))
    open_cells = [cell for cell in works if cell not in done]
    ordered = sorted(open_cells, key=lambda cell: -float(rank.flat[lattice.at(cell)]))
    asks = [Ask(cell, with_speed=cell in measured) for cell in ordered]
    imagined = _imagined(asks, works, speeds)
    return asks + dry_run(create_strategy(spec, prior), model, [*told, *imagined])


def _with_checks(
    spec: SweepSpec,
    prior: MemoryPrior | None,
    model: MemoryModel,
    told: Told,
    works: Mapping[Cell, bool],
) -> list[Ask]:
    """The search, run dry, and as many spot checks more as it would make."""
    tried = min(spec.search.audit, _checks_made(told) + _CHECKS_TRIED)
    fewer = replace(spec, search=replace(spec.search, audit=tried))
    asks = dry_run(create_strategy(fewer, prior), model, told)
    further = spec.search.audit - tried
    return asks + _checks(spec, told, _imagined(asks, works, _speeds(told)), further)


def _every_speed(
    spec: SweepSpec,
    prior: MemoryPrior | None,
    model: MemoryModel,
    told: Told,
    works: Mapping[Cell, bool],
) -> list[Ask]:
    """The proofs of the search, run dry, and a launch of every cell more that works."""
    only_proofs = replace(spec.search, audit=0, measure=FRONTIER)
    search = create_strategy(replace(spec, search=only_proofs), prior)
    asks = [
        replace(ask, with_speed=works[ask.cell])
        for ask in dry_run(search, model, told)
        if ask.purpose is Purpose.PROOF
    ]
    measured = {cell for cell, outcome in told if outcome.speed is not None}
    measured |= {ask.cell for ask in asks}
    asks += [Ask(cell, Purpose.SPEED) for cell in works if works[cell] and cell not in measured]
    imagined = _imagined(asks, works, _speeds(told))
    return asks + _checks(spec, told, imagined, spec.search.audit - _checks_made(told))


def _checks(spec: SweepSpec, told: Told, imagined: Told, count: int) -> list[Ask]:
    """So many spot checks, of whatever cells are inferred then."""
    if count <= 0 or spec.search.strategy != "boundary":
        return []
    inferred = [each.cell for each in infer(spec, [*told, *imagined]).inferences]
    return [Ask(cell, Purpose.AUDIT, with_speed=False) for cell in inferred[:count]]


def _speeds(told: Told) -> Speeds:
    speeds = Speeds()
    for cell, outcome in told:
        if outcome.speed is not None:
            speeds.add(cell, outcome.speed)
    return speeds


def _imagined(
    asks: Sequence[Ask], works: Mapping[Cell, bool], speeds: Speeds
) -> list[tuple[Cell, Outcome]]:
    return [(ask.cell, _outcome(ask, speeds, works=works[ask.cell])) for ask in asks]


def _outcome(ask: Ask, speeds: Speeds, *, works: bool) -> Outcome:
    """What a launch is expected to end as, without figures of its memory."""
    if not works:
        failure = Failure(FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, "expected")
        return Outcome(
            Status.INFEASIBLE,
            Phase.ALLOCATE_KV,
            failure,
            purpose=ask.purpose,
            with_speed=ask.with_speed,
        )
    group = group_of(ask.cell)
    speed = speeds.of(group) or assumed_speed(ask.cell.depth, ask.cell.graphs)
    return Outcome(
        Status.MEASURED,
        Phase.STOP,
        started=True,
        filled=True,
        purpose=ask.purpose,
        with_speed=ask.with_speed,
        speed=Speed(speed, speed, speed) if ask.with_speed else None,
    )
