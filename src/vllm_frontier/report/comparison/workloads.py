"""Whether the speeds of two sweeps can be compared: did both measure the same?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_frontier.errors import ConfigError
from vllm_frontier.identity import WORKLOAD_KEYS, workload_digest
from vllm_frontier.report.comparison.sides import Side

_MORE_OF_THE_SAME = "repeats"


@dataclass(frozen=True, slots=True)
class Comparable:
    """Whether speeds of two sweeps can be compared.

    Attributes:
        reason: why not, a sentence in small letters without its full stop; None: they can.
        settings: settings of the workload that differ: key, value of the base, of the other.
        fewer_prompts: the other asked more or fewer prompts, so that only those count which both
            asked.
    """

    reason: str | None
    settings: tuple[tuple[str, Any, Any], ...] = ()
    fewer_prompts: bool = False


def comparable(base: Side, other: Side) -> Comparable:
    """Whether both measured the same, prompt by prompt."""
    if base.workload == other.workload:
        return Comparable(None)
    own, others = (each.found.config["workload"] for each in (base, other))
    settings = tuple(
        (f"workload.{name}", own.get(name), others.get(name))
        for name in WORKLOAD_KEYS
        if own.get(name) != others.get(name)
    )
    if not settings:
        return Comparable("the prompts of the tasks differ, though their settings are the same")
    if [key for key, *_ in settings] == [f"workload.{_MORE_OF_THE_SAME}"]:
        if all(_is_as_ever(each) for each in (base, other)):
            return Comparable(None, settings, fewer_prompts=True)
        told = "repeats differ, and nothing shows that the prompts of the tasks are the same"
        return Comparable(told, settings)
    told = "; ".join(f"{key} is {_value(one)} and {_value(two)}" for key, one, two in settings)
    return Comparable(f"the workloads differ: {told}", settings)


def _is_as_ever(side: Side) -> bool:
    """Whether the tasks of a sweep still are what it measured."""
    try:
        return workload_digest(side.spec.workload) == side.workload
    except ConfigError:
        return False


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "not set" if value is None else str(value)
