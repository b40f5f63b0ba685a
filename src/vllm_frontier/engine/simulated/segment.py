"""The shared memory between EngineCore and the worker, as vLLM has it.

vLLM's is Python's `SharedMemory`, whose creator unlinks it on an orderly end and Python's
resource tracker after a crash, as long as nobody kills that, too. The simulated processes are
forked and have no tracker: what is killed leaves its segment behind, always.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from pathlib import Path

_FOLDER = Path("/dev/shm")
_SIZE = 65536


class SharedSegment:
    """One file `psm_<8 digits>` of `/dev/shm`, and this process's mapping of it.

    Made before the processes fork, it has a name that all of them know, and no file yet.
    """

    def __init__(self) -> None:
        """Choose the name."""
        self.path = _FOLDER / f"psm_{secrets.token_hex(4)}"
        self._memory: mmap.mmap | None = None

    def create(self) -> None:
        """Make the file and map it (EngineCore); without `/dev/shm` there is none."""
        self._map(os.O_CREAT | os.O_EXCL)

    def attach(self) -> None:
        """Map the file that EngineCore made (the worker)."""
        self._map(0)

    def remove(self) -> None:
        """Unlink the file, if it is there; mappings of it stay."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _map(self, how: int) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | how, 0o600)
        except FileNotFoundError:
            return
        try:
            if how:
                os.ftruncate(fd, _SIZE)
            self._memory = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
