"""Where speed is measured, and what it says of cells where it was not.

Decode speed of one request hardly depends on the window or the share of the card while prompts
are the same: a group of cells with the same depth, graphs and further axes has one speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def assumed_speed(depth: int, graphs: bool) -> float:
    """An order for groups that were not measured: deeper is faster, and graphs are.

    No speed at all, only good for deciding what to look at first.
    """
    return (1.0 + 0.5 * depth) * (2.0 if graphs else 1.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell and how fast it was; None where it was measured without a figure."""

    cell: Cell
    speed: Speed | None


class Speeds:
    """What was measured so far."""

    def __init__(self) -> None:
        self._by_group: dict[Group, dict[Cell, Measured]] = {}
        self._given_up: dict[Group, set[Cell]] = {}

    def add(self, cell: Cell, speed: Speed | None) -> None:
        """A cell was measured."""
        self._by_group.setdefault(group_of(cell), {})[cell] = Measured(cell, speed)

    def give_up(self, cell: Cell) -> None:
        """Launches of the cell failed for good."""
        self._given_up.setdefault(group_of(cell), set()).add(cell)

    def may_measure(self, cell: Cell) -> bool:
        """Whether it is worth trying: not where it failed, nor in a group where two cells did."""
        failed = self._given_up.get(group_of(cell), set())
        return cell not in failed and len(failed) < GROUP_FAILURES

    def measured(self, cell: Cell) -> bool:
        """Whether the cell itself was."""
        return cell in self._by_group.get(group_of(cell), {})

    def of(self, group: Group) -> float | None:
        """The speed of a group, tokens/s: that of its longest window, then smallest share."""
        known = [each for each in self._by_group.get(group, {}).values() if each.speed is not None]
        if not known:
            return None
        longest = min(known, key=lambda each: (-each.cell.context, each.cell.utilization))
        return longest.speed.decode_tok_s if longest.speed is not None else None

    def groups(self) -> Iterator[tuple[Group, tuple[Measured, ...]]]:
        """What was measured, by group."""
        for group, known in self._by_group.items():
            yield group, tuple(known.values())

    def compared(self) -> tuple[Cell, Cell] | None:
        """Two cells of one group that were measured; None as long as there are none."""
        for known in self._by_group.values():
            with_speed = [each.cell for each in known.values() if each.speed is not None]
            if len(with_speed) > 1:
                return with_speed[0], with_speed[1]
        return None

    def unequal(self) -> tuple[Cell, Cell] | None:
        """Two cells of a group that are not equally fast; None where there are none."""
        for known in self._by_group.values():
            found = _unequal([each for each in known.values() if each.speed is not None])
            if found is not None:
                return found
        return None


def _unequal(known: Iterable[Measured]) -> tuple[Cell, Cell] | None:
    by_speed = sorted(known, key=lambda each: each.speed.decode_tok_s if each.speed else 0.0)
    if len(by_speed) < 2:
        return None
    slow, fast = by_speed[0], by_speed[-1]
    if slow.speed is None or fast.speed is None:
        return None
    apart = fast.speed.decode_tok_s > (1 + SAME_SPEED) * slow.speed.decode_tok_s
    return (slow.cell, fast.cell) if apart and slow.speed.high < fast.speed.low else None
