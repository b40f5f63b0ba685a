"""The pictures of a sweep, in the order in which a page shows them."""

from __future__ import annotations

import polars as pl

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
from vllm_frontier.store import tables


def pictures(found: Result) -> list[Figure]:
    """Every picture that this sweep has something to show for.

    Args:
        found: a sweep that is finished, interrupted or running.
    """
    split = memory_parts(found)
    made = [
        fits(cells(found), found.boundaries, simulated=found.simulated),
        what_leads(found, split),
        *speeds(found),
        where_memory_goes(found, split),
        over_time(found),
    ]
    return [each for each in made if each is not None]


def cells(found: Result) -> pl.DataFrame:
    """Every cell of the grid, see `cell_states`."""
    spec = spec_from_document(found.config, secrets=False)
    return cell_states(
        found.trials.lazy(),
        planned=tables.planned(spec.grid.cells()).lazy(),
        running=found.running.lazy(),
    ).collect()


def memory_parts(found: Result) -> pl.DataFrame:
    """Where the memory of every cell goes, see `memory_split`."""
    spec = spec_from_document(found.config, secrets=False)
    return memory_split(found.trials.lazy(), reserved_gib=spec.card.reserved_gib).collect()


def what_leads(found: Result, split: pl.DataFrame) -> Figure | None:
    """The frontier among all cells that have a speed."""
    cells = standing(found.trials.lazy(), found.runs.lazy(), found.frontier.lazy()).collect()
    spec = spec_from_document(found.config, secrets=False)
    grid = {cell.context for cell in spec.grid.cells()}
    return frontier(cells, split, simulated=found.simulated, grid=grid)


def where_memory_goes(found: Result, split: pl.DataFrame) -> Figure | None:
    """The parts of the choices' memory."""
    chosen = choices(found.frontier.lazy()).collect()
    return memory(split, chosen, found.boundaries, simulated=found.simulated)


def speeds(found: Result) -> list[Figure | None]:
    """What tells how fast it is."""
    groups = speed_groups(found.trials.lazy(), found.runs.lazy())
    positions = acceptance_by_position(found.trials.lazy(), found.runs.lazy())
    return [
        speed(groups, simulated=found.simulated),
        gain(gain_parts(groups), simulated=found.simulated),
        acceptance(positions, depth_steps(groups), pays_up_to(groups), simulated=found.simulated),
    ]


def over_time(found: Result) -> Figure | None:
    """The launches in order."""
    launches = launch_order(found.trials.lazy(), found.runs.lazy())
    return timeline(launches, found.checks, simulated=found.simulated)
