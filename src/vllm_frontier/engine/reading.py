"""What a server log says: how far the start came, memory facts, and why it failed.

Which line decides, in this order: the first exception whose words have a meaning and that
nothing shows to have been harmless; the death of a worker by a signal; the first exception
whose words have none (the failure is then unknown); the exit code or signal. Lines that only
follow from a failure never decide, nor does anything written at a level below ERROR.
"""

from __future__ import annotations

import signal as signals
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from vllm_frontier.engine import failures
from vllm_frontier.engine.facts import FactCollector
from vllm_frontier.engine.log import LineSplitter, LogLine, clean
from vllm_frontier.engine.phases import is_before, later, marker_of
from vllm_frontier.engine.protocol import LogReading
from vllm_frontier.engine.tracebacks import Raised, Tracebacks
from vllm_frontier.outcome import Failure, FailureClass, Phase

CHUNK_BYTES = 256 * 1024
_PIECE_BYTES = 8 * 1024
_MAX_EVIDENCE = 2000
_KEPT = 64  # exceptions kept
_WINDOW = 3000  # lines before the end of a serving engine in which its reason is looked for

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
)
_ENGINE_NEWS = (b"Dead", b"died", b"output_handler", b"hut", b"Errno", b"initializ")
_STOPPING = ("Shutting down", "[shutdown] API server: shutdown triggered")
_QUIET = frozenset({"INFO", "DEBUG", "WARNING"})
_SAYS_LITTLE = ("Process ", "nanobind:", "warnings.warn", "Exception ignored")


@dataclass(slots=True)
class _Candidate:
    """An exception, or a line that stands for one, that may be the reason."""

    line: LogLine
    rule: failures.Rule | None
    functions: tuple[str, ...]
    phase: Phase
    started: bool
    uncaught: bool
    raised: Raised | None = None

    @property
    def decisive(self) -> bool:
        return self.rule is not None and not self.rule.vague and not self.handled

    @property
    def handled(self) -> bool:
        """Whether it was printed by somebody who had caught it.

        vLLM logs what is fatal at level ERROR, and Python prints what nothing caught.
        """
        return not self.line.level and not self.uncaught


class LogReader:
    """Reads a log piece by piece, in constant memory."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._tracebacks = Tracebacks()
        self._facts = FactCollector()
        self._candidates: deque[_Candidate] = deque(maxlen=_KEPT)
        self._phase = Phase.SPAWN
        self._started = False
        self._stopping = False
        self._fatal: LogLine | None = None
        self._final = False
        self._dead_child: LogLine | None = None
        self._last: LogLine | None = None

    @property
    def phase(self) -> Phase:
        """The last phase that the log has shown."""
        return self._phase

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        if self._started and self._tracebacks.idle:
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
        if not self._started:
            return b" DEBUG " in raw[:80]
        # An error of the API server is one of a request, unless it is about its engine.
        return raw.startswith(b"(APIServer pid=") and not any(word in raw for word in _ENGINE_NEWS)

    def _skip(self, data: bytes, chunk: bytes) -> None:
        self._splitter.skip(chunk)
        lines = data[-4096:].rsplit(b"\n", 2)
        if len(lines) == 3:
            line = clean(self._splitter.number - 1, lines[1])
            self._last = line if line.text else self._last

    # -- one line ------------------------------------------------------------------------------

    def _take(self, line: LogLine) -> None:
        if line.level in _QUIET:
            if not self._tracebacks.idle:
                self._tracebacks.feed(line)
            self._take_quiet(line)
            return
        in_traceback, raised = self._tracebacks.feed(line)
        if raised is not None:
            self._take_exception(raised, line)
        elif not in_traceback:
            self._take_other(line)

    def _take_quiet(self, line: LogLine) -> None:
        text = line.text
        if not text:
            return
        if not self._started:
            self._facts.observe(text)
            self._see_marker(line)
        elif text.startswith(_STOPPING) and self._fatal is None:
            self._stopping = True
        if text[0] not in " \t[":
            self._last = line

    def _take_other(self, line: LogLine) -> None:
        """A line at level ERROR outside a traceback, or one without a level."""
        text = line.text
        if not text or failures.HARMLESS.search(text):
            return
        if not self._started and not line.level:
            self._facts.observe(text)
            self._see_marker(line)
        if line.level or line.process or "died unexp" in text:
            self._see_fatal(line)
        standalone = failures.STANDALONE.search(text) is not None
        if standalone or (line.level and (not self._started or "Errno" in text)):
            rule = None if failures.WRAPPERS.search(text) else failures.rule_for(text)
            if rule is not None:
                self._facts.observe_refusal(text)
                self._add(_Candidate(line, rule, (), self._phase, self._started, standalone))
        if text[0] not in " \t[" and not text.startswith(_SAYS_LITTLE):
            self._last = line

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
        if self._started and line.process.startswith(("APIServer", "ApiServer")):
            return  # a request that went wrong; the engine's own exceptions come from its process
        self._last = line
        self._facts.observe_refusal(text)
        rule = failures.rule_for(text, raised.functions)
        self._add(
            _Candidate(
                line, rule, raised.functions, self._phase, self._started, raised.uncaught, raised
            )
        )

    def _take_detail(self, raised: Raised, line: LogLine) -> None:
        candidate = next((c for c in reversed(self._candidates) if c.raised is raised), None)
        if candidate is None or not line.text:
            return
        header = "ValidationError" in raised.line.text
        if candidate.rule is not None and not header:
            return
        text = line.text.strip()
        self._facts.observe_refusal(text)
        rule = failures.rule_for(text, raised.functions)
        if rule is not None and candidate.line is raised.line:
            candidate.rule = rule
            candidate.line = line._replace(text=text)
        elif header and candidate.line is raised.line and line.text.startswith("  "):
            # The name of the field stands above; what is wrong with it stands here.
            candidate.line = line._replace(text=text)

    # -- what lines change -----------------------------------------------------------------------

    def _see_marker(self, line: LogLine) -> None:
        marker = marker_of(line.text)
        if marker is None:
            return
        self._phase = later(self._phase, marker.phase)
        if marker.phase is Phase.READY:
            self._started = True
            self._candidates.clear()
            self._fatal = self._dead_child = None
        elif self._candidates and self._fatal is None:
            # The start went on where it would have ended: what was raised was caught.
            kept = [
                c
                for c in self._candidates
                if not (
                    is_before(c.phase, marker.phase)
                    and (marker.whole_engine or c.line.process == line.process)
                )
            ]
            self._candidates = deque(kept, maxlen=_KEPT)

    def _see_fatal(self, line: LogLine) -> None:
        if self._stopping or not failures.FATAL.search(line.text):
            return
        self._fatal = self._fatal or line
        self._final = self._final or failures.FINAL.search(line.text) is not None
        code = failures.child_exit_code(line.text)
        if code is not None and code < 0:
            self._dead_child = self._dead_child or line

    def _add(self, candidate: _Candidate) -> None:
        if self._stopping:
            return
        if self._started or len(self._candidates) < _KEPT:
            self._candidates.append(candidate)

    # -- the answer ------------------------------------------------------------------------------

    def reading(self, exit_code: int | None = None, signal: int | None = None) -> LogReading:
        """What the log says so far, or in the end when an exit code or signal is given.

        Args:
            exit_code: of the server; negative values and 128 + n mean signal n.
            signal: that ended the server.
        """
        failure = self._failure(*_ending(exit_code, signal))
        port_taken = failure is not None and failure.failure_class is FailureClass.PORT_IN_USE
        return LogReading(
            phase=self._phase,
            started=self._started and not port_taken,
            facts=self._facts.facts,
            failure=failure,
        )

    @property
    def decided(self) -> Failure | None:
        """The failure of a start that is certain although its processes still live.

        vLLM takes some seconds between the line that says why and the end of its processes.
        """
        if self._started or not (self._fatal or any(c.uncaught for c in self._candidates)):
            return None
        if self._final or any(c.decisive for c in self._candidates):
            return self._failure(None, None)
        return None

    def _failure(self, exit_code: int | None, signal: int | None) -> Failure | None:
        ended = exit_code is not None or signal is not None
        if self._stopping and self._fatal is None:
            return None
        if self._started and self._fatal is None and not ended:
            taken = next((c for c in self._candidates if _takes_port(c)), None)
            return self._of_candidate(taken) if taken else None
        candidates = self._in_question()
        decisive = next((c for c in candidates if c.decisive), None)
        if decisive is not None:
            return self._of_candidate(decisive)
        if self._dead_child is not None:
            code = failures.child_exit_code(self._dead_child.text) or 0
            return self._of_line(_class_of_signal(-code), self._dead_child)
        vague = next((c for c in candidates if c.rule is not None), None)
        if vague is not None:
            return self._of_candidate(vague)
        return self._undecided(candidates, exit_code, signal)

    def _undecided(
        self, candidates: list[_Candidate], exit_code: int | None, signal: int | None
    ) -> Failure | None:
        certain = self._fatal is not None or any(c.uncaught for c in candidates)
        if candidates and (certain or (exit_code and signal is None)):
            # A serving engine that an exception ended has crashed, whatever the exception is.
            unknown = FailureClass.ENGINE_CRASHED if self._started else FailureClass.UNKNOWN
            first = self._fatal.number if self._fatal is not None else 0
            raised = next((c for c in candidates if c.line.number >= first), candidates[0])
            return self._of_line(unknown, raised.line, raised.phase)
        if signal is not None and self._fatal is None:
            return self._of_signal(signal)
        if self._fatal is not None:
            # Nothing was raised and yet the engine is gone: it was ended from outside or by
            # something that leaves no trace.
            return self._of_line(FailureClass.ENGINE_CRASHED, self._fatal)
        if exit_code is None or (self._started and exit_code == 0):
            return None
        evidence = self._last or LogLine(0, f"ended with exit code {exit_code}", "", "")
        return self._of_line(FailureClass.UNKNOWN, evidence)

    def _in_question(self) -> list[_Candidate]:
        if self._started and self._fatal is not None:
            first = self._fatal.number - _WINDOW
            return [c for c in self._candidates if c.line.number >= first]
        return list(self._candidates)

    def _of_candidate(self, candidate: _Candidate) -> Failure:
        assert candidate.rule is not None
        failure_class, phase = failures.name_of(
            candidate.rule, candidate.functions, candidate.phase, started=candidate.started
        )
        return self._of_line(failure_class, candidate.line, phase)

    def _of_signal(self, signal: int) -> Failure:
        try:
            name = signals.Signals(signal).name
        except ValueError:
            name = "unnamed"
        last = self._last
        text = f"ended by signal {signal} ({name})" + (f" after: {last.text}" if last else "")
        line = LogLine(last.number if last else 0, text, "", "")
        return self._of_line(_class_of_signal(signal), line)

    def _of_line(
        self, failure_class: FailureClass, line: LogLine, phase: Phase | None = None
    ) -> Failure:
        return Failure(
            failure_class=failure_class,
            phase=phase or self._phase,
            evidence=line.text.strip()[:_MAX_EVIDENCE],
            evidence_line=line.number or None,
        )


def _takes_port(candidate: _Candidate) -> bool:
    rule = candidate.rule
    return rule is not None and rule.failure_class is FailureClass.PORT_IN_USE


def _ending(exit_code: int | None, signal: int | None) -> tuple[int | None, int | None]:
    """An exit code and a signal, of which at most one is given."""
    if signal is None and exit_code is not None:
        if exit_code < 0:
            return None, -exit_code
        # Shells and containers report a signal that way.
        if exit_code in {128 + number for number in (1, 2, 4, 6, 7, 8, 9, 11, 15)}:
            return None, exit_code - 128
    return (None, signal) if signal is not None else (exit_code, None)


def _class_of_signal(signal: int) -> FailureClass:
    crashes = (
        signals.SIGSEGV,
        signals.SIGABRT,
        signals.SIGBUS,
        signals.SIGILL,
        signals.SIGFPE,
    )
    return FailureClass.ENGINE_CRASHED if signal in crashes else FailureClass.KILLED


def read(path: Path, exit_code: int | None = None, signal: int | None = None) -> LogReading:
    """Read a whole log.

    Args:
        path: the log; one that does not exist reads like an empty one.
        exit_code: of the server, when it has ended; negative for a signal.
        signal: that ended the server, when one did.

    Returns:
        What the log says. Without an exit code or signal a log that shows neither a failure
        nor an orderly end is one of a living server: no failure.
    """
    reader = LogReader()
    if path.exists():
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                reader.feed(chunk)
    reader.close()
    return reader.reading(exit_code, signal)


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
