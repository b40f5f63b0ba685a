"""What follows from launches: inferred cells, what they rest on, and where launches disagree."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Phase


@dataclass(frozen=True, slots=True)
class Inference:
    """A cell that was not launched, and whose answer follows from one that was.

    Attributes:
        cell: the cell.
        evidence: the launched cell from which it follows.
        failure_class: why it does not work, which is the evidence's; None: it works.
        phase: where it would end.
        doubt: why it may be wrong all the same; None where vLLM's own arithmetic refuses it.
            What is only presumed says that, too; see `proof.is_uncertain`.
    """

    cell: Cell
    evidence: Cell
    failure_class: FailureClass | None
    phase: Phase
    doubt: str | None

    @property
    def works(self) -> bool:
        """Whether the cell works."""
        return self.failure_class is None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two launches that disagree: `works` asks for at least as much as `fails`, which does not."""

    works: Cell
    fails: Cell


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Everything that follows from the launches of a sweep so far."""

    inferences: tuple[Inference, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
