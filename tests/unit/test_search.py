from collections.abc import Callable

from vllm_frontier.grid import Cell
from vllm_frontier.outcome import Outcome, Phase, Purpose, Status
from vllm_frontier.search import Ask, Exhaustive

CELLS = tuple(Cell(depth, 8192, True, 0.9) for depth in range(3))


def ended(status: Status) -> Outcome:
    return Outcome(status, Phase.STOP)


def drive(search: Exhaustive, outcome_of: Callable[[Cell, int], Status]) -> list[Cell]:
    asked: list[Cell] = []
    while not search.finished:
        wanted = search.ask()
        assert wanted is not None
        assert wanted == Ask(wanted.cell, Purpose.PROOF, with_speed=True)
        asked.append(wanted.cell)
        search.tell(wanted.cell, ended(outcome_of(wanted.cell, asked.count(wanted.cell))))
    return asked


def test_every_cell_once_in_order() -> None:
    assert drive(Exhaustive(CELLS), lambda *_: Status.MEASURED) == list(CELLS)


def test_refusals_are_final() -> None:
    assert drive(Exhaustive(CELLS, retries=5), lambda *_: Status.INFEASIBLE) == list(CELLS)


def test_a_failed_cell_is_tried_again_at_the_end_at_most_retries_times() -> None:
    def outcome(cell: Cell, attempt: int) -> Status:
        return Status.FAILED if cell is CELLS[0] else Status.MEASURED

    asked = drive(Exhaustive(CELLS, retries=2), outcome)
    assert asked == [*CELLS, CELLS[0], CELLS[0]]


def test_a_cell_that_recovers_is_not_tried_further() -> None:
    def outcome(cell: Cell, attempt: int) -> Status:
        return Status.FAILED if cell is CELLS[1] and attempt == 1 else Status.MEASURED

    assert drive(Exhaustive(CELLS, retries=5), outcome) == [*CELLS, CELLS[1]]


def test_earlier_attempts_count_when_a_sweep_goes_on() -> None:
    search = Exhaustive(CELLS, retries=1)
    search.tell(CELLS[0], ended(Status.MEASURED))
    search.tell(CELLS[1], ended(Status.FAILED))
    search.tell(CELLS[2], ended(Status.INTERRUPTED))
    assert drive(search, lambda *_: Status.FAILED) == [CELLS[2], CELLS[1], CELLS[2]]


def test_interrupted_cells_keep_their_places() -> None:
    cells = tuple(Cell(depth, 8192, True, 0.9) for depth in range(6))
    search = Exhaustive(cells)
    for _ in range(4):
        assert search.ask() is not None
    # The first fails, and the others are interrupted, in any order.
    search.tell(cells[0], ended(Status.FAILED))
    for number in (2, 3, 1):
        search.tell(cells[number], ended(Status.INTERRUPTED))
    assert drive(search, lambda *_: Status.MEASURED) == [*cells[1:], cells[0]]
    # So does a retry that is interrupted, and one that the same process did not ask for.
    for asked in (True, False):
        search = Exhaustive(cells)
        for number in (1, 0):
            search.tell(cells[number], ended(Status.FAILED))
        for number in range(2, 6):
            search.tell(cells[number], ended(Status.MEASURED))
        if asked:
            assert search.ask() == Ask(cells[1])
        search.tell(cells[1], ended(Status.INTERRUPTED))
        assert drive(search, lambda *_: Status.MEASURED) == [cells[1], cells[0]]


def test_cells_that_the_grid_no_longer_has_are_not_asked_for() -> None:
    search = Exhaustive(CELLS[:1])
    search.tell(CELLS[2], ended(Status.FAILED))
    assert drive(search, lambda *_: Status.MEASURED) == [CELLS[0]]


def test_budget_ends_the_search_and_nothing_is_asked_while_out() -> None:
    search = Exhaustive(CELLS, max_launches=1)
    assert search.ask() == Ask(CELLS[0])
    assert search.ask() is None
    assert not search.finished
    search.tell(CELLS[0], ended(Status.FAILED))
    assert search.finished


def test_a_failure_says_nothing_of_how_many_speeds_are_to_come() -> None:
    search = Exhaustive(CELLS)
    assert search.outlook.speeds_left == len(CELLS)
    first = search.ask()
    assert first is not None
    search.tell(first.cell, ended(Status.FAILED))
    assert search.outlook.speeds_left == len(CELLS)  # the failed one is tried again
    second = search.ask()
    assert second is not None
    search.tell(second.cell, ended(Status.INFEASIBLE))
    assert search.outlook.speeds_left == 0
