"""Where a card's memory goes, and what that lets one expect of a cell.

What vLLM takes is linear in what a grid varies, or nearly so: a fixed part (weights, a head when
tokens are drafted, activation, graphs) comes off the share of the card, and what is left must
hold the KV cache and state of one full window. The figures of that sum are learned from the
startup facts of launches, of failed ones as well as of good ones, by linear regression with a
prior. A prediction orders launches; it never decides an outcome.

Memory is in GiB, lengths in tokens (figures per token: per 1000 tokens).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Outcome, StartupFacts, Status

Array = NDArray[np.float64]

# What vLLM's log prints is rounded to two decimals.
_ROUNDING_GIB = 0.004
# Two launches of one cell differ by a little, in shares of the card.
_NOISE_SHARE = 4e-4
# An observation further off than this many deviations shows that the figures were believed
# too firmly.
_SURPRISE = 3.0
# With every observation that is as expected, a surprise counts for less.
_FORGET = 0.9
_BLOCK_TOKENS = 16
# That graphs of a size are told does not say whether they come out of the budget.
_COUNTED_SD = 0.4


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and how well it is known: mean and standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrior:
    """What is believed of a model's memory on one card before the first launch, GiB.

    Attributes:
        weights: without the speculative head.
        head: further weights when tokens are drafted.
        activation: peak of the largest step while profiling.
        activation_per_depth: more of it for each token drafted per step.
        graphs: of CUDA graphs.
        graphs_per_depth: more of them for each token drafted per step.
        overhead: what else the card loses, such as the CUDA context.
        kv_per_1k: KV cache of 1000 tokens without a head.
        head_kv_per_1k: more of it when tokens are drafted.
        state: of hybrid models, whatever the window.
        state_per_depth: more of it for each token drafted per step.
        basis: in words, what the figures rest on.
    """

    weights: Figure
    head: Figure
    activation: Figure
    activation_per_depth: Figure
    graphs: Figure
    graphs_per_depth: Figure
    overhead: Figure
    kv_per_1k: Figure
    head_kv_per_1k: Figure
    state: Figure
    state_per_depth: Figure
    basis: str


def vague_prior(card_gib: float) -> MemoryPrior:
    """What is believed of a model of which nothing is known but that somebody tries it here."""
    return MemoryPrior(
        weights=Figure(0.6 * card_gib, 0.25 * card_gib),
        head=Figure(0.02 * card_gib, 0.02 * card_gib),
        activation=Figure(0.04 * card_gib, 0.04 * card_gib),
        activation_per_depth=Figure(0.0, 0.002 * card_gib),
        graphs=Figure(0.02 * card_gib, 0.02 * card_gib),
        graphs_per_depth=Figure(0.0, 0.002 * card_gib),
        overhead=Figure(0.005 * card_gib, 0.01 * card_gib),
        kv_per_1k=Figure(0.002 * card_gib, 0.002 * card_gib),
        head_kv_per_1k=Figure(0.0001 * card_gib, 0.0001 * card_gib),
        state=Figure(0.003 * card_gib, 0.01 * card_gib),
        state_per_depth=Figure(0.002 * card_gib, 0.004 * card_gib),
        basis="nothing but the size of the card",
    )


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of a cell.

    Attributes:
        margin_gib: memory left over when one window is full; below 0 the cell does not fit.
        sd_gib: its standard deviation.
        basis: in words, what it rests on.
    """

    margin_gib: float
    sd_gib: float
    basis: str

    @property
    def probability(self) -> float:
        """How likely the cell fits, 0 to 1."""
        return normal_cdf(self.margin_gib / self.sd_gib)


def normal_cdf(z: float) -> float:
    """The standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


_NAMES = tuple(each.name for each in fields(MemoryPrior) if each.name != "basis")
_AT = {name: index for index, name in enumerate(_NAMES)}


class MemoryModel:
    """What is known of the memory of one model on one card.

    Args:
        card_gib: memory of the card, of which a cell's utilization is a share.
        prior: what is believed before the first launch; None: nothing.
    """

    def __init__(self, card_gib: float, prior: MemoryPrior | None = None) -> None:
        believed = vague_prior(card_gib) if prior is None else prior
        figures: list[Figure] = [getattr(believed, name) for name in _NAMES]
        self._card_gib = card_gib
        self._basis = believed.basis
        self._mean: Array = np.array([figure.mean for figure in figures])
        self._cov: Array = np.diag([max(figure.sd, 1e-9) ** 2 for figure in figures])
        self._launches = 0
        self._graphs_told: set[int] = set()
        self._least_noise = self._noise = _NOISE_SHARE * card_gib

    @property
    def basis(self) -> str:
        """In words, what predictions rest on."""
        if self._launches == 0:
            return self._basis
        return f"{self._launches} launch{'es' if self._launches > 1 else ''}, and {self._basis}"

    def margins(self, cells: Sequence[Cell]) -> tuple[Array, Array]:
        """Mean and standard deviation of the memory left over by each of n cells, (n,) each."""
        rows = self._fixed_rows(cells) + self._need_rows(cells, [cell.context for cell in cells])
        budget = self._card_gib * np.array([cell.utilization for cell in cells])
        variance = np.einsum("ij,jk,ik->i", rows, self._cov, rows)
        return budget - rows @ self._mean, np.sqrt(np.maximum(variance, 0.0) + self._noise**2)

    def predict(self, cell: Cell) -> Prediction:
        """What is expected of a cell."""
        mean, sd = self.margins([cell])
        return Prediction(float(mean[0]), float(sd[0]), self.basis)

    def observe(self, cell: Cell, outcome: Outcome) -> None:
        """Learn from a launch; one that says nothing about memory teaches nothing."""
        if self._learn_figures(cell, outcome.facts):
            self._launches += 1
        elif outcome.filled or _kv_refused(outcome):
            self._learn_answer(cell, works=outcome.filled)
            self._launches += 1

    def imagined_facts(self, cell: Cell) -> StartupFacts:
        """The facts that a launch would tell if everything were exactly as expected."""
        fixed = float((self._fixed_rows([cell]) @ self._mean)[0])
        available = self._card_gib * cell.utilization - fixed
        needed = float((self._need_rows([cell], [cell.context]) @ self._mean)[0])
        slope = float((self._need_row(cell, 1000) - self._need_row(cell, 0)) @ self._mean)
        longest = cell.context + 1000 * (available - needed) / max(slope, 1e-9)
        fits = available >= needed
        head = self._mean[_AT["head"]] if cell.depth else 0.0
        return StartupFacts(
            kv_available_gib=available,
            kv_needed_gib=needed,
            weights_gib=float(self._mean[_AT["weights"]] + head),
            kv_tokens=int(cell.context * available / max(needed, 1e-9)) if fits else None,
            max_context_estimate=int(longest) if not fits and longest > 0 else None,
        )

    # Rows of the regression: what multiplies each figure

    def _fixed_rows(self, cells: Sequence[Cell]) -> Array:
        """What comes off the budget before the KV cache, (n, figures)."""
        rows = np.zeros((len(cells), len(_NAMES)))
        depth = np.array([cell.depth for cell in cells], dtype=float)
        graphs = np.array([cell.graphs for cell in cells], dtype=float)
        for name, column in (
            ("weights", np.ones(len(cells))),
            ("head", np.minimum(depth, 1)),
            ("activation", np.ones(len(cells))),
            ("activation_per_depth", depth),
            ("graphs", graphs),
            ("graphs_per_depth", graphs * depth),
            ("overhead", np.ones(len(cells))),
        ):
            rows[:, _AT[name]] = column
        return rows

    @staticmethod
    def _need_rows(cells: Sequence[Cell], contexts: Sequence[float]) -> Array:
        """What one full window of each length needs, (n, figures)."""
        rows = np.zeros((len(cells), len(_NAMES)))
        depth = np.array([cell.depth for cell in cells], dtype=float)
        length = np.array(contexts, dtype=float) / 1000
        for name, column in (
            ("kv_per_1k", length),
            ("head_kv_per_1k", length * np.minimum(depth, 1)),
            ("state", np.ones(len(cells))),
            ("state_per_depth", depth),
        ):
            rows[:, _AT[name]] = column
        return rows

    # Learning

    def _learn_figures(self, cell: Cell, facts: StartupFacts) -> bool:
        """Learn from what the log says of memory; whether it says anything."""
        fixed = self._fixed_rows([cell])[0]
        budget = self._card_gib * cell.utilization
        learned = False
        for row, value, sd in self._parts(cell, facts):
            self._learn(row, value, sd)
        if facts.kv_available_gib is not None:
            self._learn(fixed, budget - facts.kv_available_gib, _ROUNDING_GIB)
            learned = True
        if facts.kv_needed_gib is not None:
            self._learn(self._need_row(cell, cell.context), facts.kv_needed_gib, _ROUNDING_GIB)
            learned = True
        # Tokens are whole blocks, and so far finer than rounded GiB.
        if facts.max_context_estimate is not None:
            row = self._need_row(cell, facts.max_context_estimate)
            self._learn(fixed + row, budget, self._block_gib(cell))
            learned = True
        if facts.kv_tokens is not None:
            row = self._need_row(cell, cell.context) * (facts.kv_tokens / cell.context)
            self._learn(fixed + row, budget, self._block_gib(cell))
            learned = True
        return learned

    def _parts(self, cell: Cell, facts: StartupFacts) -> list[tuple[Array, float, float]]:
        """What the log says of single parts of the sum: row, GiB, standard deviation."""
        depth = float(cell.depth)
        # Not every version counts the same under these names: the sum is what holds.
        sd = 4 * _ROUNDING_GIB
        told: list[tuple[float | None, dict[str, float], float]] = [
            (facts.weights_gib, {"weights": 1.0, "head": min(depth, 1.0)}, sd),
            (facts.activation_gib, {"activation": 1.0, "activation_per_depth": depth}, sd),
        ]
        if cell.graphs and facts.graph_gib is not None and cell.depth not in self._graphs_told:
            self._graphs_told.add(cell.depth)  # told again, it would not be known any better
            # Whether graphs come out of the budget depends on the version (from 0.21 on they do).
            graphs_sd = sd + _COUNTED_SD * facts.graph_gib
            told.append((facts.graph_gib, {"graphs": 1.0, "graphs_per_depth": depth}, graphs_sd))
        parts = []
        for value, shares, spread in told:
            if value is not None:
                row = np.zeros(len(_NAMES))
                for name, share in shares.items():
                    row[_AT[name]] = share
                parts.append((row, value, spread))
        return parts

    def _need_row(self, cell: Cell, context: float) -> Array:
        row: Array = self._need_rows([cell], [context])[0]
        return row

    def _block_gib(self, cell: Cell) -> float:
        per_1k = float(self._mean[_AT["kv_per_1k"]])
        return max(per_1k, 0.0) * _BLOCK_TOKENS / 1000 + self._noise / 4

    def _learn(self, row: Array, value: float, sd: float) -> None:
        """One scalar observation `value = row . figures + noise` (recursive least squares)."""
        surprise = value - float(row @ self._mean)
        spread = self._spread(row, sd)
        far = abs(surprise) / math.sqrt(spread)
        if far > _SURPRISE:
            # The sum is not quite linear here: believe all figures less, and predictions too.
            widest = float(np.diag(self._cov).max())
            room = (4 * self._card_gib) ** 2 / widest
            self._cov *= min((far / _SURPRISE) ** 2, max(room, 1.0))
            self._noise = max(self._noise, min(abs(surprise) / 2, 0.02 * self._card_gib))
            spread = self._spread(row, sd)
        else:
            self._noise = max(self._least_noise, _FORGET * self._noise)
        gain = self._cov @ row / spread
        self._mean = self._mean + gain * surprise
        self._update_covariance(np.eye(len(row)) - np.outer(gain, row), gain, sd)

    def _spread(self, row: Array, sd: float) -> float:
        """The variance expected of an observation."""
        return max(float(row @ self._cov @ row), 0.0) + sd**2

    def _learn_answer(self, cell: Cell, *, works: bool) -> None:
        """A launch without figures still tells on which side of the boundary it lies."""
        row = self._fixed_rows([cell])[0] + self._need_row(cell, cell.context)
        sign = 1.0 if works else -1.0
        mean = sign * (self._card_gib * cell.utilization - float(row @ self._mean))
        variance = self._spread(row, self._noise)
        z = mean / math.sqrt(variance)
        # Mean and variance of a normal distribution cut off at 0.
        ratio = math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / max(normal_cdf(z), 1e-12)
        moved, shrunk = ratio * math.sqrt(variance), ratio * (ratio + z)
        gain = self._cov @ row / variance
        self._mean = self._mean - sign * gain * moved
        keep = np.eye(len(row)) - np.outer(gain, row) * min(shrunk, 1.0)
        self._update_covariance(keep, gain, self._noise)

    def _update_covariance(self, keep: Array, gain: Array, sd: float) -> None:
        """In this form rounding cannot make a variance negative, but for sides that differ."""
        updated = keep @ self._cov @ keep.T + np.outer(gain, gain) * sd**2
        self._cov = (updated + updated.T) / 2


def _kv_refused(outcome: Outcome) -> bool:
    return (
        outcome.status is Status.INFEASIBLE
        and outcome.failure is not None
        and (
            outcome.failure.failure_class
            in (FailureClass.KV_TOO_SMALL, FailureClass.KV_NONE, FailureClass.STATE_SLOTS_TOO_FEW)
        )
    )
