"""The axis of windows: true distances, and every cell wide enough to be pointed at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import altair as alt

from vllm_frontier.report.plots import words

_LEAST = 9.0  # pixels; a narrower cell can be neither seen nor pointed at
_LABEL = 30  # pixels that the label of a window takes


class Windows:
    """Where windows stand: at their distance, but none so narrow that it cannot be seen.

    Windows that grow by a factor stand at the distance of their logarithms.
    """

    def __init__(
        self, contexts: Sequence[int], width: float, grid: Iterable[int] | None = None
    ) -> None:
        """Of some windows, shortest first, on so many pixels; `grid`: all windows of the grid."""
        self.contexts = contexts
        self.labels, self._k = words.windows({*contexts, *(grid or ())})
        self.logarithmic = _steadier(contexts)
        self.width = width
        at = [math.log(each) if self.logarithmic else float(each) for each in contexts]
        between = [(one + other) / 2 for one, other in itertools.pairwise(at)]
        first = at[0] - (between[0] - at[0]) if between else at[0] - 0.5
        last = at[-1] + (at[-1] - between[-1]) if between else at[0] + 0.5
        ends = [first, *between, last]
        true = [other - one for one, other in itertools.pairwise(ends)]
        widths = _at_least(true, self.width, min(_LEAST, self.width / len(true)))
        self.true_to_scale = _same(true, widths)
        self.edges = [sum(widths[:count], 0.0) for count in range(len(widths) + 1)]
        self._place = {context: place for place, context in enumerate(contexts)}

    def left(self, context: int) -> float:
        """The left edge of a window's cells, pixels."""
        return round(self.edges[self._place[context]], 2)

    def right(self, context: int) -> float:
        """The right edge."""
        return round(self.edges[self._place[context] + 1], 2)

    def axis(self) -> alt.Axis:
        """With the windows' names, as many as there is room for."""
        labelled, free = {}, -math.inf
        for context in self.contexts:
            middle = (self.left(context) + self.right(context)) / 2
            if middle - _LABEL / 2 >= free:
                labelled[round(middle)] = self.labels[context]
                free = middle + _LABEL / 2
        names = ",".join(f"{place}:'{name}'" for place, name in labelled.items())
        return alt.Axis(
            values=list(labelled),
            labelExpr=f"({{{names}}})[datum.value]",
            labelOverlap=False,
            grid=False,
            domain=False,
            title=self._title(labelled.values()),
        )

    def _title(self, labels: Iterable[str]) -> str:
        told = "context, tokens"
        if any(label.endswith("k") for label in labels):
            told += f" (k: {self._k})"
        return told + (", log scale" if self.logarithmic else "")


def _steadier(contexts: Sequence[int]) -> bool:
    """Whether windows are spread more evenly by their logarithms."""
    pairs = list(itertools.pairwise(contexts))
    if len(pairs) < 2 or contexts[0] <= 0:
        return False
    steps = [other - one for one, other in pairs]
    factors = [math.log(other / one) for one, other in pairs]
    return max(factors) / min(factors) < 0.8 * max(steps) / min(steps)


def _at_least(shares: Sequence[float], total: float, least: float) -> list[float]:
    """Widths in proportion to some shares, each at least `least`, together `total`."""
    narrow: set[int] = set()
    while True:
        free = total - least * len(narrow)
        rest = sum(share for place, share in enumerate(shares) if place not in narrow)
        widths = [
            least if place in narrow else free * share / rest for place, share in enumerate(shares)
        ]
        found = {place for place, width in enumerate(widths) if width < least} - narrow
        if not found:
            return widths
        narrow |= found


def _same(shares: Sequence[float], widths: Sequence[float]) -> bool:
    """Whether widths are in proportion to the shares."""
    factor = sum(widths) / sum(shares)
    return all(
        math.isclose(width, share * factor, rel_tol=1e-6)
        for share, width in zip(shares, widths, strict=True)
    )
