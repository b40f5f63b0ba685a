"""The keys of a sweep's configuration, their types and their defaults.

These dataclasses are Hydra's structured configs: every key that a YAML file or an override
may set stands here once. `config` turns a composed and checked instance into the frozen
types of `spec`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Hydra reads these annotations at run time, in the spelling that it knows.
from typing import Any, Dict, List, Optional  # noqa: UP035

from omegaconf import MISSING

# ruff: noqa: UP006, UP045, D101


@dataclass
class SpeculationConf:
    method: str = "mtp"
    model: Optional[str] = None
    args: Dict[str, Any] = field(default_factory=dict)


@dataclass
class ModelConf:
    name: str = MISSING
    id: str = MISSING
    revision: Optional[str] = None
    quantization: Optional[str] = None
    max_context: Optional[int] = None
    speculation: SpeculationConf = field(default_factory=SpeculationConf)
    args: Dict[str, Any] = field(default_factory=dict)


@dataclass
class CardConf:
    kind: str = "nvidia"
    name: Optional[str] = None
    memory_gib: Optional[float] = None
    reserved_gib: float = 0.0
    uuids: List[str] = field(default_factory=list)
    baseline_tolerance_gib: float = 0.5
    drain_timeout_s: float = 60.0


@dataclass
class EngineConf:
    kind: str = "vllm"
    python: Optional[str] = None
    command: Optional[str] = None
    args: Dict[str, Any] = field(default_factory=dict)
    env: Dict[str, Any] = field(default_factory=dict)
    card_file: Optional[str] = None
    tensor_parallel: int = 1
    ready_timeout_s: float = 900.0
    stop_timeout_s: float = 30.0


@dataclass
class GridConf:
    depth: List[int] = field(default_factory=lambda: [0])
    context: List[int] = MISSING
    graphs: List[bool] = field(default_factory=lambda: [False, True])
    utilization: List[float] = field(default_factory=lambda: [0.9])
    extra: Dict[str, List[Any]] = field(default_factory=dict)
    exclude: List[Dict[str, Any]] = field(default_factory=list)


@dataclass
class WorkloadConf:
    tasks: List[str] = field(default_factory=lambda: ["edit", "code", "prose"])
    repeats: int = 3
    warmups: int = 1
    max_tokens: Optional[int] = None
    temperature: float = 0.0
    thinking: bool = False
    prefill_tokens: int = 4096
    slowest_prefill_tok_s: Optional[float] = None
    slowest_decode_tok_s: Optional[float] = None
    request_timeout_s: Optional[float] = None
    fill_timeout_s: Optional[float] = None
    replicates: int = 1
    reference: bool = True
    precision: Optional[float] = None
    repeats_max: int = 12
    score: bool = True


@dataclass
class SearchConf:
    strategy: str = "exhaustive"
    verify: str = "boundaries"
    measure: str = "frontier"
    audit: int = 3
    seed: int = 0
    max_hours: Optional[float] = None
    max_launches: Optional[int] = None


@dataclass
class ScheduleConf:
    retries: int = 1
    address: Optional[str] = None


@dataclass
class SweepConf:
    name: str = MISSING
    model: ModelConf = field(default_factory=ModelConf)
    card: CardConf = field(default_factory=CardConf)
    engine: EngineConf = field(default_factory=EngineConf)
    grid: GridConf = field(default_factory=GridConf)
    workload: WorkloadConf = field(default_factory=WorkloadConf)
    search: SearchConf = field(default_factory=SearchConf)
    schedule: ScheduleConf = field(default_factory=ScheduleConf)


# The groups that choose among YAML files in conf/; `model=NAME` picks one.
GROUPS = ("model", "card", "engine", "grid", "workload", "search", "schedule")
