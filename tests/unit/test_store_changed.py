"""A sweep that goes on with another model, card, engine or fixed arguments."""

from pathlib import Path

import pytest
import yaml
from test_store_sweep import CELL, CONFIG, GOOD, SPEC, finish

from vllm_frontier.errors import StoreError
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store.rows import interrupted_row, run_rows, trial_row
from vllm_frontier.store.schema import SCHEMAS
from vllm_frontier.store.sweep_store import SweepStore

FIRST = SweepIdentity(
    {
        "model": {"id": "org/tiny"},
        "card": {"name": "A card", "gib": 4.0},
        "engine": {"kind": "vllm", "version": "0.31.0"},
        "arguments": {"engine": {"max_num_seqs": 4}},
    },
    "w1",
)


def other(workload: str = "w1", **parts: object) -> SweepIdentity:
    return SweepIdentity({**FIRST.cell_part, **parts}, workload)


NEWER = other(engine={"kind": "vllm", "version": "0.32.0"})
MOVED = other(engine={"kind": "vllm", "version": "0.32.0"}, card={"name": "B card", "gib": 8.0})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    SweepStore.create_or_open(tmp_path / "out", CONFIG, FIRST)[0].close()
    return tmp_path / "out"


def test_all_that_differs_is_told_and_both_ways_out(root: Path) -> None:
    before = (root / "sweep.yaml").read_bytes()
    changed = other(
        model={"id": "org/large"},
        card={"name": "B card", "gib": 8.0},
        engine={"kind": "vllm", "version": "0.32.0"},
        arguments={"engine": {"max_num_seqs": 4, "dtype": "half"}},
    )
    with pytest.raises(StoreError) as told:
        SweepStore.create_or_open(root, CONFIG, changed)
    assert str(told.value) == (
        f"{root} holds another sweep's results: model.id is org/tiny there and org/large here; "
        "card.name is A card there and B card here; card.gib is 4.0 there and 8.0 here; "
        "engine.version is 0.31.0 there and 0.32.0 here; "
        "arguments.engine.dtype is not set there and half here; "
        "go on in it all the same with --allow-changed, or choose another folder"
    )
    assert (root / "sweep.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("config", "identity", "line"),
    [
        ({**CONFIG, "name": "renamed"}, FIRST, "name is demo there and renamed here"),
        (
            {"name": "demo", "workload": {"repeats": 5, "tasks": ["edit", "code"]}},
            other("w2"),
            "workload.repeats is 3 there and 5 here",
        ),
        (
            # Of what differs only that is told which decides what is measured.
            {"name": "demo", "workload": {"repeats": 5, "tasks": ["edit", "code"], "score": False}},
            other("w2"),
            "workload.repeats is 3 there and 5 here",
        ),
        (CONFIG, other("w2"), "workload is w1 there and w2 here"),
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_another_name_or_workload_is_never_allowed(
    root: Path, config: dict[str, object], identity: SweepIdentity, line: str, *, allow: bool
) -> None:
    with pytest.raises(StoreError) as told:
        SweepStore.create_or_open(root, config, identity, allow_changed=allow)
    assert str(told.value) == (
        f"{root} holds another sweep's results: {line}; choose another folder"
    )


def test_what_was_allowed_once_goes_on_without_the_flag(root: Path) -> None:
    store, resumed = SweepStore.create_or_open(root, CONFIG, NEWER, allow_changed=True)
    with store:
        assert resumed
        assert store.changed == "engine.version 0.31.0 -> 0.32.0"
        assert store.identity == NEWER
    again, resumed = SweepStore.create_or_open(root, CONFIG, NEWER)
    with again:
        assert resumed
        assert again.changed == "engine.version 0.31.0 -> 0.32.0"
    with pytest.raises(StoreError, match=r"card\.name is A card there and B card here"):
        SweepStore.create_or_open(root, CONFIG, MOVED)
    moved, _ = SweepStore.create_or_open(root, CONFIG, MOVED, allow_changed=True)
    with moved:
        assert moved.changed == (
            "card.name A card -> B card; card.gib 4.0 -> 8.0; engine.version 0.31.0 -> 0.32.0"
        )
    back, _ = SweepStore.create_or_open(root, CONFIG, FIRST)
    with back:
        assert back.changed is None

    document = yaml.safe_load((root / "sweep.yaml").read_text())
    assert document["identity"]["digest"] == FIRST.digest
    assert document["identity"]["cell"] == FIRST.cell_part
    assert [(each["digest"], each["differs"]) for each in document["changes"]] == [
        (NEWER.digest, "engine.version 0.31.0 -> 0.32.0"),
        (MOVED.digest, moved.changed),
    ]
    assert document["changes"][0]["cell"] == NEWER.cell_part
    assert document["changes"][0]["since"].endswith("+00:00")


def test_a_new_sweep_and_the_same_one_have_no_changes(tmp_path: Path) -> None:
    for _ in range(2):
        store, _ = SweepStore.create_or_open(tmp_path / "out", CONFIG, FIRST, allow_changed=True)
        with store:
            assert store.changed is None
    assert "changes" not in yaml.safe_load((tmp_path / "out/sweep.yaml").read_text())


def test_broken_changes_are_told(root: Path) -> None:
    path = root / "sweep.yaml"
    path.write_text(path.read_text() + "changes: [{digest: a}]\n")
    with pytest.raises(StoreError, match="is not the configuration of a sweep"):
        SweepStore.open(root)


def test_rows_keep_what_was_true_when_they_were_made(root: Path) -> None:
    first, _ = SweepStore.create_or_open(root, CONFIG, FIRST)
    with first:
        finish(first, CELL, GOOD)
    store, _ = SweepStore.create_or_open(root, CONFIG, NEWER, allow_changed=True)
    with store:
        attempt = store.new_attempt(NEWER.cell_id(CELL))
        assert attempt.number == 1
        changed = store.changed
        row = interrupted_row(
            SPEC, NEWER, CELL, 1, started_at=1.0, engine_version="0.32.0", changed=changed
        )
        store.write_attempt(attempt, row, {})
        assert store.tables()[0]["changed"].to_list() == [changed, None]
        trial = trial_row(SPEC, NEWER, CELL, 1, GOOD, engine_version="0.32.0", changed=changed)
        store.write_outcome(attempt, trial, run_rows(SPEC, NEWER, CELL, 1, GOOD))
        trials, _ = store.tables()
    assert sorted(trials.select("status", "changed").rows(), key=str) == [
        ("measured", "engine.version 0.31.0 -> 0.32.0"),
        ("measured", None),
    ]
    assert "changed" in trials.columns


def test_the_tables_that_name_an_engine_say_what_changed() -> None:
    assert [name for name, schema in SCHEMAS.items() if "changed" in schema.names] == [
        "trials",
        "frontier",
    ]
