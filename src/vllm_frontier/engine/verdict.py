"""Which of the things that a log shows is the reason of a failure.

In this order: the first exception whose words have a meaning and that nothing shows to have been
harmless; the death of a worker by a signal; what may also be the consequence of a failure
elsewhere; the first exception whose words have no meaning (the failure is then unknown); the
exit code or signal.
"""

from __future__ import annotations

import signal as signals
from collections import deque
from dataclasses import dataclass, field, replace

from vllm_frontier.engine import failures, rules
from vllm_frontier.engine.log import LogLine
from vllm_frontier.engine.tracebacks import Raised
from vllm_frontier.outcome import Failure, FailureClass, Phase

KEPT = 64  # candidates kept
_MAX_EVIDENCE = 2000
_WINDOW = 500  # lines before the end of a serving engine in which its reason is looked for
_CRASHES = (signals.SIGSEGV, signals.SIGABRT, signals.SIGBUS, signals.SIGILL, signals.SIGFPE)
# Shells and containers report a signal as an exit code of 128 + n.
_SIGNAL_EXITS = frozenset(128 + number for number in signals.valid_signals())


@dataclass(slots=True)
class Candidate:
    """An exception, or a line that stands for one, that may be the reason.

    `standalone` lines decide by themselves; `subject` is what the line is about where only the
    line before it says so.
    """

    line: LogLine
    rule: rules.Rule | None
    functions: tuple[str, ...]
    phase: Phase
    started: bool
    standalone: bool = False
    raised: Raised | None = None
    subject: str | None = None

    @property
    def uncaught(self) -> bool:
        """Whether it left its process, itself or as the cause of what did."""
        return self.standalone or (self.raised is not None and self.raised.uncaught)

    @property
    def handled(self) -> bool:
        """Whether it was printed by somebody who had caught it.

        vLLM logs what is fatal at level ERROR, and Python prints what nothing caught.
        """
        return not self.line.level and not self.uncaught

    @property
    def quotes(self) -> bool:
        """Whether another exception, which it quotes, says why."""
        return self.raised is not None and self.raised.quotes

    @property
    def fallback(self) -> bool:
        """Whether it was being handled when another one came, and its own words say little."""
        context = self.raised is not None and self.raised.context
        return context and self.rule is not None and self.rule.frames is not None

    @property
    def decisive(self) -> bool:
        """Whether its words say why, and nothing else can have been the reason."""
        return self.rule is not None and not self.rule.vague and not self.handled

    @property
    def takes_port(self) -> bool:
        """Whether it means that the port is taken."""
        return self.rule is not None and self.rule.failure_class is FailureClass.PORT_IN_USE


def _candidates() -> deque[Candidate]:
    return deque(maxlen=KEPT)


@dataclass(slots=True)
class Evidence:
    """What a log has shown so far.

    Attributes:
        phase: the last phase.
        started: whether the server came up.
        stop: the line that shows that it was told to stop while it was well.
        fatal: the first line that tells that the engine is beyond recovery.
        final: whether the last word of a failed start was said.
        dead_child: the line that tells of a worker ended by a signal.
        ready: the line that shows that it came up.
        last: the last line with something to say.
        engines: names of the processes in which an engine began.
        candidates: in the order of the log.
    """

    phase: Phase = Phase.SPAWN
    started: bool = False
    stop: LogLine | None = None
    fatal: LogLine | None = None
    final: bool = False
    dead_child: LogLine | None = None
    ready: LogLine | None = None
    last: LogLine | None = None
    engines: set[str] = field(default_factory=set)
    candidates: deque[Candidate] = field(default_factory=_candidates)

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop while it was well."""
        return self.stop is not None

    @property
    def certain(self) -> bool:
        """Whether the log itself shows that the server has ended or is about to."""
        return self.fatal is not None or any(c.uncaught for c in self.candidates)


def judge(evidence: Evidence, exit_code: int | None, signal: int | None) -> Failure | None:
    """Why the server failed; None when nothing shows that it did.

    Args:
        evidence: what its log has shown.
        exit_code: of the server, when it has ended; negative or 128 + n for signal n.
        signal: that ended the server, when one did.
    """
    exit_code, signal = _ending(exit_code, signal)
    if evidence.stopping and evidence.fatal is None:
        return None
    if evidence.started and evidence.fatal is None and exit_code is None and signal is None:
        # A living server: what its requests did wrong is no failure of its own.
        taken = next((c for c in evidence.candidates if c.takes_port), None)
        return _of_candidate(taken) if taken else None
    candidates = _in_question(evidence)
    decisive = next(
        (c for c in candidates if c.decisive and not c.fallback),
        next((c for c in candidates if c.decisive), None),
    )
    if decisive is not None:
        return _of_candidate(decisive)
    if evidence.dead_child is not None:
        code = failures.child_exit_code(evidence.dead_child.text) or 0
        return _of_line(_class_of_signal(-code), evidence.dead_child, evidence.phase)
    weak = [c for c in candidates if c.rule is not None and not c.quotes]
    unhandled = [c for c in candidates if not c.handled]
    for candidate in weak:
        if not candidate.handled or not unhandled:
            return _of_candidate(candidate)
    return _undecided(evidence, candidates, exit_code, signal)


def decided(evidence: Evidence) -> Failure | None:
    """The failure of a start that is certain although its processes still live.

    vLLM takes some seconds between the line that says why and the end of its processes.
    """
    if evidence.started or not evidence.certain:
        return None
    if evidence.final or any(c.decisive for c in evidence.candidates):
        return judge(evidence, None, None)
    return None


def _undecided(
    evidence: Evidence, candidates: list[Candidate], exit_code: int | None, signal: int | None
) -> Failure | None:
    if candidates and (evidence.certain or (exit_code and signal is None)):
        # A serving engine that an exception ended has crashed, whatever the exception is.
        unknown = FailureClass.ENGINE_CRASHED if evidence.started else FailureClass.UNKNOWN
        first = evidence.fatal.number if evidence.fatal is not None else 0
        raised = next((c for c in candidates if c.line.number >= first), candidates[0])
        return _of_line(unknown, raised.line, raised.phase)
    if signal is not None:
        return _of_signal(signal, evidence)
    if evidence.fatal is not None:
        # Nothing was raised and yet the engine is gone: it was ended from outside or by
        # something that leaves no trace.
        return _of_line(FailureClass.ENGINE_CRASHED, evidence.fatal, evidence.phase)
    if exit_code is None or (evidence.started and exit_code == 0):
        return None
    last = evidence.last or LogLine(0, f"ended with exit code {exit_code}", "", "")
    return _of_line(FailureClass.UNKNOWN, last, evidence.phase)


def _in_question(evidence: Evidence) -> list[Candidate]:
    if not evidence.started:
        return list(evidence.candidates)
    # Where nothing says that the engine died, what it got over long ago has not ended it now.
    end = evidence.fatal or evidence.last
    first = end.number - _WINDOW if end is not None else 0
    return [
        c for c in evidence.candidates if c.standalone or c.takes_port or c.line.number >= first
    ]


def _of_candidate(candidate: Candidate) -> Failure:
    if candidate.rule is None:
        return _of_line(FailureClass.UNKNOWN, candidate.line, candidate.phase)
    failure_class, phase = failures.name_of(
        candidate.rule, candidate.functions, candidate.phase, started=candidate.started
    )
    return replace(_of_line(failure_class, candidate.line, phase), subject=candidate.subject)


def _of_signal(signal: int, evidence: Evidence) -> Failure:
    try:
        name = signals.Signals(signal).name
    except ValueError:
        name = "unnamed"
    last = evidence.last
    text = f"ended by signal {signal} ({name})" + (f" after: {last.text}" if last else "")
    line = LogLine(last.number if last else 0, text, "", "")
    return _of_line(_class_of_signal(signal), line, evidence.phase)


def _of_line(failure_class: FailureClass, line: LogLine, phase: Phase) -> Failure:
    return Failure(
        failure_class=failure_class,
        phase=phase,
        evidence=line.text.strip()[:_MAX_EVIDENCE],
        evidence_line=line.number or None,
    )


def _ending(exit_code: int | None, signal: int | None) -> tuple[int | None, int | None]:
    """An exit code or a signal: at most one of the two."""
    if signal is not None:
        return None, signal
    if exit_code is not None and exit_code < 0:
        return None, -exit_code
    if exit_code in _SIGNAL_EXITS:
        return None, exit_code - 128
    return exit_code, None


def _class_of_signal(signal: int) -> FailureClass:
    return FailureClass.ENGINE_CRASHED if signal in _CRASHES else FailureClass.KILLED
