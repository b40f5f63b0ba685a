"""What a server log says: how far the start came, memory facts, and why it failed.

The log is read line by line, in constant memory, complete or while it grows. Lines that only
follow from a failure never count as its reason, nor does anything written at a level below
ERROR, nor what a start got over. `verdict` chooses among what remains. Of several launches in
one log (a container that restarts) only the last one counts.
"""

from __future__ import annotations

import io
import re
from collections import deque
from pathlib import Path
from typing import BinaryIO

from vllm_frontier.engine import failures, rules
from vllm_frontier.engine.facts import FactCollector
from vllm_frontier.engine.log import LineSplitter, LogLine, clean
from vllm_frontier.engine.phases import begins_engine, is_before, later, marker_of, opens_launch
from vllm_frontier.engine.protocol import LogReading
from vllm_frontier.engine.tracebacks import Raised, Tracebacks
from vllm_frontier.engine.verdict import KEPT, Candidate, Evidence, decided, judge
from vllm_frontier.outcome import Failure, FailureClass, Phase

CHUNK_BYTES = 256 * 1024
_PIECE_BYTES = 8 * 1024

# A chunk of a serving log without any of these says nothing.
_NEWS = (
    b"ERROR",
    b"CRITICAL",
    b"Traceback (",
    b"Exception ignored",
    b"hutting down",
    b"shutdown",
    b"died unexp",
    b"Segfault",
    b"Segmentation",
    b"Fatal Python",
    b"terminate called",
    b"ut of memory: Killed",
    b"oom-kill:",
    b"fallen off",
    b"Error response from daemon",
    b"API server version",
    b"non-default args",
    b"LLM engine (v",
    b": error: ",
)
_ENGINE_NEWS = (
    b"Dead",
    b"died",
    b"output_handler",
    b"hut",
    b"Errno",
    b"initializ",
    b"version ",
    b"non-default args",
)
_API_SERVER = ("APIServer", "ApiServer")
_STOPPING = ("Shutting down", "[shutdown] API server: shutdown triggered")
_QUIET = frozenset({"INFO", "DEBUG", "WARNING"})
_SAYS_LITTLE = re.compile(
    r"Process |nanobind:|warnings\.warn|Exception ignored|\S*resource_tracker\.py:\d+: "
)


class LogReader:
    """Reads a log piece by piece, in constant memory."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._tracebacks = Tracebacks()
        self._facts = FactCollector()
        self._seen = Evidence()

    @property
    def phase(self) -> Phase:
        """The last phase that the log has shown."""
        return self._seen.phase

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        if self._seen.started and self._tracebacks.idle:
            data = self._splitter.pending + chunk
            if not any(word in data for word in _NEWS):
                self._skip(data, chunk)
                return
            if len(chunk) > _PIECE_BYTES:
                # Most of it may still be quiet.
                for start in range(0, len(chunk), _PIECE_BYTES):
                    self.feed(chunk[start : start + _PIECE_BYTES])
                return
        for number, raw in self._splitter.feed(chunk):
            if not self._says_nothing(raw):
                self._take(clean(number, raw))

    def close(self) -> None:
        """Take a last line that does not end with a line feed."""
        for number, raw in self._splitter.close():
            self._take(clean(number, raw))

    def _says_nothing(self, raw: bytes) -> bool:
        """Whether a line need not even be cleaned: cheap, for what may be there by millions."""
        if not self._seen.started:
            return b" DEBUG " in raw[:80]
        # An error of the API server is one of a request, unless it is about its engine.
        return raw.startswith(b"(APIServer pid=") and not any(word in raw for word in _ENGINE_NEWS)

    def _skip(self, data: bytes, chunk: bytes) -> None:
        self._splitter.skip(chunk)
        lines = data[-4096:].rsplit(b"\n", 2)
        if len(lines) == 3:
            line = clean(self._splitter.number - 1, lines[1])
            self._seen.last = line if line.text else self._seen.last

    # -- one line ------------------------------------------------------------------------------

    def _take(self, line: LogLine) -> None:
        if line.level in _QUIET:
            if not self._tracebacks.idle:
                self._tracebacks.feed(line)
            self._take_quiet(line)
            return
        if ": error: " in line.text and self._moved_on and failures.USAGE.match(line.text):
            self._begin_again()  # refused before it could say which version it is
        in_traceback, raised = self._tracebacks.feed(line)
        if raised is not None:
            self._take_exception(raised, line)
        elif not in_traceback:
            self._take_other(line)

    def _take_quiet(self, line: LogLine) -> None:
        text = line.text
        if not text:
            return
        if self._moved_on and (opens_launch(text) or self._repeats_engine(line)):
            self._begin_again()
        if begins_engine(text):
            self._seen.engines.add(line.process)
        if not self._seen.started:
            self._facts.observe(text)
            self._see_marker(line)
        elif text.startswith(_STOPPING) and self._seen.fatal is None:
            self._seen.stop = self._seen.stop or line
        if text[0] not in " \t[":
            self._seen.last = line

    def _take_other(self, line: LogLine) -> None:
        """A line at level ERROR outside a traceback, or one without a level."""
        text = line.text
        if not text or failures.HARMLESS.search(text):
            return
        if not self._seen.started and not line.level:
            self._facts.observe(text)
            self._see_marker(line)
        if line.level or line.process or "died unexp" in text:
            self._see_fatal(line)
        standalone = failures.STANDALONE.search(text) is not None
        if standalone or (line.level and (not self._seen.started or "Errno" in text)):
            rule = None if failures.WRAPPERS.search(text) else rules.rule_for(text)
            if rule is not None:
                self._facts.observe_refusal(text)
                self._add(
                    Candidate(line, rule, (), self._seen.phase, self._seen.started, standalone)
                )
        elif not line.level and failures.BARE_EXCEPTION.match(text):
            self._take_bare(line)
        if text[0] not in " \t[" and not _SAYS_LITTLE.match(text):
            self._seen.last = line

    def _take_bare(self, line: LogLine) -> None:
        """An exception without a traceback: all there is of a log that was pasted in part."""
        rule = None if failures.WRAPPERS.search(line.text) else rules.rule_for(line.text)
        if rule is None or rule.vague:
            return
        self._facts.observe_refusal(line.text)
        self._add(Candidate(line, rule, (), self._seen.phase, self._seen.started))

    def _take_exception(self, raised: Raised, line: LogLine) -> None:
        if line is not raised.line:
            self._take_detail(raised, line)
            return
        text = line.text
        self._see_fatal(line)
        if failures.WRAPPERS.search(text):
            return
        if not (line.level or raised.uncaught) and failures.HARMLESS.search(text):
            return
        if self._seen.started and not self._of_engine(raised, line):
            return  # a request that went wrong
        self._seen.last = line
        self._facts.observe_refusal(text)
        rule = rules.rule_for(text, raised.functions)
        self._add(
            Candidate(
                line,
                rule,
                raised.functions,
                self._seen.phase,
                self._seen.started,
                raised=raised,
            )
        )

    def _of_engine(self, raised: Raised, line: LogLine) -> bool:
        """Whether an exception of a serving server is one that its engine does not survive."""
        if line.process.startswith(_API_SERVER):
            return False
        names = raised.functions
        return any(failures.ENGINE_LOOP.search(name) for name in names) and not any(
            failures.ASIDE.search(name) for name in names
        )

    def _take_detail(self, raised: Raised, line: LogLine) -> None:
        candidate = next((c for c in reversed(self._seen.candidates) if c.raised is raised), None)
        if candidate is None or not line.text:
            return
        header = "ValidationError" in raised.line.text
        if candidate.rule is not None and not candidate.rule.vague and not header:
            return
        text = line.text.strip()
        if header and candidate.line is raised.line and not line.text.startswith("  "):
            candidate.subject = text
        self._facts.observe_refusal(text)
        rule = rules.rule_for(text, raised.functions)
        tells_more = rule is not None and (header or candidate.rule is None or not rule.vague)
        if tells_more and candidate.line is raised.line:
            candidate.rule = rule
            candidate.line = line._replace(text=text)
        elif header and candidate.line is raised.line and line.text.startswith("  "):
            # The name of the field stands above; what is wrong with it stands here.
            candidate.line = line._replace(text=text)

    @property
    def _moved_on(self) -> bool:
        """Whether the launch has come further than its first words."""
        seen = self._seen
        return (
            seen.started
            or seen.fatal is not None
            or bool(seen.candidates)
            or not is_before(seen.phase, Phase.LOAD)
        )

    def _repeats_engine(self, line: LogLine) -> bool:
        """Whether an engine begins that has begun before: of another launch, then.

        In a container a launch gets the pids of the one before; engines of one server never
        have the same.
        """
        return begins_engine(line.text) and line.process in self._seen.engines

    def _begin_again(self) -> None:
        """Another launch begins in the same log: forget the one before."""
        self._tracebacks = Tracebacks()
        self._facts = FactCollector()
        self._seen = Evidence()

    # -- what lines change -----------------------------------------------------------------------

    def _see_marker(self, line: LogLine) -> None:
        marker = marker_of(line.text)
        if marker is None:
            return
        if marker.phase is Phase.READY and self._seen.final:
            return  # of another program that writes into the same log
        self._seen.phase = later(self._seen.phase, marker.phase)
        if marker.phase is Phase.READY:
            self._seen.started = True
            self._seen.ready = line
            self._seen.candidates.clear()
            self._seen.fatal = self._seen.dead_child = None
        elif self._seen.candidates and self._seen.fatal is None:
            # The start went on where it would have ended: what was raised was caught.
            kept = [
                c
                for c in self._seen.candidates
                if not (
                    is_before(c.phase, marker.phase)
                    and (
                        marker.whole_engine
                        or c.line.process == line.process
                        or _was_survived(c.line.process, line.process, marker.phase)
                    )
                )
            ]
            self._seen.candidates = deque(kept, maxlen=KEPT)

    def _see_fatal(self, line: LogLine) -> None:
        if self._seen.stopping or not failures.FATAL.search(line.text):
            return
        self._seen.fatal = self._seen.fatal or line
        self._seen.final = self._seen.final or failures.FINAL.search(line.text) is not None
        code = failures.child_exit_code(line.text)
        if code is not None and code < 0:
            self._seen.dead_child = self._seen.dead_child or line

    def _add(self, candidate: Candidate) -> None:
        if self._seen.stopping:
            return
        kept = self._seen.candidates
        if not self._seen.started and len(kept) >= KEPT:
            if candidate.rule is None:
                return
            # What has no meaning makes room for what has.
            idle = next((each for each in kept if each.rule is None), None)
            if idle is None:
                return
            kept.remove(idle)
        kept.append(candidate)

    # -- the answer ------------------------------------------------------------------------------

    def reading(self, exit_code: int | None = None, signal: int | None = None) -> LogReading:
        """What the log says so far, or in the end when an exit code or signal is given.

        Args:
            exit_code: of the server; negative values and 128 + n mean signal n.
            signal: that ended the server.
        """
        failure = judge(self._seen, exit_code, signal)
        port_taken = failure is not None and failure.failure_class is FailureClass.PORT_IN_USE
        started = self._seen.started and not port_taken
        open_end = failure is None and not started
        return LogReading(
            phase=self._seen.phase,
            started=started,
            facts=self._facts.facts,
            failure=failure,
            ready_line=_numbered(self._seen.ready) if started else None,
            stop_line=_numbered(self._seen.stop),
            last_line=_numbered(self._seen.last) if open_end else None,
        )

    @property
    def decided(self) -> Failure | None:
        """The failure of a start that is certain although its processes still live."""
        return decided(self._seen)


def _was_survived(raised_in: str, goes_on: str, phase: Phase) -> bool:
    """Whether an engine that goes on shows that its API server got over an exception.

    The API server configures first; it starts the engine when that is done.
    """
    of_server = raised_in.startswith(_API_SERVER) or not raised_in
    return of_server and goes_on != raised_in and not is_before(phase, Phase.LOAD)


def _numbered(line: LogLine | None) -> tuple[int, str] | None:
    return None if line is None else (line.number, line.text.strip())


def read(path: Path, exit_code: int | None = None, signal: int | None = None) -> LogReading:
    """Read a whole log; one that does not exist reads like an empty one. See `read_stream`."""
    if not path.exists():
        return read_stream(io.BytesIO(), exit_code, signal)
    with path.open("rb") as file:
        return read_stream(file, exit_code, signal)


def read_stream(
    stream: BinaryIO, exit_code: int | None = None, signal: int | None = None
) -> LogReading:
    """Read a log to its end.

    Args:
        stream: the log.
        exit_code: of the server, when it has ended; negative for a signal.
        signal: that ended the server, when one did.

    Returns:
        What the log says. Without an exit code or signal a log that shows neither a failure
        nor an orderly end is one of a living server: no failure.
    """
    reader = LogReader()
    while chunk := stream.read(CHUNK_BYTES):
        reader.feed(chunk)
    reader.close()
    return reader.reading(exit_code, signal)
