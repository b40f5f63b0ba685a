"""The picture of the launches over time."""

import re
import time
from typing import Any

import polars as pl
import pytest
from checked_sweep import Row, launch
from sweep_of_speeds import data_of, decoding, marks, tables

from vllm_frontier.analyze.checks import checks
from vllm_frontier.analyze.timeline import launch_order
from vllm_frontier.outcome import Status
from vllm_frontier.report.plots import render, theme
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.plots.timeline import timeline


def drawn(launches: list[tuple[Row, float | None]], **conditions: float) -> Figure | None:
    runs = [
        run
        for of, speed in launches
        if speed is not None
        for run in decoding(of, {"edit": [speed] * 3}, **conditions)
    ]
    trials = tables([of for of, _ in launches], runs)
    return timeline(launch_order(*trials), checks(*trials).collect())


def watched(*speeds: float, **conditions: float) -> Figure:
    """A reference cell with these speeds, an hour apart, and another cell after it."""
    launches: list[tuple[Row, float | None]] = [
        (
            launch(3, attempt=number + 1, hours=number, purpose="reference" if number else "proof"),
            speed,
        )
        for number, speed in enumerate(speeds)
    ]
    figure = drawn([*launches, (launch(0, hours=9.0), 50.0)], **conditions)
    assert figure is not None
    return figure


def test_the_reference_cell_is_joined_by_a_line() -> None:
    figure = watched(100.0, 90.0, 80.0)
    (words,) = marks(figure)
    assert len(words) == 4
    own = [each for each in words if "reference cell" in each]
    assert own[0] == (
        "launch 1, 2026-01-01 00:00 UTC: 3 tokens drafted, with graphs, window 8,192; 100.0 "
        "tokens/s; +11.1 % against the median of 3 like it; reference cell"
    )
    rows = [row for row in data_of(figure) if row.get("reference")]
    at = {row["launch"]: row["off"] for row in rows}
    assert at == pytest.approx({1: 100 / 9, 2: 0.0, 3: -100 / 9})
    (svg,) = render.panels(figure)
    assert 'stroke="var(--series-2)"' in svg
    assert figure.table is not None
    assert figure.table["against the first"].to_list() == ["+0.0 %", "-10.0 %", "-20.0 %"]


def test_the_verdict_on_drift_leads_the_summary() -> None:
    assert watched(100.0, 90.0, 80.0).summary.startswith(
        "Drift: the reference cell became 20.0 % slower from its first launch to its last"
    )
    assert watched(100.0, 100.0).summary.startswith("No drift: the reference cell stayed")
    only = drawn([(launch(0), 50.0)])
    assert only is not None
    assert only.summary == (
        "Whether speed drifted is not known: no cell was launched again to watch its speed. "
        "1 launch: 1 with a speed."
    )


def test_launches_without_a_speed_have_a_sign_for_each_outcome() -> None:
    final = [each for each in Status if each is not Status.INFERRED]
    launches = [
        (launch(0, hours=place, context=1024 * (place + 1), status=each.value), None)
        for place, each in enumerate(final)
    ]
    figure = drawn([*launches, (launch(1, hours=9.0), 50.0)])
    assert figure is not None
    (words,) = marks(figure)
    assert len(words) == len(final) + 1
    shapes = [row["shape"] for row in data_of(figure) if "shape" in row]
    assert len(set(shapes)) == len(final)
    assert len(figure.legend) == len(final) + 1
    assert "1 that did not fit, 1 refused by vLLM, 1 failed, 1 interrupted" in figure.summary


@pytest.mark.parametrize(
    ("conditions", "tracks"),
    [
        ({"sm_clock_mhz": 2500.0, "temperature_c": 60.0, "cpu_mhz": 3000.0}, ["clock, MHz", "°C"]),
        ({"cpu_mhz": 3000.0, "foreign_cores": 0.5}, ["CPU, MHz", "others, cores"]),
        ({}, []),
    ],
)
def test_tracks_tell_of_the_card_or_else_of_the_machine(
    conditions: dict[str, float], tracks: list[str]
) -> None:
    figure = watched(100.0, 100.0, **conditions)
    (svg,) = render.panels(figure)
    names = ("clock, MHz", "°C", "CPU, MHz", "others, cores")
    assert [name for name in names if f">{name}</text>" in svg] == tracks
    assert ("No telemetry tells of clocks or temperature." in figure.notes) == (not tracks)
    if tracks == ["clock, MHz", "°C"]:
        assert marks(figure)[0][0].endswith("clock 2,500 MHz; 60 °C")


def width_of(figure: Figure) -> float:
    (svg,) = render.panels(figure)
    return float(svg.split('width="', 1)[1].split('"', 1)[0])


def test_five_hundred_launches_fit_a_phone_and_are_drawn_in_no_time() -> None:
    launches: list[tuple[Row, Any]] = [
        (launch(place % 5, attempt=place // 5 + 1, hours=place / 4), 50.0 + place / 100)
        for place in range(500)
    ]
    figure = drawn(launches, sm_clock_mhz=2500.0, temperature_c=60.0)
    assert figure is not None
    began = time.process_time()
    (words,) = marks(figure)
    assert time.process_time() - began < 15  # several times what it takes
    assert len(words) == 500
    assert width_of(figure) <= theme.PANEL_WIDTH
    assert len(render.panels(figure)[0]) < 500_000


def test_before_anything_was_launched_there_is_no_picture() -> None:
    trials = tables([], [])
    assert timeline(launch_order(*trials), checks(*trials).collect()) is None
    inferred = pl.concat([launch_order(*tables([launch(0, attempt=0, status="inferred")], []))])
    assert timeline(inferred, checks(*trials).collect()) is None


def test_the_reference_cell_and_others_look_different() -> None:
    (svg,) = render.panels(watched(100.0, 90.0, 80.0))
    marked = re.findall(r'<path aria-label="([^"]*)"[^>]*d="([^"]*)"[^>]*fill="([^"]*)"', svg)
    assert len(marked) == 4
    for words, path, colour in marked:
        own = "reference cell" in words
        assert colour == ("var(--series-2)" if own else "var(--series-1)")
        assert ("A" in path) == (not own)  # a circle is made of arcs
    lines = re.findall(r'<path [^>]*stroke="(var\(--series-\d\))" stroke-width="2"', svg)
    assert lines == ["var(--series-2)"]


def test_a_share_that_is_not_free_is_not_called_one_that_does_not_fit() -> None:
    refused = {"status": "infeasible"}
    figure = drawn(
        [
            (launch(0, hours=1.0, failure_class="utilization_above_free", **refused), None),
            (launch(1, hours=2.0, failure_class="kv_too_small", **refused), None),
            (launch(2, hours=3.0, **refused), None),
        ]
    )
    assert figure is not None
    assert figure.summary.endswith(
        "2 that did not fit, 1 that asked for a share of the card that was not free."
    )
    above, fits, _ = marks(figure)[0]
    assert above.endswith("asks for a share of the card that is not free: utilization_above_free")
    assert fits.endswith("does not fit: kv_too_small")
    shapes = {row["launch"]: row["shape"] for row in data_of(figure) if "shape" in row}
    assert shapes == {1: "triangle-up", 2: "triangle-down", 3: "triangle-down"}
    assert [words for _, words in figure.legend] == [
        "triangle upside down: does not fit",
        "triangle: asks for a share of the card that is not free",
    ]


def test_another_version_is_no_drift() -> None:
    figure = drawn(
        [
            (launch(1, hours=0.0), 50.0),
            (launch(1, hours=1.0, context=16384), 50.0),
            (launch(1, hours=2.0, utilization=0.97, changed="vllm 0.1 -> 0.2"), 80.0),
            (launch(1, hours=3.0, utilization=0.98, changed="vllm 0.1 -> 0.2"), 80.0),
        ]
    )
    assert figure is not None
    at = {row["launch"]: row["off"] for row in data_of(figure) if "alike" in row}
    assert at == pytest.approx({1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0})
    assert marks(figure)[0][2].startswith(
        "launch 3, 2026-01-01 02:00 UTC: 1 token drafted, with graphs, after vllm 0.1 -> 0.2"
    )
    assert any(note.startswith("From launch 3 on: vllm 0.1 -> 0.2. ") for note in figure.notes)
    assert not any(note.startswith("From launch") for note in watched(100.0, 99.0).notes)
