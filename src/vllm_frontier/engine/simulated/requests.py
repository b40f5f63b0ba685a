"""One request of the simulated server: how many tokens, in which steps, how long it takes.

Pure but for the prefix cache, which remembers the prompts it has seen. Times are simulated
seconds.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vllm_frontier.engine.simulated.card import (
    SimulatedCard,
    acceptance,
    decode_speed,
    noise_factor,
)
from vllm_frontier.grid import Cell

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Decoding:
    """How an answer of a given length is generated.

    `steps` are the tokens that each decoding step adds (the first token of the answer comes
    from the prefill and is not among them); `accepted_per_position` counts the steps whose
    first i+1 drafts were accepted.
    """

    steps: tuple[int, ...]
    accepted_per_position: tuple[int, ...]
    prefill_s: float
    decode_s: float

    @property
    def drafts(self) -> int:
        """Steps that drafted anything."""
        return len(self.steps) if self.accepted_per_position else 0

    @property
    def draft_tokens(self) -> int:
        """Tokens drafted."""
        return self.drafts * len(self.accepted_per_position)

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(self.accepted_per_position)

    def ends_s(self) -> list[float]:
        """When each step ends, counted from the first token."""
        tokens = sum(self.steps)
        return [self.decode_s * done / tokens for done in accumulate(self.steps)]


def plan_decoding(
    card: SimulatedCard,
    cell: Cell,
    task: str,
    *,
    uncached: int,
    completion: int,
    run: str,
    seed: int,
) -> Decoding:
    """Lay out the generation of `completion` tokens after `uncached` prompt tokens.

    Args:
        card: the card.
        cell: the cell that the server runs.
        task: the task, for its acceptance.
        uncached: prompt tokens that the prefix cache does not hold.
        completion: tokens of the answer, at least 1.
        run: what seeds the noise, such as a digest of the prompt.
        seed: of the server.
    """
    shares = acceptance(card, cell.depth, task)
    # A golden-ratio sequence spreads evenly, so that a hundred steps already show the shares.
    draw = zlib.crc32(run.encode()) / 2**32
    steps: list[int] = []
    accepted = [0] * cell.depth
    left = completion - 1
    while left > 0:
        draw = (draw + _GOLDEN) % 1.0
        good = sum(share > draw for share in shares)
        for position in range(good):
            accepted[position] += 1
        steps.append(min(left, 1 + good))
        left -= steps[-1]
    speed = decode_speed(card, cell, task) * noise_factor(card, cell, run, seed)
    prefill = card.speed.prefill_tok_s * noise_factor(card, cell, f"prefill {run}", seed)
    return Decoding(
        steps=tuple(steps),
        accepted_per_position=tuple(accepted),
        prefill_s=uncached / prefill,
        decode_s=(completion - 1) / speed,
    )


class PrefixCache:
    """Which blocks of prompts are cached; the oldest go first when `capacity` tokens are full."""

    def __init__(self, *, block: int, capacity: int, enabled: bool = True) -> None:
        self._block = block
        self._room = max(0, capacity // block) if enabled else 0
        self._blocks: OrderedDict[tuple[int, int], None] = OrderedDict()

    def take(self, ids: Sequence[int], salt: str = "") -> int:
        """How many leading tokens of a prompt are cached already; caches the whole blocks of it.

        Prompts with different salts share nothing. The last token is always computed, as its
        output is needed.
        """
        if not self._room:
            return 0
        hits = 0
        unbroken = True
        key = (0, hash(salt))
        for start in range(0, len(ids) - self._block + 1, self._block):
            part = tuple(ids[start : start + self._block])
            key = (start, hash((key, part)))
            unbroken = unbroken and key in self._blocks
            hits += unbroken
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)
        return min(hits * self._block, (len(ids) - 1) // self._block * self._block)
