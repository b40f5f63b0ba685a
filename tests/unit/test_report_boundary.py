"""What is told of a sweep in which most cells were never launched."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import yaml
from rich.console import Console

from vllm_frontier.config import compose_sweep, spec_from_document
from vllm_frontier.engine.simulated.attempt import simulate_attempt
from vllm_frontier.engine.simulated.card_file import card_folder, load_card
from vllm_frontier.engine.simulated.faults import FaultBook
from vllm_frontier.identity import identify
from vllm_frontier.outcome import Outcome, Run
from vllm_frontier.report import result, state
from vllm_frontier.report.recommend import advice
from vllm_frontier.report.terminal import tables as terminal
from vllm_frontier.search import create_search
from vllm_frontier.search.proof import DISAGREEMENT, MONOTONY
from vllm_frontier.store.lock import Holder
from vllm_frontier.store.rows import interrupted_row, run_rows, trial_row
from vllm_frontier.store.sweep_store import SweepStore
from vllm_frontier.store.tables import frame, read
from vllm_frontier.sweep import make_tables

GRID = (
    "engine=simulated",
    "grid.depth=[0,1,2]",
    "grid.context=[8192,16384,24576,32768,49152]",
    "grid.utilization=[0.8,0.9]",
)
HOLE = {"when": {"context": 16384, "depth": 1}, "at": "load", "kind": "oom", "times": 1000}


def swept(folder: Path, *overrides: str, faults: Sequence[dict] = (), at_most: int = 1000) -> Path:
    """The folder of a boundary sweep of 60 cells on a small card, without any server."""
    folder.mkdir(exist_ok=True)
    card_file = folder / "card.yaml"
    content = yaml.safe_load((card_folder() / "tiny-8gib.yaml").read_text())
    card_file.write_text(yaml.safe_dump(content | {"faults": list(faults)}))
    words = (*GRID, f"engine.card_file={card_file}", *overrides)
    composed = compose_sweep("rtx5090-qwen3.8-27b-nvfp4", list(words))
    spec, card = composed.spec, load_card(str(card_file))
    identity, book = identify(spec, "simulated-1"), FaultBook(card.faults)
    search, began = create_search(spec), 1_700_000_000.0
    root = folder / "s"
    store, _ = SweepStore.create_or_open(root, composed.document, identity)
    with store:
        for _ in range(at_most):
            if (wanted := search.ask()) is None:
                break
            outcome = simulate_attempt(
                card,
                wanted.cell,
                purpose=wanted.purpose,
                with_speed=wanted.with_speed,
                faults=book,
            )
            began += 100
            outcome = replace(outcome, started_at=began, ended_at=began + 90)
            outcome = replace(outcome, runs=runs_of(outcome))
            search.tell(wanted.cell, outcome)
            paths = store.new_attempt(identity.cell_id(wanted.cell))
            row = trial_row(spec, identity, wanted.cell, paths.number, outcome, engine_version="1")
            runs = run_rows(spec, identity, wanted.cell, paths.number, outcome)
            store.write_attempt(paths, row, {})
            store.write_outcome(paths, row, runs)
    return root


def runs_of(outcome: Outcome) -> tuple[Run, ...]:
    if outcome.speed is None:
        return ()
    return (Run("edit", 0, "decode", decode_tok_s=outcome.speed.decode_tok_s),)


def printed(document: dict) -> str:
    out = io.StringIO()
    terminal.print_show(document, Console(file=out, width=80))
    return out.getvalue()


def stated(document: dict) -> list[str]:
    out = io.StringIO()
    state.show(document, Console(file=out, width=80))
    return out.getvalue().splitlines()


def advised(chosen: advice.Advice) -> list[str]:
    out = io.StringIO()
    advice.show(chosen, Console(file=out, width=80))
    return out.getvalue().splitlines()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("plain"), "search.audit=2")


def test_every_cell_is_told_and_few_were_launched(plain: Path) -> None:
    document = json.loads(json.dumps(result.document(result.load(plain))))
    cells, inferred = document["cells"], document["inferred"]
    assert document["launches"]["reference"] == 1
    made = sum(document["launches"].values()) - 1
    assert cells["inferred"] == inferred["cells"] == inferred["firm"] + inferred["uncertain"]
    assert inferred["in_doubt"] == document["unexplored"] == 0
    assert document["not_reached"] + sum(cells.values()) == 60
    assert made == cells["measured"] + cells["infeasible"] < 30
    assert document["launches"]["audit"] == inferred["audited"] == 2
    assert inferred["audit_wrong"] == 0
    assert document["contradictions"] == document["contested"] == []
    text = printed(document)
    assert max(len(line) for line in text.splitlines()) <= 80
    headline = " ".join(text.partition("Grid")[0].split())
    apart = "; 1 reference launch)"
    launched = f"; {made} launches, {60 - made} saved{apart}"
    assert headline.endswith(f"{inferred['cells']} inferred{launched}")
    assert "~ inferred: not launched itself, but follows from" in text


def test_the_end_of_a_window_that_was_inferred_is_marked_and_no_other(plain: Path) -> None:
    document = result.document(result.load(plain))
    grid = {
        (each["depth"], each["graphs"], each["utilization"], each["context"]): each["status"]
        for each in document["grid"]
    }
    text = printed(document).partition("What fits")[2].partition("~ inferred")[0]
    told = [line.split() for line in text.splitlines() if "kv_too_small" in line]
    rows = [each for each in document["boundaries"] if each["failure_class"] == "kv_too_small"]
    assert len(told) == len(rows) > 4
    ends = {"max_context_works": 3, "min_context_fails": 4}
    marked = []
    for words, row in zip(told, rows, strict=True):
        for name, place in ends.items():
            cell = (row["depth"], row["graphs"], row["utilization"], row[name])
            inferred = grid.get(cell) == "inferred"
            shown = "-" if row[name] is None else f"{row[name]}{'~' if inferred else ''}"
            assert words[place] == shown
            marked.append(inferred)
    assert set(marked) == {True, False}
    assert "inferred" not in text


def test_where_every_end_was_launched_none_has_a_mark(tmp_path: Path) -> None:
    document = result.document(result.load(swept(tmp_path, "search=exhaustive")))
    assert "~" not in printed(document)


def test_the_tables_are_those_of_launching_every_cell(plain: Path, tmp_path: Path) -> None:
    few, every = result.load(plain), result.load(swept(tmp_path, "search=exhaustive"))
    assert every.trials.filter(attempt=0).is_empty()
    cell = ["depth", "context", "graphs", "utilization", "extra"]
    leading = [*cell, "decode_tok_s", "max_context", "gain_no_graphs", "on_frontier_for"]
    assert few.frontier.select(leading).rows() == every.frontier.select(leading).rows()
    ends = ["depth", "graphs", "utilization", "max_context_works", "min_context_fails", "cells"]
    assert few.boundaries.select(ends).rows() == every.boundaries.select(ends).rows()
    assert few.boundaries["verified"].all()
    assert every.boundaries["launched"].all()
    assert not few.boundaries["launched"].all()


def test_checks_are_written_and_told_with_the_cells_they_are_about(plain: Path) -> None:
    found = result.load(plain)
    assert found.checks.filter(verdict="fail").is_empty()
    assert result.findings(found) == "Checks: nothing to report.\n"
    chosen = advice.choose(found, advice.Wanted())
    assert all(each["checks"] == [] for each in chosen.choices)
    # Of one of two launches the next may differ: its speed says so.
    cell = found.frontier["speed_cell"][0]
    told = {"sweep": "s", "check": "series_gap", "verdict": "warn", "cell_id": cell}
    doubted = frame("checks", [told | {"depth": 0, "detail": "9 % slower than attempt 1"}] * 2)
    chosen = advice.choose(replace(found, checks=doubted), advice.Wanted())
    lines = advised(chosen)
    assert "# warn series_gap: 9 % slower than attempt 1 (and 1 more)" in lines
    with SweepStore.open(plain) as store:
        make_tables(store, spec_from_document(store.config))
    written = read("checks", store.paths.table("checks"))
    assert written.equals(found.checks)


def test_the_status_counts_what_follows_without_a_launch(plain: Path) -> None:
    found = state.document(SweepStore.open(plain), plain)
    shown = result.document(result.load(plain))
    assert found["planned"] == 60
    assert found["cells"] == shown["cells"]
    assert found["launched"] + found["inferred"] + found["not_reached"] == 60
    assert found["done"] == found["launched"] + found["inferred"]
    assert found["not_reached"] == shown["not_reached"]
    assert found["launches"] == sum(shown["launches"].values())
    assert (found["replicates"], found["reference"]) == (0, 1)
    made = found["launches"] - 1
    assert f"  {made} launches so far; inferred cells need none" in stated(found)
    assert "  beside these 1 reference launch" in stated(found)
    assert found["state"] == "finished"


def test_the_status_has_the_map_and_the_frontier_of_show(plain: Path) -> None:
    found = json.loads(json.dumps(state.document(SweepStore.open(plain), plain)))
    shown = json.loads(json.dumps(result.document(result.load(plain))))
    same = ("frontier", "choices", "checks", "without_speed", "simulated")
    assert {name: found[name] for name in same} == {name: shown[name] for name in same}
    assert found["without_frontier"] is None
    known = [each for each in found["grid"] if each["status"] != "not_reached"]
    assert known == shown["grid"]
    assert len(found["grid"]) == found["planned"] == 60
    lines = stated(found)
    assert max(len(line) for line in lines) <= 80
    assert lines.index("") < len(lines) <= 40
    titles = [line for line in lines if line.startswith(("Grid", "Frontier"))]
    assert [title.partition("  ")[0].strip() for title in titles] == [
        "Grid (simulated)",
        "Frontier (simulated)",
    ]


def test_before_anything_is_known_the_whole_grid_is_there(tmp_path: Path) -> None:
    folder = swept(tmp_path, at_most=0)
    found = state.document(SweepStore.open(folder), folder)
    assert {each["status"] for each in found["grid"]} == {"not_reached"}
    assert found["without_frontier"] == "no cell has a measured speed yet"
    lines = stated(found)
    assert "depth 2  ..  ..  ..  ..  ..   ..  ..  ..  ..  .." in lines
    assert ". not tried" in lines
    assert "No cell has a measured speed yet." in lines
    document = result.document(result.load(folder))
    assert document["grid"] == []


def test_the_end_of_a_sweep_fits_a_screen(plain: Path) -> None:
    found = result.load(plain)
    out = io.StringIO()
    result.show(found, Console(file=out, width=80), short=True)
    lines = out.getvalue().splitlines()
    assert len(lines) <= 32
    assert max(len(line) for line in lines) <= 80
    order = [
        next(at for at, line in enumerate(lines) if line.startswith(word))
        for word in ("rtx5090", "Grid", "Frontier")
    ]
    assert order == sorted(order)
    for word in ("What fits", "How fast", "Checks", "Without a result"):
        assert word not in out.getvalue()
    whole = io.StringIO()
    result.show(found, Console(file=whole, width=80))
    assert whole.getvalue().startswith(out.getvalue()[: out.getvalue().index("F fastest")])
    assert "What fits" in whole.getvalue()


def test_a_long_frontier_keeps_its_choices_where_it_is_short(plain: Path) -> None:
    document = result.document(result.load(plain))
    first = document["frontier"][0]
    rows = [first | {"cell_id": f"c{number}", "context": 1000 + number} for number in range(30)]
    choices = [rows[0] | {"choices": ["longest"]}, rows[29] | {"choices": ["fastest"]}]
    judged = {"check": "spec_state", "verdict": "fail", "cell_id": "c0", "detail": "odd"}
    checked = [dict.fromkeys(("task", "value", "expected", "depth", "attempt")) | judged]
    long = document | {"frontier": rows, "choices": choices, "checks": checked}
    long["frontier"][0]["gain_in_doubt"] = True
    out = io.StringIO()
    terminal.print_show(long, Console(file=out, width=80), short=True)
    shown = [line.split() for line in out.getvalue().splitlines()]
    windows = [int(line[0]) for line in shown if line and line[0].startswith("10")]
    assert 6 <= len(windows) <= 8
    assert (windows[0], windows[-1]) == (1000, 1029)
    assert any(1010 <= each <= 1020 for each in windows)
    told = " ".join(out.getvalue().split())
    assert "! x base is in doubt, as depth 0 without graphs is: see `show`." in told
    assert "! a number of this cell cannot be trusted: see `show`." in told
    assert f"{30 - len(windows)} more cells on the frontier: `vllm-frontier show`." in told


def test_a_search_that_ended_early_says_what_it_did_not_reach(tmp_path: Path) -> None:
    folder = swept(tmp_path, "search.max_launches=5")
    document = result.document(result.load(folder))
    assert sum(document["launches"].values()) == 5
    left = document["not_reached"]
    assert left > 0
    assert sum(document["cells"].values()) + left == 60
    # A depth of which nothing was measured lends no speed to those of its cells that work.
    measured = {
        (each["depth"], name)
        for each in document["speeds"]
        for name in ("eager", "graphs")
        if each[name] is not None
    }
    silent = [
        each
        for each in document["grid"]
        if each["failure_class"] is None
        and (each["depth"], "graphs" if each["graphs"] else "eager") not in measured
    ]
    assert document["without_speed"] == len(silent) > 0
    text = printed(document)
    assert f"{left} not reached" in " ".join(text.split())
    assert f"{len(silent)} more cells work, but no speed was measured" in text
    open_ones = [each for each in document["boundaries"] if not each["verified"]]
    assert open_ones
    last_words = [line.split()[-1] for line in text.splitlines() if line.strip()]
    assert last_words.count("open") == len(open_ones)
    found = state.document(SweepStore.open(folder), folder)
    assert (found["state"], found["not_reached"]) == ("interrupted", left)
    assert (found["reason"], found["next"]) == ("search.max_launches", "speed")
    assert found["launches_left"] > 5
    told = stated(found)
    assert f": stopped by its budget (search.max_launches), {60 - left} of 60 cells" in told[0]
    assert told[0].endswith("launches left, the next to measure speed")
    assert told[-1] == f"Go on with: vllm-frontier resume {folder}"


def test_a_budget_of_hours_is_told_from_an_interruption(tmp_path: Path) -> None:
    folder = swept(tmp_path, "search.max_hours=1", "search.max_launches=10")
    document = state.document(SweepStore.open(folder), folder)  # 17 minutes
    assert (document["state"], document["reason"]) == ("interrupted", "search.max_launches")
    folder = swept(tmp_path / "b", "search.max_hours=0.25", "search.max_launches=10")
    assert state.document(SweepStore.open(folder), folder)["reason"] == "search.max_hours"


def test_every_cell_known_and_speeds_left_is_no_contradiction(tmp_path: Path) -> None:
    folder = swept(tmp_path, "search.measure=all", "search.max_launches=24")
    found = state.document(SweepStore.open(folder), folder)
    assert (found["done"], found["state"], found["next"]) == (60, "interrupted", "speed")
    assert "60 of 60 cells done, about " in stated(found)[0]
    assert "left, the next to measure speed" in stated(found)[0]


def test_what_runs_now_is_neither_interrupted_nor_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = swept(tmp_path, "search.max_launches=5")
    config = SweepStore.open(folder).config
    spec = compose_sweep("rtx5090-qwen3.8-27b-nvfp4", list(GRID)).spec
    identity = SweepStore.open(folder).identity
    grid = result.document(result.load(folder))["grid"]
    known = {(each["depth"], each["context"]) for each in grid}
    (first, second, *_) = (c for c in spec.grid.cells() if (c.depth, c.context) not in known)
    begun = {first: 1_800_000_100.0, second: 1_700_000_000.0}
    store, _ = SweepStore.create_or_open(folder, config, identity)
    with store:
        for cell, began in begun.items():
            paths = store.new_attempt(identity.cell_id(cell))
            row = interrupted_row(
                spec, identity, cell, paths.number, started_at=began, engine_version="1"
            )
            store.write_attempt(paths, row, {})
    writer = Holder(1, "here", 0.0, since=1_800_000_000.0)
    monkeypatch.setattr(SweepStore, "writer", lambda store: writer)
    document = result.document(result.load(folder))
    assert document["cells"]["interrupted"] == 1
    assert sum(document["launches"].values()) == 6
    assert [each["status"] for each in document["failures"]].count("interrupted") == 1
    (running,) = (each for each in document["grid"] if each["status"] == "running")
    assert (running["depth"], running["context"]) == (first.depth, first.context)
    text = " ".join(printed(document).split())
    assert "1 interrupted, " in text
    assert " 1 running, " in text
    assert text.startswith("rtx5090-qwen3.8-27b-nvfp4 (simulated): 60 cells ")
    found = state.document(SweepStore.open(folder), folder)
    assert (found["state"], found["reason"], found["launches_left"]) == ("running", None, None)
    assert found["cells"] == document["cells"]
    assert found["not_reached"] == document["not_reached"]
    assert f"  now: {first.label()} (attempt 1)" in stated(found)
    (now,) = (each for each in found["grid"] if each["status"] == "running")
    assert (now["depth"], now["context"], now["graphs"]) == (first.depth, first.context, False)
    assert "o running now" in " ".join(stated(found))
    monkeypatch.setattr(SweepStore, "writer", lambda store: None)
    over = result.document(result.load(folder))
    assert (over["cells"]["interrupted"], over["not_reached"]) == (2, document["not_reached"])
    assert state.document(SweepStore.open(folder), folder)["reason"] is None


def test_a_sweep_that_is_stopped_says_what_it_found_if_anything(tmp_path: Path) -> None:
    def told(folder: Path) -> list[str]:
        out = io.StringIO()
        state.show_stopped(folder, Console(file=out, width=80))
        return out.getvalue().splitlines()

    folder = swept(tmp_path / "some", at_most=8)
    found = state.document(SweepStore.open(folder), folder)
    lines = told(folder)
    assert lines[0].startswith(f"{found['sweep']}: interrupted, {found['done']} of 60 cells done")
    begins = [line.split("  ")[0] for line in lines]
    assert begins.index("Grid (simulated)") < begins.index("Frontier (simulated)")
    assert lines[-1] == ""
    assert lines[:-1] == [
        line
        for number, line in enumerate(stated(found)[:-2])
        if number == 0 or number >= stated(found).index("")
    ]
    assert told(swept(tmp_path / "none", at_most=0)) == []
    assert told(tmp_path / "no_sweep") == []


def test_before_the_first_launch_a_simulated_sweep_says_so(tmp_path: Path) -> None:
    folder = swept(tmp_path, at_most=0)
    document = result.document(result.load(folder))
    assert document["simulated"]
    assert printed(document).startswith("rtx5090-qwen3.8-27b-nvfp4 (simulated): 60 cells")
    assert "No cell has a measured speed yet." in printed(document)


def test_where_monotony_broke_is_told_with_the_launches_that_disagree(tmp_path: Path) -> None:
    folder = swept(tmp_path, "search.audit=12", faults=[HOLE])
    document = result.document(result.load(folder))
    holes = [pair["fails"] for pair in document["contradictions"]]
    assert holes
    assert {(each["depth"], each["context"]) for each in holes} == {(1, 16384)}
    for pair in document["contradictions"]:
        assert pair["works"]["context"] > pair["fails"]["context"]
    assert document["inferred"]["audit_wrong"] >= 1
    text = printed(document)
    assert "refused  depth 1, context 16384" in text
    assert "not monotone" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_cells_in_doubt_are_named_and_their_boundaries_marked(plain: Path) -> None:
    document = result.document(result.load(plain))
    side = next(each for each in document["boundaries"] if each["max_context_works"] == 24576)
    axes = ("depth", "graphs", "utilization")
    cell = {name: side[name] for name in axes} | {"context": 24576, "failure_class": None}
    pair = {"works": cell | {"depth": 2}, "fails": cell | {"context": 8192}}
    text = printed(document | {"contradictions": [pair], "contested": [cell]})
    where = f"depth {cell['depth']}, context 24576"
    assert f"  {where}, graphs" in text
    assert text.count("in doubt") == 1
    assert "not looked around" not in text
    one = printed(document | {"contradictions": [pair], "unexplored": 1})
    assert "1 refused cell was not looked around further: how far it reaches is open." in one
    hidden = printed(document | {"contradictions": [pair] * 9, "contested": [], "unexplored": 2})
    assert "2 refused cells were not looked around further: how far they reach is open." in hidden
    assert hidden.count("refused  depth") == 6
    assert "and 3 more" in hidden


def test_an_inferred_choice_says_what_it_follows_from(plain: Path) -> None:
    base = {
        "sweep": "s",
        "attempt": 1,
        "graphs": True,
        "extra": "{}",
        "phase": "stop",
        "status": "measured",
        "engine": "simulated",
    }
    deeper = {"cell_id": "a", "depth": 2, "context": 16384, "utilization": 0.9}
    faster = {"cell_id": "b", "depth": 1, "context": 8192, "utilization": 0.8}
    inferred = {"cell_id": "c", "status": "inferred", "attempt": 0, "evidence_cell": "a"}
    place = {"depth": 1, "context": 16384, "utilization": 0.9}
    trials = frame("trials", [base | deeper, base | faster, base | place | inferred])
    one = {"attempt": 1, "task": "edit", "repeat": 0, "kind": "decode", "concurrency": 1}
    speeds = (("a", 50.0), ("b", 60.0))
    runs = frame("runs", [one | {"cell_id": name, "decode_tok_s": each} for name, each in speeds])
    found = replace(result.load(plain), trials=trials, runs=runs)
    chosen = advice.choose(found, advice.Wanted())
    told = [(each["cell_id"], each["speed_cell"], each["note"]) for each in chosen.choices]
    note = (
        "not launched itself; follows from depth=2 context=16384 graphs=on util=0.9, which works; "
        "start it once before you rely on it"
    )
    assert told == [("c", "b", note)]
    lines = advised(chosen)
    assert lines[0].startswith("# fastest, longest, balanced: depth 1, context 16384")
    comments = [line for line in lines if line.startswith("#")]
    assert max(len(line) for line in comments) <= 80
    assert f" {note}" in " ".join(line.removeprefix("# ") for line in comments)
    disputed = trials.with_columns(doubt=pl.lit(DISAGREEMENT))
    (doubtful,) = advice.choose(replace(found, trials=disputed), advice.Wanted()).choices
    assert "though other launches say it does not" in doubtful["note"]
    changed = trials.with_columns(doubt=pl.lit("follows from a launch with another card.name"))
    (doubtful,) = advice.choose(replace(found, trials=changed), advice.Wanted()).choices
    assert "; in doubt: follows from a launch with another card.name; start it" in doubtful["note"]
    usual = trials.with_columns(doubt=pl.lit(MONOTONY))
    assert advice.choose(replace(found, trials=usual), advice.Wanted()).choices == chosen.choices
    without = trials.filter(pl.col("cell_id") != "c")
    choices = advice.choose(replace(found, trials=without), advice.Wanted()).choices
    assert {each["cell_id"]: each["note"] for each in choices} == {"a": None, "b": None}


def test_inferred_rows_of_the_frontier_are_marked(plain: Path) -> None:
    document = result.document(result.load(plain))
    first, *others = document["frontier"]
    unlike = {"status": "inferred", "attempt": 0, "kv_headroom_gib": None, "speed_cell": "x"}
    lines = printed(document | {"frontier": [first | unlike, *others]}).splitlines()
    rows = [line for line in lines if line.strip().startswith(str(first["context"]))]
    assert rows[0].split()[-1].startswith("~")
    assert any(line.startswith("~ inferred") for line in lines)
    frontier = printed(document).partition("Frontier")[2].partition("What fits")[0]
    assert "~" not in frontier
