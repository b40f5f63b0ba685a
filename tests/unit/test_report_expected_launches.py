"""Launches that are expected without running the whole search dry."""

import time
from collections import Counter

import pytest

from vllm_frontier.checkpoint import prior_for
from vllm_frontier.config import compose_sweep
from vllm_frontier.memory import MemoryModel
from vllm_frontier.outcome import Outcome, Phase, Purpose, Speed, Status
from vllm_frontier.report.plan.expected_launches import expected_launches
from vllm_frontier.search import Ask, create_search, dry_run
from vllm_frontier.spec import SweepSpec


def sweep(*overrides: str) -> SweepSpec:
    return compose_sweep("demo-cpu", ["grid.context=[4096,8192,16384,32768]", *overrides]).spec


def both(*overrides: str) -> tuple[list[Ask], list[Ask]]:
    """The launches that are expected, and those of the search run dry to its end."""
    spec = sweep(*overrides)
    prior = prior_for(spec)
    model = MemoryModel(spec.card.memory_gib, prior)
    dry = dry_run(create_search(spec, prior), model)
    return expected_launches(spec, prior, model, ()), dry


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("search.verify=frontier",),
        ("search.audit=9",),
        ("workload.replicates=3",),
        ("search=exhaustive",),
    ],
)
def test_a_short_search_is_run_dry(settings: tuple[str, ...]) -> None:
    expected, dry = both(*settings)
    assert expected == dry


@pytest.mark.parametrize(
    "settings",
    [
        ("search.verify=all",),
        ("search.verify=all", "search.measure=all"),
        ("search.verify=all", "search.max_launches=7"),
        ("search.measure=all",),
        ("search.audit=1000",),
        ("search.verify=all", "search.measure=all", "workload.replicates=3"),
        ("search.measure=all", "workload.replicates=2", "workload.reference=false"),
    ],
)
def test_a_long_one_has_as_many_launches_without(settings: tuple[str, ...]) -> None:
    expected, dry = both(*settings)
    assert len(expected) == pytest.approx(len(dry), abs=2)
    for purpose in (Purpose.REPLICATE, Purpose.REFERENCE):
        counts = [sum(ask.purpose is purpose for ask in asks) for asks in (expected, dry)]
        assert counts[0] == pytest.approx(counts[1], abs=2)
    if "search.max_launches=7" not in settings:
        # Which cells are checked is a guess, unless all are.
        cells = [
            {each.cell for each in asks if each.purpose is not Purpose.AUDIT}
            for asks in (expected, dry)
        ]
        assert cells[0] == cells[1]
        speeds = [Counter(ask.with_speed for ask in asks)[True] for asks in (expected, dry)]
        assert speeds[0] == pytest.approx(speeds[1], abs=3)
    proofs = [ask.cell for ask in expected if ask.purpose is Purpose.PROOF]
    assert len(set(proofs)) == len(proofs)


def test_what_was_launched_is_not_launched_again() -> None:
    spec = sweep("search.verify=all", "search.measure=all")
    cells = spec.grid.cells()
    works = Outcome(Status.MEASURED, Phase.STOP, filled=True, speed=Speed(9.0, 9.0, 9.0))
    told = [(cell, works) for cell in cells[:10]]
    model = MemoryModel(spec.card.memory_gib, prior_for(spec))
    expected = expected_launches(spec, None, model, told)
    again = [ask.cell for ask in expected if ask.purpose.repeats]
    assert {ask.cell for ask in expected if not ask.purpose.repeats} == set(cells[10:])
    assert again == [cells[0]] * 2


def test_a_large_grid_takes_a_moment() -> None:
    windows = ",".join(str(8192 + 512 * number) for number in range(84))
    for settings in ("search.verify=all", "search.measure=all", "search.audit=100000"):
        spec = sweep(f"grid.context=[{windows}]", settings)
        assert len(spec.grid.cells()) == 1008
        prior = prior_for(spec)
        model = MemoryModel(spec.card.memory_gib, prior)
        began = time.process_time()
        assert len(expected_launches(spec, prior, model, ())) > 300
        assert time.process_time() - began < 20  # several times what it takes
