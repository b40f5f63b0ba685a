"""What an attempt finds out about its server, and why it failed where it did."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from vllm_frontier.engine.answers import class_of_answer
from vllm_frontier.engine.protocol import Engine, LogReading
from vllm_frontier.launch.launch import ExitStatus, Launch
from vllm_frontier.measure.client import FailureKind, RequestFailure, ServerClient
from vllm_frontier.outcome import Failure, FailureClass, Phase, StartupFacts
from vllm_frontier.telemetry import Sampler

POLL_S = 0.2
# vLLM needs about 5 s to notice that its engine process is gone.
DEATH_NOTICE_S = 8.0
# A driver that is well answers within a hundredth of it.
DRIVER_ANSWER_S = 5.0

# What the loss of a card looks like to a server and its client; other reasons stand beside it.
_OF_A_LOST_CARD = frozenset(
    {
        FailureClass.UNKNOWN,
        FailureClass.ENGINE_CRASHED,
        FailureClass.STARTUP_TIMEOUT,
        FailureClass.REQUEST_TIMEOUT,
    }
)


class Findings:
    """How far a server came, what its log says, and why it failed.

    Attributes:
        phase: of the attempt.
        started: whether the server became ready.
        facts: what the log and the running server told.
        failure: why there is no result; None as long as all is well.
        exit: how the server ended, where it ended by itself.
    """

    def __init__(self, engine: Engine, log: Path) -> None:
        self._engine = engine
        self._log = log
        self.phase = Phase.SPAWN
        self.started = False
        self.facts = StartupFacts()
        self.failure: Failure | None = None
        self.exit: ExitStatus | None = None

    def fail(self, failure_class: FailureClass, evidence: str) -> None:
        """End in this phase for this reason."""
        self.failure = Failure(failure_class, self.phase, evidence)

    def read_log(self, ended: ExitStatus | None = None) -> LogReading:
        """What the log says now, and (of a server that ended) why."""
        return self._engine.read_log(
            self._log,
            exit_code=None if ended is None else ended.exit_code,
            signal=None if ended is None else ended.signal,
        )

    def read_end(self, launch: Launch, ended: ExitStatus | None) -> None:
        """The server ended, or its log already says that it will."""
        if launch.exec_error is not None:
            self.failure = Failure(FailureClass.UNKNOWN, Phase.SPAWN, launch.exec_error)
            return
        self.exit = ended
        reading = self.read_log(ended)
        self._keep_facts(reading.facts)
        if launch.stopped is not None:
            # It would have kept us waiting until the limit, and did not end by itself.
            self.exit = None
            late = FailureClass.REQUEST_TIMEOUT if self.started else FailureClass.STARTUP_TIMEOUT
            self.fail(late, launch.stopped)
        elif reading.failure is not None:
            self.failure = reading.failure
            if not self.started:
                self.phase = reading.failure.phase
        elif ended is not None:
            self.failure = self._ended_by_itself(reading, ended)

    def fail_from_log(self, otherwise: FailureClass, evidence: str) -> None:
        """The log's own reason if it has one, else the given one."""
        reading = self.read_log()
        self._keep_facts(reading.facts)
        known = reading.failure
        if known is not None and known.failure_class is not FailureClass.UNKNOWN:
            self.failure = known
        else:
            self.fail(otherwise, evidence)

    def read_request_failure(
        self, launch: Launch, client: ServerClient, failed: RequestFailure
    ) -> None:
        """A request failed: did the server die of it, hang, or merely refuse?"""
        evidence = failed.message
        if failed.kind is FailureKind.HTTP_ERROR:
            evidence = f"HTTP {failed.http_status}: {evidence}"
        if failed.kind is FailureKind.TIMEOUT:
            self.fail_from_log(FailureClass.REQUEST_TIMEOUT, evidence)
            return
        refused = failed.http_status is not None and 400 <= failed.http_status < 500
        # Who refuses is well; whoever breaks off may need a moment to die of it.
        deadline = time.monotonic() + (0.0 if refused else DEATH_NOTICE_S)
        while (ended := launch.poll()) is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if ended is not None:
            self.read_end(launch, ended)
        else:
            meaning = class_of_answer(failed.message, failed.http_status)
            crashed = FailureClass.UNKNOWN if client.healthy() else FailureClass.ENGINE_CRASHED
            self.fail_from_log(meaning or crashed, evidence)
        if self.failure is not None:
            # Once it served, the phase is that of the request, whatever the log shows last.
            self.failure = replace(self.failure, phase=self.phase)

    def blame_lost_card(self, sampler: Sampler) -> None:
        """End the attempt if a card was lost, and make that the reason of what is only a symptom.

        A server may fail before the card was looked at next, so it is looked at now. A driver that
        then does not answer is such a reason as well.
        """
        failed, silent = self.failure, None
        if failed is not None and failed.failure_class in _OF_A_LOST_CARD:
            silent = sampler.look(DRIVER_ANSWER_S)
        lost = sampler.lost or silent
        if lost is None:
            return
        if failed is None:
            self.fail_from_log(FailureClass.GPU_LOST, lost)
            failed = self.failure
        if failed is not None and failed.failure_class in _OF_A_LOST_CARD:
            evidence = f"{lost}; seen as: {failed.evidence}"
            self.failure = replace(
                failed, failure_class=FailureClass.GPU_LOST, evidence=evidence, evidence_line=None
            )

    def _keep_facts(self, facts: StartupFacts) -> None:
        """Take the log's facts, but keep what only the running server could tell."""
        self.facts = replace(facts, kv_tokens=facts.kv_tokens or self.facts.kv_tokens)

    def _ended_by_itself(self, reading: LogReading, ended: ExitStatus) -> Failure:
        """A server that shut down in good order was told to, and not by this attempt."""
        if reading.stop_line is not None:
            number, text = reading.stop_line
            return Failure(FailureClass.KILLED, self.phase, text, number)
        how = f"exit code {ended.exit_code}" if ended.signal is None else f"signal {ended.signal}"
        return Failure(
            FailureClass.ENGINE_CRASHED, self.phase, f"the server ended by itself with {how}"
        )
