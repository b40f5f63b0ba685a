"""How long launches take: by this machine's earlier sweeps, else by what is known beforehand."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from vllm_frontier.engine.simulated.card import decode_speed
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.errors import ConfigError, StoreError
from vllm_frontier.grid import Cell
from vllm_frontier.measure.scoring import SCORED_TOKENS
from vllm_frontier.measure.session import FILL_ANSWER_TOKENS
from vllm_frontier.measure.task import load_task
from vllm_frontier.memory import MemoryPrior
from vllm_frontier.spec import SweepSpec, WorkloadSpec
from vllm_frontier.store import manifest
from vllm_frontier.store.paths import SweepPaths

_SWEEPS_MAX = 12  # the newest ones that fit
_ATTEMPTS_MAX = 400  # of one of them
_LOOK_AT = 5  # of one, to see whether it ran on this card

# Without earlier sweeps: guesses, seconds and tokens per second.
_DISK_GIB_S = 1.4  # weights from disk
_GPU_START_S, _GPU_GRAPHS_S, _GPU_END_S = 35.0, 45.0, 6.0
_CPU_START_S, _CPU_GRAPHS_S, _CPU_END_S = 20.0, 13.0, 2.0
_SIMULATED_START_S, _SIMULATED_REQUEST_S = 1.5, 0.02  # of three processes; not scaled
_GPU_GIB_S, _CPU_GIB_S = 500.0, 15.0  # weights read again for every token
_DECODE_MAX, _EAGER_SHARE = 300.0, 0.6
_PREFILL_TIMES = 50.0  # faster than decoding
_SCORE_REQUESTS = 3  # of a task: a text is rated, another one is sampled and rated
_TASK_TOKENS = 512  # of a task that cannot be read


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """Seconds of a launch from its start to the next one, by how it ends.

    A pair is without and with graphs.

    Attributes:
        with_speed: works, and is measured.
        without_speed: works, and is not measured.
        refused: does not fit.
        basis: in words, what the figures rest on.
    """

    with_speed: tuple[float, float]
    without_speed: tuple[float, float]
    refused: tuple[float, float]
    basis: str

    def seconds(self, cell: Cell, *, works: bool, with_speed: bool) -> float:
        """How long a launch of a cell takes."""
        kind = self.refused if not works else self.without_speed
        if works and with_speed:
            kind = self.with_speed
        return kind[cell.graphs]


@dataclass(frozen=True, slots=True)
class _Launch:
    """What an earlier launch took, seconds; `wall_s` with measuring scaled to this workload."""

    model: str
    kind: str  # with_speed | without_speed | refused
    graphs: bool
    wall_s: float
    serving_s: float


def launch_times(spec: SweepSpec, prior: MemoryPrior | None, outputs: Path) -> LaunchTimes:
    """How long the launches of a sweep take.

    Args:
        spec: the sweep.
        prior: what is believed of its memory; the size of its weights decides how long they load.
        outputs: the folder of earlier sweeps; those on another engine or card are left out, and
            so is what cannot be read.
    """
    times = _launch_times(spec, prior, outputs)
    work = spec.workload
    if work.precision is None or work.repeats_max <= work.repeats:
        return times
    taken = f"{_repeats(work):g} of {work.repeats} to {work.repeats_max} runs a task taken"
    return replace(times, basis=f"{times.basis}; {taken}")


def _launch_times(spec: SweepSpec, prior: MemoryPrior | None, outputs: Path) -> LaunchTimes:
    guessed = _guessed(spec, prior)
    found = (_launches(folder, spec) for folder in _newest(outputs))
    launches = [launch for each in islice(filter(None, found), _SWEEPS_MAX) for launch in each]
    alike = [launch for launch in launches if launch.model == spec.model.name]
    used = alike or launches
    if not used:
        return guessed
    what = "launch" if len(used) == 1 else "launches"
    of = spec.model.name if alike else "other models"
    return LaunchTimes(
        with_speed=_medians(used, "with_speed", guessed),
        without_speed=_medians(used, "without_speed", guessed),
        refused=_medians(used, "refused", guessed),
        basis=f"{len(used)} earlier {what} of {of} on this engine and card",
    )


def _medians(launches: list[_Launch], kind: str, guessed: LaunchTimes) -> tuple[float, float]:
    return _median(launches, kind, guessed, graphs=False), _median(
        launches, kind, guessed, graphs=True
    )


def _median(launches: list[_Launch], kind: str, guessed: LaunchTimes, *, graphs: bool) -> float:
    """Of launches that ended like this, with the same graphs where there are any."""
    of_kind = [launch for launch in launches if launch.kind == kind]
    same = [launch.wall_s for launch in of_kind if launch.graphs is graphs]
    if same or of_kind:
        return statistics.median(same or [launch.wall_s for launch in of_kind])
    guess: float = getattr(guessed, kind)[graphs]
    if kind == "without_speed":
        # What was measured tells what starting takes; filling is a part of the rest.
        known = [each.wall_s - each.serving_s for each in launches if each.kind == "with_speed"]
        return (
            statistics.median(known) + 0.2 * (guess - guessed.refused[graphs]) if known else guess
        )
    return guess


# Earlier sweeps


def _newest(outputs: Path) -> list[Path]:
    """The folders of sweeps, the one that was begun or changed last first."""

    def age(folder: Path) -> float:
        try:
            return -SweepPaths(folder).sweep_yaml.stat().st_mtime
        except OSError:
            return 0.0

    try:
        folders = [each for each in outputs.iterdir() if SweepPaths(each).sweep_yaml.is_file()]
    except OSError:
        return []
    return sorted(folders, key=age)


def _launches(folder: Path, spec: SweepSpec) -> list[_Launch]:
    """The launches of a sweep that ran on the same engine and card."""
    rows = _rows(SweepPaths(folder))
    first = list(islice(rows, _LOOK_AT))
    if not any(_is_alike(row, spec) for row in first):
        return []
    share = _tokens(spec.workload) / max(1, _tokens_of(folder) or _tokens(spec.workload))
    alike = (row for row in chain(first, rows) if _is_alike(row, spec))
    return [launch for row in alike if (launch := _launch(row, share)) is not None]


def _rows(paths: SweepPaths) -> Iterator[Mapping[str, Any]]:
    """What the outcome files of a sweep say; unreadable ones are passed over."""
    try:
        attempts = list(islice(paths.existing_attempts(), _ATTEMPTS_MAX))
    except OSError:
        return
    for attempt in attempts:
        try:
            row = json.loads(attempt.outcome_json.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def _is_alike(row: Mapping[str, Any], spec: SweepSpec) -> bool:
    return row.get("engine") == spec.engine.kind and row.get("card") == spec.card.name


def _launch(row: Mapping[str, Any], share: float) -> _Launch | None:
    """A row as a launch; None for one that tells nothing of how long a healthy one takes.

    Args:
        row: of `trials`.
        share: of its measuring that this workload asks for.
    """
    wall, serving, graphs = row.get("wall_s"), row.get("measure_s"), row.get("graphs")
    model = row.get("model_name")
    if not isinstance(wall, int | float) or not 0 < wall < 10**6 or not isinstance(graphs, bool):
        return None
    status = row.get("status")
    kind = {"infeasible": "refused", "invalid": None, "measured": "with_speed"}.get(str(status))
    if kind is None:
        return None
    if kind == "with_speed" and row.get("with_speed") is False:
        kind = "without_speed"
    served = float(serving) if isinstance(serving, int | float) and 0 < serving < wall else 0.0
    scaled = served * share if kind == "with_speed" else served
    return _Launch(str(model), kind, graphs, wall - served + scaled, scaled)


def _tokens(workload: WorkloadSpec) -> float:
    """Tokens that are written on a cell, at most."""
    return _written(
        workload.tasks,
        _repeats(workload),
        workload.warmups,
        workload.max_tokens,
        score=workload.score,
    )


def _repeats(workload: WorkloadSpec) -> float:
    """Runs of a task; with a precision nobody knows them before, and the middle is taken."""
    if workload.precision is None:
        return workload.repeats
    return (workload.repeats + max(workload.repeats, workload.repeats_max)) / 2


def _tokens_of(folder: Path) -> float | None:
    """The same of an earlier sweep; None where its configuration cannot be read."""
    try:
        config = manifest.read(SweepPaths(folder)).config
    except StoreError:
        return None
    match config.get("workload"):
        case {"tasks": list(tasks), "repeats": int(repeats), "warmups": int(warmups), **rest}:
            limit, runs = rest.get("max_tokens"), float(repeats)
            most = rest.get("repeats_max")
            if rest.get("precision") is not None and isinstance(most, int):
                runs = (repeats + max(repeats, most)) / 2
            return _written(
                tasks,
                runs,
                warmups,
                limit if isinstance(limit, int) else None,
                score=rest.get("score") is True,
            )
    return None


def _written(
    tasks: Iterable[Any], repeats: float, warmups: int, limit: int | None, *, score: bool
) -> float:
    each = [limit or _task_tokens(str(task)) for task in tasks]
    sampled = sum(min(tokens, SCORED_TOKENS) for tokens in each) if score else 0
    return repeats * sum(each) + warmups * (statistics.mean(each) if each else 0.0) + sampled


def _task_tokens(task: str) -> int:
    try:
        return load_task(task).max_tokens
    except ConfigError:
        return _TASK_TOKENS


# Without any


def _guessed(spec: SweepSpec, prior: MemoryPrior | None) -> LaunchTimes:
    if spec.engine.kind == "simulated":
        return _simulated(spec)
    on_cpu = spec.engine.kind == "vllm-cpu"
    size = _weights_gib(spec, prior)
    start, graphs, end = (
        (_CPU_START_S, _CPU_GRAPHS_S, _CPU_END_S)
        if on_cpu
        else (_GPU_START_S, _GPU_GRAPHS_S, _GPU_END_S)
    )
    loaded = start + size / _DISK_GIB_S + end
    decode = min(_DECODE_MAX, (_CPU_GIB_S if on_cpu else _GPU_GIB_S) / size)
    fill = _longest(spec) / (_PREFILL_TIMES * decode)
    written = _tokens(spec.workload) + FILL_ANSWER_TOKENS
    eager, with_graphs = loaded + fill, loaded + graphs + fill
    basis = "the kind of engine" if prior is None or on_cpu else "the size of the weights"
    return LaunchTimes(
        with_speed=(eager + written / (decode * _EAGER_SHARE), with_graphs + written / decode),
        without_speed=(eager, with_graphs),
        refused=(loaded, loaded + graphs / 2),
        basis=f"no earlier launch on this engine and card: guessed from {basis}",
    )


def _weights_gib(spec: SweepSpec, prior: MemoryPrior | None) -> float:
    """Of all weights: a card holds its share, on a CPU it is what is set apart for them."""
    known = prior.weights.mean if prior is not None else 0.5 * spec.card.memory_gib
    return max(known * spec.engine.tensor_parallel, 0.01)


def _simulated(spec: SweepSpec) -> LaunchTimes:
    card = load_card(spec.engine.card_file)
    scale, written = card.time.scale, _tokens(spec.workload)
    requests = 1 + spec.workload.warmups + spec.workload.repeats
    requests_of_task = _repeats(spec.workload) + (_SCORE_REQUESTS if spec.workload.score else 0)
    measuring = requests + len(spec.workload.tasks) * requests_of_task

    def pair(*, capture: bool, fill: bool, speed: bool) -> tuple[float, float]:
        times = []
        for graphs in (False, True):
            start = card.time.load_s + card.time.profile_s
            start += card.time.capture_s if graphs and capture else 0.0
            serving = _longest(spec) / card.speed.prefill_tok_s if fill else 0.0
            if speed:
                cell = Cell(max(spec.grid.depth), 1, graphs, 1.0)
                serving += written / decode_speed(card, cell, "code")
            waits = (measuring if speed else 1.0 if fill else 0.0) * _SIMULATED_REQUEST_S
            times.append(_SIMULATED_START_S + scale * (start + serving) + waits)
        return times[0], times[1]

    return LaunchTimes(
        with_speed=pair(capture=True, fill=True, speed=True),
        without_speed=pair(capture=True, fill=True, speed=False),
        refused=pair(capture=False, fill=False, speed=False),
        basis="the times in the card file",
    )


def _longest(spec: SweepSpec) -> float:
    """The window in the middle of the grid stands for all."""
    return float(statistics.median(spec.grid.context))
