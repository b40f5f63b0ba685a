"""Which open cell is worth a launch.

Once everything is known, the launches that prove it are few: the cells that work while nothing
that asks for more does (`last working`), and those that do not while everything that asks for
less does (`first refused`). A launch is well spent on a cell that is likely one of these,
whichever way it goes.
"""

from __future__ import annotations

import math

import numpy as np

from vllm_frontier.search.lattice import Floats, Lattice, Mask
from vllm_frontier.search.proof import Proofs

# Below this chance that a launch is one of those that are needed in the end, the expectation is
# too vague to aim with, and halving what is open is the better use of it.
AIM = 0.12
# Launches about as likely to be needed are chosen among by other reasons.
ABOUT_AS_GOOD = 0.75
# What it is worth, as a chance to be needed, to learn what a head or graphs cost.
NEW_HEAD, NEW_GRAPHS = 0.4, 0.2


def usefulness(lattice: Lattice, open_cells: Mask, mean: Floats, sd: Floats) -> Floats:
    """How likely each open cell is last working or first refused, 0 to 1.

    What asks for more works only if the cell does, so that the chance of both is that of the
    harder one, and the chance that the cell is the last is the difference.

    Args:
        lattice: the grid.
        open_cells: cells without an answer.
        mean: expected margins, GiB.
        sd: their standard deviations, GiB.
    """
    works = _cdf(mean / sd)
    next_works = lattice.highest_among_harder(np.where(open_cells, works, 0.0))
    easier_works = lattice.lowest_among_easier(np.where(open_cells, works, 1.0))
    last_working = works - np.maximum(next_works, 0.0)
    first_refused = np.minimum(easier_works, 1.0) - works
    likely = np.maximum(last_working, 0.0) + np.maximum(first_refused, 0.0)
    return np.where(open_cells, likely, -1.0)


def teaches(proofs: Proofs) -> Floats:
    """A bonus for points from which a figure can be learned that no launch has shown yet.

    Without speculation there is no head, and without graphs there are none: until both ways
    were launched, what the other costs is a guess.
    """
    points = proofs.lattice.points
    bonus = np.zeros(proofs.lattice.shape)
    launched = [each.cell for each in proofs.evidence]
    bonus += NEW_HEAD * ~_has(points.depth > 0, {cell.depth > 0 for cell in launched})
    bonus += NEW_GRAPHS * ~_has(points.graphs, {cell.graphs for cell in launched})
    return bonus


def _has(flags: Mask, seen: set[bool]) -> Mask:
    return (flags & (True in seen)) | (~flags & (False in seen))


def coverage(lattice: Lattice, needed: Mask, mean: Floats) -> Floats:
    """How many needed cells the expected answer of each point settles."""
    works = mean > 0
    by_working = lattice.count_easier(needed & works)
    by_refusal = lattice.count_harder(needed & ~works)
    return np.where(works, by_working, by_refusal)


def halving(lattice: Lattice, open_cells: Mask) -> Floats:
    """How much of what is open an answer settles at least, whichever way it goes."""
    settled = np.minimum(lattice.count_easier(open_cells), lattice.count_harder(open_cells))
    return np.where(open_cells, settled, -1.0)


def best(candidates: Mask, score: Floats, preference: Floats) -> int:
    """The flat index of the preferred one among candidates about as good as the best."""
    scores = np.where(candidates, score, -np.inf)
    good = scores >= ABOUT_AS_GOOD * float(scores.max())
    return int(np.argmax(np.where(good & candidates, preference, -np.inf)))


_erfc = np.frompyfunc(math.erfc, 1, 1)


def _cdf(z: Floats) -> Floats:
    return 0.5 * np.asarray(_erfc(-z / math.sqrt(2)), dtype=float)
