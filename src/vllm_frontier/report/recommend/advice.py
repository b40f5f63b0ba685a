"""Which settings to serve with: choices of the frontier, each as something to paste."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

from vllm_frontier.analyze.choices import choices
from vllm_frontier.analyze.frontier import candidates, frontier
from vllm_frontier.analyze.gains import with_gains_of_task
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.analyze.nearest import nearest
from vllm_frontier.analyze.task_speeds import of_task
from vllm_frontier.config import spec_from_document
from vllm_frontier.engine.serving import serving
from vllm_frontier.errors import ConfigError
from vllm_frontier.outcome import Status
from vllm_frontier.report import checks, documents
from vllm_frontier.report.recommend import headline as commands
from vllm_frontier.report.recommend import nearest as near
from vllm_frontier.report.recommend.nearest import Wanted
from vllm_frontier.report.recommend.printed import show
from vllm_frontier.report.recommend.serving.forms import FORMS, forms, notes
from vllm_frontier.report.recommend.tradeoffs import against
from vllm_frontier.report.result import Result
from vllm_frontier.report.unread import unread
from vllm_frontier.report.wording import several
from vllm_frontier.search.proof import DISAGREEMENT, is_in_doubt
from vllm_frontier.spec import SweepSpec
from vllm_frontier.store.rows import cell_of

__all__ = ["FORMS", "Advice", "Wanted", "choose", "document", "show"]


@dataclass(frozen=True, slots=True)
class Advice:
    """The chosen cells, each with its commands.

    Where none will do, `choices` is empty, there is a `reason`, and `nearest` are the cells that
    come nearest. `notes` are about the sweep, or about what was asked for. `state`, `known` and
    `planned` (cells) are those of the sweep, null where they were not asked for.
    """

    sweep: str
    choices: list[dict[str, Any]]
    nearest: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    notes: list[str] = field(default_factory=list)
    state: str | None = None
    known: int | None = None
    planned: int | None = None


def choose(result: Result, wanted: Wanted, *, progress: Mapping[str, Any] | None = None) -> Advice:
    """The fastest, the longest and the balanced cell that satisfy what is wanted.

    Args:
        result: the sweep.
        wanted: what is asked for.
        progress: how far the sweep is, from `state.document`; None where that is told elsewhere.

    Raises:
        ConfigError: the sweep has no such task, or a limit is no number.
        EngineError: the sweep's own command cannot be read.
    """
    _check(result, wanted)
    advice = _chosen(result, wanted)
    if progress is None:
        return advice
    return dataclasses.replace(
        advice,
        notes=[*_so_far(progress), *_damaged(progress), *advice.notes],
        state=progress["state"],
        known=progress["done"],
        planned=progress["planned"],
    )


def _damaged(progress: Mapping[str, Any]) -> list[str]:
    told = unread(progress["damaged"])
    return [] if told is None else [told]


def _chosen(result: Result, wanted: Wanted) -> Advice:
    spec = spec_from_document(result.config, secrets=False)
    tables = result.trials.lazy(), result.runs.lazy()
    limits: dict[str, Any] = {
        "min_context": wanted.min_context,
        "min_decode": wanted.min_decode,
        "max_utilization": wanted.max_utilization,
    }
    figures = cell_figures(*tables)
    leading = frontier(*tables, task=wanted.task, figures=figures, **limits)
    own = partial(with_gains_of_task, figures=figures, task=wanted.task)
    rows = own(choices(leading, task=wanted.task), *tables).collect()
    chosen = _told(result, spec, rows)
    if chosen:
        costs = against(chosen, figures, wanted.task)
        told = [{**one, "against": each} for one, each in zip(chosen, costs, strict=True)]
        return Advice(result.name, told, notes=_notes(spec, rows))
    if result.frontier.is_empty():
        return Advice(result.name, [], reason=result.nothing())
    cells = of_task(candidates(*tables, figures=figures), wanted.task)
    works = cells.collect()
    if works.is_empty():
        return Advice(result.name, [], reason=f"no cell that works has a speed for {wanted.task}")
    # The speed is that of the task already.
    found = own(nearest(works.lazy(), **limits), *tables).collect()
    told = [
        {
            **each,
            "against": [],
            "headline": near.headline(row),
            "missing": near.missing(row, wanted),
        }
        for row, each in zip(found.iter_rows(named=True), _told(result, spec, found), strict=True)
    ]
    about = near.notes(wanted, result.trials, result.config["grid"], works, found)
    reason = near.reason(wanted, works)
    return Advice(result.name, [], told, reason, [*about, *_notes(spec, found)])


def document(advice: Advice) -> dict[str, Any]:
    """What `recommend --json` prints: `sweep`, `choices`, `nearest`, `reason`, `notes` and more.

    `state` (as in `status --json`), `known` and `planned` tell how far the sweep is.

    The choices are cells, each with

    - `command`, `config` (the content of a config file for `vllm serve --config`), `config_file`
      (its name), `config_command` (what serves it) and `docker`, all text to paste, null where
      there is none, and `environment` (variables by name that these set; null: a secret);
    - `against`: what it costs against each other choice, see `against.against`;
    - `note`, null where it was launched itself, and `checks`: what was found about it, or about
      the cell whose speed it has (`check`, `verdict`, `detail`).

    `nearest` are such cells where no cell satisfies what is asked for: `nearest_in` (the
    constraints in which it comes nearest of those that satisfy the others, and `overall`),
    `headline` (the same in words) and `missing` (`constraint`, `wanted`, `found`, `by`, `words`).
    """
    return dataclasses.asdict(advice)


def _check(result: Result, wanted: Wanted) -> None:
    tasks = list(result.config["workload"]["tasks"])
    if wanted.task is not None and wanted.task not in tasks:
        raise ConfigError(f"--task is {wanted.task!r}, but this sweep measured {', '.join(tasks)}")
    if wanted.min_decode is not None and not math.isfinite(wanted.min_decode):
        raise ConfigError(f"--min-decode is {wanted.min_decode}, but must be a number of tokens/s")
    if wanted.max_utilization is not None and not math.isfinite(wanted.max_utilization):
        raise ConfigError(f"--max-utilization is {wanted.max_utilization}, but must be a share")


def _told(result: Result, spec: SweepSpec, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of the frontier as objects, each with its commands and what was found about it."""
    checked = documents.objects(result.checks.lazy())
    told = documents.with_doubt(documents.objects(rows.lazy()), checked)
    found = []
    for row, each in zip(rows.iter_rows(named=True), told, strict=True):
        words = commands.describe(each)
        first = each["choices"][0] if "choices" in each else f"nearest-{each['nearest_in'][0]}"
        ways = forms(
            serving(spec, cell_of(row)),
            headline=f"{result.name}, {words}",
            file=f"{result.name}-{first.replace('_', '-')}.yaml",
            version=_version(spec, row),
        )
        found.append(
            {
                **each,
                **dataclasses.asdict(ways),
                "note": _follows(result, row),
                "checks": checks.about(checked, {row["cell_id"], row["speed_cell"]}),
            }
        )
    return found


def _so_far(progress: Mapping[str, Any]) -> Iterator[str]:
    """That the sweep may come to something better; nothing of one that is finished."""
    if progress["state"] == "finished":
        return
    cells = f"{progress['done']} of {several(progress['planned'], 'cell', 'cells')} known"
    if progress["state"] == "running":
        yield f"so far: {cells}; the sweep is running"
        return
    reason = progress["reason"]
    ended = "was interrupted" if reason is None else f"was ended by its budget ({reason})"
    resume = shlex.join(["vllm-frontier", "resume", progress["folder"]])
    yield f"so far: {cells}; the search {ended}; go on with: {resume}"


def _notes(spec: SweepSpec, rows: pl.DataFrame) -> list[str]:
    found: list[str] = []
    for row in rows.head(1).iter_rows(named=True):
        found += notes(serving(spec, cell_of(row)), _version(spec, row))
    if spec.engine.kind == documents.SIMULATED and spec.model.id == spec.model.name:
        found.append(f"{spec.model.id} stands for the model: put its folder or hub id there")
    if spec.card.uuids:
        measured = ",".join(spec.card.uuids[: spec.engine.tensor_parallel])
        found.append(
            "where there are other cards, too, set CUDA_VISIBLE_DEVICES="
            f"{measured} (docker: --gpus '\"device={measured}\"')"
        )
    return found


def _version(spec: SweepSpec, row: Mapping[str, Any]) -> str | None:
    """Of vLLM; a simulated server has none."""
    if spec.engine.kind == documents.SIMULATED:
        return None
    return None if row["engine_version"] is None else str(row["engine_version"])


def _follows(result: Result, row: Mapping[str, Any]) -> str | None:
    """What an inferred cell rests on, in one line; None of a cell that was launched."""
    if row["status"] != Status.INFERRED:
        return None
    trials = result.trials
    its_row = trials.filter(cell_id=row["cell_id"], attempt=0)
    evidence = trials.filter(pl.col("cell_id").is_in(its_row["evidence_cell"].to_list())).head(1)
    rests_on = [cell_of(each).label() for each in evidence.iter_rows(named=True)]
    follows = f"; follows from {rests_on[0]}, which works" if rests_on else ""
    doubts = "".join(_in_doubt(doubt) for doubt in its_row["doubt"])
    return f"not launched itself{follows}{doubts}; start it once before you rely on it"


def _in_doubt(doubt: str | None) -> str:
    if doubt == DISAGREEMENT:
        return ", though other launches say it does not"
    return f"; in doubt: {doubt}" if is_in_doubt(doubt) else ""
