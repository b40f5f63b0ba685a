import polars as pl
from checked_sweep import decode, launch

from vllm_frontier.analyze.frontier import frontier
from vllm_frontier.analyze.standing import standing
from vllm_frontier.store.tables import frame


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
