"""Attempts of which something is damaged, in words: they count as interrupted."""

from __future__ import annotations

from collections.abc import Sequence


def unread(damaged: Sequence[str]) -> str | None:
    """A sentence without its full stop; None where nothing is damaged.

    Args:
        damaged: a path for each damaged attempt, from `SweepStore.look_through`.
    """
    if not damaged:
        return None
    count, again = len(damaged), "`vllm-frontier resume` runs"
    if count == 1:
        return f"1 attempt cannot be read and does not count: {damaged[0]}; {again} it again"
    such = f"such as {damaged[0]}"
    return f"{count} attempts cannot be read and do not count, {such}; {again} them again"
