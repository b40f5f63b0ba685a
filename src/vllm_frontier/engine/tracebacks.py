"""Exceptions in a log, put together from the lines of several processes."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from vllm_frontier.engine.log import LogLine

_MAX_FRAMES = 200
_MAX_DETAILS = 12

_FRAME = re.compile(r'^\s+File "[^"]*", line \d+(?:, in (?P<function>\S+))?')
_EXCEPTION = re.compile(
    r"^(?!(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b)"
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\([\w.]+\))?)(?::(?:\s|$)|$)"
)
_OUTERMOST = frozenset({"<module>", "_run_module_as_main", "_bootstrap"})
_CHAIN = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)


@dataclass(slots=True)
class Raised:
    """One exception of a traceback.

    Attributes:
        line: the line with the exception's name.
        details: what follows it: further lines of its message.
        functions: names of the functions of its traceback, outermost first.
        uncaught: whether nothing caught it before it left its process; set for the causes of
            such an exception too.
        cause: the exception that stands above it in a chain.
        context: it was being handled when the next one of the chain was raised.
        quotes: its message is the traceback of another process, which says why.
    """

    line: LogLine
    functions: tuple[str, ...]
    uncaught: bool
    details: list[LogLine] = field(default_factory=list)
    cause: Raised | None = None
    quotes: bool = False
    context: bool = False


@dataclass(slots=True)
class _Open:
    """A traceback of one process that is being read."""

    level: str
    ignored: bool
    functions: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_FRAMES))
    frames: int = 0
    raised: Raised | None = None
    chained: bool = False
    cause: Raised | None = None


class Tracebacks:
    """Assembles exceptions; every process has a traceback of its own."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._ignore_next = False
        self._last: _Open | None = None  # whose exception the line before belonged to

    @property
    def idle(self) -> bool:
        """Whether no traceback is being read."""
        return not self._open

    def feed(self, line: LogLine) -> tuple[bool, Raised | None]:
        """Take a line.

        Returns:
            Whether the line belongs to a traceback, and the exception it names or to whose
            message it adds.
        """
        last, self._last = self._last, None
        found = self._feed(line, last)
        if found[1] is not None:
            self._last = self._open.get(line.process) or last
        return found

    def _feed(self, line: LogLine, last: _Open | None) -> tuple[bool, Raised | None]:
        if self._begins(line):
            return True, None
        entry = self._open.get(line.process)
        if entry is None:
            if last is not None and last.raised and line.text and not line.level:
                # The rest of a message of several lines: only its first one has a prefix.
                return self._after(last, last.raised, line)
            return False, None
        if entry.level != line.level:
            # Another message of the same process: the traceback is over.
            if line.level:
                del self._open[line.process]
            return False, None
        if entry.raised is not None:
            return self._after(entry, entry.raised, line)
        return self._within(entry, line)

    def _begins(self, line: LogLine) -> bool:
        """Whether a traceback begins with this line."""
        if line.text.endswith("(most recent call last):") and "Traceback" in line.text:
            before = self._open.get(line.process)
            cause = before.raised if before is not None and before.chained else None
            if before is not None and before.raised and before.level == line.level:
                before.raised.quotes = not before.chained
            self._open[line.process] = _Open(line.level, self._ignore_next, cause=cause)
            self._ignore_next = False
            return True
        if line.text.startswith("Exception ignored in"):
            self._ignore_next = True  # raised in a destructor: never the reason for anything
            return True
        return False

    def _within(self, entry: _Open, line: LogLine) -> tuple[bool, Raised | None]:
        text = line.text
        frame = _FRAME.match(text)
        if frame:
            entry.frames += 1
            if frame["function"]:
                entry.functions.append(frame["function"])
            return True, None
        if not text or text[0] in " \t|+":
            return True, None
        match = _EXCEPTION.match(text)
        if not match:
            # A line that some other process wrote in between.
            return False, None
        if entry.ignored:
            del self._open[line.process]
            return True, None
        functions = tuple(entry.functions)
        uncaught = not line.level and not _OUTERMOST.isdisjoint(functions)
        entry.raised = Raised(line, functions, uncaught, cause=entry.cause)
        cause = entry.cause
        while uncaught and cause is not None:
            cause.uncaught, cause = True, cause.cause
        return True, entry.raised

    def _after(self, entry: _Open, raised: Raised, line: LogLine) -> tuple[bool, Raised | None]:
        text = line.text
        if text.startswith(_CHAIN):
            entry.chained = True
            raised.context = text.startswith(_CHAIN[0])
            return True, None  # a new "Traceback" line follows
        raised.details.append(line)
        if len(raised.details) >= _MAX_DETAILS:
            self._open.pop(line.process, None)
        return True, raised
