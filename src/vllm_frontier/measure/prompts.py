"""Prompts of an exact length, as token ids: for prefill and for filling the window."""

from __future__ import annotations

import random
from collections.abc import Sequence

from vllm_frontier.measure.client import FailureKind, RequestFailure, ServerClient
from vllm_frontier.measure.task import known_tasks, load_task

# Seeds below this number are told apart by the first tokens of a prompt.
SEEDS = 1 << 20


class PromptSource:
    """Makes prompts of any length out of the tokens of a text.

    Prompts with different seeds differ within their first tokens, so that a prefix cache, which
    matches from the start, finds nothing of one in another.

    Args:
        token_ids: the tokens of a text, at least two different ones.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = tuple(token_ids)
        self._alphabet = sorted(set(self._ids))
        if len(self._alphabet) < 2:
            raise ValueError("a prompt needs at least two different tokens")

    def prompt(self, length: int, seed: int) -> list[int]:
        """A prompt of exactly `length` tokens, always the same for a seed.

        Args:
            length: tokens; the text is repeated where it is too short.
            seed: in [0, SEEDS).
        """
        start = random.Random(seed).randrange(len(self._ids))
        turned = self._ids[start:] + self._ids[:start]
        head = self._seed_tokens(seed)
        copies = max(0, length - len(head)) // len(turned) + 1
        return (head + list(turned) * copies)[:length]

    def _seed_tokens(self, seed: int) -> list[int]:
        """The seed in digits that are tokens, the lowest first."""
        tokens, base, span = [], len(self._alphabet), 1
        while span < SEEDS:
            seed, digit = divmod(seed, base)
            tokens.append(self._alphabet[digit])
            span *= base
        return tokens


def load_prompts(client: ServerClient) -> PromptSource | RequestFailure:
    """Cut the bundled texts into tokens of the server's model."""
    texts = (text for name in known_tasks() for text in load_task(name).variants)
    ids = client.tokenize("\n\n".join(texts))
    if isinstance(ids, RequestFailure):
        return ids
    if len(set(ids)) < 2:
        message = "/tokenize makes no two different tokens of a text"
        return RequestFailure(FailureKind.STREAM_ERROR, message, http_status=200)
    return PromptSource(ids)
