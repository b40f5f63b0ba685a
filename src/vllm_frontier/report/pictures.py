"""The pictures of a sweep, in the order in which a page shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TypeAlias

import polars as pl
from altair.utils.schemapi import debug_mode

from vllm_frontier.analyze.cell_states import cell_states
from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.gain_parts import gain_parts
from vllm_frontier.analyze.memory_split import memory_split
from vllm_frontier.analyze.speed_groups import speed_groups
from vllm_frontier.analyze.standing import standing
from vllm_frontier.analyze.timeline import launch_order
from vllm_frontier.analyze.worth import acceptance_by_position, depth_steps, pays_up_to
from vllm_frontier.config import spec_from_document
from vllm_frontier.report.plots.acceptance import acceptance
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.plots.fits import fits
from vllm_frontier.report.plots.frontier import frontier
from vllm_frontier.report.plots.gain import gain
from vllm_frontier.report.plots.memory import memory
from vllm_frontier.report.plots.speed import speed
from vllm_frontier.report.plots.timeline import timeline
from vllm_frontier.report.result import Result
from vllm_frontier.spec import SweepSpec
from vllm_frontier.store import tables

Maker: TypeAlias = Callable[[], Figure | None]
Makers: TypeAlias = Iterable[Maker]

NAMES = ("fits", "frontier", "speed", "gain", "acceptance", "memory", "timeline")
"""What files of pictures are called."""


def pictures(found: Result) -> Iterator[Figure]:
    """Every picture that this sweep has something to show for, as soon as it is made.

    Args:
        found: a sweep that is finished, interrupted or running.
    """
    spec = spec_from_document(found.config, secrets=False)
    split = memory_parts(found, spec)
    first: Makers = (
        lambda: fits(cells(found, spec), found.boundaries, simulated=found.simulated),
        lambda: what_leads(found, split, spec),
    )
    last: Makers = (lambda: where_memory_goes(found, split), lambda: over_time(found))
    for make in chain(first, speeds(found), last):
        # Charts come from our own code; to hold each part against the schema takes a second.
        with debug_mode(False):
            figure = make()
        if figure is not None:
            yield figure


def cells(found: Result, spec: SweepSpec) -> pl.DataFrame:
    """Every cell of the grid, see `cell_states`."""
    return cell_states(
        found.trials.lazy(),
        planned=tables.planned(spec.grid.cells()).lazy(),
        running=found.running.lazy(),
    ).collect()


def memory_parts(found: Result, spec: SweepSpec) -> pl.DataFrame:
    """Where the memory of every cell goes, see `memory_split`."""
    return memory_split(found.trials.lazy(), reserved_gib=spec.card.reserved_gib).collect()


def what_leads(found: Result, split: pl.DataFrame, spec: SweepSpec) -> Figure | None:
    """The frontier among all cells that have a speed."""
    cells = standing(found.trials.lazy(), found.runs.lazy(), found.frontier.lazy()).collect()
    grid = {cell.context for cell in spec.grid.cells()}
    return frontier(cells, split, simulated=found.simulated, grid=grid)


def where_memory_goes(found: Result, split: pl.DataFrame) -> Figure | None:
    """The parts of the choices' memory."""
    chosen = choices(found.frontier.lazy()).collect()
    return memory(split, chosen, found.boundaries, simulated=found.simulated)


def speeds(found: Result) -> Iterator[Maker]:
    """What makes the pictures that tell how fast it is."""
    groups = speed_groups(found.trials.lazy(), found.runs.lazy())
    positions = acceptance_by_position(found.trials.lazy(), found.runs.lazy())
    yield lambda: speed(groups, simulated=found.simulated)
    yield lambda: gain(gain_parts(groups), simulated=found.simulated)
    yield lambda: acceptance(
        positions, depth_steps(groups), pays_up_to(groups), simulated=found.simulated
    )


def over_time(found: Result) -> Figure | None:
    """The launches in order."""
    launches = launch_order(found.trials.lazy(), found.runs.lazy())
    return timeline(launches, found.checks, simulated=found.simulated)
