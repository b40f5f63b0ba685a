"""Where the window ends, and when that is proven."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.window_end import WindowEnd, window_end

WORKS, FAILS, UNKNOWN = True, False, None


@pytest.mark.parametrize(
    ("answers", "longest", "shortest", "verified", "monotone"),
    [
        ((WORKS, WORKS, FAILS, FAILS), 2, 3, True, True),
        ((UNKNOWN, WORKS, FAILS, UNKNOWN), 2, 3, True, True),
        ((WORKS, UNKNOWN, FAILS, FAILS), 1, 3, False, True),
        ((WORKS, WORKS, WORKS, WORKS), 4, None, True, True),
        ((UNKNOWN, UNKNOWN, UNKNOWN, WORKS), 4, None, True, True),
        ((WORKS, WORKS, WORKS, UNKNOWN), 3, None, False, True),
        ((FAILS, UNKNOWN, UNKNOWN, UNKNOWN), None, 1, True, True),
        ((UNKNOWN, FAILS, FAILS, FAILS), None, 2, False, True),
        ((UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN), None, None, False, True),
        # A window is refused, and a longer one works: nothing is proven, known or not.
        ((FAILS, WORKS, FAILS, FAILS), 2, 1, False, False),
        ((FAILS, UNKNOWN, WORKS, UNKNOWN), 3, 1, False, False),
    ],
)
def test_the_sides_and_what_lies_between_them(
    answers: tuple[bool | None, ...],
    longest: int | None,
    shortest: int | None,
    verified: bool,
    monotone: bool,
) -> None:
    told = dict(enumerate(answers, 1))
    assert window_end(told) == WindowEnd(longest, shortest, verified, monotone)
    assert window_end(dict(reversed(told.items()))) == window_end(told)


@pytest.mark.parametrize(("disputed", "verified"), [({2}, False), ({3}, False), ({1, 4}, True)])
def test_only_a_dispute_about_a_side_counts(disputed: set[int], verified: bool) -> None:
    assert window_end({1: True, 2: True, 3: False, 4: False}, disputed).verified is verified


@given(st.lists(st.sampled_from([True, False, None]), max_size=8))
def test_what_is_proven_stays_so_whatever_the_others_turn_out_to_be(
    answers: list[bool | None],
) -> None:
    """If memory alone decides: then no answer that is still missing can move a proven end."""
    end = window_end(dict(enumerate(answers)))
    if not end.verified:
        return
    for fits in range(len(answers) + 1):
        truth = [place < fits for place in range(len(answers))]
        if all(said in (None, so) for said, so in zip(answers, truth, strict=True)):
            full = window_end(dict(enumerate(truth)))
            assert (full.longest, full.shortest) == (end.longest, end.shortest)
