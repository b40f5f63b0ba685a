from typing import Any

import polars as pl
from checked_sweep import decode, launch

from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.analyze.standing import standing
from vllm_frontier.report import documents
from vllm_frontier.store.tables import frame

Row = dict[str, Any]


def test_a_cell_without_speed_does_not_stand_and_a_beaten_one_has_no_verdict() -> None:
    fast, slow, dumb = launch(3), launch(1), launch(2, graphs=False)
    runs = [*decode(fast, 100.0, 101.0), *decode(slow, 50.0, 51.0)]
    trials = frame("trials", [fast, slow, dumb]).lazy()
    measured = frame("runs", runs).lazy()
    found = standing(trials, measured, frontier(trials, measured)).collect()
    told = found.select("depth", "leads", "choices", "against_fastest").rows()
    assert told == [(3, True, ["fastest", "longest", "balanced"], None), (1, False, None, None)]
    empty = standing(
        frame("trials").lazy(), frame("runs").lazy(), frame("frontier").lazy()
    ).collect()
    assert empty.is_empty()
    assert empty.schema["choices"] == pl.List(pl.String)


def stands(trials: list[Row], runs: list[Row]) -> list[tuple[Any, ...]]:
    """Depth, window, share and verdict of those that lead, with the terminal's rows beside."""
    tables = frame("trials", trials).lazy(), frame("runs", runs).lazy()
    leading = frontier(*tables)
    everything = standing(*tables, leading).collect()
    assert everything.filter(~pl.col("leads"))["against_fastest"].is_null().all()
    found = everything.filter("leads")
    told = dict(found.select("cell_id", "against_fastest").iter_rows())
    rows = documents.frontier_rows(leading, *tables)
    leads = {row["cell_id"] for row in rows if "all" in row["on_frontier_for"]}
    assert leads == set(told)
    assert {row["cell_id"]: row["against_fastest"] for row in rows if row["against_fastest"]} == {
        name: verdict for name, verdict in told.items() if verdict
    }
    return found.select("depth", "context", "utilization", "against_fastest").rows()


def test_what_has_its_speed_from_the_same_launch_is_as_fast() -> None:
    fastest, lent = launch(3, context=16_384), launch(3, context=8192, utilization=0.8)
    slow = launch(0, context=16_384, utilization=0.8)
    runs = [*decode(fastest, 100.0, 101.0), *decode(slow, 50.0, 51.0)]
    beaten = launch(3, context=4096)
    inferred = [each | {"status": "inferred", "attempt": 0} for each in (lent, beaten)]
    assert stands([*inferred, fastest, slow], runs) == [
        (3, 16_384, 0.9, None),
        (0, 16_384, 0.8, "slower"),
        (3, 8192, 0.8, "no clear difference"),
    ]


def test_of_equally_fast_cells_that_is_the_fastest_which_is_so_called() -> None:
    # The names of the cells would order them the other way round.
    for first, second in (("a", "b"), ("b", "a")):
        longest = launch(3, context=16_384, cell_id=first)
        shorter = launch(3, context=8192, utilization=0.8, cell_id=second)
        runs = [*decode(longest, 100.0), *decode(shorter, 100.0)]
        assert stands([shorter, longest], runs) == [
            (3, 16_384, 0.9, None),
            (3, 8192, 0.8, "no clear difference"),
        ]


def test_cells_are_held_against_the_fastest_not_the_longest() -> None:
    fast, long = launch(3), launch(0, context=16_384)
    runs = [*decode(fast, 100.0), *decode(long, 50.0)]
    assert stands([fast, long], runs) == [(0, 16_384, 0.9, "slower"), (3, 8192, 0.9, None)]


def test_what_leads_for_a_task_alone_has_no_verdict() -> None:
    overall, prose = launch(3), launch(1)
    runs = [
        *decode(overall, 100.0, task="edit"),
        *decode(overall, 40.0, task="prose"),
        *decode(prose, 50.0, task="edit"),
        *decode(prose, 60.0, task="prose"),
    ]
    assert stands([overall, prose], runs) == [(3, 8192, 0.9, None)]
