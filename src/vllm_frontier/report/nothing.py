"""Why a sweep has no frontier, in a sentence."""

from __future__ import annotations

import textwrap

import polars as pl

from vllm_frontier.analyze.latest import counted, does_not_work, is_inferred, works
from vllm_frontier.outcome import FailureClass, Status
from vllm_frontier.report.wording import several

_EVIDENCE_WIDTH = 160  # characters


def why_nothing(trials: pl.DataFrame, left: int) -> str:
    """What stands in the place of a frontier that has no cells.

    Args:
        trials: the table `trials`.
        left: cells of the grid about which nothing is known yet.

    Returns:
        A sentence in small letters without its full stop.
    """
    cells = counted(trials.lazy())
    working = cells.filter(works()).collect().height
    refused = cells.filter(does_not_work()).collect()
    failed = cells.filter(pl.col("status") == Status.FAILED.value).collect()
    if working:
        told = f"{several(working, 'cell works', 'cells work')}, but no speed was measured"
        return told + (
            f"; {several(failed.height, 'cell', 'cells')} failed: {_of(failed)}"
            if len(failed)
            else ""
        )
    yet = "no cell has a measured speed yet"
    if failed.is_empty() and refused.is_empty():
        return yet
    if refused.is_empty():
        what = f"every launch failed{' so far' if left else ''}: {_of(failed)}"
    else:
        what = _refusal(refused, "nothing that was tried" if left or len(failed) else "nothing")
        what += (
            f"; {several(failed.height, 'cell', 'cells')} failed: {_of(failed)}"
            if len(failed)
            else ""
        )
    return f"{yet}: {what}" if left else what


def _refusal(refused: pl.DataFrame, nothing: str) -> str:
    """That nothing fits, the most frequent reason, and what a launch said of it."""
    reason = _most_frequent(refused)
    of_all = f"of {several(refused.height, 'cell', 'cells')} refused"
    same = refused.filter(failure_class=reason)
    told = f"{reason} ({same.height} {of_all})"
    if FailureClass(reason).status is Status.INVALID:
        where = "" if nothing == "nothing" else " that was tried"
        return f"vLLM refuses every cell{where}: {told}{_evidence(same)}"
    where = " in the grid" if nothing == "nothing" else ""
    return f"{nothing}{where} fits: {told}{_figures(same) or _evidence(same)}"


def _figures(refused: pl.DataFrame) -> str:
    """The memory of the shortest window of which a launch tells it; of these the nearest miss."""
    launched = refused.filter(~is_inferred(), pl.col("kv_available_gib").is_not_null())
    nearest = launched.sort("context", "kv_available_gib", descending=[False, True])
    for row in nearest.head(1).iter_rows(named=True):
        free, needed = row["kv_available_gib"], row["kv_needed_gib"]
        window = f"a window of {row['context']} tokens"
        if needed is not None:
            return f"; {window} needs {needed:.2f} GiB of KV cache, and {free:.2f} GiB are left"
        return f"; for {window} {free:.2f} GiB are left for the KV cache"
    return ""


def _and_failed(failed: pl.DataFrame) -> str:
    cells = several(failed.height, "cell", "cells")
    return f"; {cells} failed: {_of(failed)}" if len(failed) else ""


def _of(failed: pl.DataFrame) -> str:
    """The most frequent reason of failures, with the evidence of one."""
    reason = _most_frequent(failed)
    same = failed.filter(failure_class=reason)
    return f"{reason} ({same.height} of {failed.height}){_evidence(same)}"


def _most_frequent(cells: pl.DataFrame) -> str:
    reasons = cells.group_by("failure_class").len()
    ordered = reasons.sort("len", "failure_class", descending=[True, False])
    return str(ordered["failure_class"].item(0))


def _evidence(cells: pl.DataFrame) -> str:
    told = cells.sort("context", "depth", "cell_id")["evidence"].drop_nulls()
    if told.is_empty():
        return ""
    return f"; {textwrap.shorten(told.item(0), _EVIDENCE_WIDTH, placeholder=' ...')}"
