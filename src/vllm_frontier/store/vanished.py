"""Attempts that are removed while they are read: what is left is read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vllm_frontier.errors import StoreError

T = TypeVar("T")

_READS = 3  # somebody who cleans up may take a while


class VanishedError(StoreError):
    """A file of an attempt was there, and was removed while it was read."""


def read_again(read: Callable[[], T]) -> T:
    """What a function reads; from the beginning where an attempt vanished on the way.

    Raises:
        StoreError: as `read` does, or attempts go on to vanish.
    """
    for _ in range(_READS - 1):
        try:
            return read()
        except VanishedError:
            continue
    return read()
