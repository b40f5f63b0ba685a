"""What `plan` says: launches in order, predictions with intervals, time."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vllm_frontier.checkpoint import prior_for, unread
from vllm_frontier.config import Composed, compose_sweep
from vllm_frontier.engine.simulated.attempt import simulate_attempt
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.engine.simulated.faults import FaultBook
from vllm_frontier.identity import identify
from vllm_frontier.outcome import Outcome
from vllm_frontier.report.plan import planned
from vllm_frontier.search import Ask, create_search
from vllm_frontier.spec import SweepSpec
from vllm_frontier.store.rows import trial_row
from vllm_frontier.store.sweep_store import SweepStore

SIMULATED = (
    "engine=simulated",
    "engine.card_file=tiny-8gib",
    "search=boundary",
    "grid.context=[8192,16384,32768,49152]",
)


def composed(*overrides: str) -> Composed:
    return compose_sweep("demo-cpu", overrides)


def plan(outputs: Path, *overrides: str) -> dict[str, Any]:
    found = planned.document(composed(*overrides).spec, outputs)
    as_json: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    assert as_json == found
    return found


def text(outputs: Path, *overrides: str, width: int = 80) -> list[str]:
    stream = io.StringIO()
    planned.show(composed(*overrides).spec, Console(file=stream, width=width), outputs)
    return stream.getvalue().splitlines()


def launches_of(spec: SweepSpec) -> list[tuple[Ask, Outcome]]:
    """A whole sweep on its simulated card."""
    card, faults = load_card(spec.engine.card_file), FaultBook(())
    search = create_search(spec, prior_for(spec))
    made: list[tuple[Ask, Outcome]] = []
    while (ask := search.ask()) is not None:
        outcome = simulate_attempt(
            card, ask.cell, purpose=ask.purpose, with_speed=ask.with_speed, faults=faults
        )
        at = 1_700_000_000.0 + len(made)
        made.append((ask, replace(outcome, started_at=at - 0.5, ended_at=at)))
        search.tell(ask.cell, outcome)
    return made


def leave(sweep: Composed, launches: Sequence[tuple[Ask, Outcome]], outputs: Path) -> None:
    """Launches of a sweep in its folder, as a run leaves them."""
    spec, version = sweep.spec, "simulated-1"
    identity = identify(spec, version)
    store, _ = SweepStore.create_or_open(outputs / spec.name, sweep.document, identity)
    with store:
        for ask, outcome in launches:
            attempt = store.new_attempt(identity.cell_id(ask.cell))
            row = trial_row(
                spec, identity, ask.cell, attempt.number, outcome, engine_version=version
            )
            store.write_attempt(attempt, row, {})
            store.write_outcome(attempt, row, [])


def orders(cells: Sequence[dict[str, Any]]) -> list[int | None]:
    return [cell["order"] for cell in cells]


def test_every_cell_has_its_place_and_prediction(tmp_path: Path) -> None:
    found = plan(tmp_path, "search=exhaustive")
    assert (found["n_cells"], found["launches"], found["launches_expected"]) == (36, 38, 38)
    assert found["launches_range"] == {"low": 38, "high": 38}
    assert (found["launches_search"], found["launches_reference"]) == (36, 2)
    assert found["launches_search_range"] == {"low": 36, "high": 36}
    # Without the launches of the reference cell in the middle and at the end.
    again = [row["order"] for row in found["launch_order"] if row["purpose"] == "reference"]
    assert again == [19, 38]
    assert orders(found["cells"]) == [each for each in range(1, 38) if each != 19]
    assert found["axes"]["context"] == [8192, 16384, 32768]
    assert found["prediction_basis"] == "config.json of demo-mtp"
    for cell in found["cells"]:
        margin = cell["margin_gib"]
        assert margin["low"] < margin["mean"] < margin["high"]
        assert cell["predicted"] == ("works" if margin["mean"] > 0 else "does not fit")
        assert (cell["probability"] > 0.5) == (margin["mean"] > 0)
        assert cell["launch"]
        assert cell["known"] is None


def test_the_demo_is_predicted_as_it_came_out(tmp_path: Path) -> None:
    """Against the real sweep that docs/demo.md prints."""
    longest = {(0, 0.6): 16384, (0, 0.9): 16384, (1, 0.6): 8192, (1, 0.9): 16384}
    for cell in plan(tmp_path)["cells"]:
        works = cell["context"] <= longest[min(cell["depth"], 1), cell["utilization"]]
        assert cell["predicted"] == ("works" if works else "does not fit"), cell


def test_a_search_expects_fewer_launches_than_cells(tmp_path: Path) -> None:
    found = plan(tmp_path, "search=boundary")
    expected = found["launches_expected"]
    assert expected < 20
    assert found["launches_exhaustive"] == 36
    launched = [cell for cell in found["cells"] if cell["launch"]]
    assert found["cells"][: len(launched)] == launched
    assert orders(found["cells"][len(launched) :]) == [None] * (36 - len(launched))
    assert [row["order"] for row in found["launch_order"]] == list(range(1, expected + 1))
    assert {cell["purpose"] for cell in launched} <= {"proof", "audit", "speed", "speed_check"}
    assert found["seconds_expected"] == pytest.approx(
        sum(row["seconds"] for row in found["launch_order"]), abs=1
    )
    low, high = found["launches_range"]["low"], found["launches_range"]["high"]
    assert low <= expected <= high


def test_the_budget_cuts_the_plan(tmp_path: Path) -> None:
    limited = plan(tmp_path, "search=exhaustive", "search.max_launches=5")
    assert limited["launches"] == 5
    assert orders(limited["cells"])[4:6] == [5, None]
    found = plan(tmp_path, "search=exhaustive", "search.max_hours=0.1")
    assert 360 <= found["seconds_expected"] < 420  # the last one begins before the time is up
    assert found["launches"] + found["launches_cut"] == 38


def test_without_files_nothing_is_predicted(tmp_path: Path) -> None:
    found = plan(tmp_path, *SIMULATED)
    assert {cell["predicted"] for cell in found["cells"]} == {None}
    assert all(cell["margin_gib"]["low"] < 0 for cell in found["cells"])
    lines = text(tmp_path, *SIMULATED)
    assert any("No predictions: a simulated card has no model files" in line for line in lines)
    assert not any("Expected (" in line for line in lines)


def test_launches_of_measured_cells_again_are_named_apart(tmp_path: Path) -> None:
    found = plan(tmp_path, "workload.replicates=3")
    purposes = [row["purpose"] for row in found["launch_order"]]
    assert purposes.count("reference") == found["launches_reference"] == 2
    assert purposes.count("replicate") == found["launches_replicate"] > 8
    own = len(purposes) - 2 - found["launches_replicate"]
    assert found["launches_search"] == own == plan(tmp_path)["launches_search"]
    assert found["launches_search_range"]["high"] < found["launches_range"]["low"]
    assert (
        found["seconds_expected"]
        > 2 * plan(tmp_path, "workload.reference=false")["seconds_expected"]
    )
    lines = text(tmp_path, "workload.replicates=3")
    assert lines[1] == f"36 cells, about {own} launches instead of 36"
    assert lines[2] == f"And {found['launches_replicate']} replicates and 2 reference launches."
    assert sum(" replicate " in line for line in lines[3:]) >= 5
    alone = text(tmp_path, "workload.reference=false")
    assert not any("reference" in line or "And " in line for line in alone)


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    lines = text(tmp_path, *SIMULATED, "model.name='[/] [red]x'", "grid.extra.a=['[/]b','[bold]c']")
    assert lines[0] == "demo-cpu: [/] [red]x on Simulated 8 GiB (simulated)"
    assert any(line.split() == ["a", "[/]b,", "[bold]c"] for line in lines)
    assert any("[bold]c" in line and "proof" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "is missing or cannot be read"),
        ("[1]", "is missing or cannot be read"),
        ("{", "is missing or cannot be read"),
        ('{"hidden_size": 64}', "does not describe the model's layers"),
    ],
)
def test_a_broken_model_folder_is_told(tmp_path: Path, content: str | None, told: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    spec = composed(f"model.id={folder}").spec
    assert unread(spec) == f"config.json of {folder} {told}"
    lines = text(tmp_path, f"model.id={folder}")
    assert " ".join(lines).count("No predictions: config.json of") == 1


def test_a_model_elsewhere_is_told(tmp_path: Path) -> None:
    spec = composed("model.id=nobody/no-such-model").spec
    assert unread(spec) == "the model's files are not on this machine"
    assert unread(composed().spec) is None


def test_what_was_launched_is_left_out(tmp_path: Path) -> None:
    sweep, made = composed(*SIMULATED), 6
    launches = launches_of(sweep.spec)
    leave(sweep, launches[:made], tmp_path)
    found = plan(tmp_path, *SIMULATED)
    assert found["attempts_done"] == made
    assert found["prediction_basis"] == f"{made} launches"
    # It foresees the rest of the run, which nobody has seen.
    assert abs(found["launches_expected"] - (len(launches) - made)) <= 3
    known = [cell for cell in found["cells"] if cell["known"] is not None]
    assert len(known) == found["cells_done"] > made
    assert all(cell["probability"] == (cell["known"] == "works") for cell in known)
    apart = {ask.cell for ask, _ in launches[:made]}
    assert sum(cell["launched"] for cell in found["cells"]) == len(apart)
    again = {
        tuple(row[name] for name in found["axes"])
        for row in found["launch_order"]
        if row["purpose"] in ("proof", "audit")
    }
    done = {
        tuple(cell[name] for name in found["axes"]) for cell in found["cells"] if cell["launched"]
    }
    assert not again & done


def test_a_finished_sweep_needs_nothing(tmp_path: Path) -> None:
    sweep = composed(*SIMULATED)
    leave(sweep, launches_of(sweep.spec), tmp_path)
    found = plan(tmp_path, *SIMULATED)
    assert (found["launches"], found["seconds_expected"]) == (0, 0)
    assert found["cells_done"] == found["n_cells"]
    assert "nothing left to launch" in text(tmp_path, *SIMULATED)[1]


def test_another_sweep_in_the_folder_does_not_count(tmp_path: Path) -> None:
    sweep = composed(*SIMULATED)
    leave(sweep, launches_of(sweep.spec)[:3], tmp_path)
    other = plan(tmp_path, *SIMULATED, "workload.repeats=7")
    assert other["attempts_done"] == 0
    (tmp_path / "demo-cpu" / "sweep.yaml").write_text("no sweep")
    assert plan(tmp_path, *SIMULATED)["attempts_done"] == 0


def test_the_terminal_shows_it_within_80_columns(tmp_path: Path) -> None:
    lines = text(tmp_path, "search=boundary")
    tables = lines[1 : next(at for at, line in enumerate(lines) if "Expected time" in line)]
    assert max(len(line.rstrip()) for line in tables) <= 80
    assert any("proof, speed works, >99%" in line for line in tables)
    assert any(line.startswith("depth 3  ") for line in tables)
    assert lines[-1] == "Predictions rest on config.json of demo-mtp."


def test_many_launches_are_not_all_listed(tmp_path: Path) -> None:
    lines = text(tmp_path, "search=exhaustive", "grid.depth=[0,1,2,3,4,5]")
    listed = [line for line in lines if line.strip()[:1].isdigit() and "GiB" not in line]
    assert 25 <= len(listed) <= 40
    assert any("44 more" in line for line in lines)


def test_a_cell_that_is_launched_twice_is_listed_once(tmp_path: Path) -> None:
    found = plan(tmp_path, "search=boundary", "search.verify=all", "search.measure=all")
    points = [tuple(cell[name] for name in found["axes"]) for cell in found["cells"]]
    assert len(set(points)) == len(points) == found["n_cells"]
    assert found["launches_expected"] >= found["n_cells"]
    text(tmp_path, "search=boundary", "search.verify=all", "search.measure=all")
