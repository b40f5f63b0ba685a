"""What a report says, and that whatever it is told stays text."""

import base64
import hashlib
import os
import re
import signal
import time
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from golden_sweeps import HOSTILE
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from vllm_frontier.analyze.checks import NAMES
from vllm_frontier.analyze.checks.output import BROKEN_ALL_THE_SAME
from vllm_frontier.outcome import FailureClass, Phase
from vllm_frontier.report.pages import (
    cells,
    choices,
    codes,
    frame,
    headline,
    markdown,
    picture_file,
    tabular,
)
from vllm_frontier.report.pages.beside import Beside
from vllm_frontier.report.pages.drawn import picture
from vllm_frontier.report.pages.links import Folder
from vllm_frontier.report.plots import theme, vega
from vllm_frontier.report.plots.figure import Figure

# Markdown

ANY = st.text(max_size=60) | st.sampled_from(
    [HOSTILE, "`", "``x", "a|b", "\\", "\\|", "_a_", "__init__"]
)


@given(ANY)
def test_a_cell_of_a_table_stays_one_cell_in_one_line(text: str) -> None:
    for told in (markdown.escaped(text), markdown.code(text)):
        assert "\n" not in told
        assert re.search(r"(?<!\\)(?:\\\\)*\|", told.replace("\\|", "")) is None


@given(ANY)
def test_escaped_text_holds_no_markup(text: str) -> None:
    told = markdown.escaped(text).replace("<!-- -->", "")
    assert re.search(r"(?<!\\)(?:\\\\)*[`*\[\]<>]", told) is None
    plain = told.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert re.sub(r"\\([\\`*\[\]|~#$_])", r"\1", plain) == re.sub(r"\s+", " ", text).strip()


def test_words_of_the_field_are_left_alone() -> None:
    assert markdown.escaped("kv_too_small at 0.95, depth 3") == "kv_too_small at 0.95, depth 3"
    assert markdown.escaped("_x_ __init__") == r"\_x\_ \_\_init\_\_"
    assert markdown.escaped("ask @someone") == "ask @<!-- -->someone"


@given(ANY)
def test_code_is_fenced_by_more_ticks_than_it_has(text: str) -> None:
    told = markdown.code(text)
    if not told:
        assert not text.strip()
        return
    fence = re.match(r"`+", told)
    assert fence is not None
    assert told.endswith(fence[0])
    assert fence[0] not in told[len(fence[0]) : -len(fence[0])]
    lines = markdown.block(f"x\n{text}", "bash").split("\n")
    assert lines[-1] not in "\n".join(lines[1:-1])


def test_what_a_template_names_is_escaped_once() -> None:
    environment = frame._markdown_environment()
    template = environment.from_string(
        "{{ a }} | {{ a | code }}{% for x in [1, 2] %}, {{ x }}{% endfor %}"
    )
    assert template.render(a="a|b") == r"a\|b | `a\|b`, 1, 2"


# Figures


def test_figures_of_a_column_have_as_many_digits() -> None:
    table = tabular.table(
        pl.DataFrame(
            {
                "window": [8192, 131_072, None],
                "speed": [98.25, 204.111, None],
                "share": [0.9, 0.125, 0.5],
                "graphs": [True, False, None],
                "task": ["edit", None, "code"],
            }
        ),
        "What",
    )
    assert table.columns == ("window", "speed", "share", "graphs", "task")
    assert table.numeric == (True, True, True, False, False)
    assert table.rows == (
        ("8,192", "98.2", "0.900", "on", "edit"),
        ("131,072", "204.1", "0.125", "off", "–"),
        ("–", "–", "0.500", "–", "code"),
    )


# The headline


def progress(**more: object) -> dict:
    told = {
        "sweep": "demo",
        "folder": "outputs/demo",
        "state": "finished",
        "reason": None,
        "writer": None,
        "planned": 36,
        "done": 36,
        "launches": 12,
        "launches_left": 0,
        "running": [],
        "damaged": [],
    }
    return told | more


def test_the_state_is_told_in_words() -> None:
    finished = headline.state(progress())
    assert (finished.word, finished.told) == ("Finished", ("36 of 36 cells known.",))
    stopped = headline.state(
        progress(state="interrupted", reason="search.max_hours", done=9, launches_left=1)
    )
    assert stopped.word == "Stopped by its budget"
    assert stopped.told == (
        "9 of 36 cells known (search.max_hours).",
        "About 1 launch is left; vllm-frontier resume outputs/demo makes it.",
    )
    cell = {"depth": 3, "context": 8192, "graphs": True, "utilization": 0.9, "max_num_seqs": 4}
    running = headline.state(
        progress(
            state="running", writer="pid 7 on here", done=1, running=[{**cell, "attempt": 2}],
            launches_left=None,
        )
    )  # fmt: skip
    assert running.word == "Running"
    assert running.told[1].startswith("It was being measured by pid 7 on here")
    assert running.told[2] == (
        "Now: depth 3, context 8,192, graphs on, utilization 0.9, max_num_seqs 4, attempt 2."
    )
    nothing = headline.state(progress(state="interrupted", done=0, launches=0))
    assert "Nothing was launched yet." in nothing.told


def choice(names: list[str], **more: object) -> dict:
    told = {
        "choices": names,
        "cell_id": "-".join(names),
        "depth": 3,
        "context": 100_000,
        "graphs": True,
        "utilization": 0.95,
        "extra_axes": [],
        "decode_tok_s": 204.12,
        "decode_tok_s_low": 200.0,
        "decode_tok_s_high": 208.0,
        "interval_basis": "launches",
        "gain_no_graphs": 4.1,
        "gain_in_doubt": False,
        "prefill_tok_s": 5400.0,
        "kv_headroom_gib": 0.25,
        "command": "vllm serve m",
    }
    return told | more


FASTEST = choice(["fastest", "balanced"])
LONGEST = choice(["longest"], depth=0, context=130_000, decode_tok_s=98.0, graphs=False)


@pytest.mark.parametrize(
    ("chosen", "against", "words"),
    [
        (
            [FASTEST, LONGEST],
            "slower",
            "Longest window: 130,000 tokens at 98.0 tokens/s, with no speculation and graphs off. "
            "Fastest: 204.1 tokens/s at 100,000 tokens, with depth 3 and graphs on. That is 4.10 "
            "times the speed without speculation and graphs.",
        ),
        (
            [choice(["fastest", "longest", "balanced"], gain_no_graphs=None)],
            None,
            "Longest and fastest at once: 100,000 tokens at 204.1 tokens/s, with depth 3 and "
            "graphs on.",
        ),
        (
            [choice(["fastest"], gain_no_graphs=None), LONGEST],
            "no clear difference",
            "Longest window: 130,000 tokens at 98.0 tokens/s, with no speculation and graphs off. "
            "Fastest: 204.1 tokens/s at 100,000 tokens, with depth 3 and graphs on, though "
            "without a clear difference.",
        ),
    ],
)  # fmt: skip
def test_the_answer_is_told_in_two_sentences(chosen: list, against: str | None, words: str) -> None:
    rows = [{**each, "against_fastest": against} for each in chosen]
    document = {"choices": chosen, "frontier": rows, "reason": None}
    assert headline.answer(document, progress()) == words


def test_an_unfinished_sweep_says_so_first() -> None:
    document = {"choices": [choice(["fastest", "longest"])], "frontier": [], "reason": None}
    told = headline.answer(document, progress(state="running", done=7))
    assert told.startswith("So far, with 7 of 36 cells known: longest and fastest at once: 100,000")


def test_without_a_frontier_the_answer_is_why_and_what_helps() -> None:
    reason = "nothing in the grid fits: kv_none (3 of 4 cells refused); a window of 65536 tokens"
    document = {"choices": [], "frontier": [], "reason": reason}
    assert headline.answer(document, progress(), None, "Take less.") == (
        "Nothing in the grid fits: no memory left for the KV cache (kv_none, 3 of 4 cells "
        "refused); a window of 65,536 tokens. What would help: Take less."
    )


BROKEN = f"6 texts: the output is broken; {BROKEN_ALL_THE_SAME}"


def test_broken_output_is_told_up_front_with_what_is_best_without_it() -> None:
    both = [FASTEST, LONGEST]
    document = {"choices": both, "frontier": both, "reason": None}
    checked = [
        {"check": "output_sane", "verdict": "warn", "cell_id": "launched", "detail": BROKEN},
        {"check": "drift", "verdict": "warn", "cell_id": LONGEST["cell_id"], "detail": "slower"},
    ]
    measured = [
        {**FASTEST, "speed_cell": "launched"},
        {**LONGEST, "speed_cell": LONGEST["cell_id"]},
        {**LONGEST, "speed_cell": LONGEST["cell_id"], "context": 8192},
    ]
    found = headline.fault(measured[:2], checked, measured)
    told = headline.answer(document, progress(), found)
    assert (
        "graphs on. But of the balanced and fastest the sampled output is broken: temperature 0 "
        "is right, do not use this with sampling on this engine version. Without speculation: "
        "98.0 tokens/s at 130,000 tokens. The fastest has 4.10 times"
    ) in told
    assert headline.fault(measured[1:2], checked, measured) is None
    [odd] = [{**checked[0], "detail": "odd"}]
    found = headline.fault(measured[:1], [odd], measured[:1])
    assert found is not None
    assert found.sound is None
    told = headline.answer(
        {**document, "choices": [choice(["fastest", "longest"])]},
        progress(),
        headline.Fault(frozenset({"fastest-longest"}), found.words, None),
    )
    assert "But its output may not be right: see the checks. The fastest has" in told


# Choices


def test_a_card_has_every_form_and_what_it_costs() -> None:
    first, second = choices.cards(
        [
            {
                **FASTEST,
                "config": "model: m\n",
                "config_command": "vllm serve --config c.yaml",
                "docker": "docker run m",
                "against": [{"choice": "longest", "words": "against the longest: a"}],
                "note": "not launched itself",
                "checks": [
                    {"check": "drift", "verdict": "warn", "detail": "a"},
                    {"check": "drift", "verdict": "warn", "detail": "b"},
                ],
            },
            LONGEST,
        ]
    )
    assert (first.title, first.speed, first.window) == ("Fastest, balanced", "204.1", "100,000")
    assert first.interval == "95 % interval 200.0 to 208.0"
    assert [each.text for each in first.others] == [
        "model: m\n", "vllm serve --config c.yaml", "docker run m",
    ]  # fmt: skip
    assert first.against == ("Against the longest: a.",)
    assert [(each.code, each.words) for each in first.warnings] == [
        ("", "Not launched itself."),
        ("drift", "A (and 1 more)."),
    ]
    assert first.lesser == ()
    assert ("Spare", "0.25 GiB of KV cache beyond one window") in first.told
    assert second.others == ()
    assert first.command.name != second.command.name


def test_what_weighs_more_comes_first_and_the_rest_is_folded() -> None:
    found = [
        {"check": name, "verdict": verdict, "detail": "x"}
        for name, verdict in (
            ("clock_gap", "warn"), ("drift", "warn"), ("output_sane", "warn"),
            ("speedup_bound", "fail"),
        )
    ]  # fmt: skip
    [card] = choices.cards([{**FASTEST, "checks": found}])
    assert [each.code for each in card.warnings] == ["speedup_bound", "output_sane"]
    assert [(each.code, each.title) for each in card.lesser] == [
        ("clock_gap", "Clocks of client and server"),
        ("drift", "Drift"),
    ]


def test_how_commands_are_used_and_names_are_never_changed() -> None:
    command = {"command": "vllm serve --max-num-seqs 1"}
    told = choices.how_to([command], ["qwen3 stands for the model", "mind this"], "qwen3")
    assert "its port 8000 answers" in told[0]
    assert "--max-num-seqs 1 lets the server take no more than 1 at once" in told[1]
    assert told[2:] == ["qwen3 stands for the model.", "Mind this."]
    two = [command, {"command": "vllm serve --max-num-seqs 4 --port 9000"}]
    assert choices.how_to(two, [], "m") == [
        told[0].replace("8000", "9000"),
        "Speeds are those of one request at a time.",
    ]
    assert choices.how_to([], ["mind this"], "m") == []


def test_flags_stay_in_one_line_and_text_stays_text() -> None:
    told = tabular.unbroken("<b> --max-model-len 5, a--b-c, --port")
    assert told == ('&lt;b&gt; <span class="flag">--max-model-len</span> 5, a--b-c, --port')


def test_every_code_has_words() -> None:
    assert all(codes.failure(each) != each for each in FailureClass)
    assert all(codes.check(each) != each for each in NAMES)
    assert all(codes.phase(each) != each for each in Phase if each != Phase.READY)
    assert (codes.failure(None), codes.check("new")) == ("", "new")


# Where the window ends


def test_each_end_of_a_window_says_whether_it_was_launched() -> None:
    axes = {"depth": 3, "graphs": True, "utilization": 0.95, "extra_axes": []}
    ends = {"max_context_works": 80000, "min_context_fails": 100_000, "cells": 4}
    row = {
        **axes,
        **ends,
        "failure_class": "kv_too_small",
        "launched": False,
        "monotone": True,
        "verified": True,
    }
    grid = [
        {**axes, "context": 80000, "status": "measured"},
        {**axes, "context": 100_000, "status": "inferred"},
    ]
    table = cells.boundaries({"boundaries": [row], "grid": grid, "contested": []})
    assert table is not None
    assert table.rows == (
        ("3", "on", "0.95", "80,000", "100,000~", "Too little memory for the window", "4"),
    )


# The frame


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_a_page_allows_its_own_script_and_nothing_else() -> None:
    page = frame.html("base.html.j2", {})
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    tags = Tags()
    tags.feed(page)
    policy = next(each["content"] for tag, each in tags.seen if "http-equiv" in each) or ""
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}';" in policy
    loaded = {"src", "srcset", "data", "action", "poster"}
    assert [each for _, each in tags.seen if loaded & each.keys()] == []
    assert {each["href"] for tag, each in tags.seen if tag == "link"} == {"data:,"}
    assert [tag for tag, _ in tags.seen].count("script") == 1


def test_a_page_defines_every_colour_on_light_and_dark() -> None:
    page = frame.html("base.html.j2", {})
    for colours in (theme.LIGHT, theme.DARK):
        for name, value in colours.items():
            assert f"--{name}: {value};" in page
    named = set(re.findall(r"var\(--([a-z0-9-]+)\)", page))
    named -= {"panel", "most", "gap", "share", "shade", "columns"}  # set where they are used
    assert named <= theme.LIGHT.keys()


def figure(words: str) -> Figure:
    import altair as alt

    marks = pl.DataFrame({"x": [1.0, 2.0], "words": [words, "two"]})
    chart = alt.Chart(marks, width=200, height=100).mark_point(clip=True)
    chart = chart.encode(x="x:Q", description="words:N", color=alt.value(theme.colour("works")))
    table = pl.DataFrame({"what": [words]})
    return Figure("f", words, "Which?", words, (chart, chart), table, (("works", "■ works"),))


def test_pictures_in_one_page_share_no_ids_and_no_markup() -> None:
    drawn = picture(figure(HOSTILE))
    ids = [re.findall(r'\bid="([^"]+)"', panel) for panel in drawn.panels]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for panel, own in zip(drawn.panels, ids, strict=True):
        assert set(re.findall(r"url\(#([^)]+)\)", panel)) <= set(own)
        assert "<img" not in panel
    assert drawn.legend == (("works", "■", "works"),)
    parts = frame._environment().get_template("parts.html.j2").module
    written = str(parts.picture_of(drawn))  # type: ignore[attr-defined]
    assert "<img" not in written
    assert "&lt;img" in written


def test_a_picture_is_a_file_with_title_and_legend() -> None:
    files = picture_file.Files()
    files.add(picture(figure("What & why <here>")))
    [(name, content, png)] = files.each()
    assert name == "f"
    svg = content.decode()
    assert "var(" not in svg
    assert "<title>What &amp; why &lt;here&gt;</title>" in svg
    assert svg.count("<svg") == 1 + 2 * 2
    assert theme.LIGHT["works"] in svg.rpartition("<g transform")[2]
    assert png.startswith(b"\x89PNG")


PNG = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>'
LONG = PNG + " " * 2_000_000  # more than a pipe holds


def process_of(beside: Beside) -> int:
    assert beside._process is not None
    return beside._process.pid


def test_what_another_process_cannot_do_is_done_here() -> None:
    with Beside() as beside:
        begun = beside.begin(vega.png, PNG)
        os.kill(process_of(beside), signal.SIGKILL)
        assert begun().startswith(b"\x89PNG")
        assert beside.begin(vega.png, PNG)().startswith(b"\x89PNG")


def test_what_another_process_has_not_begun_is_done_here() -> None:
    with Beside() as beside:
        os.kill(process_of(beside), signal.SIGSTOP)
        try:
            begun = [beside.begin(vega.png, PNG, here_too=True) for _ in range(5)]
            assert begun[-1]().startswith(b"\x89PNG")
            assert beside.busy
        finally:
            os.kill(process_of(beside), signal.SIGCONT)
        assert all(each().startswith(b"\x89PNG") for each in begun[:-1])
        assert beside.begin(vega.png, PNG)().startswith(b"\x89PNG")
        assert not beside.busy


@pytest.mark.parametrize("after_s", [0.0, 1.0])
def test_nobody_waits_without_limit_for_a_stopped_process(
    after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_frontier.report.pages.beside._PATIENCE_S", 0.2)
    with Beside() as beside:
        time.sleep(after_s)
        os.kill(process_of(beside), signal.SIGSTOP)
        begun = [beside.begin(vega.png, LONG) for _ in range(2)]
        assert all(each().startswith(b"\x89PNG") for each in begun)
        assert not beside.busy
    with Beside() as stopped:  # and nobody asks for anything
        os.kill(process_of(stopped), signal.SIGSTOP)
    for each in (beside, stopped):
        assert not Path(f"/proc/{process_of(each)}").exists()


def test_panels_that_belong_together_stand_in_rows_of_their_own() -> None:
    panels = [Markup('<svg x="0" width="100.5" height="50">')] * 8
    for per_row, columns in ((4, [4, 4]), (2, [2] * 4), (8, [3, 3, 2])):
        placed, _ = picture_file._placed(panels, per_row)
        tops = [each.y for each in placed]
        assert [tops.count(top) for top in sorted(set(tops))] == columns


def test_where_no_interval_is_known_none_is_told() -> None:
    ends = {"decode_tok_s_low": 1.0, "decode_tok_s_high": 2.0, "interval_basis": "runs"}
    assert cells._interval(ends) == "1.0 to 2.0*"
    assert cells._interval(dict.fromkeys(ends)) == cells.fixed(None, 1)
    assert "to" not in cells.fixed(None, 1)


def test_links_are_relative_and_quoted(tmp_path: Path) -> None:
    sweep = tmp_path / "a b"
    folder = Folder(page=tmp_path / "out", sweep=sweep)
    assert folder.link(sweep / "attempts/x/1/server.log") == "../a%20b/attempts/x/1/server.log"
    assert Folder(page=sweep, sweep=sweep).link(sweep / "sweep.yaml") == "sweep.yaml"
