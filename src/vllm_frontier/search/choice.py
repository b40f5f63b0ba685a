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

# Below this chance that a launch is one of those that are needed in the end, the expectation is
# too vague to aim with, and halving what is open is the better use of it.
AIM = 0.12
# Launches about as likely to be needed are chosen among by other reasons.
ABOUT_AS_GOOD = 0.75


def usefulness(lattice: Lattice, open_cells: Mask, mean: Floats, sd: Floats) -> Floats:
    """How likely each open cell is last working or first refused, 0 to 1.

    What is not known about the margins is mostly known to be common to a cell and its
    neighbours, so that their distance counts and not each one's own uncertainty.

    Args:
        lattice: the grid.
        open_cells: cells without an answer.
        mean: expected margins, GiB.
        sd: their standard deviations, GiB.
    """
    above = lattice.highest_among_harder(np.where(open_cells, mean, -np.inf))
    below = lattice.lowest_among_easier(np.where(open_cells, mean, np.inf))
    works = _cdf(mean / sd)
    next_works = np.where(np.isfinite(above), _cdf(np.minimum(above, mean) / sd), 0.0)
    last_refused = np.where(np.isfinite(below), _cdf(np.maximum(below, mean) / sd), 1.0)
    last_working = works - next_works
    first_refused = last_refused - works
    return np.where(open_cells, np.maximum(last_working + first_refused, 0.0), -1.0)


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
