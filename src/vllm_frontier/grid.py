"""The grid: axes, cells, and the identity of a cell.

A cell is one point of the grid. Its identity is a digest of everything that decides its
result, so that the same cell of the same sweep is recognised after a crash, on another day
and in another folder.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

IDENTITY_VERSION = 1
BUILT_IN_AXES = ("depth", "context", "graphs", "utilization")

Value = bool | int | float | str


def shortest(number: float) -> str:
    """A number in the fewest digits that are no other number's: `1`, `0.9`, `0.900000001`."""
    text = f"{number:g}"
    return text if float(text) == number else repr(float(number))


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting that the grid varies, and the values it takes (at least one, no two equal)."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid.

    Attributes:
        depth: tokens drafted per step; 0 means no speculation.
        context: `max_model_len`, tokens.
        graphs: whether CUDA graphs (on CPU: compilation) are on.
        utilization: share of the card's memory that vLLM may use, in (0, 1].
        extra: further vLLM arguments by name, sorted by name.
    """

    depth: int
    context: int
    graphs: bool
    utilization: float
    extra: tuple[tuple[str, Value], ...] = ()

    def axes(self) -> dict[str, Value]:
        """The cell as a mapping from axis name to value, built-in axes first."""
        built_in: dict[str, Value] = {
            "depth": self.depth,
            "context": self.context,
            "graphs": self.graphs,
            "utilization": self.utilization,
        }
        return built_in | dict(self.extra)

    def label(self) -> str:
        """A short name for people, such as `depth=3 context=8192 graphs=on util=0.9`."""
        text = (
            f"depth={self.depth} context={self.context} "
            f"graphs={'on' if self.graphs else 'off'} util={shortest(self.utilization)}"
        )
        return " ".join([text, *(f"{name}={value}" for name, value in self.extra)])


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a sweep and what is left out of their product.

    An exclude rule maps axis names to values (or lists of values); a cell is left out when
    every entry of a rule matches. Depth 0 with and without graphs is added to the product,
    because every gain is told against it; an exclude rule can take it out again.
    """

    depth: tuple[int, ...]
    context: tuple[int, ...]
    graphs: tuple[bool, ...]
    utilization: tuple[float, ...]
    extra: tuple[Axis, ...] = ()
    exclude: tuple[tuple[tuple[str, tuple[Value, ...]], ...], ...] = ()

    def cells(self) -> tuple[Cell, ...]:
        """All cells, shallow depth and short context first, without repetition."""
        return tuple(cell for cell in self._product() if not self.excludes(cell))

    def excludes(self, cell: Cell) -> bool:
        """Whether an exclude rule matches the cell."""
        axes = cell.axes()
        return any(all(axes[name] in values for name, values in rule) for rule in self.exclude)

    def _product(self) -> Iterator[Cell]:
        names = sorted(axis.name for axis in self.extra)
        values_of = {axis.name: axis.values for axis in self.extra}
        for extra in itertools.product(*(values_of[name] for name in names)):
            for depth in sorted({0, *self.depth}):
                # The baseline is needed both ways to tell the graphs' gain from speculation's.
                graphs = (False, True) if depth == 0 else sorted(self.graphs)
                for point in itertools.product(
                    graphs, sorted(self.utilization), sorted(self.context)
                ):
                    yield Cell(
                        depth=depth,
                        context=point[2],
                        graphs=point[0],
                        utilization=point[1],
                        extra=tuple(zip(names, extra, strict=True)),
                    )


def digest(value: object, *, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def cell_id(cell: Cell, identity: Mapping[str, Any]) -> str:
    """The identity of a cell within a sweep whose fixed part is `identity`.

    Args:
        cell: the point of the grid.
        identity: JSON values that decide the result beside the axes: model, card, engine and
            fixed engine arguments.
    """
    return digest({"version": IDENTITY_VERSION, "axes": cell.axes(), **identity})
