"""Which cells are recommended, what they cost, and what comes nearest where none will do."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from checked_sweep import decode, launch
from demo_sweep import demo_sweep
from rich.console import Console

from vllm_frontier.analyze.intervals import cell_figures
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import Cell
from vllm_frontier.report import result
from vllm_frontier.report.recommend import advice
from vllm_frontier.report.recommend import config_files as written
from vllm_frontier.report.recommend.advice import Advice, Wanted
from vllm_frontier.report.recommend.nearest import headline
from vllm_frontier.report.recommend.tradeoffs import against
from vllm_frontier.store.tables import frame

# Slow and long, fast and short, and what lies between.
LONG = Cell(0, 24576, False, 0.9)
SHORT = Cell(3, 4096, True, 0.6)
MIDDLE = Cell(1, 16384, True, 0.9)
PLAIN = Cell(0, 4096, False, 0.9)
GRID = (
    "grid.depth=[0,1,3]",
    "grid.context=[4096,16384,24576]",
    "grid.utilization=[0.6,0.9]",
    "grid.exclude=[{depth: 1, graphs: false}, {depth: 3, graphs: false}]",
)
SPEEDS = {LONG: 50.0, SHORT: 200.0, MIDDLE: 120.0, Cell(0, 4096, True, 0.6): 100.0}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> result.Result:
    folder = tmp_path_factory.mktemp("recommend") / "s"
    return result.load(demo_sweep(folder, SPEEDS, *GRID))


def axes(each: dict[str, Any]) -> Cell:
    return Cell(each["depth"], each["context"], each["graphs"], each["utilization"])


def names(chosen: Advice) -> dict[str, Cell]:
    return {name: axes(each) for each in chosen.choices for name in each["choices"]}


def printed(chosen: Advice, forms: tuple[str, ...] = advice.FORMS) -> str:
    out = io.StringIO()
    advice.show(chosen, Console(file=out, width=80, markup=False, highlight=False), forms)
    return out.getvalue()


def nearest(found: result.Result, wanted: Wanted) -> dict[str, dict[str, Any]]:
    chosen = advice.choose(found, wanted)
    assert chosen.choices == []
    return {name: each for each in chosen.nearest for name in each["nearest_in"]}


# Choices


def test_the_ends_of_the_frontier_and_its_middle_are_chosen(found: result.Result) -> None:
    chosen = advice.choose(found, Wanted())
    assert names(chosen) == {"fastest": SHORT, "longest": LONG, "balanced": MIDDLE}
    assert chosen.reason is None
    assert chosen.nearest == []


@pytest.mark.parametrize(
    ("wanted", "cells"),
    [
        (Wanted(min_context=4097), {"fastest": MIDDLE, "longest": LONG, "balanced": MIDDLE}),
        (Wanted(min_context=24576), dict.fromkeys(("fastest", "longest", "balanced"), LONG)),
        (Wanted(min_decode=120), {"fastest": SHORT, "longest": MIDDLE, "balanced": MIDDLE}),
        (Wanted(max_utilization=0.6), dict.fromkeys(("fastest", "longest", "balanced"), SHORT)),
        (Wanted(max_utilization=0.9, min_context=16384, min_decode=100), {"longest": MIDDLE}),
        (Wanted(task="edit", min_decode=144), {"longest": MIDDLE, "fastest": SHORT}),
    ],
)
def test_limits_leave_those_that_satisfy_all(
    found: result.Result, wanted: Wanted, cells: dict[str, Cell]
) -> None:
    chosen = names(advice.choose(found, wanted))
    assert {name: chosen[name] for name in cells} == cells


def test_a_choice_says_what_it_costs_against_the_others(found: result.Result) -> None:
    chosen = advice.choose(found, Wanted())
    fastest = next(each for each in chosen.choices if "fastest" in each["choices"])
    costs = {each["choice"]: each for each in fastest["against"]}
    assert set(costs) == {"longest", "balanced"}
    longest = costs["longest"]
    assert longest["context_ratio"] == pytest.approx(1 / 6)
    assert longest["decode_ratio"] == pytest.approx(4.0, rel=0.01)
    assert longest["verdict"] == "faster"
    assert longest["utilization"] == pytest.approx(-0.3)
    # 4 GiB times the utilization, less the window: 2.4 - 4096/65536 against 3.6 - 24576/65536.
    assert longest["kv_headroom_gib"] == pytest.approx(-1.2 + 20480 / 65536)
    assert longest["words"] == (
        "against the longest: 20480 tokens less window, 4.00 x as fast (verdict: faster), "
        "0.3 less utilization, 0.89 GiB less KV cache to spare"
    )
    slower = next(each for each in chosen.choices if "longest" in each["choices"])
    back = next(each for each in slower["against"] if each["choice"] == "fastest")
    assert back["verdict"] == "slower"
    assert back["decode_ratio"] == pytest.approx(1 / longest["decode_ratio"])
    text = " ".join(printed(chosen).replace("\n# ", " ").split())
    assert longest["words"] in text


def test_a_tie_is_called_one(tmp_path: Path) -> None:
    close = {Cell(0, 24576, False, 0.9): 100.0, Cell(0, 24576, False, 0.6): 99.9}
    low = Cell(0, 4096, False, 0.6)
    found = result.load(demo_sweep(tmp_path / "s", close | {low: 101.0}, *GRID))
    rows = advice.choose(found, Wanted()).choices
    words = [each["words"] for row in rows for each in row["against"]]
    assert all("no clear difference in speed" in each for each in words)
    assert len({each["cell_id"] for each in rows}) == len(rows)


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (1.025, "1.02 x as fast (verdict: faster within launches, which may be luck)"),
        (1.05, "1.05 x as fast (verdict: faster)"),
    ],
)
def test_what_may_be_luck_says_so(ahead: float, words: str, tmp_path: Path) -> None:
    speeds = {Cell(0, 24576, False, 0.9): 100.0, Cell(0, 4096, False, 0.6): 100.0 * ahead}
    chosen = advice.choose(result.load(demo_sweep(tmp_path / "s", speeds, *GRID)), Wanted())
    fast = next(each for each in chosen.choices if "fastest" in each["choices"])
    (cost,) = fast["against"]
    assert cost["basis"] == "runs"
    assert f", {words}, " in cost["words"]
    slow = next(each for each in chosen.choices if each is not fast)
    assert ("slower within launches" in slow["against"][0]["words"]) == (ahead < 1.03)


def test_what_launches_tell_is_no_luck() -> None:
    trials, runs, cells = [], [], []
    for depth, speed in enumerate((100.0, 102.8)):
        rows = [launch(depth, number + 1, hours=number + depth / 9) for number in range(4)]
        trials += rows
        for row, more in zip(rows, (0.999, 1.001, 1.0, 1.0), strict=True):
            runs += decode(row, *(speed * more * each for each in (0.99, 1.0, 1.01)))
        cells.append(
            {
                **{name: rows[0][name] for name in ("cell_id", "context", "utilization")},
                "speed_cell": rows[0]["cell_id"],
                "kv_headroom_gib": None,
                "choices": [f"of depth {depth}"],
            }
        )
    figures = cell_figures(frame("trials", trials).lazy(), frame("runs", runs).lazy())
    ((slow,), (fast,)) = against(cells, figures)
    assert (slow["basis"], fast["verdict"]) == ("launches", "faster")
    assert fast["words"] == (
        "against the of depth 0: the same window, 1.03 x as fast (verdict: faster)"
    )
    assert "luck" not in slow["words"]


def test_the_gain_is_that_of_the_task_whose_speed_is_told(tmp_path: Path) -> None:
    found = result.load(demo_sweep(tmp_path / "s", {PLAIN: 50.0, SHORT: 200.0}, *GRID))
    prose = (pl.col("task") == "prose") & (pl.col("decode_tok_s") < 45)
    slower = pl.when(prose).then(pl.col("decode_tok_s") / 2).otherwise("decode_tok_s")
    changed = dataclasses.replace(found, runs=found.runs.with_columns(decode_tok_s=slower))
    for task, gain in (("prose", 8.0), ("edit", 4.0), (None, 4.0)):
        chosen = advice.choose(changed, Wanted(task=task, min_decode=100))
        (best,) = chosen.choices
        assert best["gain_no_graphs"] == pytest.approx(gain)
        assert f"{gain:.2f} x baseline" in " ".join(printed(chosen).split())
        assert f"{gain:.2f} x baseline" in " ".join(best["config"].split())
        missed = advice.choose(changed, Wanted(task=task, min_decode=900)).nearest
        assert missed[0]["gain_no_graphs"] == pytest.approx(gain)


def test_a_sweep_that_is_not_finished_says_so(found: result.Result) -> None:
    state: dict[str, Any] = {"state": "interrupted", "reason": None, "damaged": []}
    progress = {**state, "done": 7, "planned": 18, "folder": "my s"}
    chosen = advice.choose(found, Wanted(), progress=progress)
    assert chosen.notes[0] == (
        "so far: 7 of 18 cells known; the search was interrupted; go on with: "
        "vllm-frontier resume 'my s'"
    )
    assert (chosen.state, chosen.known, chosen.planned) == ("interrupted", 7, 18)
    for word, reason, told in (
        ("interrupted", "search.max_hours", ("the search was ended by its budget (search.max_",)),
        ("running", None, ("; the sweep is running",)),
        ("finished", None, ()),
    ):
        at = progress | {"state": word, "reason": reason}
        notes = advice.choose(found, Wanted(), progress=at).notes
        notes = [each for each in notes if each.startswith("so far")]
        assert len(notes) == len(told)
        assert all(each in note for each, note in zip(told, notes, strict=True))


# Nothing satisfies it


def test_a_share_of_nothing_has_a_nearest_cell(found: result.Result) -> None:
    cells = nearest(found, Wanted(max_utilization=0.0))
    assert axes(cells["max_utilization"]) == SHORT
    (missing,) = cells["overall"]["missing"]
    assert missing["words"] == "it needs a utilization of 0.6, 0.6 above 0"


def test_one_limit_gives_way_at_a_time(found: result.Result) -> None:
    cells = nearest(found, Wanted(min_context=20000, min_decode=130, max_utilization=0.9))
    assert {name: axes(each) for name, each in cells.items()} == {
        "min_context": SHORT,
        "min_decode": LONG,
        "overall": MIDDLE,
    }
    (short,) = cells["min_context"]["missing"]
    assert (short["constraint"], short["wanted"], short["found"]) == ("min_context", 20000, 4096)
    assert short["by"] == 15904
    assert short["words"] == "its window is 4096 tokens, 15904 short of 20000"
    (slow,) = cells["min_decode"]["missing"]
    assert slow["by"] == pytest.approx(80.0)
    assert slow["words"] == "it decodes 50.0 tokens/s, 80.0 short of 130"
    assert [each["constraint"] for each in cells["overall"]["missing"]] == [
        "min_context",
        "min_decode",
    ]
    assert all(each["command"] and each["docker"] for each in cells.values())


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["min_decode", "overall"], "nearest if less speed will do (and the nearest of all)"),
        (
            ["min_context", "max_utilization"],
            "nearest if a shorter window or a larger utilization will do",
        ),
        (["overall"], "nearest of all"),
    ],
)
def test_a_headline_says_what_would_have_to_give_way(names: list[str], told: str) -> None:
    assert headline({"nearest_in": names}) == told


def test_a_share_of_the_card_can_give_way(found: result.Result) -> None:
    cells = nearest(found, Wanted(min_context=16384, max_utilization=0.7))
    assert axes(cells["max_utilization"]) == MIDDLE
    (missing,) = cells["max_utilization"]["missing"]
    assert missing["by"] == pytest.approx(0.2)
    assert missing["words"] == "it needs a utilization of 0.9, 0.2 above 0.7"
    assert axes(cells["min_context"]) == SHORT


def test_a_limit_beyond_the_grid_says_where_the_grid_ends(found: result.Result) -> None:
    chosen = advice.choose(found, Wanted(min_context=30000, max_utilization=0.5))
    assert chosen.reason is not None
    assert chosen.reason.startswith(
        "no cell with a speed has a window of at least 30000 tokens and a utilization of at most "
        "0.5 both at once: taken alone, the longest"
    )
    assert "the grid ends at a window of 24576 tokens: longer ones were not tried" in chosen.notes
    told = "the smallest utilization of the grid is 0.6: smaller ones were not tried"
    assert told in chosen.notes
    for word in ("a shorter window", "a larger utilization"):
        told = f"{word} alone does not help: no cell satisfies the other limits"
        assert told in chosen.notes
    assert [each["nearest_in"] for each in chosen.nearest] == [["overall"]]


def test_a_window_that_works_nowhere_says_why(tmp_path: Path) -> None:
    found = result.load(demo_sweep(tmp_path / "s", {SHORT: 200.0}, *GRID))
    chosen = advice.choose(found, Wanted(min_context=20000))
    assert chosen.notes == ["8 cells with such a window do not work (kv_too_small)"]
    assert chosen.reason == (
        "no cell with a speed has a window of at least 20000 tokens: the longest window with a "
        "speed is 4096 tokens, the fastest cell decodes 200.0 tokens/s"
    )


def test_every_class_of_cells_that_do_not_work_is_counted(tmp_path: Path) -> None:
    found = result.load(demo_sweep(tmp_path / "s", {SHORT: 200.0}, *GRID))
    long = pl.col("context") == 24576
    classes = pl.when(long & (pl.col("depth") > 0) & (pl.col("utilization") > 0.8))
    some = classes.then(pl.lit("oom_profile")).otherwise("failure_class").alias("failure_class")
    changed = dataclasses.replace(found, trials=found.trials.with_columns(some))
    chosen = advice.choose(changed, Wanted(min_context=20000))
    assert chosen.notes == [
        "8 cells with such a window do not work (6 kv_too_small, 2 oom_profile)"
    ]


def test_only_a_window_beyond_the_grid_is_beyond_it(found: result.Result) -> None:
    """The last window of the grid was tried."""
    for window, beyond in ((24576, False), (24577, True)):
        chosen = advice.choose(found, Wanted(min_context=window, max_utilization=0.6))
        assert chosen.choices == []
        assert any("the grid ends" in note for note in chosen.notes) == beyond


@pytest.mark.parametrize(("share", "told"), [(0.9, True), (0.7, False)])
def test_a_cell_without_a_speed_must_satisfy_the_limits(
    share: float, told: bool, tmp_path: Path
) -> None:
    speeds = {SHORT: 200.0, LONG: 0.0}  # the long one at a utilization of 0.9
    found = result.load(demo_sweep(tmp_path / "s", speeds, *GRID))
    chosen = advice.choose(found, Wanted(min_context=20000, max_utilization=share))
    assert any("without a speed that counts" in note for note in chosen.notes) == told


def test_cells_without_a_speed_are_named(tmp_path: Path) -> None:
    speeds = {SHORT: 200.0, LONG: 0.0}
    chosen = advice.choose(
        result.load(demo_sweep(tmp_path / "s", speeds, *GRID)), Wanted(min_context=20000)
    )
    assert chosen.choices == []
    assert chosen.notes[:2] == [
        "7 cells with such a window do not work (kv_too_small)",
        "1 more cell works with such a window and utilization, but without a speed that counts",
    ]


def test_without_any_cell_there_is_a_reason_alone(tmp_path: Path) -> None:
    chosen = advice.choose(result.load(demo_sweep(tmp_path / "s", {}, *GRID)), Wanted(min_decode=1))
    assert (chosen.choices, chosen.nearest) == ([], [])
    assert chosen.reason is not None
    assert "kv_too_small" in chosen.reason


@pytest.mark.parametrize(
    ("wanted", "option"),
    [
        (Wanted(task="chess"), "--task"),
        (Wanted(min_decode=float("nan")), "--min-decode"),
        (Wanted(max_utilization=float("nan")), "--max-utilization"),
    ],
)
def test_limits_that_mean_nothing_are_refused(
    found: result.Result, wanted: Wanted, option: str
) -> None:
    with pytest.raises(ConfigError, match=option):
        advice.choose(found, wanted)


# What is printed and written


def test_words_take_eighty_columns_and_the_document_is_json(found: result.Result) -> None:
    for wanted in (Wanted(), Wanted(min_context=20000, min_decode=130)):
        chosen = advice.choose(found, wanted)
        comments = [line for line in printed(chosen).splitlines() if line.startswith("#")]
        assert comments
        assert max(map(len, comments)) <= 80
        document = json.loads(json.dumps(advice.document(chosen)))
        assert list(document) == [
            *("sweep", "choices", "nearest", "reason", "notes"),
            *("state", "known", "planned"),
        ]
        keys = {"command", "config", "config_file", "config_command", "docker", "environment"}
        for each in document["choices"] + document["nearest"]:
            assert keys | {"against", "note", "checks", "gain_in_doubt"} <= set(each)


def test_a_warning_of_several_cells_is_told_once(found: result.Result) -> None:
    """Cells that have the speed of one launch have its warnings, too."""
    shared = {"check": "drift", "verdict": "warn", "detail": "it became faster"}
    own = {"check": "clock_gap", "verdict": "fail", "detail": "clocks disagree"}
    for wanted in (Wanted(), Wanted(min_context=20000, min_decode=130)):
        chosen = advice.choose(found, wanted)
        first, second, *rest = [*chosen.choices, *chosen.nearest]
        cells = [first | {"checks": [shared]}, second | {"checks": [own, shared]}]
        place = "choices" if chosen.choices else "nearest"
        text = printed(dataclasses.replace(chosen, **{place: [*cells, *rest]}))  # type: ignore[arg-type]
        assert text.count("it became faster") == text.count("clocks disagree") == 1
        assert text.count("# as above: warn drift\n") == 1
        assert text.index("it became faster") < text.index("# as above")


def test_one_form_is_printed_without_titles(found: result.Result) -> None:
    chosen = advice.choose(found, Wanted(min_context=24576))
    text = printed(chosen, ("docker",))
    assert "docker run" in text
    assert "# as" not in text
    assert "--config" not in text
    assert text.count("vllm.entrypoints") == 0
    assert "cat >" in printed(chosen, ("config",))


def test_files_are_written_once_and_never_over_others(found: result.Result, tmp_path: Path) -> None:
    chosen = advice.choose(found, Wanted())
    folder = tmp_path / "my configs"
    told = written.write(chosen, folder)
    files = {each["config_file"]: each["config"] for each in told.choices}
    assert {Path(name).name for name in files} == {
        "demo-cpu-fastest.yaml",
        "demo-cpu-longest.yaml",
        "demo-cpu-balanced.yaml",
    }
    assert all(Path(name).read_text() == content for name, content in files.items())
    assert f"config file of fastest: {folder}/demo-cpu-fastest.yaml" in told.notes
    text = printed(told)
    assert "cat >" not in text
    assert f"--config '{folder}/demo-cpu-longest.yaml'" in text
    assert written.write(chosen, folder) == told
    (folder / "demo-cpu-longest.yaml").write_text("model: mine\n")
    (folder / "demo-cpu-fastest.yaml").unlink()
    with pytest.raises(ConfigError, match=r"demo-cpu-longest\.yaml is there with other content"):
        written.write(chosen, folder)
    assert (folder / "demo-cpu-longest.yaml").read_text() == "model: mine\n"
    assert not (folder / "demo-cpu-fastest.yaml").exists()
    (tmp_path / "a file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        written.write(chosen, tmp_path / "a file" / "b")
