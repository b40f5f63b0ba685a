"""What `compare` says of folders: names, differences, tables, pages."""

import io
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from compared_sweeps import sweep
from rich.console import Console

from vllm_frontier.analyze.memory_split import Part
from vllm_frontier.errors import StoreError
from vllm_frontier.report.comparison import page, sides, terminal, words
from vllm_frontier.report.comparison.document import compare
from vllm_frontier.report.comparison.workloads import comparable
from vllm_frontier.report.plots.render import panels


def printed(found: dict[str, Any], width: int = 80) -> str:
    out = io.StringIO()
    terminal.show(found, Console(file=out, width=width))
    return out.getvalue()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep(tmp_path_factory.mktemp("base") / "one", "model.quantization=nvfp4")


@pytest.fixture(scope="module")
def pair(base: Path, other: Path) -> dict[str, Any]:
    return compare([base, other])


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other") / "two"
    return sweep(
        folder, "model.quantization=awq", "model.args.dtype=float16", speed=110.0, available=1.5
    )


def test_names_and_differences_are_by_what_differs(base: Path, other: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(base, tmp_path / "three")
    again = shutil.copytree(base, tmp_path / "one")
    one, two, three, four = sides.load([base, other, copy, again])
    assert sides.names([one, two]) == ["nvfp4", "awq"]
    assert sides.names([one, three]) == ["one", "three"]
    assert sides.names([one, two, three]) == ["one", "two", "three"]
    assert sides.names([one, four]) == [f"{base.parent.name}/one", f"{tmp_path.name}/one"]
    assert sides.differences([one, three]) == []
    told = {each.key: each.values for each in sides.differences([one, two])}
    assert told == {
        "quantization": ("nvfp4", "awq"),
        "arguments.model.dtype": ("float32", "float16"),
    }


def test_windows_speeds_and_memory_are_held_against_the_base(pair: dict[str, Any]) -> None:
    found = json.loads(json.dumps(pair, allow_nan=False))
    assert (found["base"], found["shared"], found["only_in"]) == ("nvfp4", 8, [])
    assert [row["reach"] for row in found["windows"]] == ["shorter"] * 4
    row = found["windows"][0]
    assert (row["base"]["max_context_works"], row["other"]["max_context_works"]) == (16384, 8192)
    assert (row["difference"], row["share"]) == (-8192, -0.5)
    (speeds,) = found["speeds"]
    assert speeds["compared"]
    assert len(speeds["rows"]) == 4  # a window of 16384 works in one of them only
    for row in speeds["rows"]:
        assert row["ratio"] == pytest.approx(1.1)
        assert row["verdict"] == "faster"
        assert set(row["tasks"]) == {"edit", "code", "prose"}
        assert row["tasks"]["code"]["ratio"] == pytest.approx(1.1)
    assert {row["same_cell"] for row in speeds["rows"]} == {True}
    memory = {part["part"]: part for part in found["memory"][0]["parts"]}
    assert memory["left for KV cache"]["difference"] == pytest.approx(-1.5)
    assert memory["weights"]["difference"] == 0.0
    fastest = found["choices"][0]
    assert fastest["choice"] == "fastest"
    assert fastest["sweeps"]["awq"]["depth"] == 3
    assert fastest["sweeps"]["awq"]["decode_tok_s"] == pytest.approx(275.0)


def test_another_grid_is_matched_where_it_overlaps(base: Path, tmp_path: Path) -> None:
    grid = ("model.quantization=awq", "grid.depth=[0,1]", "grid.context=[8192,12288]")
    found = compare([base, sweep(tmp_path / "grid", *grid)])
    assert found["shared"] == 2
    only = {tuple(each["sweeps"]): each for each in found["only_in"]}
    assert only[("nvfp4",)]["cells"] == only[("awq",)]["cells"] == 6
    assert only[("awq",)]["axes"] == {"depth": [1], "context": [12288]}
    for row in found["grid"]:
        assert set(row["states"]) == set(row["sweeps"])
    windows = {(row["depth"], row["graphs"]): row for row in found["windows"]}
    assert windows[3, True]["reach"] == "only in base"
    assert windows[3, True]["other"] is None
    assert windows[0, True]["reach"] == "open"  # 16384 in one grid, 12288 in the other: both ends
    text = printed(found)
    assert "not in grid" in text
    assert 'Only in the grid of "awq": 6 cells (depth 1; context 12288).' in text


def test_another_workload_is_refused_for_speed_and_allowed_for_windows(
    base: Path, tmp_path: Path
) -> None:
    changes = ("workload.tasks=[edit]", "workload.temperature=1.0")
    tasks = sweep(tmp_path / "tasks", "model.quantization=nvfp4", *changes)
    found = compare([base, tasks])
    (speeds,) = found["speeds"]
    assert (speeds["compared"], speeds["rows"]) == (False, [])
    assert {each["key"] for each in speeds["settings"]} == {
        "workload.tasks",
        "workload.temperature",
    }
    assert "workload.tasks is edit, code, prose and edit" in speeds["reason"]
    assert "Not compared: the workloads differ" in " ".join(printed(found).split())
    assert [row["reach"] for row in found["windows"]] == ["both to the end"] * 4
    fastest = found["choices"][0]["sweeps"]
    assert fastest["one"]["decode_tok_s"] is not None
    assert fastest["tasks"]["decode_tok_s"] is None
    assert fastest["tasks"]["depth"] == 3


def test_more_repeats_are_no_other_workload(base: Path, tmp_path: Path) -> None:
    more = sweep(tmp_path / "more", "model.quantization=nvfp4", "workload.repeats=5")
    (speeds,) = compare([base, more])["speeds"]
    assert speeds["compared"]
    assert "repeats differ" in speeds["notes"][0]
    assert {row["verdict"] for row in speeds["rows"]} == {"no clear difference"}
    # Where one of them measured other prompts than its tasks have today, nothing is known.
    text = (more / "sweep.yaml").read_text()
    (more / "sweep.yaml").write_text(
        re.sub(r"workload: \w{16}", "workload: 0123456789abcdef", text)
    )
    one, other = sides.load([base, more])
    for may in (comparable(one, other), comparable(other, one)):
        assert may.reason is not None
        assert may.reason.startswith("repeats differ, and nothing shows")


def test_other_prompts_under_the_same_name_are_another_workload(base: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(base, tmp_path / "copy")
    text = (copy / "sweep.yaml").read_text()
    (copy / "sweep.yaml").write_text(
        re.sub(r"workload: \w{16}", "workload: 0123456789abcdef", text)
    )
    (speeds,) = compare([base, copy])["speeds"]
    assert speeds["reason"] == (
        "the prompts of the tasks differ, though their settings are the same"
    )


def test_a_sweep_that_is_not_finished_says_so(base: Path, tmp_path: Path) -> None:
    found = compare([base, sweep(tmp_path / "part", "model.quantization=awq", cells=3)])
    state = {each["name"]: each["state"] for each in found["sweeps"]}
    assert state == {"nvfp4": "finished", "awq": "interrupted"}
    assert '"awq" was interrupted: 3 of 8 cells done; the rest is not known.' in found["notes"]
    states = {state for row in found["grid"] for name, state in row["states"].items()}
    assert "not tried" in states


def test_nothing_launched_yet_is_shown_as_such(base: Path, tmp_path: Path) -> None:
    found = compare([base, sweep(tmp_path / "none", "model.quantization=awq", cells=0)])
    assert found["speeds"][0]["rows"] == []
    assert {row["reach"] for row in found["windows"]} == {"open"}
    text = " ".join(printed(found).split())
    assert 'No cell that works in "nvfp4" and "awq" has a speed in both.' in text
    assert page.figures_of(found)


def test_three_sweeps_are_held_against_the_first(base: Path, other: Path, tmp_path: Path) -> None:
    third = sweep(tmp_path / "third", "model.quantization=gptq", speed=90.0)
    found = compare([base, other, third])
    assert found["base"] == "nvfp4"
    assert [each["against"] for each in found["speeds"]] == ["awq", "gptq"]
    verdicts = [{row["verdict"] for row in each["rows"]} for each in found["speeds"]]
    assert verdicts == [{"faster"}, {"slower"}]


def test_what_cannot_be_compared_is_told_in_one_line(base: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="takes two folders"):
        compare([base])
    with pytest.raises(StoreError, match="is given twice"):
        compare([base, base])
    with pytest.raises(StoreError, match="are the same folder"):
        compare([base, base / ".." / base.name])
    with pytest.raises(StoreError, match="is no sweep"):
        compare([base, tmp_path])


def test_the_terminal_s_tables_fit_eighty_columns(pair: dict[str, Any]) -> None:
    text = printed(pair)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith('"awq" against "nvfp4" (simulated)\n')
    for each in ("What differs", "Longest window that works", "Decode speed", "Memory, GiB"):
        assert each in text


def test_the_pages_tell_the_same(pair: dict[str, Any], tmp_path: Path) -> None:
    page.write(pair, html=tmp_path / "c.html", markdown=tmp_path / "c.md")
    html, markdown = ((tmp_path / name).read_text() for name in ("c.html", "c.md"))
    for each in (
        'The window of "awq" reaches less far in 4 of 4 combinations.',
        "faster in 4 (1.10 x) of 4 pairs",
        'Memory: "awq" against "nvfp4"',
    ):
        assert each in unescape(html)
        assert each in markdown
    assert (
        "| 0 | off | 0.9 | 16,384 | – | 8,192 | 16,384 | -8,192 | -50.0 % | shorter |" in markdown
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c.html", "c.md"]


def test_a_page_that_cannot_be_written_is_told_in_one_line(
    pair: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(
        StoreError, match=r"nowhere/c\.html cannot be written: the folder .*nowhere does not"
    ):
        page.write(pair, html=tmp_path / "nowhere" / "c.html")


def test_names_and_values_are_no_markup(pair: dict[str, Any], tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>|*x*"
    text = json.dumps(pair).replace('"awq"', json.dumps(hostile))
    page.write(json.loads(text), html=tmp_path / "c.html", markdown=tmp_path / "c.md")
    assert "<img src=x" not in (tmp_path / "c.html").read_text()
    assert "<img" not in (tmp_path / "c.md").read_text()


def test_there_is_a_picture_for_every_question(pair: dict[str, Any]) -> None:
    figures = {each.name: each for each in page.figures_of(pair)}
    assert set(figures) == {"windows", "speed-awq", "memory-awq"}
    assert figures["memory-awq"].summary.startswith(
        '1.50 GiB less are left for the KV cache in "awq" than in "nvfp4".'
    )
    memory = "".join(panels(figures["memory-awq"]))
    assert len(re.findall(r'aria-label="[^"]*left for KV cache 3.00 GiB', memory)) == 4
    assert len(re.findall(r'aria-label="[^"]*left for KV cache 1.50 GiB', memory)) == 4


def with_graphs(pair: dict[str, Any]) -> dict[str, Any]:
    """The same, where the base counts its graphs in the share and the other beside it."""
    figures = {"base_source": "logged", "other_source": "logged"}
    moved = [
        {"part": "graphs", "base": 0.5, "other": 0.0, "difference": -0.5, **figures},
        {"part": Part.OUTSIDE, "base": 0.0, "other": 0.5, "difference": 0.5, **figures},
    ]
    memory = [{**row, "parts": [*row["parts"], *moved]} for row in pair["memory"]]
    return {**pair, "memory": memory}


def test_graphs_that_moved_out_of_the_share_are_told(pair: dict[str, Any]) -> None:
    told = 'Graphs are counted in the share in "nvfp4", beside it in "awq".'
    assert told not in printed(pair)
    found = with_graphs(pair)
    text = printed(found)
    assert told in text
    assert "-0.50" in text
    assert "+0.50" in text
    assert "?" not in text[text.index("Memory, GiB") : text.index("Choices of each")]
    assert max(map(len, text.splitlines())) <= 80
    figures = {each.name: each for each in page.figures_of(found)}
    assert told in figures["memory-awq"].summary
    turned = [
        {"parts": [part | {"base": part["other"], "other": part["base"]} for part in row["parts"]]}
        for row in found["memory"]
    ]
    told = 'Graphs are counted in the share in "two", beside it in "one".'
    assert list(words.graphs_moved(turned, "one", "two")) == [told]


def needs(*told: tuple[str, int, bool, int], balanced: int | None = 0) -> dict[str, Any]:
    """A document with what windows take: sweep, depth, graphs and window, GiB by the depth."""
    axes: dict[str, Any] = {"utilization": 0.9, "extra_axes": []}
    memory = [
        {
            **axes,
            "against": name,
            "depth": depth,
            "graphs": graphs,
            "window": {"context": window, "base": 4.0 + depth, "other": 5.0 + depth},
        }
        for name, depth, graphs, window in told
    ]
    cell = None if balanced is None else {**axes, "depth": balanced, "graphs": True}
    choices = [{"choice": "balanced", "sweeps": {"one": cell}}]
    return {"base": "one", "memory": memory, "choices": choices}


@pytest.mark.parametrize(
    ("balanced", "two", "three"),
    [
        (3, "depth 3 with graphs a window of 8192", "depth 3 with graphs a window of 4096"),
        (2, "depth 1 without graphs a window of 9000", "depth 1 without graphs a window of 9500"),
        (None, "depth 1 without graphs a window of 9000", "depth 1 without graphs a window of 9"),
    ],
)
def test_a_window_is_told_at_one_setting_in_all_sweeps(
    balanced: int | None, two: str, three: str
) -> None:
    """That of the base's balanced choice; else that with the longest window that all know."""
    known = [("two", 3, True, 8192), ("two", 3, True, 4096), ("three", 3, True, 4096)]
    known += [("two", 1, False, 9000), ("three", 1, False, 9500), ("two", 2, True, 16384)]
    found = needs(*known, balanced=balanced)
    (first,), (second,) = (list(words.window_needs(found, name)) for name in ("two", "three"))
    assert first.startswith(f"At {two}")
    assert second.startswith(f"At {three}")
    if balanced == 3:
        assert first.endswith('takes 7.00 GiB of KV cache in "one", 8.00 GiB in "two".')


def test_a_window_is_told_also_where_sweeps_have_no_setting_in_common() -> None:
    found = needs(("two", 3, True, 8192), ("three", 1, True, 4096))
    told = [list(words.window_needs(found, name)) for name in ("two", "three", "four")]
    assert told[0][0].startswith("At depth 3 with graphs a window of 8192")
    assert told[1][0].startswith("At depth 1 with graphs a window of 4096")
    assert told[2] == []
    assert list(words.window_needs(needs(), "two")) == []


def test_what_nothing_tells_of_the_memory_takes_one_line(pair: dict[str, Any]) -> None:
    first, *others = pair["memory"]
    parts = [part | {"difference": None, "other": None} for part in first["parts"]]
    text = printed({**pair, "memory": [first | {"parts": parts}, *others]})
    table = text[text.index("Memory, GiB") : text.index("Choices of each")]
    assert len(re.findall(r"^ +[03] (?:on|off)", table, re.M)) == 3
    assert "?" not in table
    assert "1 combination more, of which not both sweeps tell where the memory goes." in table
    assert "No difference: weights, head, activation." in " ".join(table.split())
    assert "activation" not in table.partition("\n   ")[0]
    unknown = [{**row, "parts": parts} for row in pair["memory"]]
    assert "No combination of which both sweeps know" in printed({**pair, "memory": unknown})


def test_no_word_of_a_heading_is_broken(pair: dict[str, Any]) -> None:
    """Also where every part differs, and sweeps have long names."""
    found = with_graphs(pair)
    memory = [
        {**row, "parts": [part | {"difference": 1.5} for part in row["parts"]]}
        for row in found["memory"]
    ]
    unknown = {"part": "reserved", "base": 0.5, "other": None, "difference": None}
    memory = [{**row, "parts": [*row["parts"], unknown]} for row in memory]
    named = json.dumps({**found, "memory": memory}).replace('"nvfp4"', '"Simulated RTX 5090"')
    text = printed(json.loads(named))
    table = text[text.index("Memory, GiB") : text.index("Choices of each")]
    assert max(map(len, table.splitlines())) <= 80
    (heading,) = [line for line in table.splitlines() if line.startswith("depth")]
    assert {"weights", "head", "activation"} <= set(heading.split())
    assert "Not known of both: reserved." in table
    assert "?" not in table


def test_a_card_that_is_held_against_itself_is_told(
    pair: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    told = (
        '"nvfp4" and "awq" both simulate the same described card, whatever model or quantization '
        "they name: differences in speed are noise."
    )
    assert told in pair["notes"]
    again = shutil.copytree(base, tmp_path / "again")
    other = ("model.quantization=nvfp4", "engine.card_file=rtx4090-qwen3-14b-awq")
    notes = compare([base, again, sweep(tmp_path / "card", *other)])["notes"]
    same = [note for note in notes if "same described card" in note]
    assert [note.partition(" both simulate the same described card: ")[2] for note in same] == [
        "differences in speed are noise."
    ]
    assert '"card"' not in same[0]
    notes = compare([base, tmp_path / "card"])["notes"]
    assert not [note for note in notes if "same described card" in note]


def test_equal_windows_have_no_share_and_no_table(base: Path, tmp_path: Path) -> None:
    again = sweep(tmp_path / "again", "model.quantization=awq")
    found = compare([base, again])
    text = " ".join(printed(found).split())
    assert 'How far windows reach, "awq" against "nvfp4" (simulated) The window of "awq"' in text
    assert "Longest window that works" not in text
    page.write(found, markdown=tmp_path / "c.md")
    (line,) = re.findall(r"^\| 3 \| on \| 0.9 \| 16,384.*$", (tmp_path / "c.md").read_text(), re.M)
    assert line.replace("\N{NO-BREAK SPACE}", " ") == (
        "| 3 | on | 0.9 | 16,384 | – | 16,384 | – | 0 | both to the end | launches |"
    )


def test_memory_is_told_at_the_largest_share_that_both_know() -> None:
    def row(depth: int, share: float, other: float | None = 8.0) -> dict[str, Any]:
        axes = {"depth": depth, "graphs": True, "utilization": share, "extra_axes": []}
        return {**axes, "budget_gib": {"base": 8.0, "other": other}}

    rows = [row(0, 0.8), row(0, 0.9), row(0, 0.85), row(0, 0.95, None), row(3, 0.7)]
    told = [(each["depth"], each["utilization"]) for each in words.at_largest_share(rows)]
    assert told == [(0, 0.9), (3, 0.7)]


def test_no_two_rows_of_speeds_look_the_same(pair: dict[str, Any], tmp_path: Path) -> None:
    """Pairs that were measured in cells which differ in utilization alone."""
    (speeds,) = pair["speeds"]
    rows = [
        {
            **row,
            "same_cell": own == other,
            "base": row["base"] | {"utilization": own},
            "other": row["other"] | {"utilization": other},
        }
        for row in speeds["rows"]
        for own, other in ((0.9, 0.9), (0.9, 0.95), (0.95, 0.95))
    ]
    found = {**pair, "speeds": [{**speeds, "rows": rows}]}
    text = printed(found)
    table = text[text.index("Decode speed") : text.index("ratio:")].splitlines()
    lines = [line for line in table if re.match(r" +[03] (on|off)", line)]
    assert len(set(lines)) == len(lines) == 12
    assert max(map(len, lines)) <= 80
    assert sum("0.9/0.95" in line for line in lines) == 4
    assert "util" not in printed(pair)[printed(pair).index("Decode speed") :].splitlines()[1]
    page.write(found, markdown=tmp_path / "c.md")
    told = re.findall(r"^\| [03] \| (?:on|off) \| 8,192.*$", (tmp_path / "c.md").read_text(), re.M)
    assert len(set(told)) == len(told) == 12
    marks = "".join(panels({each.name: each for each in page.figures_of(found)}["speed-awq"]))
    labels = re.findall(r'aria-label="([^"]*ratio[^"]*)"', marks)
    assert len(set(labels)) == len(labels) == 12


def test_of_many_pairs_those_at_the_ends_are_shown(pair: dict[str, Any]) -> None:
    (speeds,) = pair["speeds"]
    many = [
        {**row, "ratio": 1 + number / 1000, "ratio_low": 0.9, "ratio_high": 1.2}
        for number in range(50)
        for row in speeds["rows"]
    ]
    found = {**pair, "speeds": [{**speeds, "rows": many}]}
    figures = {each.name: each for each in page.figures_of(found)}
    marks = re.findall(r'aria-label="[^"]*ratio ([0-9.]+)', "".join(panels(figures["speed-awq"])))
    assert sorted(marks) == ["1.000"] * 4 + ["1.049"] * 4
    assert "8 of 200 pairs" in figures["speed-awq"].notes[1]
    assert "8 of 200 pairs" in printed(found)


@pytest.mark.parametrize(
    ("base", "other", "told"),
    [
        (16384, 16384, "16384"),
        (16384, 32768, "16/32k"),
        (16384, 130000, "16/130k"),
        (512, 8192, "512/8k"),
    ],
)
def test_two_windows_in_little_room(base: int, other: int, told: str) -> None:
    assert words.windows_of(base, other) == told
