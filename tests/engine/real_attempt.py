"""Attempts on real vLLM for CPU: driven through the product, watched from outside, read back."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import vllm_frontier
from vllm_frontier.grid import Cell, Grid
from vllm_frontier.identity import identify
from vllm_frontier.launch import processes
from vllm_frontier.launch.leftovers import find_leftovers
from vllm_frontier.launch.processes import ProcessId
from vllm_frontier.outcome import FailureClass, Outcome, Phase
from vllm_frontier.spec import (
    CardSpec,
    EngineSpec,
    ModelSpec,
    ScheduleSpec,
    SearchSpec,
    SweepSpec,
    WorkloadSpec,
)
from vllm_frontier.store import tables
from vllm_frontier.store.rows import run_rows, trial_row
from vllm_frontier.store.schema import to_parquet
from vllm_frontier.trial import AttemptRequest, Progress, run_attempt

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON", sys.executable)
DEMO = Path(vllm_frontier.__file__).parent / "models" / "demo-mtp"
# Says that the version comes from the engine's log, when it does not.
UNREAD_VERSION = "not from the log"

# Of a start, which takes 22 s on a machine that nobody else uses.
READY_TIMEOUT_S = 600.0
# Between the end of a launch's last process and that of its attempt: where all cores are at work,
# timers were seen to fire ten seconds late. Who does not notice at all waits ten times as long.
NOTICED_S = 40.0
# Between two looks at the clock, or a line and the look at it, likewise.
LATE_S = 15.0

CONFIG: Mapping[str, Any] = {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "qwen2",
    "num_nextn_predict_layers": 1,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 0,
}

HELD = """
import time

def register():
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    @register_model_loader("held")
    class Held(DummyModelLoader):
        def load_weights(self, model, model_config):
            while True:
                time.sleep(1)
"""

API_SERVER = "APIServer"
ENGINE_CORE = "EngineCore"
WORKER = "Worker"


def sweep(
    model: ModelSpec,
    *,
    memory_gib: float = 0.25,
    reserved_gib: float = 0.0,
    env: Mapping[str, str] | None = None,
    workload: WorkloadSpec | None = None,
) -> SweepSpec:
    """A sweep with one small task and one repeat."""
    return SweepSpec(
        name="real",
        model=model,
        card=CardSpec("cpu", "a slice of memory", memory_gib, reserved_gib),
        engine=EngineSpec(
            kind="vllm-cpu",
            python=PYTHON,
            args={"max_num_seqs": 1},
            env={"HF_HUB_OFFLINE": "1", **(env or {})},
            ready_timeout_s=READY_TIMEOUT_S,
        ),
        grid=Grid((0,), (1024,), (False,), (1.0,)),
        workload=workload
        or WorkloadSpec(tasks=("prose",), repeats=1, warmups=0, max_tokens=16, prefill_tokens=64),
        search=SearchSpec(),
        schedule=ScheduleSpec(),
    )


def without_weights(folder: Path, **changes: Any) -> ModelSpec:
    """A tiny model for which vLLM makes weights up; None takes a key out of its config."""
    config = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    args = {"load_format": "dummy", "skip_tokenizer_init": True}
    return ModelSpec("tiny", str(folder), args=args)


def never_loaded(folder: Path) -> SweepSpec:
    """A sweep whose model is loaded for as long as its worker lives: by a plugin of vLLM."""
    model = without_weights(folder)
    plugin = folder / "plugin"
    told = plugin / "held-1.dist-info"
    told.mkdir(parents=True)
    (plugin / "held.py").write_text(HELD)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: held\nVersion: 1\n")
    (told / "entry_points.txt").write_text("[vllm.general_plugins]\nheld = held:register\n")
    model = replace(model, args={**model.args, "load_format": "held"})
    return sweep(model, env={"PYTHONPATH": str(plugin)})


@dataclass
class Live:
    """A launch while it lives: what was written down of it, and every process it ever had."""

    description: dict[str, Any] = field(default_factory=dict)
    seen: set[ProcessId] = field(default_factory=set)
    last_alive_at: float = 0.0
    log: Path = Path()

    @property
    def supervisor(self) -> ProcessId:
        told = self.description["supervisor"]
        return ProcessId(told["pid"], told["start_time"])

    @property
    def port(self) -> int:
        return int(self.description["port"])

    def look(self) -> None:
        """Remember the processes that are there now."""
        below = processes.descendants(self.supervisor.pid, processes.process_table())
        self.seen |= {ProcessId(each.pid, processes.start_time(each)) for each in below}
        if any(each.alive for each in below):
            self.last_alive_at = time.time()

    def pid(self, role: str) -> int | None:
        """The living process that writes its lines as `(<role> pid=...)`, once it has a name."""
        for line in self.log.read_text(errors="replace").splitlines():
            name, mark, rest = line.partition(" pid=")
            if mark and name.startswith(f"({role}"):
                pid = int(rest.partition(")")[0])
                return pid if any(each.pid == pid and each.alive() for each in self.seen) else None
        return None


@dataclass(frozen=True)
class Finished:
    """An attempt that ended.

    Attributes:
        row: its row of `trials`, written as Parquet and read back.
        runs: its rows of `runs`, likewise.
        log: the lines of server.log.
        live: what was seen of its processes.
    """

    outcome: Outcome
    row: dict[str, Any]
    runs: list[dict[str, Any]]
    log: list[str]
    live: Live


def attempt(
    spec: SweepSpec,
    cell: Cell,
    folder: Path,
    *,
    record: Callable[[Live], None] | None = None,
    step: Callable[[Progress, Live], None] | None = None,
) -> Finished:
    """One attempt, as a sweep makes it.

    Args:
        spec: the sweep.
        cell: what to try.
        folder: where server.log and the tables go.
        record: called when the server is about to be executed.
        step: called with everything the attempt tells on its way.
    """
    log = folder / "server.log"
    live = Live(log=log)

    identity = identify(spec, UNREAD_VERSION)
    spec = replace(spec, grid=Grid((cell.depth,), (cell.context,), (False,), (cell.utilization,)))
    request = AttemptRequest(spec, cell, identity.cell_id(cell), 1, log, dict(os.environ))
    steps = run_attempt(request)
    with _watching(live):
        while True:
            try:
                progress = next(steps)
            except StopIteration as ended:
                outcome: Outcome = ended.value
                break
            if progress.launch is not None:
                live.description |= progress.launch
                if record is not None:
                    record(live)
            elif step is not None:
                step(progress, live)
    trial = trial_row(spec, identity, cell, 1, outcome, engine_version=UNREAD_VERSION)
    (trials,) = _through_a_file("trials", [trial], folder)
    runs = _through_a_file("runs", run_rows(spec, identity, cell, 1, outcome), folder)
    lines = log.read_bytes().decode("utf-8", "replace").split("\n") if log.exists() else []
    return Finished(outcome, trials, runs, lines, live)


@contextmanager
def _watching(live: Live) -> Iterator[None]:
    """Look at the launch's processes ten times a second."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            if live.description:
                live.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _through_a_file(table: str, rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    path = folder / f"{table}.parquet"
    path.write_bytes(to_parquet(table, rows))
    return tables.read(table, path).to_dicts()


def survivors(live: Live) -> list[int]:
    """Pids of the launch that are still there, its supervisor included."""
    marked = find_leftovers(live.supervisor, None)
    return sorted({each.pid for each in live.seen if each.alive()} | set(marked))


def assert_row(
    finished: Finished,
    failure_class: FailureClass,
    phase: Phase,
    *,
    words: tuple[str, ...],
    started: bool = False,
    filled: bool = False,
    in_log: bool = True,
) -> None:
    """What holds for the row of every failure, whatever it is.

    Args:
        finished: the attempt.
        failure_class: which decides the status too.
        phase: in which it ended.
        words: what the evidence says, among other things.
        started: whether the server came up.
        filled: whether a full window was served.
        in_log: whether the evidence is a line of the log.
    """
    row = finished.row
    told = {name: row[name] for name in ("status", "failure_class", "phase", "started", "filled")}
    assert told == {
        "status": failure_class.status.value,
        "failure_class": failure_class.value,
        "phase": phase.value,
        "started": started,
        "filled": filled,
    }, row["evidence"]
    for word in words:
        assert word in row["evidence"]
    if in_log:
        # A signal's evidence is what was done, after the last line that was written.
        assert row["evidence"].rpartition(" after: ")[2] in finished.log[row["evidence_line"] - 1]
    else:
        assert row["evidence_line"] is None
    if not started:
        # Either the attempt stopped it, or it ended as vLLM does when it gives up.
        assert (row["exit_code"], row["signal"]) in ((None, None), (1, None))
    assert survivors(finished.live) == []
    assert not Path(finished.live.description["tmp"]).exists()
    _assert_times(finished, started=started)


def _assert_times(finished: Finished, *, started: bool) -> None:
    row = finished.row
    passed = (row["ended_at"] - row["started_at"]).total_seconds()
    assert row["wall_s"] > 0.0
    assert abs(row["wall_s"] - passed) < LATE_S
    if finished.live.last_alive_at:  # some end before anybody looks
        assert row["ended_at"].timestamp() - finished.live.last_alive_at < NOTICED_S
    # Of what ends early there may be no sample, or one from before it had any memory.
    least_gib = 0.2 if started else 0.0
    assert least_gib <= (row["memory_used_peak_gib"] or 0.0) < 8.0
    assert (row["ready_s"] is not None) is started
    assert (row["measure_s"] is not None) is started
    assert (row["ready_s"] or 0.0) + (row["measure_s"] or 0.0) <= row["wall_s"]
    written_at = _first_words_at(finished.log)
    if written_at is not None:
        # The log tells whole seconds.
        said = (written_at - row["started_at"]).total_seconds()
        assert said - 0.1 <= row["spawn_s"] < said + 1.0 + LATE_S
        assert row["spawn_s"] < (row["ready_s"] or row["wall_s"])


def _first_words_at(log: list[str]) -> datetime | None:
    """When the server told its version, or else its settings, from the log's own clock."""
    words = r" INFO (\d\d-\d\d \d\d:\d\d:\d\d) .*(?: version \d|non-default args:)"
    stamps = (re.search(words, line) for line in log)
    stamp = next((found[1] for found in stamps if found), None)
    if stamp is None:
        return None
    this_year = datetime.now().astimezone().year
    return datetime.strptime(f"{this_year}-{stamp}", "%Y-%m-%d %H:%M:%S").astimezone()
