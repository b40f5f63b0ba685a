"""Following a server log while it is written."""

from __future__ import annotations

from pathlib import Path

from vllm_frontier.engine.reading import CHUNK_BYTES, LogReader
from vllm_frontier.outcome import Failure, Phase


class LogFollower:
    """Follows a log while the server starts; every poll reads only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = LogReader()
        self._offset = 0
        self._noticed: Failure | None = None
        self._failure: Failure | None = None

    def poll(self) -> Phase:
        """Read what was written since the last poll; the phase that the log shows now."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(CHUNK_BYTES):
                    self._offset += len(chunk)
                    self._reader.feed(chunk)
        # A message may be half written: a failure counts when the next poll finds it again.
        decided = self._reader.decided
        self._failure = decided if decided == self._noticed else None
        self._noticed = decided
        return self._reader.phase

    @property
    def failure(self) -> Failure | None:
        """A failure that is certain before the server has ended: it need not be waited for."""
        return self._failure
