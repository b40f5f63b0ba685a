"""Pictures of sweeps side by side: which mark is whose, where it stands, in which colour."""

from typing import Any

import pytest
from plotted import Mark, marks, panels

from vllm_frontier.analyze.comparison.memory import FOR_CACHE
from vllm_frontier.report.plots import comparison, theme
from vllm_frontier.report.plots.figure import Figure

Row = dict[str, Any]
AXES = {"depth": 3, "graphs": True, "utilization": 0.9, "extra_axes": []}


def end(longest: int | None, refused: int | None = None) -> Row:
    return {
        "max_context_works": longest,
        "min_context_fails": refused,
        "known": "launched",
    }


def side(speed: float, context: int = 8192) -> Row:
    return {"context": context, "utilization": 0.9, "decode_tok_s": speed}


def ratio(depth: int, of: float, verdict: str, *, same: bool = True) -> Row:
    figures = {"ratio": of, "ratio_low": of * 0.97, "ratio_high": of * 1.03}
    sides = {"base": side(100.0), "other": side(100.0 * of, 8192 if same else 4096)}
    told = {"verdict": verdict, "basis": "runs", "same_cell": same}
    return {**AXES, "depth": depth, **figures, **sides, **told}


def speed_marks(*rows: Row) -> dict[str, Mark]:
    speeds = {"against": "new", "rows": list(rows), "notes": []}
    (svg,) = panels(comparison.ratios(speeds, "old", "", simulated=False))
    return {mark.words.partition(",")[0]: mark for mark in marks(svg, "cell")}


@pytest.mark.parametrize(
    ("verdict", "colour"),
    [("faster", "works"), ("slower", "refused"), ("no clear difference", "unknown")],
)
def test_a_ratio_has_the_colour_of_its_verdict(verdict: str, colour: str) -> None:
    (mark,) = speed_marks(ratio(0, 1.1, verdict)).values()
    assert mark.fill == theme.colour(colour)
    assert mark.words.endswith(f": {verdict}")


def test_the_legend_names_the_colours_as_they_are_used() -> None:
    speeds = {"against": "new", "rows": [ratio(0, 1.1, "faster")], "notes": []}
    figure = comparison.ratios(speeds, "old", "", simulated=False)
    assert figure is not None
    assert dict(figure.legend) == {
        "works": "new is faster",
        "refused": "old is faster",
        "unknown": "no clear difference",
    }


def test_what_was_not_measured_in_the_same_cell_is_open() -> None:
    found = speed_marks(ratio(0, 1.1, "faster"), ratio(3, 1.1, "faster", same=False))
    assert found["depth 0"].fill == theme.colour("works")
    assert found["depth 3"].fill == theme.colour("page")
    assert "measured at 8,192 tokens and utilization 0.9:" in found["depth 0"].words
    assert (
        "measured at 8,192 tokens and utilization 0.9 in old, 4,096 tokens and utilization 0.9 "
        "in new: old 100.0, new 110.0 tokens/s"
    ) in found["depth 3"].words


def test_the_faster_stands_further_to_the_right() -> None:
    found = speed_marks(
        ratio(0, 0.8, "slower"), ratio(1, 1.0, "no clear difference"), ratio(2, 1.25, "faster")
    )
    left = [found[f"depth {depth}"].left for depth in range(3)]
    # Of a logarithmic scale: a fifth less is as far from 1 as a quarter more.
    assert left[1] - left[0] == pytest.approx(left[2] - left[1], abs=0.1)
    assert left[1] > left[0]


def memory_figure(*parts: tuple[str, float, float]) -> Figure:
    told = [
        {
            "part": part,
            "base": base,
            "other": other,
            "base_source": "logged",
            "other_source": "derived",
        }
        for part, base, other in parts
    ]
    figure = comparison.memory([{**AXES, "parts": told}], "old", "new", "", simulated=False)
    assert figure is not None
    return figure


def memory_marks(*parts: tuple[str, float, float]) -> list[Mark]:
    (svg,) = panels(memory_figure(*parts))
    return marks(svg, "part")


def test_only_what_can_be_seen_is_in_the_legend() -> None:
    figure = memory_figure(("weights", 20.0, 0.0), ("other", 0.001, -0.2), (FOR_CACHE, 0.0, 3.0))
    assert dict(figure.legend) == {"series-1": "weights", "series-3": FOR_CACHE}


def test_the_upper_bar_is_that_of_the_base() -> None:
    found = {}
    for mark in memory_marks(("weights", 20.0, 10.0), ("activation", 2.0, 2.0)):
        name, _, part = mark.words.split(": ")
        found[name, part.rpartition(" (")[0]] = mark
    assert set(found) == {
        ("old", "weights 20.00 GiB"),
        ("old", "activation 2.00 GiB"),
        ("new", "weights 10.00 GiB"),
        ("new", "activation 2.00 GiB"),
    }
    old, new = found["old", "weights 20.00 GiB"], found["new", "weights 10.00 GiB"]
    assert old.bottom <= new.top
    assert old.right - old.left == pytest.approx(2 * (new.right - new.left), rel=0.01)
    assert old.fill == new.fill
    more = found["new", "activation 2.00 GiB"]
    assert more.left == pytest.approx(new.right, abs=1)
    assert more.fill != new.fill
    assert new.words.endswith("(derived)")
    assert old.words.endswith("(logged)")


def test_each_window_is_marked_as_that_of_its_sweep() -> None:
    row = {**AXES, "against": "new", "base": end(8192, 16384), "other": end(16384)}
    none = {**AXES, "depth": 0, "against": "new", "base": end(None, 8192), "other": None}
    figure = comparison.windows([row, none], ["old", "new"], "", simulated=False)
    (svg,) = panels(figure)
    found = {mark.words: mark for mark in marks(svg, "window")}
    place = "graphs on, utilization 0.9"
    old = found[f"old: depth 3, {place}: works up to 8,192, refused from 16,384 (launched)"]
    new = found[f"new: depth 3, {place}: works up to 16,384 (launched)"]
    zero = found[f"old: depth 0, {place}: no window works, refused from 8,192 (launched)"]
    assert len(found) == 3
    assert (old.left + old.right) / 2 == pytest.approx(
        ((new.left + new.right) + (zero.left + zero.right)) / 4, abs=0.1
    )
    assert new.fill == theme.series(1)
    assert figure.legend == (("series-1", "○ old"), ("series-2", "■ new"))
