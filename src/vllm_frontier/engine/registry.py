"""Which engine a sweep has. To add one: a module, and one line here."""

from __future__ import annotations

from vllm_frontier.engine.protocol import Engine
from vllm_frontier.errors import EngineError
from vllm_frontier.spec import SweepSpec

KINDS = ("vllm", "vllm-cpu", "simulated")


def create_engine(spec: SweepSpec) -> Engine:
    """Make the engine of a sweep.

    Raises:
        EngineError: the kind does not exist, or its settings cannot work.
    """
    kind = spec.engine.kind
    if kind == "simulated":
        from vllm_frontier.engine.simulated.engine import SimulatedEngine

        return SimulatedEngine(spec.engine, spec.model, spec.card)
    if kind in KINDS:
        from vllm_frontier.engine.vllm import VllmEngine

        return VllmEngine(spec.engine, spec.model, spec.card)
    raise EngineError(f"there is no engine {kind!r}; known are {', '.join(KINDS)}")
