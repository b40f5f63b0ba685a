"""Launches that repeat a cell, and runs that repeat a prompt: as good as was asked for?"""

import math

import pytest
from checked_sweep import Row, decode, judged, launch, verdicts

from vllm_frontier.analyze.checks import checks
from vllm_frontier.measure.precision import half_widths
from vllm_frontier.outcome import Run
from vllm_frontier.store.tables import frame

FIRST = launch(2)
CRASHED = {"status": "failed", "failure_class": "engine_crashed"}
REFUSED = {"status": "infeasible", "failure_class": "kv_too_small"}


def again(*ends: dict, purpose: str = "replicate") -> list[Row]:
    """The first launch of a cell, which was measured, and others of it."""
    others = [
        launch(2, attempt=number + 2, hours=number + 1.0, purpose=purpose) | end
        for number, end in enumerate(ends)
    ]
    return [FIRST, *others]


def repeats(trials: list[Row]) -> list[tuple[str, str | None, float | None, str]]:
    found = judged("repeat_launches", trials, decode(FIRST, 50.0))
    return [(row["verdict"], row["cell_id"], row["value"], row["detail"]) for row in found]


def test_repeats_that_were_measured_pass() -> None:
    told = "none of 2 launches that repeat a cell failed"
    assert repeats(again({}, {})) == [("pass", None, 0.0, told)]
    told = "none of 1 launch that repeats a cell failed"
    assert repeats(again({}, purpose="reference")) == [("pass", None, 0.0, told)]


def test_repeats_that_failed_are_counted_with_their_reasons() -> None:
    ends = [CRASHED, {}, CRASHED | {"failure_class": "port_in_use"}, CRASHED]
    told = "3 of 4 launches that repeat a cell failed (engine_crashed: 2, port_in_use: 1)"
    assert repeats(again(*ends)) == [("warn", None, 0.75, told)]


def test_a_cell_whose_launches_disagree_is_named() -> None:
    ends = [REFUSED, {}, {"status": "invalid", "failure_class": None}]
    told = (
        "launches of this cell disagree: 2 measured, 1 infeasible (kv_too_small), "
        "1 invalid (no reason told)"
    )
    one, whole = repeats(again(*ends))
    assert one == ("warn", FIRST["cell_id"], 0.5, told)
    assert whole[:3] == ("pass", None, 0.0)
    # The reverse: what the search took for refused was measured later.
    refused, measured = FIRST | REFUSED, launch(2, attempt=2, purpose="audit")
    found = judged("repeat_launches", [refused, measured], decode(measured, 50.0))
    assert [(row["verdict"], row["value"], row["depth"]) for row in found] == [("warn", 0.5, 2)]


@pytest.mark.parametrize(
    "ends",
    [
        [],
        [{"status": "interrupted"}],
        [CRASHED | {"purpose": "proof"}],  # a retry is no repeat
    ],
)
def test_without_repeats_nothing_is_known(ends: list[dict]) -> None:
    assert repeats(again(*ends)) == [("unknown", None, None, "no cell was launched again")]


def test_drift_says_that_its_launches_failed() -> None:
    runs = decode(FIRST, 50.0)
    (row,) = judged("drift", again(CRASHED, REFUSED, purpose="reference"), runs)
    told = "all of the 2 launches to watch the speed of a cell came to nothing, so that nothing"
    assert row["verdict"] == "unknown"
    assert row["detail"].startswith(told)
    (row,) = judged("drift", [FIRST], runs)
    assert row["detail"] == "no cell was launched again to watch its speed"


def exact(trials: list[Row], runs: list[Row], wanted: float | None = 0.02) -> list[Row]:
    tables = frame("trials", trials).lazy(), frame("runs", runs).lazy()
    found = checks(*tables, precision=wanted).collect()
    return [row for row in found.iter_rows(named=True) if row["check"] == "precision"]


def test_launches_that_stay_less_exact_than_was_asked_for_are_counted() -> None:
    narrow, wide, once = (launch(0, attempt=number) for number in (1, 2, 3))
    speeds = [40.0, 70.0]
    runs = decode(narrow, 50.0, 50.1, 49.9, variant=0)
    runs += decode(wide, *speeds, task="prose", variant=0)
    runs += decode(wide, 50.0, 50.0, 50.0, variant=0)
    told = [
        Run("prose", number, "decode", decode_tok_s=speed, variant=0)
        for number, speed in enumerate(speeds)
    ]
    told += [Run("edit", number, "decode", decode_tok_s=50.0, variant=0) for number in range(3)]
    half = half_widths(told)["prose"]
    assert half > 0.3
    (row,) = exact([narrow, wide], runs)
    assert (row["verdict"], row["cell_id"], row["expected"]) == ("warn", None, 0.02)
    assert row["value"] == pytest.approx(half)
    worst = f"at worst ±{100 * half:.3g} % (prose)"
    assert row["detail"] == f"precision 2 % not reached in 1 of 2 launches, {worst}"
    (row,) = exact([narrow, wide, once], runs + decode(once, 50.0))
    assert row["detail"].endswith("; in 1 of them too few runs tell how exact they are")
    (row,) = exact([once], decode(once, 50.0))
    assert (row["verdict"], row["value"]) == ("warn", None)
    (row,) = exact([narrow], runs[:3])
    assert (row["verdict"], row["detail"]) == ("pass", "precision 2 % reached in all of 1 launch")
    assert 0 < row["value"] < 0.02


def test_where_no_precision_was_asked_for_nothing_is_said_of_it() -> None:
    assert exact([FIRST], decode(FIRST, 50.0), None) == []
    (row,) = exact([FIRST], decode(FIRST, math.nan))
    assert row["verdict"] == "unknown"
    assert verdicts("precision", [FIRST], decode(FIRST, 50.0)) == []
