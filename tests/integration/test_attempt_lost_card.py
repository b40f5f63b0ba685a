"""Attempts on a card that falls off the bus: a fake driver library, a simulated server."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from simulated_launch import card_file
from test_attempt_endings import CELL, UUID, sweep

from vllm_frontier.launch.processes import ProcessId, descendants, process_table
from vllm_frontier.outcome import Outcome, Phase
from vllm_frontier.spec import CardSpec, EngineSpec
from vllm_frontier.telemetry import nvml, sampler
from vllm_frontier.trial import AttemptRequest, failures, run_attempt
from vllm_frontier.trial import attempt as trial_attempt

SILENT = f"card {UUID}: {nvml.SILENT}"
LOST = f"card {UUID}: a GPU is lost or needs a reset: see `dmesg` for Xid lines"


class Watched(sampler.Sampler):
    """The sampler of an attempt, for who wants to know what it has seen."""

    of_attempt: ClassVar[list[Watched]] = []

    def __enter__(self) -> Self:
        self.of_attempt.append(self)
        return super().__enter__()


def let_look() -> None:
    """Let the sampler take a whole sample; of a driver that hangs it gets none."""
    Watched.of_attempt[-1].look(0.5 if "FAKE_HANG" in os.environ else 60.0)


def lose_card() -> None:
    """The first card is lost, or where a file for that is named the driver hangs."""
    if "FAKE_HANG" in os.environ:
        Path(os.environ["FAKE_HANG"]).touch()
        # From now on nothing answers, however long it is waited for.
        nvml.ANSWER_S = failures.DRIVER_ANSWER_S = sampler.LEAVE_S = 1.0
    else:
        Path(os.environ["FAKE_COUNTERS"]).write_text("card@0 lost\n")


def attempt_on_card(folder: Path, lost_in: str, fault: str) -> dict[str, Any]:
    """Run in a process whose NVML is the fake one; see `attempt`."""
    faults = [{"at": "measure", "kind": fault}] if fault else []
    # Either it is quick to serve, or it loads until something is done to it.
    load_s = 20_000 if lost_in == "load" else 20
    card = card_file(folder, faults=faults, time={"load_s": load_s, "scale": 0.05})
    server = f"{sys.executable} -m vllm_frontier.engine.simulated.server"
    command = f"{server} --simulated-card {card} --model {{model}} --port {{port}} {{args}}"
    spec = replace(
        sweep(card),
        card=CardSpec("nvidia", "Fake RTX 0", 32.0, uuids=(UUID,), drain_timeout_s=3.0),
        engine=EngineSpec(kind="vllm", command=command, stop_timeout_s=2.0),
    )
    log = folder / "server.log"
    request = AttemptRequest(spec, CELL, "0" * 16, 1, log, dict(os.environ), cards=(UUID,))
    request = replace(request, baseline=request.memory_state())
    if lost_in == "before":
        lose_card()

    tree: set[ProcessId | None] = set()
    launched, late = False, lost_in == "measure" and not fault  # after the first run of it
    vars(trial_attempt)["Sampler"] = Watched
    steps = run_attempt(request)
    try:
        while True:
            progress = next(steps)
            if progress.launch is not None:
                launched, supervisor = True, progress.launch["supervisor"]["pid"]
            if (lost_in, progress.detail) == ("never", "prose 1"):  # what is left is to be scored
                let_look()  # a sample for the run
                Path(os.environ["FAKE_USED"]).write_text("5.0")
                let_look()  # and one for the scoring
                lost_in = "stop"
            if progress.phase == lost_in and (progress.detail or not late):
                found = descendants(supervisor, process_table())
                tree |= {ProcessId.of(each.pid) for each in found}
                lose_card()
                if not fault:
                    let_look()
                    lost_in = "stop"
    except StopIteration as ended:
        outcome: Outcome = ended.value
    failure = outcome.failure
    return {
        "failure": None if failure is None else dataclasses.asdict(failure),
        "status": outcome.status.value,
        "runs": [dataclasses.asdict(run) for run in outcome.runs],
        "samples": [dataclasses.asdict(sample) for sample in outcome.samples],
        "told": [outcome.driver, outcome.cuda, outcome.power_limit_w],
        "peak_gib": outcome.memory_used_peak_gib,
        "launched": launched,
        "began": len(tree),
        "left": [each.pid for each in tree if each is not None and each.alive()],
    }


def attempt(
    driver: dict[str, str],
    folder: Path,
    *,
    lost_in: str = "stop",
    fault: str = "",
    hangs: bool = False,
) -> dict[str, Any]:
    """An attempt whose card is lost in a phase, or whose driver hangs from then on."""
    code = (
        "import json, sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_attempt_lost_card import attempt_on_card\n"
        f"print(json.dumps(attempt_on_card(Path({str(folder)!r}), {lost_in!r}, {fault!r})))\n"
    )
    (folder / "counters").touch()
    told = {"FAKE_COUNTERS": str(folder / "counters")}
    told |= {"FAKE_HANG": str(folder / "hang")} if hangs else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=driver | told,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_run_tells_what_its_card_was_like(driver: dict[str, str], tmp_path: Path) -> None:
    found = attempt(driver, tmp_path)
    assert (found["status"], found["failure"]) == ("measured", None)
    assert found["told"] == ["575.57.08", "12.9", 575.0]
    assert found["peak_gib"] == pytest.approx(0.6)
    kinds = [run["kind"] for run in found["runs"]]
    assert kinds[:4] == ["fill", "prefill", "decode", "decode"]
    assert set(kinds[4:]) <= {"probe"}
    for run in found["runs"]:
        conditions = run["conditions"]
        assert (conditions["sm_clock_mhz"], conditions["power_w"]) == (2400, 300.5)
        assert (conditions["throttle_reasons"], conditions["throttled_share"]) == ([], 0.0)
        assert conditions["memory_used_gib"] == pytest.approx(0.6)
        # Those of others that the library shows; nothing of the launch is on the card.
        assert (conditions["foreign_processes"], conditions["foreign_gib"]) == (2, 4.0)
        assert conditions["foreign_cores"] >= 0.0
    assert {sample["card"] for sample in found["samples"]} == {UUID}
    phases = [Phase(sample["phase"]) for sample in found["samples"]]
    order = list(Phase)
    assert phases == sorted(phases, key=order.index)
    assert order.index(phases[0]) < order.index(Phase.READY)
    assert any((sample["cpu_cores"] or 0) > 0.01 for sample in found["samples"])


def test_a_card_that_is_lost_ends_the_attempt_at_its_next_step(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = attempt(driver, tmp_path, lost_in="measure")
    failure = found["failure"]
    assert (found["status"], failure["failure_class"]) == ("failed", "gpu_lost")
    assert failure["phase"] == "measure"
    assert failure["evidence"].startswith(LOST)
    assert failure["evidence"].endswith("(NVML: GPU is lost)")
    # What was measured before is kept, and not one more step was made than that which ran.
    assert [run["kind"] for run in found["runs"]][:2] == ["fill", "prefill"]
    assert len(found["runs"]) == 3
    assert found["runs"][0]["conditions"]["sm_clock_mhz"] == 2400
    assert found["began"] >= 3
    assert found["left"] == []


def test_a_server_that_dies_of_its_card_did_not_just_crash(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = attempt(driver, tmp_path, lost_in="measure", fault="crash")
    failure = found["failure"]
    assert (found["status"], failure["failure_class"]) == ("failed", "gpu_lost")
    assert failure["phase"] == "measure"
    assert failure["evidence"].startswith(LOST)
    assert "; seen as: !!!!!!! Segfault encountered" in failure["evidence"]
    assert found["left"] == []


def test_a_card_that_is_lost_while_a_server_loads(driver: dict[str, str], tmp_path: Path) -> None:
    found = attempt(driver, tmp_path, lost_in="load")
    failure = found["failure"]
    assert (failure["failure_class"], failure["phase"]) == ("gpu_lost", "load")
    assert found["runs"] == []
    assert found["began"] >= 1
    assert found["left"] == []


def test_on_a_card_that_was_lost_before_nothing_is_launched(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = attempt(driver, tmp_path, lost_in="before")
    failure = found["failure"]
    assert (failure["failure_class"], failure["phase"]) == ("gpu_lost", "spawn")
    assert failure["evidence"].startswith(LOST)
    assert not found["launched"]
    assert (found["samples"], found["peak_gib"]) == ([], None)
    assert found["told"][:2] == ["575.57.08", "12.9"]


def test_memory_that_scoring_takes_is_in_the_samples_and_not_in_the_peak(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = attempt(driver, tmp_path, lost_in="never")
    assert found["status"] == "measured"
    assert max(sample["memory_used_gib"] for sample in found["samples"]) == pytest.approx(5.0)
    assert found["peak_gib"] == pytest.approx(0.6)


def test_a_server_that_dies_while_the_driver_hangs_did_not_just_crash(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = attempt(driver, tmp_path, lost_in="measure", fault="crash", hangs=True)
    failure = found["failure"]
    assert (found["status"], failure["failure_class"]) == ("failed", "gpu_lost")
    assert failure["evidence"].startswith(f"{SILENT}; seen as: !!!!!!! Segfault encountered")
    assert found["told"][:2] == ["575.57.08", "12.9"]
    assert found["left"] == []


def test_a_driver_that_hangs_before_keeps_a_launch_from_its_card(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = attempt(driver, tmp_path, lost_in="before", hangs=True)
    failure = found["failure"]
    assert (failure["failure_class"], failure["phase"]) == ("gpu_lost", "spawn")
    assert failure["evidence"] == SILENT
    assert not found["launched"]


def test_a_driver_that_hangs_at_the_end_costs_nothing_of_what_was_measured(
    driver: dict[str, str], tmp_path: Path
) -> None:
    found = attempt(driver, tmp_path, lost_in="measure", hangs=True)
    assert (found["status"], found["failure"]) == ("measured", None)
    assert [run["kind"] for run in found["runs"]][:4] == ["fill", "prefill", "decode", "decode"]
    assert found["told"][:2] == ["575.57.08", "12.9"]
