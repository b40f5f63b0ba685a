"""Kills, one after another or alone, and everything that must hold after them."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from in_one_process import KILL_AT, WRITES_FILE
from marked_processes import Process, kill
from phases import PHASES, State
from sweep_under_test import Ended, SweepUnderTest
from table_comparison import differences

# On a machine that nobody else uses two seconds are enough; what does not go stays for ever.
GONE_WITHIN_S = 60.0
# For what nobody is left to end: it may stay, and goes with the next start.
ORPHANS_S = 2.0
QUIET_S = 0.2  # what is gone for so long does not come back
DRIVER_ENDS_S = 300.0
# A phase may last some milliseconds, and a busy machine look for it later than that.
SWEEPS = 10
ENGINE = {"api server", "engine core", "worker"}

SAYS = ("vllm-frontier:", "Interrupted")  # how the one line begins that tells what went wrong

Phases = Mapping[str, Callable[[State], bool]]


@dataclass(frozen=True)
class Kill:
    """Whom a signal meets, in which phase.

    `delay_s` is waited from the moment when the phase is seen.
    """

    roles: tuple[str, ...]
    phase: str
    number: signal.Signals = signal.SIGKILL
    delay_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.who} in {self.phase}"

    @property
    def who(self) -> str:
        """The roles, and the signal if it is not SIGKILL."""
        sign = "" if self.number is signal.SIGKILL else f" ({self.number.name})"
        return " + ".join(self.roles) + sign

    @property
    def ends_the_sweep(self) -> bool:
        """Whether the driver goes, so that nothing is launched any more."""
        return bool({"driver", "raylet", "gcs_server"} & set(self.roles))

    @property
    def leaves_nobody_to_end_the_launch(self) -> bool:
        """Supervisor and driver or worker at once: what is left goes with the next start."""
        return "supervisor" in self.roles and bool({"driver", "ray worker"} & set(self.roles))


@dataclass
class Verdict:
    """What was seen of a kill; `problems` is empty when all is well.

    Attributes:
        who: the roles that were killed.
        phase: where the sweep was.
        hit: whether the moment came at all.
        gone_s: seconds until no process of the launch was alive; None when the time was up.
        code: exit code of the driver, where the kill ended it.
        output: what the driver had said by then.
        twice, unlike, processes, left, other: problems, one line each.
    """

    who: str
    phase: str
    hit: bool = False
    gone_s: float | None = None
    code: int | None = None
    output: str = ""
    twice: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """All that is wrong."""
        told = [*self.twice, *self.unlike, *self.processes, *self.left, *self.other]
        return [f"{self.who} in {self.phase}: {each}" for each in told]


class KillTrial:
    """A sweep, the kills that it meets, and what became of it.

    Args:
        sweep: not started yet.
        reference: folder of the same sweep, never killed.
        phases: how they are seen.
        exact: see `table_comparison.differences`.
        notice_s: how long a server may take to notice that a process of it was killed, while
            the driver lives on.
        sweeps: how many sweeps may come to their end, each after the other, before a moment is
            hit.
    """

    def __init__(
        self,
        sweep: SweepUnderTest,
        reference: Path,
        *,
        phases: Phases = PHASES,
        exact: bool = True,
        notice_s: float = GONE_WITHIN_S,
        sweeps: int = SWEEPS,
    ) -> None:
        self.sweep = sweep
        self.verdicts: list[Verdict] = []
        self._reference = reference
        self._phases = phases
        self._exact = exact
        self._notice_s = notice_s
        self._sweeps = sweeps
        self._finished: list[tuple[Verdict, dict[str, int]]] = []
        self._struck: set[str] = set()  # cells whose server was killed once
        self._running = False
        self._engine_was_killed = False

    def strike(self, planned: Kill) -> Verdict:
        """Let the sweep go on to the phase, kill, and watch the launch go.

        A sweep that came to its end before that is held against the reference, and begun anew.
        """
        verdict = self._new(planned.who, planned.phase)
        for left in reversed(range(self._sweeps)):
            if not self._running:
                self.sweep.start(resume=True)
                self._running = True
            victims: list[Process] = []
            verdict.hit = self.sweep.wait_until(lambda: self._met(planned, victims))  # noqa: B023
            if verdict.hit:
                self._kill(planned, victims, verdict)
                if not self._came_too_late(planned, verdict):
                    break
                verdict.hit = False
            how = self._wait(verdict) if self._running else f"exit code {verdict.code}"
            if left == 0 or verdict.code not in (0, 3, -planned.number):
                verdict.other.append(f"the sweep ended before that: {how}")
                break
            self._finish(verdict)
            self.sweep.clear()
        if verdict.hit and planned.ends_the_sweep:
            self._check_end(planned, verdict)
        return verdict

    def _kill(self, planned: Kill, victims: list[Process], verdict: Verdict) -> None:
        self.sweep.processes.note_segments()
        self._engine_was_killed |= bool(ENGINE & set(planned.roles))
        launch = self._launch()
        kill(victims, planned.number)
        self._finished.append((verdict, self.sweep.finished()))
        if not planned.ends_the_sweep:  # a driver that lives on launches again at once
            self._watch_launch_go(launch, verdict, limit_s=self._notice_s)
        elif planned.leaves_nobody_to_end_the_launch:
            self._watch_launch_go(None, verdict, told=False, limit_s=ORPHANS_S)
            self._wait(verdict, DRIVER_ENDS_S)
        else:
            self._watch_launch_go(None, verdict)
            self._wait(verdict, DRIVER_ENDS_S)

    def _came_too_late(self, planned: Kill, verdict: Verdict) -> bool:
        """Whether the driver had done everything when the signal came that was to end it."""
        ends = (0,) if planned.number is signal.SIGKILL else (0, -planned.number)
        if "driver" not in planned.roles or verdict.code not in ends:
            return False
        state = State.of(self.sweep.folder, self.sweep.cells)
        return len(self.sweep.finished()) == self.sweep.cells and not state.tables_due()

    def strike_at_write(self, number: int) -> Verdict:
        """Let the sweep go on to the n-th step that changes a file, and kill it before that."""
        verdict = self._new("driver", f"write {number}")
        writes = self.sweep.cwd / "writes"
        told = {KILL_AT: str(number), WRITES_FILE: str(writes)}
        self.sweep.start(resume=True, environment=told)
        self._wait(verdict)
        verdict.hit = verdict.code == -signal.SIGKILL
        if verdict.hit:
            verdict.phase = _named(writes.read_text().splitlines()[-1])
        if not verdict.hit and verdict.code != 0:
            verdict.other.append(f"exit code {verdict.code}: {_tail(verdict.output)}")
        self._watch_launch_go(None, verdict)
        self._finished.append((verdict, self.sweep.finished()))
        return verdict

    def assert_all_is_well(self) -> None:
        """Settle, and fail with all problems, one a line."""
        told = [each for verdict in self.settle() for each in verdict.problems]
        assert not told, "\n" + "\n".join(told)

    def settle(self) -> list[Verdict]:
        """Resume to the end, compare, and look for what is left; gives all verdicts.

        What is found then is told with the last kill.
        """
        last = self.verdicts[-1]
        self._finish(last)
        self._look_for_leftovers(last)
        return self.verdicts

    def _finish(self, last: Verdict) -> None:
        """Resume to the end, and compare."""
        if self._running:
            self._wait(last)
            if last.code not in (0, 3):
                last.other.append(f"exit code {last.code}: {_tail(last.output)}")
        self.sweep.start(resume=True)
        ended = self.sweep.wait()
        if ended.code != 0:
            last.other.append(f"resume ended with {ended.code}: {_tail(ended.output)}")
        for verdict, finished in self._finished:
            verdict.twice += self.sweep.launched_again(finished)
        self._finished.clear()
        last.unlike += differences(
            self.sweep.folder, self._reference, exact=self._exact, scores=not self._struck
        )
        self._struck.clear()

    def _new(self, who: str, phase: str) -> Verdict:
        self.verdicts.append(Verdict(who, phase))
        return self.verdicts[-1]

    def _met(self, planned: Kill, victims: list[Process]) -> bool:
        """Whether the phase is there, and who plays the roles."""
        state = self._state()
        if not self._phases[planned.phase](state):
            return False
        cell = state.attempt.parent.name if state.attempt is not None else ""
        if not planned.ends_the_sweep and cell in self._struck:
            return False  # a cell that fails twice is not tried again
        if planned.delay_s:
            time.sleep(planned.delay_s)
        found = self.sweep.roles()
        victims[:] = [each for role in planned.roles for each in found.get(role, ())]
        if not all(found.get(role) for role in planned.roles):
            return False
        if not planned.ends_the_sweep:
            if self._state().attempt != state.attempt:
                return False  # they may be those of the next cell
            self._struck.add(cell)
        return True

    def _state(self) -> State:
        return State.of(self.sweep.folder, self.sweep.cells, self.sweep.earlier)

    def _wait(self, verdict: Verdict, limit_s: float | None = None) -> str:
        """Wait for the driver to end; gives how it ended, in words."""
        self._running = False
        try:
            ended: Ended = self.sweep.wait(limit_s)
        except subprocess.TimeoutExpired:
            verdict.other.append("the driver did not end in time")
            return "it did not end"
        verdict.code, verdict.output = ended.code, ended.output
        return f"exit code {ended.code}: {_tail(ended.output)}"

    def _check_end(self, planned: Kill, verdict: Verdict) -> None:
        """The exit code that users and scripts rely on, and no traceback."""
        tail = _tail(verdict.output)
        if "Traceback" in verdict.output:
            verdict.other.append(f"a traceback: {_tail(verdict.output, 30)}")
        if "driver" in planned.roles:
            expected = -signal.SIGKILL if planned.number is signal.SIGKILL else 130
            if verdict.code != expected:
                verdict.other.append(f"exit code {verdict.code} instead of {expected}: {tail}")
        elif verdict.code == 0:
            if len(self.sweep.finished()) < self.sweep.cells:
                verdict.other.append(f"exit code 0, and cells are left: {tail}")
        else:
            told = [line for line in verdict.output.splitlines() if line.startswith(SAYS)]
            if verdict.code is None or verdict.code < 0 or len(told) != 1:
                verdict.other.append(f"exit code {verdict.code}, not one line but: {tail}")

    def _launch(self) -> set[tuple[int, int]]:
        """Supervisors and servers that run now."""
        supervisors = self.sweep.roles().get("supervisor", [])
        servers = [each for each in self.sweep.processes.alive() if each.launched]
        return {(each.pid, each.start) for each in [*supervisors, *servers]}

    def _watch_launch_go(
        self,
        launch: set[tuple[int, int]] | None,
        verdict: Verdict,
        *,
        told: bool = True,
        limit_s: float = GONE_WITHIN_S,
    ) -> None:
        """How long something of a launch lives on.

        Args:
            launch: the processes of that launch by pid and start; None for all launches, those
                too that begin only now.
            verdict: gets the time, or the processes that are still there when it is up.
            told: whether those are a problem.
            limit_s: the time.
        """
        began = time.monotonic()
        gone_at: float | None = None
        while (passed := time.monotonic() - began) < limit_s:
            running = self._launch()
            if running if launch is None else running & launch:
                gone_at = None
            elif gone_at is None:
                gone_at = passed
            if gone_at is not None and (launch is not None or passed - gone_at > QUIET_S):
                verdict.gone_s = gone_at
                return
            time.sleep(0.005)
        left = self._launch() if launch is None else launch
        if told:
            verdict.processes += [
                f"{limit_s:g} s later there runs {each}"
                for each in self.sweep.processes.alive()
                if (each.pid, each.start) in left
            ]

    def _look_for_leftovers(self, verdict: Verdict) -> None:
        """What is left, and stays: what others make and remove meanwhile is not ours."""
        sweep = self.sweep
        all_new = not self._engine_was_killed
        deadline = time.monotonic() + GONE_WITHIN_S
        while True:
            alive = sweep.processes.alive()
            left = sweep.processes.segments_left(all_new=all_new)
            if not (alive or left) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        verdict.processes += [f"at the end there runs {each}" for each in alive]
        verdict.left += [f"left: TMPDIR/{name}" for name in sweep.temporary_left()]
        verdict.left += [f"left: /dev/shm/{name}" for name in left]
        verdict.left += [f"left half written: {name}" for name in sweep.half_written()]


def _named(write: str) -> str:
    """What was about to be written, without what differs from sweep to sweep."""
    what, _, path = write.partition(" ")
    name = Path(path).name
    if re.fullmatch(r"[0-9a-f]{16}|\d+", name):
        name = "an attempt's folder"
    return f"{what} {re.sub(r'^(vf-).*|[.][0-9a-f]{12}[.]tmp$', _kept, name)}"


def _kept(found: re.Match[str]) -> str:
    return f"{found[1]}..." if found[1] else ".tmp"


def _tail(output: str, lines: int = 6) -> str:
    return " | ".join(output.splitlines()[-lines:])
