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
        "KV cache: one full window, 2.00 GiB (derived, not logged as such)",
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
    assert ("series-3", "K KV cache: one full window, or all that is left for it") in found.legend
    alone = figure([FITS], {"fastest": 10_000})
    assert alone is not None
    assert ("series-3", "K KV cache: one full window") in alone.legend


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


def test_without_choices_the_longest_or_the_nearest_is_shown() -> None:
    rows = [FITS, trial(12_000, kv_tokens=15_000), FAILS]
    longest = figure(rows, {})
    assert longest is not None
    assert longest.summary.startswith("Longest that works: 12,000 tokens: of 9.00 GiB")
    nothing = figure([FAILS, trial(30_000, "infeasible", kv_needed_gib=6.0)], {})
    assert nothing is not None
    assert nothing.summary.startswith(
        "Nearest refused: 20,000 tokens, depth 3, graphs on, utilization 0.9 (kv_too_small): "
        "needs 4.00 GiB"
    )


def test_the_longest_is_that_with_the_smallest_share() -> None:
    more = trial(10_000, utilization=0.95, cell_id="more", kv_available_gib=3.5, kv_tokens=17_500)
    shorter = trial(8000, utilization=0.85, cell_id="less", kv_available_gib=2.5, kv_tokens=12_500)
    found = figure([more, FITS, shorter], {})
    assert found is not None
    assert found.summary.startswith("Longest that works: 10,000 tokens: of 9.00 GiB")


def refused(context: int, utilization: float, needed: float, **more: Any) -> Row:
    """A cell with 3 GiB for the KV cache at 0.9 of the card, and less at a smaller share."""
    told = {"failure_class": "kv_too_small", "kv_needed_gib": needed, "utilization": utilization}
    told["kv_available_gib"] = round(3.0 - 10 * (0.9 - utilization), 2)
    return trial(context, "infeasible", cell_id=f"{context}/{utilization}/{more}", **told | more)


def test_where_no_choice_has_a_longer_window_the_nearest_refused_is_shown() -> None:
    rows = [
        FITS,
        refused(10_000, 0.7, 2.0),  # misses 1.0
        refused(10_000, 0.75, 2.0),  # misses 0.5
        refused(10_000, 0.75, 1.6, depth=0),  # misses 0.1, but is of another depth
        refused(10_000, 0.97, 2.0, failure_class="utilization_above_free", free_gib=9.5),
    ]
    found = figure(rows, {"fastest": 10_000})
    assert found is not None
    assert found.summary.endswith(
        "Nearest refused: 10,000 tokens, depth 3, graphs on, utilization 0.75 (kv_too_small): "
        "needs 2.00 GiB of KV cache, 0.50 GiB are missing."
    )
    whole, room = panels(found)
    assert {
        "nearest refused: 10,000 tokens",
        "depth 3, graphs on, utilization 0.75",
        "kv_too_small",
    } <= set(texts(whole))
    missing = by_words(marks(room, "part"), "nearest refused: 10,000 tokens: missing")
    assert missing.right > missing.left > 0
    assert found.table is not None
    assert found.table.columns[1:] == ["fastest, 10,000", "nearest refused, 10,000"]
    others = figure([FITS, *rows[3:]], {"fastest": 10_000})
    assert others is not None
    assert "utilization 0.97 (utilization_above_free): 9.70 GiB are asked for" in others.summary
    # None misses anything for its KV cache: the one that was launched comes first.
    short, long = (
        refused(context, 0.97, 1.0, failure_class="oom_graph_capture", depth=0)
        for context in (8_000, 12_000)
    )
    for rows_of in ([short | {"status": "inferred"}, long], [short, long | {"status": "inferred"}]):
        told = figure([FITS, *rows_of], {"fastest": 10_000})
        assert told is not None
        (launched,) = [row["context"] for row in rows_of if row["status"] != "inferred"]
        assert f"Nearest refused: {launched:,} tokens, depth 0" in told.summary
    alone = figure([FITS, rows[3]], {"fastest": 10_000})
    assert alone is not None
    assert "Nearest refused: 10,000 tokens, depth 0" in alone.summary


def test_where_nothing_is_refused_that_is_told() -> None:
    crashed = trial(20_000, "failed", failure_class="engine_crashed")
    found = figure([FITS, crashed], {"fastest": 10_000})
    assert found is not None
    assert "efused" not in found.summary
    assert "Nothing known of this grid is refused for want of memory." in found.notes
    told = figure([FITS, FAILS], {"fastest": 10_000})
    assert told is not None
    assert not any("Nothing known" in note for note in told.notes)


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        ("oom_load", "ran out of memory while weights were loaded"),
        ("oom_profile", "ran out of memory while the largest step was tried"),
        ("oom_graph_capture", "ran out of memory while CUDA graphs were captured"),
        ("oom_warmup", "ran out of memory while it warmed up"),
        ("oom_serve", "ran out of memory while a request was served"),
        ("state_slots_too_few", "too few blocks of state fit"),
    ],
)
def test_what_ran_out_elsewhere_says_where_and_has_nothing_left_over(
    failure: str, why: str
) -> None:
    fails = FAILS | {"failure_class": failure, "kv_needed_gib": 2.5}
    found = figure([FITS | {"kv_tokens": 24_000}, fails], {"fastest": 10_000})
    assert found is not None
    head = f"Refused: 20,000 tokens ({failure}): {why}"
    end = found.summary.partition(head)[2]
    # With all parts taken, 9 of 10 GiB explain no want of memory.
    held = "; what is known of it comes to 9.00 of the card's 10.00 GiB, so that others held memory"
    late = failure in ("oom_graph_capture", "oom_warmup", "oom_serve")
    assert end.startswith("; its KV cache has 3.00 GiB and needs 2.50")
    assert (held in end) == late
    for svg in panels(found):
        told = [each.words for each in marks(svg, "part") if failure in each.words]
        assert not any("left over" in words or "missing" in words for words in told)
        assert any("KV cache: all that is left for it, 3.00 GiB" in words for words in told)
    silent = fails | {"kv_needed_gib": None, "kv_available_gib": None}
    early = figure([FITS | {"kv_tokens": None}, silent], {"fastest": 10_000})
    assert early is not None
    end = early.summary.partition(head)[2]
    assert end.startswith(held) if late else end == "."


def test_what_vllm_refuses_whatever_the_card_misses_no_memory() -> None:
    fails = FAILS | {"status": "invalid", "failure_class": "context_exceeds_model"}
    found = figure([FITS, fails], {"fastest": 10_000})
    assert found is not None
    assert found.summary.endswith("(context_exceeds_model): vLLM refuses the settings.")
    close = figure([FITS, FAILS | {"kv_needed_gib": 3.0}], {"fastest": 10_000})
    assert close is not None
    assert close.summary.endswith("needs 3.00 GiB of KV cache, hardly anything is missing.")


def test_what_is_beyond_the_share_is_open_and_what_is_missing_has_the_colour_of_refusals() -> None:
    # With graphs beside the share 5 of its 9 GiB are taken, and 4 are left.
    beside = {"kv_available_gib": 4.0}
    rows = [FITS | beside | {"kv_tokens": 20_000}, FAILS | beside | {"kv_needed_gib": 5.0}]
    whole, _ = panels(figure(rows, {"fastest": 10_000}))
    parts = marks(whole, "part")
    missing = by_words(parts, "missing: what one full window")
    outside = [each for each in parts if "takes beside the share" in each.words]
    solid = [each for each in parts if "weights" in each.words]
    assert (missing.fill, missing.opacity < 0.5) == ("var(--refused)", True)
    assert {(each.fill, each.opacity < 0.5) for each in outside} == {("var(--series-7)", True)}
    assert {(each.fill, each.opacity) for each in solid} == {("var(--series-1)", 1.0)}
    assert len(outside) == 2


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
