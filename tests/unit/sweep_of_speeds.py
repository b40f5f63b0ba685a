"""Tables of sweeps with known speeds and acceptance, for frames and pictures of speed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import unescape
from typing import Any

import polars as pl
from checked_sweep import Row, launch

from vllm_frontier.report.plots import render
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.store.tables import frame

TASKS = ("code", "edit", "prose")
# An RTX 5090 with a model of 27 B: medians of three, tokens/s, by depth and graphs, in the order of
# TASKS. Without speculation there is no figure with graphs.
PUBLISHED = {
    (0, False): (23.7, 23.7, 23.7),
    (1, False): (48.5, 49.9, 47.3),
    (2, False): (68.2, 71.8, 62.0),
    (3, False): (86.4, 93.9, 75.5),
    (4, False): (96.9, 115.4, 83.9),
    (4, True): (190.0, 228.0, 159.0),
    (5, True): (202.0, 253.0, 159.0),
}


def decoding(
    of: Row, speeds: Mapping[str, Iterable[float]], accepted: Sequence[int] = (), **more: Any
) -> list[Row]:
    """Decode runs of a launch, some of each task; of 100 drafts so many by position."""
    counters = {"drafts": 100, "accepted_per_position": list(accepted)} if accepted else {}
    return [
        {
            "cell_id": of["cell_id"],
            "attempt": of["attempt"],
            "task": task,
            "repeat": number,
            "variant": number,
            "kind": "decode",
            "concurrency": 1,
            "temperature": 0.0,
            "decode_tok_s": speed,
        }
        | counters
        | more
        for task, each in speeds.items()
        for number, speed in enumerate(each)
    ]


def tables(trials: Iterable[Row], runs: Iterable[Row]) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """The tables `trials` and `runs`."""
    return frame("trials", list(trials)).lazy(), frame("runs", list(runs)).lazy()


def published(
    speeds: Mapping[tuple[int, bool], Sequence[float]] = PUBLISHED,
) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """One launch for each depth, with and without graphs, three equal runs of each task."""
    trials, runs = [], []
    for (depth, graphs), each in speeds.items():
        of = launch(depth, graphs=graphs, spec_state="working" if depth else None)
        trials.append(of)
        by_task = {task: [speed] * 3 for task, speed in zip(TASKS, each, strict=False)}
        runs += decoding(of, by_task, accepted=[95, 89, 86, 79, 70][:depth])
    return tables(trials, runs)


def marks(figure: Figure) -> list[list[str]]:
    """The words of every mark that has some, panel by panel."""
    return [
        [
            unescape(words)
            for words in re.findall(r'aria-label="([^"]*)"', svg)
            if not re.match(r"(Title|Subtitle|[XY]-axis) ", words)
        ]
        for svg in render.panels(figure)
    ]


def data_of(figure: Figure) -> list[dict[str, Any]]:
    """The rows of data of all panels, as the charts have them."""
    found: list[dict[str, Any]] = []
    for panel in figure.panels:
        for rows in panel.to_dict()["datasets"].values():
            found += rows
    return found
