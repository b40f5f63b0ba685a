"""Small words of the reports."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Cell
from vllm_frontier.report.plan import planned
from vllm_frontier.report.wording import label, several


def test_one_is_not_many() -> None:
    assert several(1, "launch", "launches") == "1 launch"
    assert [several(count, "is", "are") for count in (0, 2)] == ["0 are", "2 are"]


def test_the_axes_of_a_document_are_told_as_a_cell_is() -> None:
    cell = Cell(2, 8192, True, 0.9, (("kv_cache_dtype", "fp8"),))
    assert label(cell.axes()) == cell.label()
    assert "graphs=on" in label(cell.axes())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("search.verify=all", "grid.context=[8192]"), "12 cells, about 13 launches"),
        (("search.max_launches=1",), "36 cells, about 1 launch instead of 36"),
        (("search=exhaustive",), "36 cells, 36 launches"),
    ],
)
def test_a_plan_boasts_of_what_it_saves_alone(
    settings: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    out = io.StringIO()
    spec = compose_sweep("demo-cpu", list(settings)).spec
    planned.show(spec, Console(file=out, width=80), tmp_path)
    assert out.getvalue().splitlines()[1] == words
