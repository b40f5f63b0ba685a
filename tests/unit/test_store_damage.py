"""Files of an attempt that are not as they were written."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store_sweep import CELL, CONFIG, GOOD, IDENTITY, REFUSED, finish, launch

from vllm_frontier.errors import StoreError
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Status
from vllm_frontier.store import records
from vllm_frontier.store.sweep_store import SweepStore

OTHER = Cell(0, 2048, False, 0.9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    with SweepStore.create_or_open(tmp_path / "out", CONFIG, IDENTITY)[0] as opened:
        yield opened


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change(**values: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return write


def lose(*keys: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        document = json.loads(path.read_text())
        for key in keys:
            del document[key]
        path.write_text(json.dumps(document))

    return write


def no_object(path: Path) -> None:
    path.write_text("[]\n")


WAYS = [
    ("trial.parquet", truncate, "is not as outcome.json says"),
    ("trial.parquet", flip, "is not as outcome.json says"),
    ("trial.parquet", Path.unlink, "is missing"),
    ("runs.parquet", truncate, "is not as outcome.json says"),
    ("runs.parquet", flip, "is not as outcome.json says"),
    ("runs.parquet", empty, "is not as outcome.json says"),
    ("runs.parquet", Path.unlink, "is missing"),
    ("outcome.json", truncate, "is no JSON"),
    ("outcome.json", flip, "is no JSON"),
    ("outcome.json", empty, "is empty"),
    ("outcome.json", no_object, "is no JSON object"),
    ("outcome.json", lose("status"), "lacks 'status'"),
    ("outcome.json", lose("files"), "lacks 'files'"),
    ("outcome.json", lose("schema_version"), "lacks 'schema_version'"),
    ("outcome.json", lose("depth"), "lacks 'depth'"),
    ("outcome.json", change(status="fine"), "holds a value that cannot be right ("),
    ("outcome.json", change(failure_class="bad luck"), "holds a value that cannot be right ("),
    ("outcome.json", change(extra="[]"), "holds a value that cannot be right ("),
    ("outcome.json", change(files={"runs.parquet": 3}), None),
    ("attempt.json", truncate, "is no JSON"),
    ("attempt.json", empty, "is empty"),
    ("attempt.json", Path.unlink, "is missing"),
]
ids = [f"{name} {problem} {number}" for number, (name, _, problem) in enumerate(WAYS)]


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(("name", "harm", "problem"), WAYS, ids=ids)
def test_whatever_is_damaged_the_attempt_counts_as_interrupted(
    store: SweepStore, name: str, harm: Callable[[Path], None], problem: str | None
) -> None:
    intact = finish(store, OTHER, REFUSED)
    attempt = finish(store, CELL, GOOD)
    harm(attempt.root / name)
    before = contents(store.paths.root)

    # Whoever reads only sees an interrupted attempt, and touches nothing.
    reader = SweepStore.open(store.paths.root)
    statuses = {record.cell: record.status for record in reader.outcomes()}
    assert statuses == {CELL: Status.INTERRUPTED, OTHER: Status.INFEASIBLE}
    trials, runs = reader.tables()
    assert sorted(trials["status"]) == ["infeasible", "interrupted"]
    assert runs.height == 0
    (evidence,) = trials.filter(status="interrupted")["evidence"]
    assert name in evidence or problem is None
    assert contents(store.paths.root) == before

    found = store.take_stock()[1]
    if problem is None:
        assert {each.path.name for each in found} == {"trial.parquet", "runs.parquet"}
    else:
        (told,) = found
        assert told.path == attempt.root / name
        assert told.problem.startswith(problem)
        assert str(told).startswith(f"{attempt.root / name} {problem}")
        assert "\n" not in str(told)
    # What was there is still there, under its own name or with `.damaged` behind it.
    after = contents(store.paths.root)
    assert sorted(after.values()) == sorted(before.values())
    assert {path: after[path] for path in after if path.startswith(str(intact.root))} == {
        path: before[path] for path in before if path.startswith(str(intact.root))
    }
    if name in [path.rpartition("/")[2] for path in before if CELL_FOLDER in path]:
        assert not (attempt.root / name).exists()
        assert (attempt.root / f"{name}.damaged").is_file()
    assert not attempt.outcome_json.exists()

    # Told once; interrupted for ever.
    assert store.take_stock()[1] == []
    statuses = {record.cell: record.status for record in store.outcomes()}
    assert statuses == {CELL: Status.INTERRUPTED, OTHER: Status.INFEASIBLE}
    (evidence,) = store.tables()[0].filter(status="interrupted")["evidence"]
    assert evidence.endswith("damaged and set aside")

    # The cell runs again, as another attempt.
    again = finish(store, CELL, GOOD)
    assert again.number == 2
    assert [record.attempt for record in store.outcomes() if record.cell == CELL] == [1, 2]
    trials, runs = store.tables()
    assert trials.filter(context=1024).select("attempt", "status").sort("attempt").rows() == [
        (1, "interrupted"),
        (2, "measured"),
    ]
    assert runs["attempt"].to_list() == [2, 2]


CELL_FOLDER = IDENTITY.cell_id(CELL)


def test_an_open_attempt_that_is_broken_is_told_and_its_number_not_used_again(
    store: SweepStore,
) -> None:
    attempt = launch(store, CELL)
    truncate(attempt.attempt_json)
    (told,) = store.take_stock()[1]
    assert str(told) == (
        f"{attempt.attempt_json} is no JSON; it is kept as attempt.json.damaged; "
        "the attempt counts as interrupted"
    )
    assert store.outcomes() == []
    assert launch(store, CELL).number == 2


def test_a_second_time_is_kept_beside_the_first(store: SweepStore) -> None:
    attempt = launch(store, CELL)
    kept = []
    for content in ("one", "two", "three"):
        attempt.attempt_json.write_text(content)
        (told,) = store.take_stock()[1]
        assert told.kept is not None
        kept.append((told.kept.name, told.kept.read_text()))
    assert kept == [
        ("attempt.json.damaged", "one"),
        ("attempt.json.damaged.2", "two"),
        ("attempt.json.damaged.3", "three"),
    ]


def test_both_tables_are_told_each_in_its_line(store: SweepStore) -> None:
    attempt = finish(store, CELL, GOOD)
    flip(attempt.trial_parquet)
    attempt.runs_parquet.unlink()
    assert [str(each).split(f"{attempt.root}/")[1] for each in store.take_stock()[1]] == [
        "trial.parquet is not as outcome.json says; it is kept as trial.parquet.damaged; "
        "the attempt counts as interrupted",
        "runs.parquet is missing; the attempt counts as interrupted",
    ]


def test_a_crash_while_setting_aside_leaves_the_damage_to_be_found(
    store: SweepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = finish(store, CELL, GOOD)
    flip(attempt.runs_parquet)
    rename, seen = Path.rename, []

    def failing(self: Path, target: Path) -> Path:
        seen.append(self.name)
        if len(seen) == 2:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(StoreError, match="No space left on device"):
        store.take_stock()[1]
    assert seen == ["runs.parquet", "outcome.json"]
    monkeypatch.undo()
    (told,) = store.take_stock()[1]
    assert told.problem == "is missing"
    assert [record.status for record in store.outcomes()] == [Status.INTERRUPTED]


def test_a_later_version_is_told_and_not_set_aside(store: SweepStore) -> None:
    attempt = finish(store, CELL, GOOD)
    change(schema_version=2)(attempt.outcome_json)
    with pytest.raises(StoreError, match="has schema version 2"):
        store.take_stock()[1]
    assert attempt.outcome_json.is_file()


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    name=st.sampled_from(["trial.parquet", "runs.parquet", "outcome.json", "attempt.json"]),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    cut=st.booleans(),
)
def test_any_bit_and_any_cut(
    tmp_path: Path, name: str, where: float, bit: int, *, cut: bool
) -> None:
    root = tmp_path / os.urandom(6).hex()
    with SweepStore.create_or_open(root, CONFIG, IDENTITY)[0] as store:
        path = finish(store, CELL, GOOD).root / name
        content = bytearray(path.read_bytes())
        at = int(where * len(content))
        if cut:
            del content[at:]
        else:
            content[at] ^= 1 << bit
        path.write_bytes(content)
        if path.suffix == ".json" and b'"schema_version": 1,' not in content and not cut:
            return  # the version itself became another one
        told = store.take_stock()[1]
        statuses = [record.status for record in store.outcomes()]
        if name.endswith(".parquet"):
            assert [each.path for each in told] == [path]
        assert statuses == ([Status.INTERRUPTED] if told else [Status.MEASURED])


def many(store: SweepStore, count: int) -> None:
    """Attempts in plenty: links to the tables of one, and its documents under other names."""
    template = finish(store, CELL, GOOD)
    tables = [template.trial_parquet, template.runs_parquet, template.telemetry_parquet]
    documents = [template.attempt_json, template.outcome_json]
    texts = {each.name: each.read_text() for each in documents}
    for number in range(1, count):
        cell_id = f"{number:016x}"
        folder = store.paths.attempt(cell_id, 1).root
        folder.mkdir(parents=True)
        for table in tables:
            os.link(table, folder / table.name)
        for name, text in texts.items():
            (folder / name).write_text(text.replace(template.cell_id, cell_id))


def test_every_file_is_read_once_to_decide_what_is_left(
    store: SweepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(store, 50)
    launch(store, OTHER)
    reads: list[str] = []
    read = records._content

    def counted(path: Path) -> bytes | None:
        reads.append(path.name)
        return read(path)

    monkeypatch.setattr(records, "_content", counted)
    assert len(store.outcomes()) == 51
    assert {name: reads.count(name) for name in reads} == {
        "attempt.json": 51,
        "outcome.json": 51,
        "trial.parquet": 50,
        "runs.parquet": 50,
    }
    reads.clear()
    store.take_stock()[1]
    assert len(reads) == 202


def test_ten_thousand_attempts_are_soon_checked_and_read(store: SweepStore) -> None:
    many(store, 10_000)
    # Processor time, so that other load on the machine does not make it wait. It still makes caches
    # cold, and shares cores: what takes 2.6 s alone takes several times that on another machine.
    began = time.process_time()
    assert store.take_stock()[1] == []
    found = store.outcomes()
    elapsed = time.process_time() - began
    assert len(found) == 10_000
    assert {each.status for each in found} == {Status.MEASURED}
    assert elapsed < 15


@pytest.mark.parametrize(("key", "value"), [("cell_id", "0" * 16), ("attempt", 2)])
def test_a_document_of_another_attempt_is_damaged(
    store: SweepStore, key: str, value: object
) -> None:
    attempt = finish(store, CELL, GOOD)
    document = json.loads(attempt.outcome_json.read_text())
    attempt.outcome_json.write_text(json.dumps(document | {key: value}))
    stock, told = store.take_stock()
    assert [each.status for each in stock] == [Status.INTERRUPTED]
    assert [each.path for each in told] == [attempt.outcome_json]
    assert "is that of another attempt" in str(told[0])
    store.compact()


def test_folders_with_odd_names_are_nobodys(store: SweepStore) -> None:
    attempt = finish(store, CELL, GOOD)
    for name in ("²", "007", "0", "-1", "1 ", "notes"):
        (attempt.root.parent / name).mkdir()
    assert store.paths.numbers(attempt.cell_id) == [1]
    assert len(store.outcomes()) == 1
