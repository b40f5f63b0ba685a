"""One writer at a time, and a readable word about who it is.

The kernel holds the lock for as long as its process lives, however that ends, so a dead
writer never keeps a sweep locked.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import filelock
import psutil

from vllm_frontier.errors import StoreError
from vllm_frontier.store import atomic
from vllm_frontier.store.paths import SweepPaths

_START_TOLERANCE_S = 1.0
_PIDS = 2**22 + 1
_YEAR_9999 = 253_000_000_000


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that writes a sweep; times are seconds since the epoch."""

    pid: int
    host: str
    process_started_at: float
    since: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, tz=UTC)
        return f"pid {self.pid} on {self.host} since {since:%Y-%m-%d %H:%M:%S} UTC"

    def is_alive(self) -> bool:
        """Whether that process still runs; taken for granted on another host."""
        if self.host != socket.gethostname():
            return True
        try:
            started_at = psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return False
        return abs(started_at - self.process_started_at) < _START_TOLERANCE_S


class SweepLock:
    """The lock on a sweep's folder, held from `acquire` to `release`."""

    def __init__(self, paths: SweepPaths) -> None:
        self._paths = paths
        # Not per thread: a server acquires in one thread and releases in another.
        self._lock = filelock.FileLock(str(paths.lock), timeout=0, thread_local=False)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return bool(self._lock.is_locked)

    def acquire(self) -> None:
        """Become the writer.

        Raises:
            StoreError: another process is; it is named.
            OSError: the folder cannot be written.
        """
        try:
            self._lock.acquire()
        except filelock.Timeout:
            who = str(live_holder(self._paths) or "another process")
            raise StoreError(
                f"{self._paths.root} is being written by {who}; wait for it to end, or stop it"
            ) from None
        pid = os.getpid()
        me = Holder(pid, socket.gethostname(), psutil.Process(pid).create_time(), time.time())
        try:
            atomic.write_json(self._paths.lock_holder, asdict(me))
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        """Stop being the writer; without effect where the lock is not held."""
        if self.is_held:
            # A name that stays because the folder cannot be written, or is gone, does no harm:
            # its process is asked for before it counts.
            with suppress(OSError):
                self._paths.lock_holder.unlink()
            self._lock.release()


def holder(paths: SweepPaths) -> Holder | None:
    """Who writes the sweep, as far as the file beside the lock tells."""
    try:
        found = Holder(**json.loads(paths.lock_holder.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    moments = found.process_started_at, found.since
    sound = (
        type(found.pid) is int
        and 0 < found.pid < _PIDS
        and isinstance(found.host, str)
        and all(type(each) in (int, float) and 0 <= each < _YEAR_9999 for each in moments)
    )
    return found if sound else None


def live_holder(paths: SweepPaths) -> Holder | None:
    """Who writes the sweep now; None when nobody does."""
    who = holder(paths)
    return who if who and who.is_alive() else None
