"""Whose fault a lack of memory is."""

from __future__ import annotations

import pytest

from vllm_frontier.contention import (
    MemoryState,
    excess_gib,
    holders,
    read_state,
    settled_state,
    shortage_gib,
    unless_contended,
)
from vllm_frontier.outcome import Failure, FailureClass, Phase, StartupFacts, Status
from vllm_frontier.telemetry import CardProcess

ABOVE_FREE = (
    "ValueError: Free memory on device cuda:0 (29.80/31.36 GiB) on startup is less than desired "
    "GPU memory utilization (0.98, 30.73 GiB). Decrease GPU memory utilization"
)
OLD_OOM = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB (GPU 0; 23.65 GiB "
    "total capacity; 21.10 GiB already allocated; 512.00 MiB free; 22.00 GiB reserved in total"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.74 GiB. GPU 0 has a total "
    "capacity of 31.36 GiB of which 605.88 MiB is free."
)
MEMORY = [each for each in FailureClass if each.status is Status.INFEASIBLE]


def failure(failure_class: FailureClass, evidence: str = "the line") -> Failure:
    return Failure(failure_class, Phase.PROFILE, evidence, 7)


def judged(
    found: Failure, above: float | None, facts: StartupFacts | None = None, **more: bool
) -> FailureClass:
    return unless_contended(
        found, facts or StartupFacts(), above_gib=above, tolerance_gib=0.5, **more
    ).failure_class


@pytest.mark.parametrize("failure_class", MEMORY)
def test_no_lack_of_memory_counts_while_others_hold_some(failure_class: FailureClass) -> None:
    assert judged(failure(failure_class), 5.0) is FailureClass.MEMORY_CONTENDED
    assert judged(failure(failure_class), 0.05) is failure_class
    assert judged(failure(failure_class), None) is failure_class
    assert judged(failure(failure_class), -3.0) is failure_class


@pytest.mark.parametrize("failure_class", [each for each in FailureClass if each not in MEMORY])
def test_no_other_failure_is_blamed_on_others(failure_class: FailureClass) -> None:
    assert judged(failure(failure_class), 5.0) is failure_class


def test_within_the_tolerance_a_failure_stands_that_others_cannot_explain() -> None:
    facts = StartupFacts(kv_needed_gib=4.37, kv_available_gib=3.49)
    too_small = failure(FailureClass.KV_TOO_SMALL)
    assert judged(too_small, 0.4, facts) is FailureClass.KV_TOO_SMALL
    close = StartupFacts(kv_needed_gib=4.37, kv_available_gib=4.10)
    assert judged(too_small, 0.4, close) is FailureClass.MEMORY_CONTENDED
    # Above it nothing is certain: the launch should not have happened.
    assert judged(too_small, 0.6, facts) is FailureClass.MEMORY_CONTENDED


def test_on_a_host_only_the_refusal_for_free_memory_can_be_others_fault() -> None:
    too_small = failure(FailureClass.KV_TOO_SMALL)
    assert judged(too_small, 5.0, host=True) is FailureClass.KV_TOO_SMALL
    above = failure(FailureClass.UTILIZATION_ABOVE_FREE)
    assert judged(above, 5.0, host=True) is FailureClass.MEMORY_CONTENDED


@pytest.mark.parametrize(
    ("found", "facts", "missing"),
    [
        (
            failure(FailureClass.KV_TOO_SMALL),
            StartupFacts(kv_needed_gib=1.0, kv_available_gib=0.25),
            0.75,
        ),
        (failure(FailureClass.KV_TOO_SMALL), StartupFacts(max_context_estimate=17024), None),
        (failure(FailureClass.KV_NONE), StartupFacts(kv_available_gib=-1.5), 1.5),
        (failure(FailureClass.KV_NONE), StartupFacts(kv_available_gib=0.0), None),
        (failure(FailureClass.UTILIZATION_ABOVE_FREE, ABOVE_FREE), StartupFacts(), 0.93),
        (failure(FailureClass.OOM_LOAD, OOM), StartupFacts(), 1.74 - 605.88 / 1024),
        (failure(FailureClass.OOM_LOAD, OLD_OOM), StartupFacts(), 2.5),
        (failure(FailureClass.OOM_LOAD, "CUDA error: out of memory"), StartupFacts(), None),
    ],
)
def test_what_was_missing_is_in_the_log(
    found: Failure, facts: StartupFacts, missing: float | None
) -> None:
    assert shortage_gib(found, facts) == (None if missing is None else pytest.approx(missing))


def test_the_evidence_stays_and_names_who_came_to_hold_memory() -> None:
    baseline = MemoryState({"GPU-0": 0.6}, (CardProcess(5_000_002, 0.5), CardProcess(5_000_003, 1)))
    later = MemoryState(
        {"GPU-0": 6.0},
        (
            CardProcess(5_000_000, 5.25),
            CardProcess(5_000_001, None),
            CardProcess(5_000_002, 0.5),  # was there, and takes no more
            CardProcess(5_000_003, 1.5),
        ),
    )
    who = holders(later, baseline)
    assert who == ": pid 5000000 5.25 GiB, pid 5000001, pid 5000003 1.50 GiB"
    assert holders(baseline, baseline) == holders(None, None) == ""
    blamed = unless_contended(
        failure(FailureClass.OOM_LOAD, "torch.OutOfMemoryError: x"),
        StartupFacts(),
        above_gib=5.25,
        tolerance_gib=0.5,
        who=": pid 7",
    )
    assert blamed.evidence == (
        "torch.OutOfMemoryError: x [while 5.25 GiB more were in use than before the sweep: pid 7]"
    )
    assert (blamed.evidence_line, blamed.phase) == (7, Phase.PROFILE)


def test_cards_are_compared_one_by_one() -> None:
    baseline = MemoryState({"a": 10.0, "b": 0.5})
    # One card was handed back what another lost: their sum would hide it.
    assert excess_gib(baseline, MemoryState({"a": 0.5, "b": 9.5})) == pytest.approx(9.0)
    # A card that could not be read before says nothing now.
    assert excess_gib(MemoryState({"a": 1.0}), MemoryState({"a": 1.2, "b": 9.0})) == pytest.approx(
        0.2
    )


def test_the_highest_reading_counts_and_unknown_ones_do_not() -> None:
    baseline = MemoryState({"a": 0.6})
    later = (MemoryState({"a": 0.7}), None, MemoryState({"a": 3.6}))
    assert excess_gib(baseline, *later) == pytest.approx(3.0)
    assert excess_gib(baseline, None, MemoryState()) is None
    assert excess_gib(None, MemoryState({"a": 3.6})) is None
    assert excess_gib(MemoryState(), MemoryState({"a": 3.6})) is None


def test_what_an_earlier_run_left_behind_is_no_baseline() -> None:
    now = MemoryState({"a": 20.6, "b": 0.5}, (CardProcess(7, 20.0),))
    assert now.lowest({"a": 0.6, "b": 0.9, "c": 0.1}) == MemoryState(
        {"a": 0.6, "b": 0.5}, now.processes
    )


def test_memory_that_is_being_handed_back_is_waited_for() -> None:
    baseline = MemoryState({"a": 0.6})
    readings = iter([5.0, 2.0, 0.65])
    state = settled_state(lambda: MemoryState({"a": next(readings)}), baseline, 5.0)
    assert state.used_gib == {"a": 0.65}
    stays = settled_state(lambda: MemoryState({"a": 4.0}), baseline, 0.3)
    assert stays.used_gib == {"a": 4.0}


def test_the_host_is_read_where_there_is_no_card() -> None:
    assert read_state((), host=False) == MemoryState()
    used = read_state((), host=True).used_gib["host"]
    assert 0.05 < used < 4096
