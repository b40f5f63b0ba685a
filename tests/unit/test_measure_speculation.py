"""Whether speculation took place, from the counters of an attempt's runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_frontier.measure.speculation import spec_state
from vllm_frontier.outcome import Run, SpecState


def run(drafts: int | None, accepted: tuple[int, ...] | None, kind: str = "decode") -> Run:
    depth = len(accepted or ())
    return Run(
        "edit",
        0,
        kind,
        completion_tokens=200,
        drafts=drafts,
        draft_tokens=None if drafts is None else drafts * depth,
        accepted_tokens=None if accepted is None else sum(accepted),
        accepted_per_position=accepted,
    )


@pytest.mark.parametrize(
    ("runs", "state"),
    [
        ([run(100, (90, 70, 50))], SpecState.WORKING),
        ([run(100, (2, 0, 0))], SpecState.WORKING),
        ([run(100, (1, 0, 0))], SpecState.INEFFECTIVE),
        ([run(100, (0, 0, 0))], SpecState.INEFFECTIVE),
        # One task accepts nothing and another a lot: the head works.
        ([run(100, (0, 0, 0)), run(100, (90, 80, 70))], SpecState.WORKING),
        ([run(0, (0, 0, 0))], SpecState.INEFFECTIVE),
        # Nothing could be drafted: the first token comes with the prompt.
        ([replace(run(0, (0, 0, 0)), completion_tokens=1)], None),
        ([run(100, (100, 100, 100))], SpecState.SUSPECT),
        ([run(100, (100, 100, 99))], SpecState.WORKING),
        # Too few drafts to say that all of them is too many.
        ([run(10, (10, 10, 10))], None),
        ([run(1, (0, 0, 0))], None),
        # Counted by position and in sum: the two must agree.
        ([replace(run(100, (10, 4, 2)), accepted_tokens=250)], SpecState.SUSPECT),
        # A server that does not count by position.
        ([replace(run(100, None), draft_tokens=300, accepted_tokens=300)], SpecState.SUSPECT),
        ([replace(run(100, None), draft_tokens=300, accepted_tokens=150)], SpecState.WORKING),
        ([replace(run(100, None), draft_tokens=300, accepted_tokens=1)], SpecState.INEFFECTIVE),
        # A later token cannot be accepted more often than an earlier one, nor more than drafted.
        ([run(100, (50, 60, 10))], SpecState.SUSPECT),
        ([run(100, (120, 60, 10))], SpecState.SUSPECT),
        ([replace(run(100, (90, 70, 50)), accepted_tokens=400)], SpecState.SUSPECT),
        # What is no decode run does not count, nor one whose counters could not be read.
        ([run(100, (0, 0, 0), "prefill"), run(100, (90, 70, 50))], SpecState.WORKING),
        ([run(None, None), run(100, (90, 70, 50))], SpecState.WORKING),
        ([run(None, None)], None),
        ([], None),
    ],
)
def test_state_of_depth_three(runs: list[Run], state: SpecState | None) -> None:
    assert spec_state(3, runs) is state


def test_without_speculation_there_is_no_state() -> None:
    assert spec_state(0, [run(None, None)]) is None
    assert spec_state(0, [run(0, ())]) is None
