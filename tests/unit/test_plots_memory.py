import itertools
from typing import Any

import polars as pl
import pytest
from plotted import Mark, marks, panels, texts

from vllm_frontier.analyze.boundaries import boundaries
from vllm_frontier.analyze.memory_split import memory_split
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.plots.memory import memory
from vllm_frontier.store.tables import frame

Row = dict[str, Any]
AXES: Row = {"depth": 3, "graphs": True, "utilization": 0.9, "extra": "{}"}


def trial(context: int, status: str = "measured", **more: Any) -> Row:
    """On a card of 10 GiB: weights 4, activation 1, graphs 1, and 3 for the KV cache."""
    row: Row = {
        **AXES,
        "cell_id": f"c{context}",
        "attempt": 1,
        "context": context,
        "status": status,
        "card_memory_gib": 10.0,
        "weights_gib": 4.0,
        "activation_gib": 1.0,
        "graph_gib": 1.0,
        "kv_available_gib": 3.0,
    }
    return row | more


def figure(rows: list[Row], chosen: dict[str, int], **more: Any) -> Figure | None:
    """Of the choices by name, all with the same other axes."""
    trials = frame("trials", rows).lazy()
    picked = pl.DataFrame(
        [{"choices": [name], **AXES, "context": context} for name, context in chosen.items()]
    )
    split = memory_split(trials, **more).collect()
    return memory(split, picked, boundaries(trials).collect(), simulated=True)


FITS = trial(10_000, kv_tokens=15_000)
FAILS = trial(20_000, "infeasible", failure_class="kv_too_small", kv_needed_gib=4.0)


def by_words(found: list[Mark], words: str) -> Mark:
    [mark] = [each for each in found if words in each.words]
    return mark


def test_the_parts_stand_one_after_the_other_in_true_size() -> None:
    whole, _ = panels(figure([FITS, FAILS], {"fastest": 10_000}))
    fits = [each for each in marks(whole, "part") if each.words.startswith("fastest")]
    sizes = [each.right - each.left for each in fits]
    pixel = sizes[0] / 4.0
    assert [size / pixel for size in sizes] == pytest.approx([4, 1, 1, 2, 1], abs=0.02)
    for one, other in itertools.pairwise(fits):
        assert one.right == pytest.approx(other.left, abs=0.05)
    share = by_words(marks(whole, "line"), "fastest: 10,000 tokens: utilization 0.9: 9.00 GiB")
    assert share.left == pytest.approx(9 * pixel, abs=0.1)
    card = by_words(marks(whole, "line"), "the whole card: 10.00 GiB")
    assert card.left == pytest.approx(10 * pixel, abs=0.1)


def test_every_part_says_where_its_figure_comes_from() -> None:
    whole, _ = panels(figure([FITS, FAILS], {"fastest": 10_000}))
    told = [each.words.partition(" tokens: ")[2] for each in marks(whole, "part")]
    assert told[:5] == [
        "weights, those of the speculative head included, 4.00 GiB (as vLLM logged it)",
        "activation: peak of the largest step, 1.00 GiB (as vLLM logged it)",
        "CUDA graphs, 1.00 GiB (as vLLM logged it)",
        "KV cache of one full window, 2.00 GiB (derived, not logged as such)",
        "left over for more than one window, 1.00 GiB (derived, not logged as such)",
    ]


def test_the_refused_window_stands_below_and_ends_behind_the_share() -> None:
    _, room = panels(figure([FITS, FAILS], {"fastest": 10_000}))
    parts = marks(room, "part")
    kept = by_words(parts, "fastest: 10,000 tokens: KV cache")
    missing = by_words(parts, "(kv_too_small): missing")
    limit = by_words(marks(room, "line"), "(kv_too_small): left for the KV cache: 3.00 GiB")
    assert missing.left == pytest.approx(limit.left, abs=0.1)
    assert missing.right / missing.left == pytest.approx(4 / 3, abs=0.01)
    assert missing.top > kept.bottom
    assert "refused: 20,000 tokens (kv_too_small)" in texts(room)


def test_the_summary_and_the_table_say_it_in_figures() -> None:
    found = figure([FITS, FAILS], {"fastest": 10_000})
    assert found is not None
    assert found.title == "Where the memory goes (simulated)"
    assert found.summary == (
        "Fastest: 10,000 tokens: of 9.00 GiB, weights and head 4.00, activation 1.00 and graphs "
        "1.00 GiB; 3.00 GiB are left for the KV cache, of which one full window needs 2.00. "
        "Refused: 20,000 tokens (kv_too_small): needs 4.00 GiB of KV cache, 1.00 GiB are missing."
    )
    assert found.table is not None
    table = dict(found.table.select("GiB", "fastest, refused, 20,000").iter_rows())
    assert table["weights and head"] == "4.00 logged"
    assert table["missing"] == "1.00 derived"
    assert table["of the card"] == "9.00 of 10.00"
    assert table["one full window needs"] == "4.00"
    letters = [words[0] for _, words in found.legend]
    assert len(set(letters)) == len(letters)


def test_choices_with_the_same_axes_share_the_refused_window() -> None:
    rows = [FITS, trial(12_000, kv_tokens=15_000), FAILS]
    whole, _ = panels(figure(rows, {"fastest": 10_000, "longest": 12_000}))
    lines = [each for each in texts(whole) if "tokens" in each]
    assert lines == [
        "fastest: 10,000 tokens",
        "refused: 20,000 tokens (kv_too_small)",
        "longest: 12,000 tokens",
    ]


def test_what_a_cpu_declares_is_called_declared() -> None:
    row = trial(10_000, weights_gib=None, activation_gib=None, graph_gib=None, kv_tokens=15_000)
    found = figure([row], {"fastest": 10_000}, reserved_gib=6.0)
    whole, _ = panels(found)
    reserved = by_words(marks(whole, "part"), "reserved for weights")
    assert reserved.words.endswith("6.00 GiB (as the card's configuration declares)")
    assert found is not None
    assert any("does not log" in note for note in found.notes)


def test_without_choices_the_nearest_is_shown() -> None:
    longest = figure([FITS, FAILS], {})
    assert longest is not None
    assert longest.summary.startswith("Longest that works: 10,000 tokens")
    nothing = figure([FAILS, trial(30_000, "infeasible", kv_needed_gib=6.0)], {})
    assert nothing is not None
    assert nothing.summary.startswith("Refused: 20,000 tokens (kv_too_small): needs 4.00 GiB")


def test_a_share_that_is_not_free_says_so() -> None:
    told = {"failure_class": "utilization_above_free", "free_gib": 8.5, "kv_available_gib": None}
    rows = [trial(20_000, "infeasible", **told), trial(10_000, kv_tokens=15_000)]
    found = figure(rows, {"fastest": 10_000})
    assert found is not None
    assert found.summary.endswith("9.00 GiB are asked for, 8.50 are free.")


def test_where_no_memory_is_known_there_is_no_picture() -> None:
    empty = {name: None for name in FITS if name.endswith("_gib") and name != "card_memory_gib"}
    assert figure([FITS | empty | {"kv_tokens": None}], {"fastest": 10_000}) is None
    assert figure([], {}) is None
