"""Which cells lead, against the definition for every pair."""

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_frontier.dominance import TIE, Point, leaders, leaders_by


def point(name: str, context: int, share: float, speed: float, depth: int = 0) -> Point[str]:
    return Point(name, context, share, speed, depth)


def test_each_of_window_share_and_speed_can_make_a_leader() -> None:
    points = [
        point("long", 300, 0.9, 10),
        point("small", 100, 0.8, 10),
        point("fast", 100, 0.9, 50),
        point("beaten", 100, 0.9, 40),
        point("beaten too", 300, 0.95, 10),
    ]
    assert leaders(points) == {"long", "small", "fast"}


def test_a_longer_window_at_the_same_speed_beats_a_shorter_one() -> None:
    assert leaders([point("long", 200, 0.9, 10), point("short", 100, 0.9, 10)]) == {"long"}
    # A clear gain in speed keeps the shorter one.
    assert leaders([point("long", 200, 0.9, 10), point("short", 100, 0.9, 10.5)]) == {
        "long",
        "short",
    }
    # One that is within the tie does not.
    assert leaders([point("long", 200, 0.9, 10), point("short", 100, 0.9, 10.19)]) == {"long"}


def test_of_equals_in_one_place_the_shallowest_stays() -> None:
    points = [point("deep", 100, 0.9, 10.1, 4), point("shallow", 100, 0.9, 10.0, 1)]
    assert leaders(points) == {"shallow"}
    assert leaders([*points, point("slow", 100, 0.9, 9.0, 0)]) == {"shallow"}
    same = [point("one", 100, 0.9, 10, 2), point("other", 100, 0.9, 10, 2)]
    assert leaders(same) == {"one", "other"}


def test_a_tie_is_relative_and_may_be_chosen() -> None:
    points = [point("long", 200, 0.9, 1000), point("short", 100, 0.9, 1050)]
    assert leaders(points) == {"long", "short"}
    assert leaders(points, tie=0.1) == {"long"}
    assert leaders(points, tie=0.0) == {"long", "short"}


def test_nothing_leads_nothing() -> None:
    assert leaders([]) == set()


points = st.lists(
    st.builds(
        Point,
        cell_id=st.just(""),
        context=st.integers(1, 4),
        utilization=st.sampled_from([0.8, 0.9, 0.95]),
        speed=st.sampled_from([10.0, 10.1, 10.3, 20.0, 20.3, 50.0]),
        depth=st.integers(0, 3),
    ),
    max_size=12,
)


def beats(one: Point[int], other: Point[int]) -> bool:
    """Strictly better on one of the three, and no worse on the others."""
    no_worse = (
        one.context >= other.context
        and one.utilization <= other.utilization
        and one.speed >= (1 - TIE) * other.speed
    )
    place = (one.context, one.utilization) != (other.context, other.utilization)
    return no_worse and (place or one.speed * (1 - TIE) > other.speed)


@settings(deadline=None)
@given(drawn=points)
def test_leaders_are_unbeaten_and_every_other_is_beaten(drawn: list[Point[str]]) -> None:
    numbered = [
        Point(number, each.context, each.utilization, each.speed, each.depth)
        for number, each in enumerate(drawn)
    ]
    lead = leaders(numbered)
    assert bool(lead) == bool(numbered)
    leading = [each for each in numbered if each.cell_id in lead]
    for each in leading:
        assert not any(beats(other, each) for other in leading)
    for each in numbered:
        if each.cell_id not in lead:
            place = [
                other
                for other in leading
                if (other.context, other.utilization) == (each.context, each.utilization)
                and other.speed >= (1 - TIE) * each.speed
            ]
            assert place or any(beats(other, each) for other in leading)


@settings(deadline=None)
@given(drawn=points, seed=st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(drawn: list[Point[str]], seed: object) -> None:
    numbered = [
        Point(number, each.context, each.utilization, each.speed, each.depth)
        for number, each in enumerate(drawn)
    ]
    shuffled = list(numbered)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert leaders(numbered) == leaders(shuffled)


# Where something else decides which are faster


def numbered(drawn: list[Point[str]]) -> list[Point[int]]:
    return [
        Point(number, each.context, each.utilization, each.speed, each.depth)
        for number, each in enumerate(drawn)
    ]


def at_least_as_well_placed(one: Point[int], other: Point[int]) -> bool:
    return one.context >= other.context and one.utilization <= other.utilization


def same_place(one: Point[int], other: Point[int]) -> bool:
    return (one.context, one.utilization) == (other.context, other.utilization)


def test_two_that_do_not_differ_may_stay_beside_each_other() -> None:
    long, middle, short = (
        point("l", 300, 0.9, 10),
        point("m", 200, 0.9, 11),
        point("s", 100, 0.9, 12),
    )
    pairs = {("s", "l")}
    faster = lambda one, other: (one.cell_id, other.cell_id) in pairs  # noqa: E731
    # `m` differs from neither; it gives way to the longer window, and then `s` is faster.
    assert leaders_by([short, long, middle], faster) == {"l", "s"}
    pairs.clear()
    assert leaders_by([short, long, middle], faster) == {"l"}
    pairs |= {("m", "l")}
    assert leaders_by([short, long, middle], faster) == {"l", "m"}


def test_of_one_place_the_shallowest_of_those_that_none_is_faster_than_stays() -> None:
    here = [point("a", 100, 0.9, 12, 3), point("b", 100, 0.9, 11, 1), point("c", 100, 0.9, 10, 0)]
    assert leaders_by(here, lambda one, other: (one.cell_id, other.cell_id) == ("a", "c")) == {"b"}
    assert leaders_by(here, lambda one, other: one.speed > other.speed) == {"a"}
    assert leaders_by(here, lambda _one, _other: False) == {"c"}


noise = st.lists(st.sampled_from([0.0, 0.1, 0.5, 3.0]), min_size=12, max_size=12)
calls = st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60)


def check_leaders(cells: list[Point[int]], lead: set[int], faster: object) -> None:
    leading = [each for each in cells if each.cell_id in lead]
    assert bool(leading) == bool(cells)
    for each in cells:
        placed = [other for other in leading if at_least_as_well_placed(other, each)]
        if each.cell_id not in lead:
            assert any(not faster(each, other) for other in placed)  # type: ignore[operator]
            continue
        for other in placed:
            if same_place(each, other):
                assert each.depth == other.depth
                assert not faster(other, each)  # type: ignore[operator]
            else:
                assert faster(each, other)  # type: ignore[operator]


@settings(deadline=None)
@given(drawn=points, called=calls, seed=st.randoms(use_true_random=False))
def test_what_holds_of_leaders_whatever_is_faster(
    drawn: list[Point[str]], called: set[tuple[int, int]], seed: object
) -> None:
    cells = numbered(drawn)

    def faster(one: Point[int], other: Point[int]) -> bool:
        return (one.cell_id, other.cell_id) in called and one.speed > other.speed

    lead = leaders_by(cells, faster)
    check_leaders(cells, lead, faster)
    shuffled = list(cells)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert leaders_by(shuffled, faster) == lead


@settings(deadline=None)
@given(drawn=points, errors=noise)
def test_where_faster_is_transitive_no_better_placed_cell_is_faster_than_a_leader(
    drawn: list[Point[str]], errors: list[float]
) -> None:
    cells = numbered(drawn)

    def faster(one: Point[int], other: Point[int]) -> bool:
        return one.speed - errors[one.cell_id] > other.speed + errors[other.cell_id]

    lead = leaders_by(cells, faster)
    check_leaders(cells, lead, faster)
    for each in cells:
        if each.cell_id in lead:
            assert not any(
                faster(other, each) for other in cells if at_least_as_well_placed(other, each)
            )


@settings(deadline=None)
@given(drawn=points)
def test_a_tie_is_one_way_to_say_which_is_faster(drawn: list[Point[str]]) -> None:
    cells = numbered(drawn)
    assert leaders(cells) == leaders_by(
        cells, lambda one, other: (1 - TIE) * one.speed > other.speed
    )
