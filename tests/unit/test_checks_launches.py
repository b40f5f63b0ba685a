"""Launches of one cell that differ, and a reference cell that drifts."""

import numpy as np
import pytest
from checked_sweep import decode, judged, launch, verdicts

from vllm_frontier.analyze.checks import checks
from vllm_frontier.store.tables import frame

TASKS = ("edit", "code", "prose")


def pair(ratio: float, noise: float, repeats: int = 3, seed: int = 0) -> list[dict]:
    """What `series_gap` says of two launches, the second by `ratio` faster, with noise of runs."""
    rng = np.random.default_rng(seed)
    both = launch(2), launch(2, attempt=2, hours=1)
    runs = []
    for each, factor in zip(both, (1.0, ratio), strict=True):
        for task, speed in zip(TASKS, (60.0, 50.0, 40.0), strict=True):
            speeds = speed * factor * np.exp(rng.normal(0, noise, repeats))
            runs += decode(each, *speeds, task=task)
    return judged("series_gap", both, runs)


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        (1.0, 0.0, "pass"),
        (0.985, 0.0, "pass"),
        (0.975, 0.0, "warn"),
        (1.03, 0.001, "warn"),
        (1.0, 0.05, "pass"),
        (0.8, 0.05, "warn"),
    ],
)
def test_a_gap_is_more_than_runs_differ_and_more_than_counts(
    ratio: float, noise: float, verdict: str
) -> None:
    (row,) = pair(ratio, noise, seed=4)
    assert row["verdict"] == verdict
    assert row["value"] == pytest.approx(ratio, rel=3 * noise + 1e-9)
    assert (row["attempt"], row["expected"], row["task"]) == (2, 1.0, None)


def test_a_gap_below_what_runs_differ_is_none() -> None:
    found = [pair(0.97, 0.1, seed=seed)[0]["verdict"] for seed in range(20)]
    assert found.count("pass") >= 18


def test_every_launch_is_held_against_the_one_before() -> None:
    three = [launch(2, attempt=number, hours=number) for number in (1, 2, 3)]
    alone = launch(1)
    runs = [
        run
        for each, speed in zip(three, (50.0, 50.0, 40.0), strict=True)
        for run in decode(each, speed, speed * 1.1)
    ]
    found = judged("series_gap", [*three, alone], runs + decode(alone, 1.0, 2.0))
    assert [(row["attempt"], row["verdict"]) for row in found] == [(2, "pass"), (3, "warn")]
    assert found[1]["detail"].startswith("20 % slower than attempt 2 of the same cell (2 runs")


def test_one_run_in_each_tells_nothing() -> None:
    both = launch(2), launch(2, attempt=2)
    runs = decode(both[0], 50.0) + decode(both[1], 30.0)
    (row,) = judged("series_gap", both, runs)
    assert (row["verdict"], row["cell_id"]) == ("unknown", None)


def relaunched(
    gaps: list[float], deviation: float = 0.02, launches: int = 2, cells: int = 8
) -> list[dict]:
    """What `series_gap` says where launches differ; `gaps` are of the first cells."""
    rng = np.random.default_rng(5)
    trials, runs = [], []
    for depth in range(cells):
        prompts = rng.normal(0, 0.1, 3)
        for attempt in range(1, launches + 1):
            trials.append(launch(depth, attempt=attempt, hours=attempt * 10.0 + depth))
            gap = gaps[depth] if attempt > 1 and depth < len(gaps) else 0.0
            effect = gap if gap else rng.normal(0, deviation)
            for task in TASKS:
                noise = rng.normal(0, 0.004, 3)
                runs += decode(trials[-1], *(50 * np.exp(prompts + effect + noise)), task=task)
    return judged("series_gap", trials, runs)


def test_launches_are_held_against_what_launches_of_the_sweep_differ_by() -> None:
    *pairs, sweep = relaunched([])
    assert [row["verdict"] for row in pairs] == ["pass"] * 8
    told = [row["detail"] for row in pairs]
    assert any("no more than launches of this sweep commonly differ by" in each for each in told)
    assert (sweep["cell_id"], sweep["verdict"], sweep["unit"]) == (None, "pass", "share")
    assert sweep["value"] == pytest.approx(0.02, rel=0.6)
    assert "launches of one cell differ by" in sweep["detail"]
    assert "(standard deviation, 7 degrees of freedom)" in sweep["detail"]


def test_a_gap_far_beyond_what_launches_differ_by_is_told_and_excuses_no_other() -> None:
    *pairs, _ = relaunched([-0.2])
    assert [row["verdict"] for row in pairs] == ["warn"] + ["pass"] * 7
    assert "far more than launches of this sweep differ by" in pairs[0]["detail"]


def test_few_launches_do_not_tell_what_is_common() -> None:
    pairs = relaunched([-0.05, 0.05], cells=4)
    assert [row["cell_id"] is None for row in pairs] == [False] * 4
    assert [row["verdict"] for row in pairs[:2]] == ["warn", "warn"]
    assert pairs[0]["detail"].endswith("more than its runs differ")


def watched(moves: list[float], others: float | None = None, **columns: list[float]) -> dict:
    """What `drift` says of a reference cell that moves so, amid cells that differ by `others`."""
    rng = np.random.default_rng(1)
    reference = [
        launch(
            0, attempt=number + 1, hours=4.0 * number, purpose="reference" if number else "proof"
        )
        for number in range(len(moves))
    ]
    runs, trials = [], list(reference)
    for number, (each, move) in enumerate(zip(reference, moves, strict=True)):
        more = {name: values[number] for name, values in columns.items()}
        for task in TASKS:
            noise = np.exp(rng.normal(0, 0.002, 4))
            runs += decode(each, *(50 * move * noise), task=task, **more)
    for depth in range(1, 7 if others is not None else 1):
        for attempt, hours in ((1, depth), (2, 12 - depth)):
            trials.append(launch(depth, attempt=attempt, hours=float(hours), purpose="replicate"))
            runs += decode(trials[-1], 60 * np.exp(rng.normal(0, others)), task="edit")
    (row,) = judged("drift", trials, runs)
    return row


def test_a_reference_cell_that_stays_has_not_drifted() -> None:
    row = watched([1.0, 1.004, 0.999])
    assert row["verdict"] == "pass"
    assert row["depth"] == 0
    assert "too few launches tell" in row["detail"]


@pytest.mark.parametrize(
    ("last", "others", "verdict"),
    [
        (0.98, None, "pass"),  # launches are known to differ by more
        (0.95, None, "warn"),
        (0.97, 0.001, "warn"),
        (0.985, 0.001, "pass"),  # surely, but by little
        (0.95, 0.05, "pass"),  # as launches do here
    ],
)
def test_a_move_is_held_against_what_launches_differ_by(
    last: float, others: float | None, verdict: str
) -> None:
    row = watched([1.0, (1 + last) / 2, last], others)
    assert row["verdict"] == verdict
    assert row["value"] == pytest.approx(last, rel=0.01)


@pytest.mark.parametrize("prompts", [0.0, 0.15, 0.4])
@pytest.mark.parametrize(("last", "verdict"), [(5 / 6, "warn"), (0.95, "warn"), (1.0, "pass")])
def test_prompts_that_differ_hide_no_drift(prompts: float, last: float, verdict: str) -> None:
    rng = np.random.default_rng(1)
    speeds = 50 * np.exp(rng.normal(0, prompts, 9))
    trials, runs = [], []
    for number, move in enumerate([1.0, 1.0, last], 1):
        trials.append(launch(3, attempt=number, hours=number, purpose="reference"))
        for place, task in enumerate(TASKS):
            asked = speeds[3 * place :][:3] * np.exp(rng.normal(0, 0.01, 3))
            runs += decode(trials[-1], *(move * asked), task=task)
    (row,) = judged("drift", trials, runs)
    assert (row["verdict"], row["value"]) == (verdict, pytest.approx(last, rel=0.02))


def test_noise_of_runs_is_no_drift() -> None:
    first, last = [launch(3, attempt=each, hours=each, purpose="reference") for each in (1, 2)]
    runs = decode(first, 40.0, 50.0, 60.0, 45.0) + decode(last, 28.0, 65.0, 67.0, 53.0)
    (row,) = judged("drift", [first, last], runs)
    assert (row["verdict"], row["value"]) == ("pass", pytest.approx(1.147, abs=0.001))


def test_what_moves_along_is_named() -> None:
    row = watched(
        [1.0, 0.96, 0.92],
        sm_clock_mhz=[2500.0, 2400.0, 2300.0],
        temperature_c=[60.0, 60.0, 60.0],
        power_w=[300.0, 310.0, 300.0],
    )
    assert row["verdict"] == "warn"
    assert (
        "became 8.1 % slower (by its runs, give or take 0.3 %) from its first launch"
        in row["detail"]
    )
    assert (
        "goes along most is the card's clock (sm_clock_mhz, rank correlation +0.9"
        in (row["detail"])
    )


def test_noise_is_not_named() -> None:
    rng = np.random.default_rng(3)
    columns = {name: list(rng.normal(50, 3, 3)) for name in ("power_w",)}
    assert "goes along" not in watched([1.0, 1.0, 1.0], **columns)["detail"]
    trials = [launch(0, attempt=each, hours=each, purpose="reference") for each in (1, 2)]
    runs = [
        run
        for each, speed in zip(trials, (50.0, 40.0), strict=True)
        for number in range(40)
        for run in decode(
            each,
            speed * np.exp(rng.normal(0, 0.01)),
            repeat=number,
            variant=number,
            temperature_c=rng.normal(60, 2),
        )
    ]
    (row,) = judged("drift", trials, runs)
    assert row["verdict"] == "warn"
    assert "goes along" not in row["detail"]


def test_without_reference_launches_drift_is_unknown() -> None:
    trials = [launch(0), launch(0, attempt=2, hours=3)]
    runs = [run for each in trials for run in decode(each, 50.0, 51.0)]
    assert verdicts("drift", trials, runs) == ["unknown"]


def test_a_trend_of_all_cells_counts_where_two_launches_say_too_little() -> None:
    rng = np.random.default_rng(0)
    trials, runs = [], []
    for depth in range(8):
        for attempt in (1, 2, 3):
            hours = 8.0 * attempt + depth
            purpose = "reference" if depth == 0 else "replicate"
            trials.append(launch(depth, attempt=attempt, hours=hours, purpose=purpose))
            speed = 50 * np.exp(-0.05 * hours / 24 + rng.normal(0, 0.012))
            runs += decode(trials[-1], speed)
    found = checks(frame("trials", trials).lazy(), frame("runs", runs).lazy()).collect()
    (row,) = found.filter(check="drift").to_dicts()
    assert row["verdict"] == "warn"
    assert "all cells that were launched again became" in row["detail"]
