"""Folders of sweeps of every kind, made through the store without a launch.

What a launch comes to is what the described card says; failures can be put in its place.
"""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from unittest.mock import patch

from vllm_frontier.conditions import Sample
from vllm_frontier.config import Composed, compose_sweep
from vllm_frontier.engine.simulated.attempt import TASKS, simulate_attempt
from vllm_frontier.engine.simulated.card import SimulatedCard, decode_speed
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.grid import Cell
from vllm_frontier.identity import identify
from vllm_frontier.outcome import (
    Failure,
    FailureClass,
    Outcome,
    Phase,
    Purpose,
    Run,
    SpecState,
    StartupFacts,
)
from vllm_frontier.search import Ask, create_search
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store.rows import interrupted_row, run_rows, telemetry_rows, trial_row
from vllm_frontier.store.sweep_store import SweepStore

BEGAN = 1_790_000_000.0
HOSTILE = (
    "</script><img src=x onerror=alert(1)> | `a` <b>&amp; \"q\" 'q' {{ 7*7 }} [x](javascript:y)"
)
Answer = Callable[[Ask], Outcome | None]
"""What comes of a launch; None: it is never heard of again."""

_SIMULATED = ("rtx5090-qwen3.8-27b-nvfp4", ("engine=simulated",))
_ONE_TASK = "workload.tasks=[code]"  # a picture of each task takes its time
_SMALL = (_ONE_TASK, "grid.depth=[0,1,3]", "grid.utilization=[0.90,0.95]")
_REAL = ("rtx5090-qwen3.8-27b-nvfp4", ("model.id=org/model",))


@cache
def card() -> SimulatedCard:
    return load_card("rtx5090-qwen3.8-27b-nvfp4")


def compose(*words: str, simulated: bool = False) -> Composed:
    sweep, own = _SIMULATED if simulated else _REAL
    return compose_sweep(sweep, [*own, *words])


def on_card(ask: Ask) -> Outcome:
    """What the described card does, with runs and samples."""
    outcome = simulate_attempt(card(), ask.cell, purpose=ask.purpose, with_speed=ask.with_speed)
    return with_runs(outcome, ask.cell) if outcome.speed is not None else outcome


def with_runs(outcome: Outcome, cell: Cell, factor: float = 1.0) -> Outcome:
    """The same with three runs of each task, a prefill, and a sample of the card for each."""
    runs = [Run("prefill", 0, "prefill", prompt_tokens=4096, prefill_tok_s=5400.0 * factor)]
    samples = []
    for task, repeat in product(TASKS, range(3)):
        speed = decode_speed(card(), cell, task) * factor * (1 + 0.01 * (repeat - 1))
        shares = card().speed.acceptance[task][: cell.depth]
        accepted = tuple(round(100 * share) for share in shares)
        runs.append(
            Run(
                task,
                repeat,
                "decode",
                completion_tokens=101 + sum(accepted),
                decode_tok_s=speed,
                decode_tok_s_server=speed,
                decode_tok_s_client=speed,
                drafts=100 if cell.depth else 0,
                draft_tokens=100 * cell.depth,
                accepted_tokens=sum(accepted),
                accepted_per_position=accepted,
                variant=repeat,
                started_at=BEGAN + len(runs),
            )
        )
        samples.append(
            Sample(
                BEGAN + len(runs),
                "GPU-1",
                "measure",
                sm_clock_mhz=2400.0 * factor,
                temperature_c=60.0 + len(runs),
                power_w=400.0,
            )
        )
    state = SpecState.WORKING if cell.depth else None
    return replace(outcome, runs=tuple(runs), samples=tuple(samples), spec_state=state)


def refused(
    failure_class: FailureClass, evidence: str, *, purpose: Purpose = Purpose.PROOF
) -> Outcome:
    phase = Phase.ALLOCATE_KV
    return Outcome(
        status=failure_class.status,
        phase=phase,
        failure=Failure(failure_class, phase, evidence, 41),
        facts=StartupFacts(kv_needed_gib=4.2, kv_available_gib=3.9, max_context_estimate=120_000),
        purpose=purpose,
        wall_s=60.0,
    )


class Folder:
    """The folder of a sweep that is being made."""

    def __init__(self, root: Path, composed: Composed, version: str = "0.31.0") -> None:
        self.root, self.spec, self._version = root, composed.spec, version
        self.identity: SweepIdentity = identify(composed.spec, version)
        self.store, _ = SweepStore.create_or_open(
            root, composed.document, self.identity, allow_changed=True
        )
        self._sequence = 0
        self._at = BEGAN

    def begin(self, ask: Ask, at: float | None = None) -> int:
        attempt = self.store.new_attempt(self.identity.cell_id(ask.cell))
        row = interrupted_row(
            self.spec, self.identity, ask.cell, attempt.number,
            started_at=self._at if at is None else at, engine_version=self._version,
            purpose=ask.purpose, with_speed=ask.with_speed, sequence=self._next(),
        )  # fmt: skip
        self.store.write_attempt(attempt, row, {})
        return attempt.number

    def end(self, ask: Ask, number: int, outcome: Outcome) -> None:
        attempt = self.store.paths.attempt(self.identity.cell_id(ask.cell), number)
        began, self._at = self._at, self._at + (outcome.wall_s or 60.0)
        tasks = self.spec.workload.tasks
        runs = tuple(run for run in outcome.runs if run.kind != "decode" or run.task in tasks)
        outcome = replace(outcome, runs=runs)
        if self.spec.engine.kind != "simulated":  # whatever described the launch
            facts = replace(outcome.facts, engine_version=self._version)
            outcome = replace(outcome, facts=facts)
        outcome = replace(outcome, started_at=began, ended_at=self._at)
        made = (self.spec, self.identity, ask.cell, number, outcome)
        trial = trial_row(
            *made, engine_version=self._version, changed=self.store.changed, sequence=self._next()
        )
        self.store.write_log(attempt, b"INFO a server's log\n" * 50)
        self.store.write_outcome(attempt, trial, run_rows(*made), telemetry_rows(*made))

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


def build(
    root: Path, composed: Composed, answer: Answer = on_card, *, at_most: int | None = None
) -> Path:
    """A sweep whose search asked, and was answered, until it had enough."""
    with quick():
        folder = Folder(root, composed)
        search = create_search(composed.spec)
        made = 0
        while (at_most is None or made < at_most) and (ask := search.ask()) is not None:
            number = folder.begin(ask)
            outcome = answer(ask)
            made += 1
            if outcome is None:
                break
            folder.end(ask, number, outcome)
            search.tell(ask.cell, outcome)
        folder.store.close()
    return root


@contextmanager
def quick() -> Iterator[None]:
    """Without waiting for the disk: nobody cuts the power here."""
    with patch.object(os, "fsync", lambda _: None):
        yield


# The golden sweeps


def every_outcome(root: Path) -> Path:
    """A cell for every failure class, and some that work; text that wants to be markup."""
    composed = compose(
        "search=exhaustive", "name=every-outcome", "grid.depth=[0,1,2,3]",
        "grid.context=[65536,80000,100000,110000]", "grid.utilization=[0.95,0.97]",
    )  # fmt: skip
    cells = composed.spec.grid.cells()
    classes = list(FailureClass)
    failing = dict(zip(cells[8 : 8 + len(classes)], classes, strict=True))

    def answer(ask: Ask) -> Outcome:
        if ask.cell in failing:
            return refused(failing[ask.cell], f"ValueError: {failing[ask.cell]} {HOSTILE}")
        return on_card(ask)

    return build(root, composed, answer)


def inferred(root: Path) -> Path:
    """A whole search: most cells follow from others."""
    return build(root, compose("name=inferred", *_SMALL))


def simulated(root: Path) -> Path:
    return build(
        root,
        compose(
            "name=rehearsed", "grid.depth=[0,2,3,5]", "grid.utilization=[0.90,0.95]", simulated=True
        ),
    )


def one_cell(root: Path) -> Path:
    words = (
        _ONE_TASK,
        "grid.depth=[0]",
        "grid.context=[65536]",
        "grid.graphs=[false]",
        "grid.utilization=[0.95]",
    )
    return build(root, compose("name=one-cell", *words))


def nothing_launched(root: Path) -> Path:
    return build(root, compose("name=nothing-launched", *_SMALL), at_most=0)


def nothing_works(root: Path) -> Path:
    composed = compose("name=nothing-works", *_SMALL)
    return build(root, composed, lambda ask: refused(FailureClass.KV_NONE, "ValueError: no memory"))


def interrupted(root: Path) -> Path:
    """Ended from outside in its tenth launch."""
    left = iter(range(10))
    return build(
        root,
        compose("name=interrupted", *_SMALL),
        lambda ask: on_card(ask) if next(left) < 9 else None,
    )


def out_of_budget(root: Path) -> Path:
    return build(root, compose("name=out-of-budget", "search.max_launches=8", *_SMALL), at_most=8)


def extra_axes(root: Path) -> Path:
    """Two further axes."""
    composed = compose(
        "name=extra-axes", _ONE_TASK, "grid.depth=[0,2]", "grid.context=[65536,100000]",
        "grid.utilization=[0.95,0.97]",
        "+grid.extra.max_num_seqs=[1,2]", "+grid.extra.kv_cache_dtype=[auto,fp8]",
    )  # fmt: skip
    return build(root, composed)


def several_cards(root: Path) -> Path:
    """Begun on one card and with one version, gone on with others."""
    words = (
        "name=several-cards",
        "search=exhaustive",
        "grid.depth=[0,3]",
        "grid.context=[65536,100000]",
    )
    words += ("grid.utilization=[0.97]",)
    first = compose(*words)
    cells = first.spec.grid.cells()
    other = compose(*words, "card=rtx4090")
    with quick():
        for composed, version, some in ((first, "0.31.0", cells[:4]), (other, "0.32.0", cells[4:])):
            folder = Folder(root, composed, version)
            for cell in some:
                ask = Ask(cell)
                folder.end(ask, folder.begin(ask), on_card(ask))
            folder.store.close()
    return root


def large(root: Path, *, every: bool = False) -> Path:
    """2,000 cells; each launched, or most of them inferred."""
    contexts = ",".join(str(65536 + 4096 * number) for number in range(25))
    composed = compose(
        "name=large", "grid.depth=[0,1,2,3,4,5,6,7,8,9]", f"grid.context=[{contexts}]",
        "grid.utilization=[0.90,0.93,0.95,0.97]", *(["search=exhaustive"] if every else []),
    )  # fmt: skip
    if not every:
        return build(root, composed)
    return build_each(root, composed)


@cache
def shared_large() -> Path:
    """The large one, for all who only make reports of it: it takes seconds to make."""
    folder = tempfile.mkdtemp(prefix="large-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return large(Path(folder) / "sweep")


def build_each(root: Path, composed: Composed) -> Path:
    """Every cell of the grid launched once, without a search."""
    with quick():
        folder = Folder(root, composed)
        for cell in composed.spec.grid.cells():
            ask = Ask(cell)
            folder.end(ask, folder.begin(ask), on_card(ask))
        folder.store.close()
    return root


@contextmanager
def running(root: Path) -> Iterator[Path]:
    """A sweep that this process writes now: nine launches are done, one runs."""
    composed = compose("name=running", *_SMALL)
    with quick():
        folder = Folder(root, composed)
        search = create_search(composed.spec)
        for _ in range(9):
            ask = search.ask()
            assert ask is not None
            outcome = on_card(ask)
            folder.end(ask, folder.begin(ask), outcome)
            search.tell(ask.cell, outcome)
        ask = search.ask()
        assert ask is not None
        folder.begin(ask, at=time.time())
    try:
        yield root
    finally:
        folder.store.close()


FINISHED: Mapping[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (
        every_outcome,
        inferred,
        simulated,
        one_cell,
        nothing_launched,
        nothing_works,
        interrupted,
        out_of_budget,
        extra_axes,
        several_cards,
    )
}
"""Those that nobody writes, but for the large one."""


def all_of(root: Path, names: Sequence[str] = tuple(FINISHED)) -> dict[str, Path]:
    """The folders of several, by name."""
    return {name: FINISHED[name](root / name) for name in names}
