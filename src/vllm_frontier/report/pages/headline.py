"""What stands first: how far the sweep is, and the answer in two sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.outcome import Purpose, Status
from vllm_frontier.report.again import launched_again
from vllm_frontier.report.disagreement import axes
from vllm_frontier.report.pages.tabular import on_off
from vllm_frontier.report.result import Result
from vllm_frontier.report.wording import several

Row = Mapping[str, Any]

_NOT_TRIED = "not tried"
_INFERRED_WORKS, _INFERRED_REFUSED = "inferred works", "inferred refused"
_KINDS = (
    (Status.MEASURED.value, "work", "works"),
    (_INFERRED_WORKS, "work, inferred", "works"),
    (Status.INFEASIBLE.value, "do not fit", "refused"),
    (_INFERRED_REFUSED, "do not fit, inferred", "refused"),
    (Status.INVALID.value, "refused by vLLM", "invalid"),
    (Status.FAILED.value, "failed", "failed"),
    (Status.INTERRUPTED.value, "interrupted", "unknown"),
    ("running", "running now", "running"),
    (_NOT_TRIED, "not tried", "unknown"),
)
"""What can have become of a cell: words, and the name of the colour."""

_STATES = {
    "running": "Running",
    "interrupted": "Interrupted",
    "finished": "Finished",
}


@dataclass(frozen=True, slots=True)
class Share:
    """How many cells have come to the same: a part of the bar below the headline."""

    cells: int
    words: str
    kind: str  # of the colour
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """How far a sweep is: a word, the same for style, and sentences."""

    word: str
    kind: str
    told: tuple[str, ...]


def state(progress: Row) -> State:
    """How far it is.

    Args:
        progress: from `state.document`.
    """
    word, kind = _STATES[progress["state"]], progress["state"]
    if progress["reason"] is not None:
        word, kind = "Stopped by its budget", "stopped"
    return State(word, kind, tuple(_told(progress)))


def _told(progress: Row) -> Iterator[str]:
    reason = f" ({progress['reason']})" if progress["reason"] is not None else ""
    yield f"{progress['done']:,} of {several(progress['planned'], 'cell', 'cells')} known{reason}."
    if progress["state"] == "running":
        yield (
            f"It was being measured by {progress['writer']} when this report was made; the report "
            "does not change."
        )
        for cell in progress["running"]:
            yield f"Now: {axes(_with_extra(cell))}, attempt {cell['attempt']}."
    elif not progress["launches"]:
        yield "Nothing was launched yet."
    if progress["launches_left"]:
        about = several(progress["launches_left"], "launch is", "launches are")
        them = "it" if progress["launches_left"] == 1 else "them"
        yield f"About {about} left; vllm-frontier resume {progress['folder']} makes {them}."


def _with_extra(cell: Row) -> Row:
    known = {"depth", "context", "graphs", "utilization", "attempt"}
    return {**cell, "extra_axes": sorted(cell.keys() - known)}


def answer(document: Row) -> str:
    """The answer of a sweep in one or two sentences.

    Args:
        document: from `documents.show_document`.
    """
    chosen = {name: each for each in document["choices"] for name in each["choices"]}
    if not chosen:
        reason = document["reason"] or "no cell has a measured speed yet"
        return f"{reason[0].upper()}{reason[1:]}."
    longest, fastest = chosen["longest"], chosen["fastest"]
    if longest["cell_id"] == fastest["cell_id"]:
        told = f"Longest and fastest at once: {_window(longest)} at {_speed(longest)}"
        told += f", with {_settings(longest)}."
    else:
        told = (
            f"Longest window: {_window(longest)} at {_speed(longest)}, with {_settings(longest)}. "
        )
        told += f"Fastest: {_speed(fastest)} at {_window(fastest)}, with {_settings(fastest)}"
        tied = _of(document, longest).get("against_fastest") == Verdict.NO_CLEAR_DIFFERENCE
        told += ", though without a clear difference." if tied else "."
    if fastest["gain_no_graphs"] is not None:
        doubt = ", which is in doubt itself" if fastest["gain_in_doubt"] else ""
        told += f" That is {fastest['gain_no_graphs']:.2f} times the speed without speculation and "
        told += f"graphs{doubt}."
    return told


def _of(document: Row, choice: Row) -> Row:
    rows = document["frontier"]
    return next((row for row in rows if row["cell_id"] == choice["cell_id"]), {})


def _window(cell: Row) -> str:
    return f"{cell['context']:,} tokens"


def _speed(cell: Row) -> str:
    return f"{cell['decode_tok_s']:,.1f} tokens/s"


def _settings(cell: Row) -> str:
    drafted = f"depth {cell['depth']}" if cell["depth"] else "no speculation"
    return f"{drafted} and graphs {on_off(cell['graphs'])}"


def shares(document: Row) -> list[Share]:
    """The cells by what became of them, those that work first; only kinds that occur.

    Args:
        document: from `documents.show_document`.
    """
    counts = Counter(_kind(cell) for cell in document["grid"])
    counts[_NOT_TRIED] += document["not_reached"]
    return [
        Share(counts[kind], words, colour, inferred=kind in (_INFERRED_WORKS, _INFERRED_REFUSED))
        for kind, words, colour in _KINDS
        if counts[kind]
    ]


def _kind(cell: Row) -> str:
    if cell["status"] == Status.INFERRED:
        return _INFERRED_WORKS if cell["failure_class"] is None else _INFERRED_REFUSED
    return str(cell["status"])


def launches(document: Row) -> str:
    """How many launches all this took.

    Args:
        document: from `documents.show_document`.
    """
    again = [document["launches"].get(name, 0) for name in (Purpose.REPLICATE, Purpose.REFERENCE)]
    made = sum(document["launches"].values()) - sum(again)
    told = several(made, "launch", "launches")
    if document["inferred"]["cells"]:
        told += f"; {several(document['inferred']['cells'], 'cell', 'cells')} inferred from them"
    beside = launched_again(*again)
    return f"{told}, and {beside}" if beside else told


def facts(found: Result) -> list[tuple[str, str]]:
    """What it was measured with: engine, card, model, workload, as names and words."""
    config, trials = found.config, found.trials
    work = config["workload"]
    engine = _values(trials, "engine") or str(config["engine"]["kind"])
    version = _values(trials, "engine_version")
    memory = config["card"]["memory_gib"]
    told = [
        ("Engine", f"{engine} {version}".strip()),
        ("Card", f"{_values(trials, 'card') or config['card']['name']}, {memory:g} GiB"),
        ("Model", _values(trials, "model_name") or str(config["model"]["name"])),
        (
            "Quantization",
            _values(trials, "quantization") or str(config["model"]["quantization"] or ""),
        ),
        ("Driver", _values(trials, "driver")),
        ("CUDA", _values(trials, "cuda")),
        ("Workload", _workload(work)),
    ]
    return [(name, value) for name, value in told if value]


def _workload(work: Row) -> str:
    repeats = several(int(work.get("repeats") or 1), "repeat", "repeats")
    told = [", ".join(work["tasks"]), f"{repeats} of each"]
    replicates = int(work.get("replicates") or 1)
    if replicates > 1:
        told.append(f"{replicates} launches of each measured cell")
    told.append(f"temperature {work.get('temperature') or 0:g}")
    return "; ".join(told)


def _values(trials: pl.DataFrame, column: str) -> str:
    """The values of a column, each once; a sweep may have gone on with another engine."""
    return ", ".join(str(each) for each in trials[column].drop_nulls().unique().sort())
