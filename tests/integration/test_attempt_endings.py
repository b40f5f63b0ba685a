"""How attempts end that go wrong while they serve, and whose fault a lack of memory is.

Attempts on the simulated card, without a scheduler; the cards of the second half are those of a
fake driver library.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_launch import card_file

from vllm_frontier.engine.simulated.engine import simulated_card_spec
from vllm_frontier.grid import Cell, Grid
from vllm_frontier.launch.processes import descendants, process_table
from vllm_frontier.outcome import FailureClass, Outcome, Phase, Purpose, SpecState, Status
from vllm_frontier.spec import (
    CardSpec,
    EngineSpec,
    ModelSpec,
    ScheduleSpec,
    SearchSpec,
    SweepSpec,
    WorkloadSpec,
)
from vllm_frontier.trial import AttemptRequest, Progress, run_attempt

CELL = Cell(2, 8192, True, 0.9)
WORKLOAD = WorkloadSpec(tasks=("edit", "prose"), repeats=1, warmups=0)


def sweep(card: str, workload: WorkloadSpec = WORKLOAD) -> SweepSpec:
    return SweepSpec(
        name="ends",
        model=ModelSpec("m", "some/model"),
        card=simulated_card_spec(card),
        engine=EngineSpec(kind="simulated", card_file=card, stop_timeout_s=2.0),
        grid=Grid((2,), (8192,), (True,), (0.9,)),
        workload=workload,
        search=SearchSpec(),
        schedule=ScheduleSpec(),
    )


def attempt(spec: SweepSpec, folder: Path, cell: Cell = CELL, **asked: Any) -> Outcome:
    log = folder / "server.log"
    steps = run_attempt(AttemptRequest(spec, cell, "0" * 16, 1, log, dict(os.environ), **asked))
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            outcome: Outcome = ended.value
            return outcome


def chain(supervisor: int) -> list[int]:
    """The API server, EngineCore that it forked, and the worker that this one forked."""
    parents = {each.ppid: each.pid for each in descendants(supervisor, process_table())}
    pids = [parents[supervisor]]
    while pids[-1] in parents:
        pids.append(parents[pids[-1]])
    assert len(pids) == 3
    return pids


@pytest.mark.parametrize("moment", [Progress(Phase.LOAD), Progress(Phase.MEASURE, "prefill 1")])
@pytest.mark.parametrize("role", [0, 1, 2], ids=["api-server", "engine-core", "worker"])
def test_a_process_that_is_stopped_ends_the_attempt(
    role: int, moment: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_frontier.launch.launch.STOPPED_S", 1.0)
    # Either it is quick to serve, or it loads until something is done to it.
    load_s = 20 if moment.phase is Phase.MEASURE else 20_000
    card = card_file(tmp_path, time={"load_s": load_s, "scale": 0.05})
    log = tmp_path / "server.log"
    request = AttemptRequest(sweep(card), CELL, "0" * 16, 1, log, dict(os.environ))
    steps, stopped = run_attempt(request), None
    try:
        while True:
            progress = next(steps)
            if progress.launch is not None:
                supervisor = progress.launch["supervisor"]["pid"]
            if progress == moment and stopped is None:
                tree = chain(supervisor)
                stopped, stopped_at = tree[role], time.monotonic()
                os.kill(stopped, signal.SIGSTOP)
    except StopIteration as ended:
        outcome: Outcome = ended.value
    assert outcome.failure is not None
    if moment.phase is Phase.MEASURE:
        assert outcome.failure.failure_class is FailureClass.REQUEST_TIMEOUT
        assert (outcome.failure.phase, outcome.started) == (Phase.MEASURE, True)
    else:  # its children work on until they need it
        assert outcome.failure.failure_class is FailureClass.STARTUP_TIMEOUT
        assert not outcome.started
    assert f"process {stopped} (" in outcome.failure.evidence
    assert "was stopped for 1 s" in outcome.failure.evidence
    assert time.monotonic() - stopped_at > 0.9
    assert (outcome.exit_code, outcome.signal) == (None, None)
    assert not any(each in process_table() for each in tree)


def test_without_speed_an_attempt_is_done_once_the_window_is_filled(tmp_path: Path) -> None:
    spec = sweep(card_file(tmp_path))
    quick = attempt(spec, tmp_path, purpose=Purpose.AUDIT, with_speed=False)
    assert (quick.status, quick.phase, quick.failure) == (Status.MEASURED, Phase.STOP, None)
    assert (quick.started, quick.filled) == (True, True)
    assert [run.kind for run in quick.runs] == ["fill"]
    assert (quick.purpose, quick.with_speed, quick.speed) == (Purpose.AUDIT, False, None)
    assert (quick.exit_code, quick.signal) == (None, None)
    # Loads for a second, so that there are samples.
    spec = sweep(card_file(tmp_path, time={"load_s": 20, "scale": 0.05}))
    measured = attempt(spec, tmp_path, purpose=Purpose.SPEED)
    assert (measured.status, measured.purpose) == (Status.MEASURED, Purpose.SPEED)
    edit, prose = (run.decode_tok_s or 0 for run in measured.runs if run.kind == "decode")
    assert measured.speed is not None
    assert measured.speed.decode_tok_s == pytest.approx((edit + prose) / 2)
    # One repeat of two tasks: its median is the figure itself.
    assert (measured.speed.low, measured.speed.high) == (measured.speed.decode_tok_s,) * 2
    assert measured.facts == quick.facts
    for run in measured.runs:
        if run.kind == "probe":  # what scoring takes is left out of the peak
            continue
        assert run.conditions is not None
        # Without a card it is the machine that is told of.
        assert 0.01 < (run.conditions.memory_used_gib or 0) <= (measured.memory_used_peak_gib or 0)
        assert run.conditions.power_w is run.conditions.throttle_reasons is None
    assert {sample.card for sample in measured.samples} == {"host"}
    assert measured.cuda is measured.power_limit_w is None
    assert measured.facts.free_gib == pytest.approx(7.75)


def faulty(folder: Path, at: str, kind: str, **workload: Any) -> Outcome:
    card = card_file(folder, faults=[{"at": at, "kind": kind}])
    return attempt(sweep(card, replace(WORKLOAD, **workload)), folder)


@pytest.mark.parametrize("at", ["fill", "measure"])
@pytest.mark.parametrize(
    ("kind", "failure_class", "evidence"),
    [
        ("refuse", FailureClass.INVALID_ARGUMENT, "HTTP 400: This request is refused on purpose."),
        ("error", FailureClass.UNKNOWN, "HTTP 500: This request fails on purpose."),
        ("oom", FailureClass.OOM_SERVE, "torch.OutOfMemoryError: CUDA out of memory."),
        ("crash", FailureClass.ENGINE_CRASHED, "!!!!!!! Segfault encountered !!!!!!!"),
    ],
)
def test_a_request_that_fails(
    tmp_path: Path, at: str, kind: str, failure_class: FailureClass, evidence: str
) -> None:
    outcome = faulty(tmp_path, at, kind)
    assert outcome.failure is not None
    assert outcome.failure.failure_class is failure_class
    assert outcome.status is failure_class.status
    assert outcome.failure.evidence.startswith(evidence)
    assert outcome.phase is Phase(at)
    assert outcome.started
    assert outcome.filled == (at == "measure")
    tail = (tmp_path / "server.log").read_text().splitlines()[-200:]
    unknown = failure_class is FailureClass.UNKNOWN
    assert outcome.log_tail == ("\n".join(tail) if unknown else None)


@pytest.mark.parametrize(
    ("at", "key"), [("fill", "fill_timeout_s"), ("measure", "request_timeout_s")]
)
def test_a_request_that_never_ends(tmp_path: Path, at: str, key: str) -> None:
    outcome = faulty(tmp_path, at, "hang", **{key: 1.5})
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.REQUEST_TIMEOUT
    assert outcome.status is Status.FAILED
    assert "no complete answer within 1.5 s" in outcome.failure.evidence
    assert outcome.phase is Phase(at)


@pytest.mark.parametrize(
    ("acceptance", "state"),
    [
        ([0.9, 0.8], SpecState.WORKING),
        ([0.0, 0.0], SpecState.INEFFECTIVE),
        ([1.0, 1.0], SpecState.SUSPECT),
    ],
)
def test_what_speculation_does_is_told(
    tmp_path: Path, acceptance: list[float], state: SpecState
) -> None:
    speed = {"acceptance": dict.fromkeys(("edit", "code", "prose"), acceptance)}
    outcome = attempt(sweep(card_file(tmp_path, speed=speed)), tmp_path)
    assert outcome.status is Status.MEASURED
    assert outcome.spec_state is state


def test_without_speculation_nothing_is_told_of_it(tmp_path: Path) -> None:
    outcome = attempt(sweep(card_file(tmp_path)), tmp_path, replace(CELL, depth=0))
    assert outcome.status is Status.MEASURED
    assert outcome.spec_state is None


def test_secrets_do_not_stay_in_the_log(tmp_path: Path) -> None:
    card = card_file(tmp_path, faults=[{"at": "measure", "kind": "error"}])
    spec = sweep(card)
    # The server prints the model's name, which is also the value of a secret here.
    engine = replace(spec.engine, env={"MY_API_KEY": "some/model"})
    outcome = attempt(replace(spec, engine=engine), tmp_path)
    assert outcome.log_tail
    assert "some/model" not in outcome.log_tail
    log = (tmp_path / "server.log").read_text()
    assert "some/model" not in log
    assert "model='***'" in log


# -- others on the card --------------------------------------------------------------------------

UUID = "GPU-00000000"


def attempt_on_card(folder: Path, cell: Cell, taken: str) -> dict[str, Any]:
    """Run in a process whose NVML is the fake one; see `others`."""
    card = card_file(folder)
    server = f"{sys.executable} -m vllm_frontier.engine.simulated.server"
    spec = replace(
        sweep(card),
        card=CardSpec("nvidia", "Fake RTX 0", 32.0, uuids=(UUID,), drain_timeout_s=3.0),
        engine=EngineSpec(
            kind="vllm",
            command=f"{server} --simulated-card {card} --model {{model}} --port {{port}} {{args}}",
        ),
    )
    request = AttemptRequest(
        spec, cell, "0" * 16, 1, folder / "server.log", dict(os.environ), cards=(UUID,)
    )
    request = replace(request, baseline=request.memory_state())
    used = Path(os.environ["FAKE_USED"])
    written: dict[str, Any] = {}

    steps = run_attempt(request)
    try:
        while True:
            if (launch := next(steps).launch) is not None:
                written.update(launch)
                used.write_text(taken)  # somebody comes between the look at the card and the launch
    except StopIteration as ended:
        outcome: Outcome = ended.value
    failure = outcome.failure
    return {
        "status": outcome.status.value,
        "failure_class": failure.failure_class.value if failure else None,
        "evidence": failure.evidence if failure else None,
        "written": written,
    }


def others(driver: dict[str, str], folder: Path, context: int, taken: str) -> dict[str, Any]:
    """An attempt during which others come to hold `taken` GiB on the card."""
    code = (
        "import json, sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_attempt_endings import attempt_on_card, CELL; from dataclasses import replace\n"
        f"cell = replace(CELL, context={context})\n"
        f"print(json.dumps(attempt_on_card(Path({str(folder)!r}), cell, {taken!r})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=driver, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_cell_that_does_not_fit_is_infeasible_while_nobody_else_came(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = others(driver, tmp_path, 65536, "0.6")
    assert (found["status"], found["failure_class"]) == ("infeasible", "kv_too_small")
    baseline, before = found["written"]["memory_baseline"], found["written"]["memory_before"]
    assert baseline["used_gib"] == before["used_gib"] == {UUID: pytest.approx(0.6)}
    assert [each["pid"] for each in before["processes"]] == [5000000, 5000001]


def test_a_lack_of_memory_is_not_the_cell_s_while_somebody_holds_some(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = others(driver, tmp_path, 65536, "5.0")
    assert (found["status"], found["failure_class"]) == ("failed", "memory_contended")
    assert "[while 4.40 GiB more were in use than before the sweep]" in found["evidence"]
    assert "KV cache is needed" in found["evidence"]


def test_a_desktop_that_moves_a_little_explains_nothing_large(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = others(driver, tmp_path, 65536, "0.8")  # short of 0.4 GiB or more
    assert (found["status"], found["failure_class"]) == ("infeasible", "kv_too_small")


def test_others_do_not_matter_to_a_cell_that_works(driver: dict[str, str], tmp_path: Path) -> None:
    found = others(driver, tmp_path, 8192, "5.0")
    assert (found["status"], found["failure_class"]) == ("measured", None)
