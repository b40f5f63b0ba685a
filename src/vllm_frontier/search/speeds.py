"""Where speed is measured, and what it says of cells where it was not.

Decode speed of one request hardly depends on the window or the share of the card while prompts
are the same: a group of cells with the same depth, graphs and further axes has one speed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Speed
from vllm_frontier.search.lattice import Extra

# Beyond this difference two cells of a group are not equally fast, where their repeats do not
# overlap either: launches of one cell were seen to differ by a tenth and more.
SAME_SPEED = 0.15

# A group of which so many cells could not be measured is left without a speed.
GROUP_FAILURES = 2

Group = tuple[Extra, int, bool]


def group_of(cell: Cell) -> Group:
    """The cells that are taken to be equally fast."""
    return cell.extra, cell.depth, cell.graphs


def lenders(cells: Iterable[Cell]) -> dict[Group, Cell]:
    """The cell of each group whose speed the others have: longest window, then smallest share."""
    found: dict[Group, Cell] = {}
    for cell in sorted(cells, key=lambda cell: (cell.context, -cell.utilization)):
        found[group_of(cell)] = cell
    return found


def assumed_speed(depth: int, graphs: bool) -> float:
    """An order for groups that were not measured: deeper is faster, and graphs are.

    No speed at all, only good for deciding what to look at first.
    """
    return (1.0 + 0.5 * depth) * (2.0 if graphs else 1.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell, how often it was launched for its speed, and how fast those were with a figure."""

    cell: Cell
    launches: int = 0
    speeds: tuple[Speed, ...] = ()

    @property
    def decode_tok_s(self) -> float | None:
        """The median of its launches, tokens/s."""
        return statistics.median(each.decode_tok_s for each in self.speeds) if self.speeds else None


class Speeds:
    """What was measured so far."""

    def __init__(self) -> None:
        self._by_group: dict[Group, dict[Cell, Measured]] = {}
        self._given_up: dict[Group, set[Cell]] = {}

    def add(self, cell: Cell, speed: Speed | None) -> None:
        """A cell was measured."""
        known = self._by_group.setdefault(group_of(cell), {})
        before = known.get(cell, Measured(cell))
        figures = before.speeds if speed is None else (*before.speeds, speed)
        known[cell] = Measured(cell, before.launches + 1, figures)

    def forget(self, cell: Cell) -> None:
        """The cell turned out not to work."""
        self._by_group.get(group_of(cell), {}).pop(cell, None)

    def give_up(self, cell: Cell) -> None:
        """Launches of the cell failed for good."""
        self._given_up.setdefault(group_of(cell), set()).add(cell)

    def may_measure(self, cell: Cell, waiting: Iterable[Cell] = ()) -> bool:
        """Whether it is worth trying: not where it failed, nor in a group where two cells did.

        Args:
            cell: the cell.
            waiting: cells that failed while they were to be measured, and are tried again later.
        """
        group = group_of(cell)
        failed = self._given_up.get(group, set()) | {c for c in waiting if group_of(c) == group}
        return cell not in failed and len(failed) < GROUP_FAILURES

    def measured(self, cell: Cell) -> bool:
        """Whether the cell itself was."""
        return cell in self._by_group.get(group_of(cell), {})

    def of(self, group: Group) -> float | None:
        """The speed of a group, tokens/s."""
        known = {each.cell: each for each in self._with_figure(group)}
        return known[lenders(known)[group]].decode_tok_s if known else None

    def groups(self) -> Iterator[tuple[Group, tuple[Measured, ...]]]:
        """What was measured, by group."""
        for group, known in self._by_group.items():
            yield group, tuple(known.values())

    def compared(self) -> bool:
        """Whether two cells of one group were measured."""
        return any(len(self._with_figure(group)) > 1 for group in self._by_group)

    def in_doubt(self) -> list[Cell]:
        """Cells to launch again before their difference is believed.

        Launches of one cell differ, too: two of a group count as different once both were
        launched twice and do not overlap.
        """
        for group in self._by_group:
            pair = _apart(self._with_figure(group))
            if pair:
                return [each.cell for each in pair if each.launches < 2]
        return []

    def depends(self) -> bool:
        """Whether speed turned out to depend on the window or the share of the card."""
        pairs = (_apart(self._with_figure(group)) for group in self._by_group)
        return any(pair and all(each.launches > 1 for each in pair) for pair in pairs)

    def _with_figure(self, group: Group) -> list[Measured]:
        return [each for each in self._by_group.get(group, {}).values() if each.speeds]


def _apart(known: Sequence[Measured]) -> tuple[Measured, ...]:
    """The slowest and the fastest of a group where they are not equally fast, else nothing."""
    by_speed = sorted(known, key=lambda each: each.decode_tok_s or 0.0)
    if len(by_speed) < 2:
        return ()
    slow, fast = by_speed[0], by_speed[-1]
    far = (fast.decode_tok_s or 0.0) > (1 + SAME_SPEED) * (slow.decode_tok_s or 0.0)
    overlap = max(each.high for each in slow.speeds) >= min(each.low for each in fast.speeds)
    return (slow, fast) if far and not overlap else ()
