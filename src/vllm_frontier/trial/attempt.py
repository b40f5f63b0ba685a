"""One attempt at a cell, start to finish: drain, launch, fill, measure (where wanted), stop.

`run_attempt` is a generator: it yields a `Progress` whenever the attempt moves on, so that a
display can follow it and the caller can end it between any two steps, and it returns the
`Outcome`. However it ends, nothing of the launch is left. What goes wrong with the launch is
part of the outcome; an exception out of here is a fault of this program.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace

from vllm_frontier import contention, telemetry
from vllm_frontier.contention import MemoryState
from vllm_frontier.engine.following import LogFollower
from vllm_frontier.engine.log import last_lines
from vllm_frontier.engine.protocol import Engine, LaunchPlan
from vllm_frontier.engine.registry import create_engine
from vllm_frontier.launch.drain import wait_drained
from vllm_frontier.launch.environment import launch_environment
from vllm_frontier.launch.folders import private_tmp, remove_tmp
from vllm_frontier.launch.launch import Launch
from vllm_frontier.launch.ports import free_port
from vllm_frontier.launch.secrets import conceal, conceal_in_file, secret_values
from vllm_frontier.measure.client import RequestFailure, ServerClient
from vllm_frontier.measure.pace import SLOWEST, SLOWEST_ON_CPU, Pace
from vllm_frontier.measure.session import FILL_ANSWER_TOKENS, fill, measure
from vllm_frontier.measure.speculation import spec_state
from vllm_frontier.measure.speed import decode_speed
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Run, Status
from vllm_frontier.telemetry import Sampler
from vllm_frontier.trial.failures import POLL_S, Findings
from vllm_frontier.trial.record import LaunchRecord
from vllm_frontier.trial.request import AttemptRequest, Progress, Steps
from vllm_frontier.trial.siblings import SweepProcesses

# Something silent on the port must not keep the log from being looked at.
HEALTH_S = 1.0
# A server that is still loading swallows the first SIGTERM; there is nothing to wait for.
LOADING_STOP_S = 3.0
# The command may be the client of a container daemon, which cannot pass on SIGKILL.
CLIENT_GRACE_S = 1.0
# After the deciding line the traceback's wrappers follow within a moment.
DECIDED_GRACE_S = 0.5


def run_attempt(request: AttemptRequest) -> Steps:
    """Try one cell.

    Before the server is executed the generator yields the description of the launch, see
    `Progress`.

    Args:
        request: what to try.

    Returns:
        (of the generator) how the attempt ended.
    """
    return _Attempt(request).steps()


class _Attempt:
    def __init__(self, request: AttemptRequest) -> None:
        self.request = request
        self.engine: Engine = create_engine(request.spec)
        self.found = Findings(self.engine, request.log)
        self.filled = False
        self.runs: list[Run] = []
        self.run_ends: list[float] = []
        self.peak_gib: float | None = None  # until the run that was measured last
        self.driver: telemetry.Probe | None = None
        self.before: MemoryState | None = None
        self.secrets: tuple[str, ...] = ()
        self.began_at = time.time()
        self.began = time.monotonic()
        self.times: dict[str, float] = {}

    def steps(self) -> Steps:
        yield Progress(self.found.phase)
        port = free_port()
        if not self._drain(port):
            return self._outcome(None)
        served_name = f"{self.request.spec.model.name}-{secrets.token_hex(8)}"
        plan = self.engine.plan_launch(
            self.request.cell, port=port, served_name=served_name, cards=self.request.cards
        )
        tmp = private_tmp()
        try:
            environment = launch_environment(self.request.environment, plan.env, tmp=tmp)
            self.secrets = secret_values(environment, plan.argv)
            with Launch.prepare(
                plan.argv,
                env=environment,
                log=self.request.log,
                cwd=tmp,
                watch=self.request.watch,
                tmp=tmp,
                grace_s=0.0 if self.request.spec.engine.command is None else CLIENT_GRACE_S,
            ) as launch:
                about = LaunchRecord(
                    self.request,
                    plan,
                    launch.supervisor,
                    environment,
                    tmp,
                    self.before,
                    self.began_at,
                )
                yield Progress(self.found.phase, launch=about.document())
                with self._sampler(launch) as sampler:
                    launch.begin()
                    yield from self._serve(launch, plan, sampler)
                    if self.request.cards:
                        self.found.blame_lost_card(sampler)
                    self._stop(launch)
                self._blame_others()
                return self._outcome(sampler)
        finally:
            with suppress(OSError):  # a full disk must not cost the outcome
                conceal_in_file(self.request.log, self.secrets)
            remove_tmp(tmp)

    # Before the launch

    def _drain(self, port: int) -> bool:
        card, request = self.request.spec.card, self.request
        self.driver = telemetry.probe() if request.cards else None
        lost = telemetry.lost_card(request.cards)
        if lost is not None:
            self.found.fail(FailureClass.GPU_LOST, lost)
            return False
        # Other programs move a machine's own memory all the time.
        baseline = None if request.on_host else request.baseline

        def read_excess() -> float | None:
            self.before = request.memory_state()
            return contention.excess_gib(baseline, self.before)

        drained = wait_drained(
            read_excess,
            baseline_gib=0.0,
            tolerance_gib=card.baseline_tolerance_gib,
            timeout_s=card.drain_timeout_s,
            port=port,
        )
        if not drained.port_ok:
            self.found.fail(FailureClass.PORT_IN_USE, f"port {port} was taken before the launch")
        elif not drained.ok:
            self.found.fail(
                FailureClass.MEMORY_CONTENDED,
                f"{drained.used_gib or 0:.2f} GiB more were in use on a card after "
                f"{drained.waited_s:.0f} s than when the sweep began"
                + contention.holders(self.before, baseline),
            )
        return drained.ok

    # While the server lives

    def _sampler(self, launch: Launch) -> Sampler:
        watched = [process.pid for process in self.request.watch]
        return Sampler(
            cards=self.request.cards,
            pids=launch.members,
            phase=lambda: self.found.phase.value,
            neutral=SweepProcesses([os.getpid(), *watched]).pids,
        )

    def _serve(
        self, launch: Launch, plan: LaunchPlan, sampler: Sampler
    ) -> Generator[Progress, None, None]:
        client = ServerClient(
            f"http://127.0.0.1:{plan.port}",
            plan.served_name,
            time_scale=self.engine.time_scale,
        )
        with client:
            yield from self._wait_ready(launch, client, sampler)
            if self.found.failure is not None or sampler.lost is not None:
                return
            self.found.started = True
            self.times["ready_s"] = time.monotonic() - self.began
            facts = self.found.facts
            self.found.facts = replace(facts, kv_tokens=facts.kv_tokens or client.kv_tokens())
            began = time.monotonic()
            yield from self._fill(launch, client)
            if self.found.failure is None and self.request.with_speed:
                yield from self._measure(launch, client, sampler)
            self.times["measure_s"] = time.monotonic() - began

    def _wait_ready(
        self, launch: Launch, client: ServerClient, sampler: Sampler
    ) -> Generator[Progress, None, None]:
        deadline = time.monotonic() + self.request.spec.engine.ready_timeout_s
        follower = LogFollower(self.request.log)
        while sampler.lost is None:
            phase = follower.poll()
            if "spawn_s" not in self.times and phase is not Phase.SPAWN:
                self.times["spawn_s"] = time.monotonic() - self.began
            if phase is not self.found.phase and phase is not Phase.READY:
                self.found.phase = phase
            ended = launch.poll()
            if ended is not None or launch.exec_error is not None:
                self.found.read_end(launch, ended)
                return
            if follower.failure is not None:
                time.sleep(DECIDED_GRACE_S)
                self.found.read_end(launch, None)
                if self.found.failure is not None:
                    return
            if client.healthy(HEALTH_S) and self._knows_us(client):
                return
            if time.monotonic() > deadline:
                self.found.fail_from_log(
                    FailureClass.STARTUP_TIMEOUT,
                    f"not ready after {self.request.spec.engine.ready_timeout_s:g} s",
                )
                return
            yield Progress(self.found.phase)
            time.sleep(POLL_S)

    def _knows_us(self, client: ServerClient) -> bool:
        """Whether what is healthy is this launch: only it knows this launch's own model name."""
        names = client.served_models()
        if not names:
            return False  # it died since, or is no such server: the launch's end will tell
        self.found.facts = self.found.read_log().facts
        if client.model not in names:
            self.found.fail(
                FailureClass.PORT_IN_USE, "another program answers on the port of this launch"
            )
        else:
            self.found.phase = Phase.READY
        return True

    def _fill(self, launch: Launch, client: ServerClient) -> Generator[Progress, None, None]:
        self.found.phase = Phase.FILL
        yield Progress(self.found.phase)
        limit = self._first_pace().limit_s(self.request.cell.context, FILL_ANSWER_TOKENS)
        result = fill(client, self.request.cell.context, limit)
        if isinstance(result, RequestFailure):
            self.found.read_request_failure(launch, client, result)
            return
        self._keep_run(result)
        self.filled = True

    def _measure(
        self, launch: Launch, client: ServerClient, sampler: Sampler
    ) -> Generator[Progress, None, None]:
        self.found.phase = Phase.MEASURE
        yield Progress(self.found.phase)
        workload = self.request.spec.workload
        pace = self._first_pace().after(
            self.runs[0],
            time_scale=self.engine.time_scale,
            fixed_s=workload.request_timeout_s,
        )
        for result in measure(client, workload, self.request.cell.context, pace):
            if isinstance(result, RequestFailure):
                self.peak_gib = None  # it may have taken more than any before it
                self.found.read_request_failure(launch, client, result)
                return
            self._keep_run(result)
            if result.kind != "probe":
                self.peak_gib = sampler.peak_gib
            if sampler.lost is not None:
                return
            yield Progress(self.found.phase, f"{result.task} {result.repeat + 1}")

    def _keep_run(self, run: Run) -> None:
        self.runs.append(run)
        self.run_ends.append(time.time())

    def _first_pace(self) -> Pace:
        workload = self.request.spec.workload
        slowest = SLOWEST_ON_CPU if self.request.on_host else SLOWEST
        return replace(
            slowest,
            prefill_tok_s=workload.slowest_prefill_tok_s or slowest.prefill_tok_s,
            decode_tok_s=workload.slowest_decode_tok_s or slowest.decode_tok_s,
            fixed_s=workload.fill_timeout_s,
        )

    def _stop(self, launch: Launch) -> None:
        if self.found.failure is None:
            self.found.phase = Phase.STOP
        limit = self.request.spec.engine.stop_timeout_s
        launch.stop(limit if self.found.started else min(limit, LOADING_STOP_S))
        left = launch.leftovers()
        if left and self.found.failure is None:
            self.found.fail(
                FailureClass.UNKNOWN, f"processes {left} of the launch survived SIGKILL"
            )

    def _blame_others(self) -> None:
        """With nothing of the launch left: was its lack of memory somebody else's doing?"""
        failure, request = self.found.failure, self.request
        if failure is None or not contention.may_be_contended(failure, host=request.on_host):
            return
        limit = request.spec.card.drain_timeout_s
        after = contention.settled_state(request.memory_state, request.baseline, limit)
        self.found.failure = contention.unless_contended(
            failure,
            self.found.facts,
            above_gib=contention.excess_gib(request.baseline, self.before, after),
            tolerance_gib=request.spec.card.baseline_tolerance_gib,
            who=contention.holders(after, request.baseline)
            or contention.holders(self.before, request.baseline),
            host=request.on_host,
        )

    def _log_tail(self) -> str | None:
        failure = self.found.failure
        unknown = failure is not None and failure.failure_class is FailureClass.UNKNOWN
        return conceal(last_lines(self.request.log), self.secrets) if unknown else None

    def _peak_gib(self, sampler: Sampler | None, runs: Sequence[Run]) -> float | None:
        """Most memory in use until the last measured run.

        To score a text takes memory that no user's request does.
        """
        if sampler is None or self.peak_gib is None:
            return None if sampler is None else sampler.peak_gib
        # The sample that stands for a short run may have come after it.
        told = [run.conditions for run in runs if run.kind != "probe" and run.conditions]
        return max(self.peak_gib, *(each.memory_used_gib or 0.0 for each in told))

    def _outcome(self, sampler: Sampler | None) -> Outcome:
        ended_at = time.time()
        status, found, failure = Status.MEASURED, self.found, self.found.failure
        if failure is not None:
            failure = replace(failure, evidence=conceal(failure.evidence, self.secrets))
            status = failure.failure_class.status
        samples = () if sampler is None else sampler.samples
        runs = tuple(
            replace(run, conditions=telemetry.summarize(samples, run.started_at, end))
            for run, end in zip(self.runs, self.run_ends, strict=True)
        )
        return Outcome(
            status=status,
            phase=found.phase if failure is None else failure.phase,
            failure=failure,
            started=found.started,
            filled=self.filled,
            facts=found.facts,
            runs=runs,
            spawn_s=self.times.get("spawn_s"),
            ready_s=self.times.get("ready_s"),
            measure_s=self.times.get("measure_s"),
            wall_s=time.monotonic() - self.began,
            exit_code=None if found.exit is None else found.exit.exit_code,
            signal=None if found.exit is None else found.exit.signal,
            memory_used_peak_gib=self._peak_gib(sampler, runs),
            spec_state=spec_state(self.request.cell.depth, self.runs),
            log_tail=self._log_tail(),
            purpose=self.request.purpose,
            with_speed=self.request.with_speed,
            speed=decode_speed(self.runs) if failure is None else None,
            driver=None if self.driver is None else self.driver.driver,
            started_at=self.began_at,
            ended_at=ended_at,
            samples=samples,
            cuda=None if self.driver is None else self.driver.cuda,
            power_limit_w=None if sampler is None else sampler.power_limit_w,
        )
