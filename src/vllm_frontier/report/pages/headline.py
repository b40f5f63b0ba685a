"""What stands first: how far the sweep is, and the answer in two sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from vllm_frontier.analyze.checks import Verdict as Judged
from vllm_frontier.analyze.checks.output import BROKEN_ALL_THE_SAME
from vllm_frontier.analyze.verdicts import Verdict
from vllm_frontier.outcome import Purpose, Status
from vllm_frontier.report import checks
from vllm_frontier.report.again import launched_again
from vllm_frontier.report.disagreement import axes
from vllm_frontier.report.pages import codes
from vllm_frontier.report.pages.tabular import apart, on_off, sentence
from vllm_frontier.report.result import Result
from vllm_frontier.report.unread import unread
from vllm_frontier.report.wording import listed, several

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


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with what cells write: these, in words, and the best cell without it."""

    cells: frozenset[str]
    words: str
    sound: Row | None


def fault(choices: Sequence[Row], checked: Sequence[Row], cells: Sequence[Row]) -> Fault | None:
    """What is wrong with what choices write; None where nothing is.

    Args:
        choices: of `documents.show_document`.
        checked: of the table `checks`, as objects.
        cells: all that work and have a speed, with `cell_id`, `speed_cell` and the median.
    """
    found = {
        row["cell_id"]: row["detail"]
        for row in checked
        if row["check"] == checks.OUTPUT and row["verdict"] in (Judged.FAIL, Judged.WARN)
    }
    faulty = {each["cell_id"]: found[name] for each in choices for name in _behind(each, found)}
    if not faulty:
        return None
    right = all(BROKEN_ALL_THE_SAME in detail for detail in faulty.values())
    sound = [cell for cell in cells if not _behind(cell, found)]
    return Fault(
        cells=frozenset(faulty),
        words=f"sampled output is broken: {BROKEN_ALL_THE_SAME}"
        if right
        else "output may not be right: see the checks",
        sound=max(sound, key=lambda cell: (cell["decode_tok_s"], cell["context"]), default=None),
    )


def _behind(cell: Row, found: Mapping[str, str]) -> list[str]:
    """Of a cell, and of the one whose speed it has, those that something was found of."""
    names = (str(cell["cell_id"]), str(cell.get("speed_cell")))
    return [name for name in names if name in found][:1]


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
            yield f"Now: {apart(axes(_with_extra(cell)))}, attempt {cell['attempt']}."
    elif not progress["launches"]:
        yield "Nothing was launched yet."
    if unreadable := unread(progress["damaged"]):
        yield f"{unreadable}."
    if progress["launches_left"]:
        about = several(progress["launches_left"], "launch is", "launches are")
        them = "it" if progress["launches_left"] == 1 else "them"
        yield f"About {about} left; vllm-frontier resume {progress['folder']} makes {them}."


def _with_extra(cell: Row) -> Row:
    known = {"depth", "context", "graphs", "utilization", "attempt"}
    return {**cell, "extra_axes": sorted(cell.keys() - known)}


def answer(document: Row, progress: Row, fault: Fault | None = None, remedy: str = "") -> str:
    """The answer of a sweep in a few sentences.

    Args:
        document: from `documents.show_document`.
        progress: from `state.document`.
        fault: what is wrong with the output of choices.
        remedy: what would help where nothing works, a sentence.
    """
    chosen = {name: each for each in document["choices"] for name in each["choices"]}
    if not chosen:
        reason = document["reason"] or "no cell has a measured speed yet"
        told = sentence(apart(codes.with_words(reason)))
        return f"{told} What would help: {remedy}" if remedy else told
    longest, fastest = chosen["longest"], chosen["fastest"]
    once = longest["cell_id"] == fastest["cell_id"]
    told = "Longest and fastest at once" if once else "Longest window"
    if progress["state"] != "finished":
        known = f"{progress['done']:,} of {several(progress['planned'], 'cell', 'cells')}"
        told = f"So far, with {known} known: {told[:1].lower()}{told[1:]}"
    told += f": {_window(longest)} at {_speed(longest)}, with {_settings(longest)}."
    if not once:
        told += f" Fastest: {_speed(fastest)} at {_window(fastest)}, with {_settings(fastest)}"
        tied = _of(document, longest).get("against_fastest") == Verdict.NO_CLEAR_DIFFERENCE
        told += ", though without a clear difference." if tied else "."
    if fault is not None:
        told += _wrong(fault, chosen)
    if fastest["gain_no_graphs"] is not None:
        doubt = ", which is in doubt itself" if fastest["gain_in_doubt"] else ""
        what = "That is" if fault is None else "The fastest has"
        told += f" {what} {fastest['gain_no_graphs']:.2f} times the speed without speculation and "
        told += f"graphs{doubt}."
    return told


def _wrong(fault: Fault, chosen: Mapping[str, Row]) -> str:
    """That output is not right, of which choices, and what is best without that."""
    faulty = [name for name, each in chosen.items() if each["cell_id"] in fault.cells]
    whose = "its" if len(faulty) == len(chosen) else f"of the {listed(sorted(faulty))} the"
    if len(faulty) == len(chosen) and len({each["cell_id"] for each in chosen.values()}) > 1:
        whose = "their"
    told = f" But {whose} {fault.words}."
    if fault.sound is None:
        return told
    settings = _settings(fault.sound)
    without = "Without speculation" if not fault.sound["depth"] else f"Without that, {settings}"
    return f"{told} {without}: {_speed(fault.sound)} at {_window(fault.sound)}."


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
    card = _values(trials, "card") or str(config["card"]["name"])
    size = f"{config['card']['memory_gib']:g} GiB"
    told = [
        ("Engine", version if version.startswith(engine) else f"{engine} {version}".strip()),
        ("Card", card if size in card else f"{card}, {size}"),
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
