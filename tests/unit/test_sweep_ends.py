"""What a sweep says of its end: what is left, and whether it would go on."""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_driver import Silent

from vllm_frontier.commands.sweeping import _left_open
from vllm_frontier.config import compose_sweep
from vllm_frontier.engine.simulated.attempt import simulate_attempt
from vllm_frontier.engine.simulated.card_file import load_card
from vllm_frontier.errors import Interrupted
from vllm_frontier.report import result, state
from vllm_frontier.search import Search
from vllm_frontier.signals import Signals
from vllm_frontier.store.sweep_store import SweepStore
from vllm_frontier.sweep import Finished, run_sweep
from vllm_frontier.trial.plan import Listener, Plan

CARD = load_card("tiny-8gib")
WORDS = (
    "engine=simulated",
    "engine.card_file=tiny-8gib",
    "grid.depth=[0,1]",
    "grid.context=[8192,16384,32768]",
    "grid.utilization=[0.9]",
    "search.audit=0",
)
CELLS = 12


def at_once(search: Search, plan: Plan, listener: Listener) -> None:
    """Attempts that end as soon as they begin; a `trial.plan.Schedule`."""
    while not plan.out_of_time() and (wanted := search.ask()) is not None:
        opened = listener.open_attempt(wanted)
        outcome = simulate_attempt(
            CARD, wanted.cell, purpose=wanted.purpose, with_speed=wanted.with_speed
        )
        search.tell(wanted.cell, outcome)
        listener.ended(wanted.cell, opened.number, outcome, None)


def sweep(folder: Path, *overrides: str) -> Finished:
    composed = compose_sweep("rtx5090-qwen3.8-27b-nvfp4", [*WORDS, *overrides])
    with Signals() as signals:
        return run_sweep(
            composed.spec, composed.document, folder, Silent(), signals=signals, schedule=at_once
        )


def launches(folder: Path) -> int:
    return len(SweepStore.open(folder).outcomes())


@pytest.mark.parametrize("search", [("search=boundary",), ("search=exhaustive",)])
def test_a_budget_that_is_just_enough_is_not_used_up(search: Sequence[str], tmp_path: Path) -> None:
    whole = sweep(tmp_path / "whole", *search)
    assert (whole.left, whole.out_of_budget, _left_open(whole)) == (0, False, "")
    needed = launches(tmp_path / "whole")
    enough = sweep(tmp_path / "enough", *search, f"search.max_launches={needed}")
    assert (enough.left, enough.out_of_budget, _left_open(enough)) == (0, False, "")
    short = sweep(tmp_path / "short", *search, f"search.max_launches={needed - 1}")
    assert short.out_of_budget
    assert "budget" in _left_open(short)
    # The same within two budgets: the second one launches what is left, and then is done.
    rest = sweep(tmp_path / "short", *search, f"search.max_launches={needed - 1}")
    assert (rest.left, rest.out_of_budget) == (0, False)
    assert launches(tmp_path / "short") == needed


def test_what_was_inferred_stays_until_it_is_launched(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    few = sweep(folder, "search=boundary")
    made = launches(folder)
    assert (len(few.cells), len(few.inferred), few.left) == (made, CELLS - made, 0)
    assert made < CELLS - 2
    again = sweep(folder, "search=exhaustive", "search.max_launches=1")
    assert launches(folder) == made + 1
    assert (len(again.inferred), again.left, again.out_of_budget) == (CELLS - made - 1, 0, True)
    assert again.inferred < few.inferred
    shown, found = result.load(folder), state.document(SweepStore.open(folder), folder)
    assert result.document(shown)["cells"]["inferred"] == CELLS - made - 1
    assert (found["inferred"], found["not_reached"]) == (CELLS - made - 1, 0)
    assert found["state"] == "interrupted"  # the rest is to be launched
    every = sweep(folder, "search=exhaustive")
    assert (len(every.cells), every.inferred, every.out_of_budget) == (CELLS, frozenset(), False)
    assert state.document(SweepStore.open(folder), folder)["state"] == "finished"


@pytest.fixture
def handlers() -> Iterator[None]:
    """Those of before: what has heard a signal ignores further ones to its end."""
    before = {each: signal.getsignal(each) for each in Signals.WATCHED}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("handlers")
def test_a_signal_while_a_sweep_is_begun_leaves_it_without_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = SweepStore.create_or_open

    def begun(*args: Any, **options: Any) -> Any:
        made = begin(*args, **options)
        signal.raise_signal(signal.SIGTERM)
        return made

    monkeypatch.setattr(SweepStore, "create_or_open", begun)
    with pytest.raises(Interrupted, match="SIGTERM"):
        sweep(tmp_path / "s")
    assert (tmp_path / "s/sweep.yaml").is_file()
    assert not (tmp_path / "s/lock.json").exists()
    assert launches(tmp_path / "s") == 0
    monkeypatch.undo()
    assert sweep(tmp_path / "s").left == 0
