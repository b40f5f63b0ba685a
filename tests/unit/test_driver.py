"""What the driver writes down of a sweep, and tells a search that goes on with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_frontier.config import compose_sweep
from vllm_frontier.driver import Display, Driver
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Failure, FailureClass, Outcome, Phase, Status
from vllm_frontier.search import Ask
from vllm_frontier.search.protocol import Outlook
from vllm_frontier.spec import SweepIdentity, SweepSpec
from vllm_frontier.store.records import in_order
from vllm_frontier.store.sweep_store import SweepStore

IDENTITY = SweepIdentity({"engine": {"version": "1"}}, "w")


class Silent(Display):
    """A display for nobody."""

    def began(self, **told: Any) -> None: ...
    def outlook(self, known: int, launches_left: int) -> None: ...
    def attempt_began(self, cell: Cell, number: int) -> None: ...
    def attempt_moved(self, cell: Cell, progress: Any) -> None: ...
    def attempt_ended(self, cell: Cell, outcome: Outcome) -> None: ...
    def warn(self, text: str) -> None: ...


class Listening:
    """A search that only remembers what it was told."""

    finished, cut_short, outlook = False, False, Outlook(0, 0)

    def __init__(self) -> None:
        self.told: list[tuple[Cell, Status]] = []

    def ask(self) -> Ask | None:
        return None

    def tell(self, cell: Cell, outcome: Outcome) -> None:
        self.told.append((cell, outcome.status))


@pytest.fixture(scope="module")
def spec() -> SweepSpec:
    return compose_sweep("demo-gpu", ["engine=simulated"]).spec


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    opened, _ = SweepStore.create_or_open(tmp_path / "s", {"name": "demo"}, IDENTITY)
    with opened:
        yield opened


def resumed(spec: SweepSpec, store: SweepStore) -> tuple[Driver, list[tuple[Cell, Status]]]:
    driver, search = Driver(spec, IDENTITY, "1", store, Silent()), Listening()
    driver.tell_earlier(search)
    return driver, search.told


def ended(status: Status, at: float) -> Outcome:
    failed = Failure(FailureClass.KILLED, Phase.LOAD, "killed")
    failure = failed if status is Status.FAILED else None
    return Outcome(status, Phase.STOP, failure, started_at=1e9, ended_at=at)


def test_a_search_that_goes_on_is_told_in_the_order_of_the_first(
    spec: SweepSpec, store: SweepStore
) -> None:
    """Two cards at work: what ended first by its own clock may be told of last."""
    one, other, third = spec.grid.cells()[:3]
    driver, told = resumed(spec, store)
    assert told == []
    for cell in (one, other):
        driver.open_attempt(Ask(cell))
    driver.ended(other, 1, ended(Status.MEASURED, at=1e9 + 900), None)
    driver.ended(one, 1, ended(Status.FAILED, at=1e9 + 100), None)
    told_first = [(other, Status.MEASURED), (one, Status.FAILED)]
    driver, told = resumed(spec, store)
    assert told == told_first
    # The numbers go on; an attempt that is never heard of again ended after what began it.
    driver.open_attempt(Ask(one))
    driver.open_attempt(Ask(third))
    driver.ended(third, 1, ended(Status.MEASURED, at=1e9 + 50), None)
    driver, told = resumed(spec, store)
    assert told == [*told_first, (one, Status.INTERRUPTED), (third, Status.MEASURED)]
    assert driver.settled((one, other)) == {one: Status.INTERRUPTED, other: Status.MEASURED}
    numbers = [record.sequence for record in in_order(store.outcomes())]
    assert numbers == [3, 4, 5, 7]


def test_attempts_of_an_earlier_version_come_first_as_they_ended(
    spec: SweepSpec, store: SweepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, third = spec.grid.cells()[:3]
    driver, _ = resumed(spec, store)
    with monkeypatch.context() as earlier:
        earlier.setattr(driver, "_following", lambda: None)
        for cell, at in ((one, 1e9 + 30), (other, 1e9 + 20)):
            driver.open_attempt(Ask(cell))
            driver.ended(cell, 1, ended(Status.MEASURED, at), None)
    driver.open_attempt(Ask(third))
    driver.ended(third, 1, ended(Status.MEASURED, 1e9 + 10), None)
    assert [cell for cell, _ in resumed(spec, store)[1]] == [other, one, third]
