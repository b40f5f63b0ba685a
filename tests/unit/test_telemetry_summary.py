"""Samples of a run in one line, and the samples that a long attempt keeps."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.conditions import Conditions, Sample
from vllm_frontier.telemetry import summarize
from vllm_frontier.telemetry.sampler import Thinned


def pair(at: float, one: dict[str, object], other: dict[str, object]) -> list[Sample]:
    """Two cards at one moment."""
    return [Sample(at, "A", **one), Sample(at, "B", **other)]  # type: ignore[arg-type]


def test_every_counter_has_its_statistic() -> None:
    samples = [
        *pair(
            9.9,  # before the run
            {"temperature_c": 99.0, "throttle_reasons": ("sync_boost",)},
            {"memory_used_gib": 99.0},
        ),
        *pair(
            10.0,
            {
                "memory_used_gib": 20.0,
                "sm_clock_mhz": 2400.0,
                "memory_clock_mhz": 14000.0,
                "power_w": 300.0,
                "temperature_c": 60.0,
                "gpu_utilization": 0.9,
                "throttle_reasons": (),
                "foreign_processes": 1,
                "foreign_gib": 0.5,
                "cpu_cores": 1.0,
                "foreign_cores": 0.25,
                "cpu_mhz": 4000.0,
            },
            {
                "memory_used_gib": 21.0,
                "sm_clock_mhz": 2000.0,
                "memory_clock_mhz": 13000.0,
                "power_w": 200.0,
                "temperature_c": 71.0,
                "gpu_utilization": 0.7,
                "throttle_reasons": ("thermal_software", "power_cap"),
                "foreign_processes": 2,
                "foreign_gib": 1.0,
                "cpu_cores": 1.0,
                "foreign_cores": 0.25,
                "cpu_mhz": 4000.0,
            },
        ),
        *pair(
            11.0,
            {
                "memory_used_gib": 22.0,
                "sm_clock_mhz": 1000.0,
                "power_w": 100.0,
                "temperature_c": 65.0,
                "throttle_reasons": ("power_cap",),
                "cpu_cores": 2.0,
            },
            {
                "memory_used_gib": 18.0,
                "sm_clock_mhz": 2000.0,
                "power_w": 200.0,
                "temperature_c": 70.0,
                "throttle_reasons": (),
                "cpu_cores": 2.0,
            },
        ),
    ]
    found = summarize(samples, 10.0, 11.5)
    assert found == Conditions(
        memory_used_gib=41.0,
        sm_clock_mhz=1500.0,  # of the slower one each time: 2000 and 1000
        memory_clock_mhz=13000.0,
        power_w=400.0,  # together 500 and 300
        temperature_c=71.0,
        gpu_utilization=pytest.approx(0.8),
        throttle_reasons=("power_cap", "thermal_software"),
        throttled_share=0.5,
        foreign_processes=3,
        foreign_gib=1.5,
        cpu_cores=1.5,
        foreign_cores=0.25,
        cpu_mhz=4000.0,
    )
    assert isinstance(found.foreign_processes, int)


def test_a_run_between_two_samples_takes_the_nearest() -> None:
    samples = [Sample(10.0 + at / 2, "A", power_w=float(at)) for at in range(4)]
    assert summarize(samples, 10.6, 10.7).power_w == 1.0
    assert summarize(samples, 10.8, 10.95).power_w == 2.0
    # One within it is of the run, however near others are.
    assert summarize(samples, 10.45, 10.5).power_w == 1.0
    assert summarize(samples, 11.6, 11.7).power_w == 3.0
    # What was long before or after says nothing.
    assert summarize(samples, 60.0, 61.0) == Conditions()
    assert summarize(samples, 1.0, 2.0) == Conditions()
    assert summarize([], 1.0, 2.0) == Conditions()


def test_what_one_card_does_not_tell_is_no_sum() -> None:
    samples = [
        *pair(1.0, {"power_w": 100.0, "foreign_gib": None}, {"power_w": None}),
        *pair(2.0, {"power_w": 100.0}, {"power_w": 150.0}),
    ]
    found = summarize(samples, 0.0, 3.0)
    assert found.power_w == 250.0
    assert found.foreign_gib is None
    # Nobody told of throttling: that is not the same as no throttling.
    assert (found.throttle_reasons, found.throttled_share) == (None, None)
    quiet = [Sample(1.0, "A", throttle_reasons=())]
    assert summarize(quiet, 0.0, 3.0).throttle_reasons == ()
    assert summarize(quiet, 0.0, 3.0).throttled_share == 0.0


@given(limit=st.integers(2, 60), count=st.integers(0, 500))
def test_old_samples_are_thinned_out_evenly(limit: int, count: int) -> None:
    kept = Thinned(limit)
    for at in range(count):
        kept.append((Sample(float(at), "A"),))
        assert len(kept.kept) <= limit
    times = [each[0].at for each in kept.kept]
    assert times == sorted(set(times))
    if count <= limit:
        assert times == list(range(count))
    else:
        assert times[0] == 0.0
        assert count - times[-1] <= 2 * (times[1] - times[0] if len(times) > 1 else count)
        # Wide steps first, then single ones: no gap that was not thinned out.
        steps = [after - before for before, after in itertools.pairwise(times)]
        wide = [step for step in steps if step > 1]
        assert len(set(wide[:-1])) <= 1
