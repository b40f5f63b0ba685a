"""What a running sweep says in the terminal."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome, Phase, Purpose, Speed, Status
from vllm_frontier.report.terminal.progress import ProgressDisplay
from vllm_frontier.search import Ask

CELLS = [Cell(depth, 1024, False, 0.9) for depth in range(3)]
WORKS = Outcome(Status.MEASURED, Phase.STOP, filled=True, with_speed=False)


def shown(outlooks: Sequence[tuple[int, int]], planned: int, *, resumed: bool = False) -> list[str]:
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, width=80))
    display.outlook(*outlooks[0])
    display.began(planned=planned, done=0, resumed=resumed, outside=0, folder=Path("s"))
    for cell, outlook in zip(CELLS, outlooks[1:], strict=False):
        display.attempt_began(cell, 1)
        display.outlook(*outlook)
        display.attempt_ended(cell, WORKS)
    return out.getvalue().splitlines()


def test_a_sweep_begins_with_the_launches_of_its_plan() -> None:
    asks = [Ask(cell) for cell in CELLS] * 15 + [Ask(CELLS[0], Purpose.REFERENCE)] * 2
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, width=80), lambda: asks)
    display.outlook(0, 27)
    about = {"planned": 672, "done": 0, "outside": 0, "folder": Path("s")}
    display.began(**about, resumed=False)
    began = "Starting 672 cells, about 47 launches expected (2 reference launches among them); "
    assert out.getvalue() == f"{began}results in s\n"
    display.outlook(400, 30)  # what the search has met tells more
    display.attempt_ended(CELLS[0], WORKS)
    assert "launch 1 of about 31, " in out.getvalue()
    out.truncate(0)
    display.began(**about, resumed=True)
    assert "about 30 launches expected; " in out.getvalue()


def test_a_search_shows_launches_beside_cells() -> None:
    begin, *lines = shown([(0, 35), (400, 30)], 672)
    assert begin == "Starting 672 cells, about 35 launches expected; results in s"
    assert lines[0].startswith("[0/672]")
    assert "works  [400/672 cells known, launch 1 of about 31, " in lines[1]
    assert shown([(600, 5)], 672, resumed=True) == [
        "Resuming 672 cells, 600 of them done already, about 5 launches expected; results in s"
    ]


def test_a_sweep_that_launches_every_cell_shows_cells_alone() -> None:
    begin, *lines = shown([(0, 3), (1, 2), (2, 1), (3, 0)], 3)
    assert begin == "Starting 3 cells; results in s"
    assert "launch" not in " ".join(lines)
    assert lines[-1].endswith("works  [3/3 cells]")


def test_a_terminal_that_cannot_redraw_gets_a_log() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, _environ={"TERM": "dumb"})
    display = ProgressDisplay(console)
    with display.shown():
        display.outlook(0, 2)
        display.attempt_began(CELLS[0], 1)
        display.attempt_ended(CELLS[0], WORKS)
    began, ended = out.getvalue().splitlines()
    assert began.endswith("...")
    assert "works  [" in ended
    assert "\x1b" not in out.getvalue()


def test_what_a_launch_was_for_is_told_where_it_is_not_a_proof() -> None:
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, width=80))
    fast = replace(WORKS, speed=Speed(61.26, 60.0, 62.0), purpose=Purpose.SPEED)
    display.attempt_ended(CELLS[0], fast)
    display.attempt_ended(CELLS[1], replace(WORKS, purpose=Purpose.AUDIT))
    first, second = out.getvalue().splitlines()
    assert "61.3 tok/s (for its speed)" in first
    assert "works (spot check)" in second
