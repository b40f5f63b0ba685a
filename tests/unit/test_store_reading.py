"""Readers get along with attempts that are damaged, vanish, or are no files at all."""

import dataclasses
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner
from test_store_sweep import GOOD, REFUSED

from vllm_frontier.commands import reading
from vllm_frontier.config import compose_sweep
from vllm_frontier.errors import StoreError
from vllm_frontier.grid import Cell
from vllm_frontier.identity import identify
from vllm_frontier.outcome import Status
from vllm_frontier.report import result, state
from vllm_frontier.report.unread import unread
from vllm_frontier.store import records, tables
from vllm_frontier.store.paths import AttemptPaths, SweepPaths
from vllm_frontier.store.rows import interrupted_row, run_rows, trial_row
from vllm_frontier.store.sweep_store import SweepStore

COMPOSED = compose_sweep(
    "demo-cpu",
    [
        *("engine=simulated", "engine.card_file=tiny-8gib", "grid.utilization=[0.9]"),
        *("grid.depth=[0]", "grid.graphs=[false]", "grid.context=[8192,16384,32768,65536]"),
    ],
)
IDENTITY = identify(COMPOSED.spec, "1")
CELLS = COMPOSED.spec.grid.cells()


def finish(store: SweepStore, cell: Cell, *, works: bool = True) -> AttemptPaths:
    outcome = GOOD if works else REFUSED
    spec, attempt = COMPOSED.spec, store.new_attempt(IDENTITY.cell_id(cell))
    row = interrupted_row(spec, IDENTITY, cell, attempt.number, started_at=1.0, engine_version="1")
    store.write_attempt(attempt, row, {})
    made = (spec, IDENTITY, cell, attempt.number, outcome)
    store.write_outcome(attempt, trial_row(*made, engine_version="1"), run_rows(*made))
    return attempt


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of four launches, of which the last is refused."""
    folder = tmp_path_factory.mktemp("intact")
    with SweepStore.create_or_open(folder, COMPOSED.document, IDENTITY)[0] as store:
        for number, cell in enumerate(CELLS):
            finish(store, cell, works=number < len(CELLS) - 1)
    return folder


@pytest.fixture
def attempts(tmp_path: Path, intact: Path) -> list[AttemptPaths]:
    """Those of the same sweep in `tmp_path`, by the names of their folders."""
    shutil.copytree(intact, tmp_path, dirs_exist_ok=True)
    return list(SweepPaths(tmp_path).existing_attempts())


def said(command: Command, *arguments: str | Path) -> str:
    """What a command prints, its lines joined and without the signs of comments."""
    done = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    return " ".join(done.output.replace("# ", "").split())


def test_every_reading_command_names_what_it_cannot_read(
    tmp_path: Path, intact: Path, attempts: list[AttemptPaths]
) -> None:
    for each in attempts:
        each.trial_parquet.write_bytes(b"")
    names = [str(each.trial_parquet.relative_to(tmp_path)) for each in attempts]
    told = (
        f"{len(attempts)} attempts cannot be read and do not count, such as {names[0]}; "
        "`vllm-frontier resume` runs them again"
    )
    for command, folders in (
        (reading.status, [tmp_path]),
        (reading.show, [tmp_path]),
        (reading.report, [tmp_path]),
        (reading.recommend, [tmp_path]),
        (reading.compare, [intact, tmp_path]),
    ):
        assert said(command, *folders).count(told) == 1, command.name
    for one in (reading.status, reading.show):
        assert json.loads(said(one, tmp_path, "--json"))["damaged"] == names
    for page in ("report.html", "report.md"):
        assert "attempts cannot be read" in (tmp_path / page).read_text()
    assert result.load(tmp_path).damaged == names
    both = json.loads(said(reading.compare, intact, tmp_path, "--json"))
    assert [each["damaged"] for each in both["sweeps"]] == [[], names]
    assert "cannot be read" not in said(reading.show, intact)


def test_one_attempt_is_told_as_one() -> None:
    assert unread([]) is None
    assert unread(["attempts/a/1"]) == (
        "1 attempt cannot be read and does not count: attempts/a/1; "
        "`vllm-frontier resume` runs it again"
    )


def test_an_attempt_with_two_damaged_files_is_one(
    tmp_path: Path, attempts: list[AttemptPaths]
) -> None:
    attempts[1].trial_parquet.unlink()
    attempts[1].runs_parquet.write_bytes(b"x")
    assert SweepStore.open(tmp_path).look_through()[1] == [
        str(attempts[1].trial_parquet.relative_to(tmp_path))
    ]


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # such names are short


@pytest.mark.parametrize("put", [loop, pipe, listener, Path.mkdir])
@pytest.mark.parametrize("name", ["outcome.json", "attempt.json", "trial.parquet", "runs.parquet"])
def test_what_is_no_file_is_damaged_and_never_opened(
    tmp_path: Path,
    attempts: list[AttemptPaths],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    put: Callable[[Path], None],
) -> None:
    monkeypatch.chdir(attempts[0].root)
    path = attempts[0].root / name
    path.unlink()
    put(path)
    found, damaged = SweepStore.open(tmp_path).look_through()
    assert damaged == [str(path.relative_to(tmp_path))]
    statuses = {each.cell_id: each.status for each in found}
    assert statuses.pop(attempts[0].cell_id) is Status.INTERRUPTED
    assert Status.INTERRUPTED not in statuses.values()
    with SweepStore.open_for_writing(tmp_path) as store:
        (told,) = store.take_stock()[1]
        assert (told.path, told.problem) == (path, "is no file")
        assert told.kept is not None
        assert store.take_stock()[1] == []


@pytest.mark.parametrize("put", [loop, pipe, Path.touch])
@pytest.mark.parametrize("of_attempt", [False, True])
def test_what_stands_in_the_place_of_a_folder_is_told_and_set_aside(
    tmp_path: Path,
    attempts: list[AttemptPaths],
    put: Callable[[Path], None],
    *,
    of_attempt: bool,
) -> None:
    place = attempts[0].root if of_attempt else attempts[0].root.parent
    shutil.rmtree(place)
    put(place)
    put(tmp_path / "attempts" / "notes")  # the name of no cell: nobody's
    found, damaged = SweepStore.open(tmp_path).look_through()
    assert damaged == [str(place.relative_to(tmp_path))]
    assert len(found) == len(attempts) - 1
    assert str(place.relative_to(tmp_path)) in said(reading.show, tmp_path)
    with SweepStore.open_for_writing(tmp_path) as store:
        (told,) = store.take_stock()[1]
        assert str(told) == (
            f"{place} is no folder; it is kept as {place.name}.damaged; "
            "the attempt counts as interrupted"
        )
        cell = next(each for each in CELLS if IDENTITY.cell_id(each) == attempts[0].cell_id)
        assert finish(store, cell).number == 1
        assert len(store.outcomes()) == len(attempts)
        assert store.look_through()[1] == []


def test_a_manifest_that_is_no_file_is_told_and_not_opened(
    tmp_path: Path, attempts: list[AttemptPaths]
) -> None:
    (tmp_path / "sweep.yaml").unlink()
    os.mkfifo(tmp_path / "sweep.yaml")
    with pytest.raises(StoreError, match=r"sweep\.yaml is no file"):
        SweepStore.open(tmp_path)


def vanish(monkeypatch: pytest.MonkeyPatch, victims: list[AttemptPaths]) -> list[str]:
    """Let one attempt vanish after each time that all were looked at; the times it happened."""
    read, times = tables._read, []

    def after_removal(table: str, files: list[Path]) -> object:
        if victims:
            victim = victims.pop()
            times.append(victim.cell_id)
            shutil.rmtree(victim.root)
        return read(table, files)

    monkeypatch.setattr(tables, "_read", after_removal)
    return times


@pytest.mark.parametrize(
    "command", [reading.status, reading.show, reading.recommend, reading.compare]
)
def test_attempts_that_vanish_while_they_are_read_are_not_there(
    tmp_path: Path,
    intact: Path,
    attempts: list[AttemptPaths],
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    measured = [each for each in attempts if b"measured" in each.outcome_json.read_bytes()]
    times = vanish(monkeypatch, measured[:2])
    printed = said(command, tmp_path, *([intact] if command is reading.compare else []))
    assert len(times) == 2
    assert "cannot be read" not in printed
    assert len(result.load(tmp_path).trials.filter(attempt=1)) == len(attempts) - 2


def test_what_goes_on_to_vanish_is_told(
    tmp_path: Path, attempts: list[AttemptPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = vanish(monkeypatch, list(attempts[:3]))
    with pytest.raises(StoreError, match=r"cannot be read|No such file"):
        result.load(tmp_path)
    assert len(times) == 3
    left = state.document(SweepStore.open(tmp_path), tmp_path, analysed=False)
    assert left["launches"] == len(attempts) - 3


def test_an_attempt_that_goes_between_its_files_is_no_damage(
    tmp_path: Path, attempts: list[AttemptPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, victim = records._content, attempts[0]

    def removing(path: Path) -> bytes | None:
        content = read(path)
        if path == victim.outcome_json:
            shutil.rmtree(victim.root)
        return content

    monkeypatch.setattr(records, "_content", removing)
    found, damaged = SweepStore.open(tmp_path).look_through()
    assert damaged == []
    assert victim.cell_id not in {each.cell_id for each in found}


def test_a_secret_of_an_earlier_version_makes_no_other_sweep(tmp_path: Path) -> None:
    """It was written down before its name was one of a secret: ids of cells stay as they are."""
    spec = dataclasses.replace(
        COMPOSED.spec,
        engine=dataclasses.replace(COMPOSED.spec.engine, env={"DB_PASS": "once-in-plain"}),
    )
    document = json.loads(json.dumps(COMPOSED.document))
    document["engine"]["env"] = {"DB_PASS": "once-in-plain"}
    today = identify(spec, "1")
    part = json.loads(json.dumps(today.cell_part))
    assert part["arguments"]["env"] == {"DB_PASS": "***"}
    part["arguments"]["env"]["DB_PASS"] = "once-in-plain"
    earlier = dataclasses.replace(today, cell_part=part)
    assert earlier.cell_id(CELLS[0]) != today.cell_id(CELLS[0])
    SweepStore.create_or_open(tmp_path, document, earlier)[0].close()

    store, resumed = SweepStore.create_or_open(tmp_path, document, today)
    with store:
        assert (resumed, store.changed) == (True, None)
        assert store.identity.cell_id(CELLS[0]) == earlier.cell_id(CELLS[0])
        assert len(store.identities) == 1
    moved = dataclasses.replace(today, cell_part={**today.cell_part, "card": {"name": "other"}})
    with pytest.raises(StoreError, match=r"card\.name is") as told:
        SweepStore.create_or_open(tmp_path, document, moved)
    assert "once-in-plain" not in str(told.value)
