from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from vllm_frontier.dominance import Point, leaders

TIE = 0.02

Row = tuple[int, float, float, int]  # context, utilization, speed, depth


def points_of(rows: list[Row]) -> list[Point]:
    return [
        Point(str(number), context, utilization, speed, depth)
        for number, (context, utilization, speed, depth) in enumerate(rows)
    ]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([1024, 2048, 4096, 8192]),
        st.sampled_from([0.8, 0.9, 0.95]),
        # Dense enough for long rows of neighbours that are equal.
        st.floats(90, 110) | st.sampled_from([50.0, 98.0, 100.0, 102.0]),
        st.integers(0, 5),
    ),
    max_size=30,
)


def at_least_as_good(one: Point, other: Point) -> bool:
    return (
        one.context >= other.context
        and one.utilization <= other.utilization
        and one.speed >= (1 - TIE) * other.speed
    )


def same_place(one: Point, other: Point) -> bool:
    return (one.context, one.utilization) == (other.context, other.utilization)


@settings(deadline=None)
@given(ROWS)
@example([(1024, 0.9, 100.0, 5), (2048, 0.9, 98.5, 5), (4096, 0.9, 97.0, 5)])
def test_members_are_not_beaten_and_everything_else_is(rows: list[Row]) -> None:
    points = points_of(rows)
    names = leaders(points, TIE)
    members = [point for point in points if point.cell_id in names]
    for point in points:
        better = [member for member in members if at_least_as_good(member, point)]
        assert better, "nothing on the frontier is as good"
        if point.cell_id in names:
            assert all(same_place(member, point) for member in better)
    for one in members:
        # Whatever is better in all three beyond doubt, on the frontier or not.
        assert not any(
            other.context >= one.context
            and other.utilization <= one.utilization
            and other.speed * (1 - TIE) > one.speed
            for other in points
        )
        for other in members:
            if same_place(one, other):
                assert one.depth == other.depth


@settings(deadline=None)
@given(ROWS)
def test_the_ends_are_on_the_frontier(rows: list[Row]) -> None:
    points = points_of(rows)
    members = [point for point in points if point.cell_id in leaders(points, TIE)]
    if points:
        fastest = max(point.speed for point in points)
        assert max(member.speed for member in members) >= (1 - TIE) * fastest
        assert max(member.context for member in members) == max(each.context for each in points)
        assert min(each.utilization for each in members) == min(e.utilization for e in points)


@settings(deadline=None)
@given(ROWS)
def test_without_a_tolerance_it_is_the_plain_frontier(rows: list[Row]) -> None:
    points = points_of(rows)

    def beats(one: Point, other: Point) -> bool:
        mine = (one.context, -one.utilization, one.speed)
        theirs = (other.context, -other.utilization, other.speed)
        better = all(a >= b for a, b in zip(mine, theirs, strict=True))
        return better and (mine != theirs or one.depth < other.depth)

    plain = {point.cell_id for point in points if not any(beats(other, point) for other in points)}
    assert leaders(points, 0.0) == plain


@settings(deadline=None)
@given(ROWS, st.randoms())
def test_the_order_of_the_cells_does_not_matter(rows: list[Row], random: Random) -> None:
    points = points_of(rows)
    shuffled = list(points)
    random.shuffle(shuffled)
    assert leaders(points, TIE) == leaders(shuffled, TIE)


def test_equals_with_the_same_window_and_share_leave_the_shallowest() -> None:
    assert leaders(points_of([(1024, 0.9, 100, 3), (1024, 0.9, 99, 1), (1024, 0.9, 97, 0)])) == {
        "1"
    }


def test_a_row_of_equal_neighbours_does_not_hide_the_fastest() -> None:
    row = [(8192, 0.9, 100.0, 0), (4096, 0.9, 101.5, 0), (2048, 0.9, 103.0, 0)]
    assert leaders(points_of(row)) == {"0", "2"}
