"""Where a card's memory goes, and what that lets one expect of a cell.

Memory is in GiB, lengths in tokens (figures per token: per 1000 tokens).
"""

from __future__ import annotations

from dataclasses import dataclass


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
        head=Figure(0.6, 0.6),
        activation=Figure(1.0, 1.0),
        activation_per_depth=Figure(0.0, 0.05),
        graphs=Figure(0.6, 0.5),
        graphs_per_depth=Figure(0.0, 0.05),
        overhead=Figure(0.1, 0.3),
        kv_per_1k=Figure(0.06, 0.06),
        head_kv_per_1k=Figure(0.002, 0.004),
        state=Figure(0.1, 0.3),
        state_per_depth=Figure(0.05, 0.1),
        basis="nothing but the size of the card",
    )
