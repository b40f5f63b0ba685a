"""Whether cells differ in speed, and what the frontier makes of it."""

import math
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from synthetic_sweeps import Model, sweeps

from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.analyze.verdicts import Differences, Verdict, verdicts
from vllm_frontier.dominance import TIE, Point, leaders
from vllm_frontier.store.tables import frame

Speeds = dict[str, list[dict[str, float]]]  # of each cell: by launch the speed at each task


def tables(cells: Speeds, **axes: dict) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """The launches of some cells, each task with one run."""
    trials = [
        {
            "sweep": "s",
            "cell_id": cell,
            "attempt": number,
            "depth": 0,
            "context": 1024,
            "graphs": False,
            "utilization": 0.9,
            "extra": "{}",
            "status": "measured",
            **axes.get(cell, {}),
        }
        for cell, launches in cells.items()
        for number, _ in enumerate(launches, 1)
    ]
    runs = [
        {
            "cell_id": cell,
            "attempt": number,
            "task": task,
            "repeat": 0,
            "kind": "decode",
            "concurrency": 1,
            "decode_tok_s": speed,
        }
        for cell, launches in cells.items()
        for number, speeds in enumerate(launches, 1)
        for task, speed in speeds.items()
    ]
    return frame("trials", trials).lazy(), frame("runs", runs).lazy()


def launches(*speeds: float) -> list[dict[str, float]]:
    return [{"edit": speed} for speed in speeds]


def compare(cells: Speeds, one: str, other: str, task: str | None = None) -> dict:
    pairs = frame("runs", [{"cell_id": one, "task": task}]).lazy()
    asked = pairs.select("cell_id", "task", other_cell_id=pl.lit(other))
    return verdicts(cell_figures(*tables(cells)), asked).collect().row(0, named=True)


NOISE = {"c": launches(49, 50, 51), "d": launches(49, 50, 51)}


def test_a_clear_difference_is_called_either_way() -> None:
    cells = {**NOISE, "a": launches(100, 102, 98), "b": launches(110, 112, 108)}
    found = compare(cells, "b", "a")
    assert (found["verdict"], found["basis"]) == ("faster", "launches")
    logs = {cell: [math.log(each["edit"]) for each in rows] for cell, rows in cells.items()}
    variance = sum(np.var(each, ddof=1) for each in logs.values()) / 4
    gap = np.mean(logs["b"]) - np.mean(logs["a"])
    half = stats.t.ppf(0.975, 8) * math.sqrt(variance * 2 / 3)
    assert found["ratio"] == pytest.approx(math.exp(gap))
    assert found["ratio_low"] == pytest.approx(math.exp(gap - half))
    assert found["ratio_high"] == pytest.approx(math.exp(gap + half))
    assert compare(cells, "a", "b")["verdict"] == "slower"
    assert compare(cells, "a", "b")["ratio"] == pytest.approx(math.exp(-gap))
    assert compare(cells, "a", "a")["verdict"] == "no clear difference"


def test_a_difference_that_launches_may_have_by_themselves_is_none() -> None:
    cells = {**NOISE, "a": launches(100, 102, 98), "b": launches(103, 105, 101)}
    assert compare(cells, "b", "a")["verdict"] == "no clear difference"
    # With ten times smaller differences between launches the same one is clear.
    calm = {
        cell: launches(*(rows[1]["edit"] + (each["edit"] - rows[1]["edit"]) / 10 for each in rows))
        for cell, rows in cells.items()
    }
    assert compare(calm, "b", "a")["verdict"] == "faster"


def test_less_than_two_percent_is_no_difference_however_sure() -> None:
    def two(speed: float) -> Speeds:
        return {"a": launches(100, 100.01, 99.99), "b": launches(speed, speed + 0.01, speed - 0.01)}

    assert compare(two(101.9), "b", "a")["verdict"] == "no clear difference"
    assert compare(two(102.2), "b", "a")["verdict"] == "faster"


def test_with_single_launches_the_headline_and_two_percent_decide() -> None:
    cells = {"a": launches(100), "b": launches(98), "c": launches(97.9)}
    same = compare(cells, "a", "b")
    assert (same["verdict"], same["basis"], same["ratio_low"]) == (
        *("no clear difference", "runs"),
        None,
    )
    assert same["ratio"] == pytest.approx(100 / 98)
    assert compare(cells, "a", "c")["verdict"] == "faster"


def test_launches_that_do_not_differ_at_all_leave_the_two_percent() -> None:
    cells = {"a": launches(100, 100, 100), "b": launches(98, 98), "c": launches(97.9, 97.9, 97.9)}
    same = compare(cells, "a", "b")
    assert (same["verdict"], same["basis"]) == ("no clear difference", "runs")
    assert (same["ratio"], same["ratio_low"]) == (pytest.approx(100 / 98), None)
    assert compare(cells, "a", "c")["verdict"] == "faster"


def noisy(draw: Random, **speeds: float) -> list[dict[str, float]]:
    effects = (-0.01, 0.0, 0.01)
    return [
        {task: speed * math.exp(effect + draw.gauss(0, 0.001)) for task, speed in speeds.items()}
        for effect in effects
    ]


def test_a_task_has_verdicts_of_its_own() -> None:
    draw = Random(1)
    cells = {
        "a": noisy(draw, edit=100, code=80, prose=60),
        "b": noisy(draw, edit=120, code=80, prose=54),
        "c": noisy(draw, edit=100, code=80, prose=60),
    }
    assert compare(cells, "b", "a", "edit")["verdict"] == "faster"
    assert compare(cells, "b", "a", "prose")["verdict"] == "slower"
    assert compare(cells, "b", "a", "code")["verdict"] == "no clear difference"


def test_where_tasks_disagree_the_headline_decides() -> None:
    draw = Random(2)
    plain = {"edit": 100, "code": 80, "prose": 60}
    cells = {
        "a": noisy(draw, **plain),
        "c": noisy(draw, **plain),
        # The mean over tasks is up by a tenth, the median is not.
        "b": noisy(draw, **{**plain, "edit": 130, "prose": 66}),
        # The median is up by a tenth, the mean over tasks is not.
        "d": noisy(draw, **{**plain, "code": 88, "prose": 54}),
    }
    found = compare(cells, "b", "a")
    assert (found["verdict"], found["ratio"]) == ("no clear difference", pytest.approx(1, abs=0.01))
    assert compare(cells, "d", "a")["verdict"] == "faster"


def test_cells_with_other_tasks_are_compared_by_their_headlines() -> None:
    draw = Random(3)
    cells = {
        "a": noisy(draw, edit=100, code=80),
        "b": noisy(draw, edit=100, code=80),
        "c": noisy(draw, edit=100),
    }
    found = compare(cells, "c", "a")
    assert (found["verdict"], found["basis"]) == ("faster", "runs")


def test_pairs_keep_their_order_and_cells_without_a_speed_have_no_verdict() -> None:
    figures = cell_figures(*tables({"a": launches(10), "b": launches(20)}))
    pairs = pl.LazyFrame(
        {
            "cell_id": ["b", "gone", "a", "a"],
            "other_cell_id": ["a", "a", "b", "b"],
            "task": [None, None, "edit", "unheard of"],
        }
    )
    found = verdicts(figures, pairs).collect()
    assert found.select("cell_id", "other_cell_id", "task", "verdict").rows() == [
        ("b", "a", None, "faster"),
        ("a", "b", "edit", "slower"),
    ]
    nothing = cell_figures(frame("trials").lazy(), frame("runs").lazy())
    assert verdicts(nothing, pairs).collect().schema == found.schema


def test_known_differences_are_called_and_others_are_not() -> None:
    """The first rows of `benchmarks/trust.py` on fewer sweeps."""
    drawn = sweeps(40, Model(), seed=3)
    figures = cell_figures(drawn.trials.lazy(), drawn.runs.lazy())

    def share(one: int, other: int, verdict: Verdict) -> float:
        names = drawn.truth.select("sweep", "cell_id", "number")
        pairs = names.filter(pl.col("number") % 4 == one).select(
            "cell_id",
            task=pl.lit(None, dtype=pl.String),
            other_cell_id=names.filter(pl.col("number") % 4 == other)["cell_id"],
        )
        found = verdicts(figures, pairs.lazy()).collect()
        return float((found["verdict"] == verdict.value).mean())  # type: ignore[arg-type]

    assert share(2, 0, Verdict.FASTER) > 0.7
    assert share(3, 0, Verdict.SLOWER) > 0.7
    assert share(1, 0, Verdict.NO_CLEAR_DIFFERENCE) > 0.88


# The frontier


def axes(context: int, depth: int = 0, share: float = 0.9) -> dict:
    return {"context": context, "depth": depth, "utilization": share}


def test_a_cell_that_is_not_clearly_faster_gives_way_to_a_longer_window() -> None:
    cells = {**NOISE, "long": launches(100, 102, 98), "short": launches(103, 105, 101)}
    places = {
        "long": axes(8192),
        "short": axes(4096),
        "c": axes(1024, share=0.95),
        "d": axes(1024, share=0.95),
    }
    assert frontier(*tables(cells, **places)).collect()["cell_id"].to_list() == ["long"]
    cells["short"] = launches(110, 112, 108)
    assert frontier(*tables(cells, **places)).collect()["cell_id"].to_list() == ["long", "short"]


def test_of_tied_cells_in_one_place_the_shallowest_stays() -> None:
    cells = {
        **NOISE,
        "shallow": launches(100, 102, 98),
        "deep": launches(103, 105, 101),
        "slow": launches(80, 81, 79),
    }
    places = {name: axes(8192, depth) for depth, name in enumerate(("slow", "shallow", "deep"))}
    places |= {name: axes(1024, share=0.95) for name in NOISE}
    assert frontier(*tables(cells, **places)).collect()["cell_id"].to_list() == ["shallow"]


def test_a_task_has_a_frontier_of_its_own() -> None:
    draw = Random(4)
    cells = {
        "long": noisy(draw, edit=100, code=80, prose=60),
        "short": noisy(draw, edit=120, code=81, prose=55),
        "other": noisy(draw, edit=90, code=70, prose=50),
    }
    places = {"long": axes(8192), "short": axes(4096), "other": axes(1024, share=0.95)}
    found = frontier(*tables(cells, **places)).collect()
    assert dict(found.select("cell_id", "on_frontier_for").rows()) == {
        "long": ["all", "code", "edit", "prose"],
        "short": ["edit"],
    }


def test_borrowed_speeds_are_compared_by_their_lenders() -> None:
    trials, runs = tables({**NOISE, "a": launches(100, 102, 98)}, c=axes(1024, 2), d=axes(1024, 3))
    inferred = (
        trials.filter(pl.col("cell_id") == "a")
        .head(1)
        .with_columns(
            cell_id=pl.lit("lent"),
            attempt=pl.lit(0, dtype=pl.Int64),
            status=pl.lit("inferred"),
            utilization=0.8,
        )
    )
    found = frontier(pl.concat([trials, inferred]), runs).collect().to_dicts()
    assert [(row["cell_id"], row["speed_cell"], row["launches"], row["runs"]) for row in found] == [
        ("lent", "a", 3, 3)
    ]
    assert found[0]["interval_basis"] == "launches"


CELLS = st.lists(
    st.tuples(
        st.sampled_from([1024, 2048, 4096]),
        st.sampled_from([0.8, 0.9]),
        st.integers(0, 3),
        st.lists(st.sampled_from([50.0, 98.0, 100.0, 102.0, 103.0, 104.1]), min_size=2, max_size=2),
    ),
    max_size=10,
    unique_by=lambda each: each[:3],
)


@settings(deadline=None, max_examples=25)
@given(CELLS, st.sampled_from([1, 3]))
def test_where_launches_do_not_differ_the_frontier_is_that_of_the_tie(
    drawn: list, count: int
) -> None:
    names = [f"c{number}" for number, _ in enumerate(drawn)]
    cells = {
        name: [{"edit": edit, "code": code}] * count
        for name, (*_, (edit, code)) in zip(names, drawn, strict=True)
    }
    places = {
        name: axes(context, depth, share)
        for name, (context, share, depth, _) in zip(names, drawn, strict=True)
    }
    found = frontier(*tables(cells, **places)).collect()

    def leading(speeds: list[float]) -> set[str]:
        return leaders(
            Point(name, context, share, speed, depth)
            for name, (context, share, depth, _), speed in zip(names, drawn, speeds, strict=True)
        )

    expected = {
        "all": leading([(edit + code) / 2 for *_, (edit, code) in drawn]),
        "edit": leading([edit for *_, (edit, _) in drawn]),
        "code": leading([code for *_, (_, code) in drawn]),
    }
    for measure, leads in expected.items():
        on_it = found.filter(pl.col("on_frontier_for").list.contains(measure))
        assert set(on_it["cell_id"]) == leads


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_every_cell_off_the_frontier_is_not_clearly_faster_than_a_better_placed_one(
    seed: int, random: Random
) -> None:
    drawn = sweeps(1, Model(repeats=1, replicates=2), seed)
    draw = np.random.default_rng(seed)
    places = drawn.truth.select(
        "cell_id",
        pl.Series("context", draw.choice([1024, 2048, 4096], 12)),
        pl.Series("depth", draw.integers(0, 3, 12)),
        pl.Series("utilization", draw.choice([0.8, 0.9], 12)),
        extra=pl.concat_str(pl.lit('{"n": '), "number", pl.lit("}")),
    )
    trials = drawn.trials.drop("context", "depth", "utilization", "extra").join(
        places, on="cell_id"
    )
    found = frontier(trials.lazy(), drawn.runs.lazy()).collect()
    shuffled = trials.sample(fraction=1, shuffle=True, seed=random.randrange(99))
    again = frontier(shuffled.lazy(), drawn.runs.lazy().reverse()).collect()
    assert again["cell_id"].to_list() == found["cell_id"].to_list()
    differences = Differences(cell_figures(trials.lazy(), drawn.runs.lazy()))
    leading = set(found.filter(pl.col("on_frontier_for").list.contains("all"))["cell_id"])
    rows = {row["cell_id"]: row for row in places.iter_rows(named=True)}
    for name, row in rows.items():
        better = [
            other
            for other in leading - {name}
            if rows[other]["context"] >= row["context"]
            and rows[other]["utilization"] <= row["utilization"]
        ]
        if name not in leading:
            assert any(not differences.faster(name, other) for other in better)
        else:
            for other in better:
                same = (row["context"], row["utilization"]) == (
                    rows[other]["context"],
                    rows[other]["utilization"],
                )
                assert same or differences.faster(name, other)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000))
def test_differences_are_those_of_the_table_and_follow_the_headlines(seed: int) -> None:
    drawn = sweeps(1, Model(repeats=2), seed)
    figures = cell_figures(drawn.trials.lazy(), drawn.runs.lazy())
    names = drawn.truth["cell_id"].to_list()
    for task in (None, "edit"):
        pairs = pl.DataFrame(
            [(one, other, task) for one in names for other in names],
            schema={"cell_id": pl.String, "other_cell_id": pl.String, "task": pl.String},
            orient="row",
        )
        found = verdicts(figures, pairs.lazy()).collect()
        verdict = dict(
            zip(found.select("cell_id", "other_cell_id").rows(), found["verdict"], strict=True)
        )
        speeds = dict(
            figures.filter(pl.col("task").eq_missing(task)).select("cell_id", "decode_tok_s").rows()
        )
        differences = Differences(figures, task)
        for (one, other), told in verdict.items():
            assert differences.faster(one, other) == (told == "faster")
            if differences.faster(one, other):
                assert speeds[one] > speeds[other]
                assert verdict[other, one] == "slower"


def test_tie_is_a_choice() -> None:
    cells = {"a": launches(100), "b": launches(99)}
    figures = cell_figures(*tables(cells))
    assert not Differences(figures, tie=TIE).faster("a", "b")
    assert Differences(figures, tie=0.0).faster("a", "b")
    with pytest.raises(KeyError):
        Differences(figures, "code").faster("a", "b")
