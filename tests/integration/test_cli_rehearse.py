"""`rehearse` as a user types it: the document, the page at 80 columns, cards of one's own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_frontier.cli import cli
from vllm_frontier.engine.simulated.card_file import find_card

SWEEP = "rtx5090-qwen3.8-27b-nvfp4"
AXES = {"depth", "graphs", "utilization"}
COUNTS = (
    *("cells", "launches", "launches_measure", "launches_exhaustive", "wrong_cells"),
    *("launches_replicate", "launches_reference"),
    *(
        "inferred_wrong",
        "inferred",
        "uncertain",
        "uncertain_wrong",
        "firm",
        "in_doubt",
        "unexplored",
        "failed",
        "not_reached",
    ),
)


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The whole command, with a terminal of 80 columns."""
    return subprocess.run(
        [sys.executable, "-m", "vllm_frontier", "rehearse", *words],
        cwd=cwd, env=os.environ | {"COLUMNS": "80"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture
def rehearse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs the command in this process, and gives what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> str:
        assert cli.main(["rehearse", *words], standalone_mode=False) == 0
        told = capsys.readouterr()
        assert told.err == ""
        return told.out

    return run


def test_a_card_may_have_any_name(rehearse: Any, tmp_path: Path) -> None:
    content = find_card("tiny-8gib").read_text().replace("Simulated 8 GiB", "[/]bad [red]")
    (tmp_path / "odd.yaml").write_text(content)
    page = rehearse("demo-cpu", "--card", "odd.yaml", "grid.context=[8192]", "model.name='[/]'")
    assert "Rehearsed on [/]bad [red]: " in page


def check(found: dict[str, Any]) -> None:
    """Every key is there, of its type, and the counts agree with each other."""
    for name in COUNTS:
        assert type(found[name]) is int, name
        assert found[name] >= 0
    for name in ("sweep", "card", "search", "verify"):
        assert type(found[name]) is str, name
    assert type(found["hours"]) is float
    assert found["launches_exhaustive"] == found["cells"]
    assert found["uncertain_wrong"] <= found["inferred_wrong"] <= found["inferred"]
    assert found["firm"] + found["uncertain"] == found["inferred"]
    assert found["in_doubt"] <= found["uncertain"]
    assert found["inferred"] <= found["cells"]
    assert found["unexplored"] <= len(found["contradictions"])
    columns = set()
    for each in found["boundaries"]:
        assert set(each) >= AXES | {"max_context_works", "min_context_fails", "verified"}
        assert "context" not in each
        assert type(each["verified"]) is bool
        works, fails = each["max_context_works"], each["min_context_fails"]
        assert works is None or works != fails
        if each["verified"]:
            assert works is None or fails is None or works < fails
        columns.add((each["depth"], each["graphs"], each["utilization"]))
    assert len(columns) == len(found["boundaries"])
    for each in found["frontier"]:
        assert set(each) >= AXES | {"context"}
    for each in found["contradictions"]:
        assert set(each) == {"works", "fails"}


def test_the_document_has_every_key(tmp_path: Path) -> None:
    done = call(SWEEP, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    check(found)
    assert set(found) == {*COUNTS, "sweep", "card", "search", "verify", "hours",
                          "boundaries", "frontier", "contradictions"}  # fmt: skip
    assert (found["sweep"], found["card"]) == (SWEEP, "Simulated RTX 5090")
    assert (found["search"], found["verify"]) == ("boundary", "boundaries")
    assert found["cells"] == 448
    assert (found["launches_replicate"], found["launches_reference"]) == (0, 2)
    assert found["launches"] + found["launches_measure"] < 60
    assert found["wrong_cells"] == found["inferred_wrong"] == found["not_reached"] == 0
    assert len(found["boundaries"]) == 7 * 2 * 4
    assert all(each["verified"] for each in found["boundaries"])
    known = {(e["depth"], e["graphs"], e["utilization"]): e for e in found["boundaries"]}
    assert known[4, True, 0.93]["max_context_works"] == 100000
    assert known[4, True, 0.93]["min_context_fails"] == 110000
    assert known[5, False, 0.93]["max_context_works"] == 120000
    assert known[5, False, 0.93]["min_context_fails"] == 130000
    assert known[6, True, 0.9]["max_context_works"] == 65536
    assert known[6, True, 0.9]["min_context_fails"] == 80000
    assert known[0, False, 0.97]["min_context_fails"] is None
    assert list(tmp_path.iterdir()) == []  # nothing is launched, nothing is written


@pytest.mark.parametrize("words", [(), ("search.max_launches=4",), ("search.verify=frontier",)])
def test_a_page_of_80_columns(rehearse: Any, words: tuple[str, ...]) -> None:
    page = rehearse(SWEEP, *words)
    assert max(map(len, page.splitlines())) <= 80
    assert "simulated" in page
    assert "launches instead of 448" in page
    assert "Frontier" in page


def test_a_card_of_ones_own_with_broken_monotony(rehearse: Any, tmp_path: Path) -> None:
    text = find_card("tiny-8gib").read_text()
    text = text.replace("Simulated 8 GiB", "Mine")
    fault = "faults: [{when: {context: 16384, graphs: true}, at: load, kind: oom}]"
    (tmp_path / "mine.yaml").write_text(text.replace("faults: []", fault))
    words = (
        *("demo-gpu", "--card", "mine.yaml", "search=boundary", "grid.depth=[0,1,2,3]"),
        "grid.context=[4096,8192,16384,32768,65536]",
        "grid.utilization=[0.85,0.9,0.95]",
    )
    found = json.loads(rehearse(*words, "--json"))
    check(found)
    assert found["card"] == "Mine"
    assert found["wrong_cells"] == 0
    # There are more such cells than are looked at: it is said that there may be, and of most where.
    assert found["inferred_wrong"] >= found["uncertain_wrong"] > 0
    assert found["unexplored"] > 0
    assert found["contradictions"]
    for each in found["contradictions"]:
        assert each["fails"]["context"] == 16384
        assert each["fails"]["graphs"] is True
        assert each["works"]["context"] >= 16384
    page = rehearse(*words)
    assert max(map(len, page.splitlines())) <= 80
    assert "refused" in page


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("demo-cpu", "--card", "nowhere"), "no simulated card 'nowhere': neither a file nor"),
        (("demo-cpu", "--card", "bad.yaml"), "memory has no key 'wieghts'; did you mean weights?"),
        (("demo-cup",), "did you mean 'demo-cpu'?"),
        (("demo-cpu", "search.verify=most"), "search.verify"),
        ((), "Missing argument 'SWEEP'"),
    ],
)
def test_a_wrong_word_gets_one_line_and_exit_2(
    words: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    text = find_card("tiny-8gib").read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("weights:", "wieghts:"))
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert line in done.stderr
    assert done.stdout == ""


def test_a_sweep_of_real_vllm_is_rehearsed_whatever_engine_it_names(rehearse: Any) -> None:
    small = (SWEEP, "--json", "grid.depth=[0,2]", "grid.context=[65536,131072]")
    plain = rehearse(*small)
    for words in (("engine=simulated",), ("engine=vllm", "model.id=/nowhere")):
        assert rehearse(*small, *words) == plain
    found = json.loads(rehearse("demo-cpu", "--card", "tiny-8gib", "--json"))
    check(found)
    assert (found["sweep"], found["card"]) == ("demo-cpu", "Simulated 8 GiB")


def test_every_cell_is_launched_where_the_sweep_says_so(rehearse: Any) -> None:
    words = ("demo-cpu", "search=exhaustive", "grid.context=[8192,32768]", "--json")
    found = json.loads(rehearse(*words))
    check(found)
    assert found["launches"] == found["launches_exhaustive"] == found["cells"] > 0
    assert found["inferred"] == found["launches_measure"] == 0
    assert found["launches_reference"] == 2


def test_replicates_and_the_reference_cell_are_counted_apart(rehearse: Any) -> None:
    plain, again = (
        json.loads(rehearse(SWEEP, "--json", *words))
        for words in (("workload.reference=false",), ("workload.replicates=3",))
    )
    check(again)
    assert plain["launches_replicate"] == plain["launches_reference"] == 0
    # Every measured cell twice more, the reference cell in the middle once less.
    assert again["launches_replicate"] % 2 == 1
    assert again["launches_replicate"] >= 2 * 14 - 1
    assert again["launches_reference"] == 2
    assert again["hours"] > plain["hours"] + 0.5
    same = plain.keys() - {"launches_replicate", "launches_reference", "hours"}
    assert {key: plain[key] for key in same} == {key: again[key] for key in same}
    page = rehearse(SWEEP, "workload.replicates=3")
    replicates = again["launches_replicate"]
    assert f"And {replicates} replicates and 2 reference launches" in page
    assert max(map(len, page.splitlines())) <= 80
    assert "\nAnd " not in rehearse(SWEEP, "workload.reference=false")


def test_a_budget_leaves_cells_without_an_answer(rehearse: Any) -> None:
    found = json.loads(rehearse(SWEEP, "search.max_launches=5", "--json"))
    check(found)
    assert found["launches"] + found["launches_measure"] == 5
    assert found["not_reached"] > 0
    assert found["not_reached"] + found["inferred"] + 5 == found["cells"]
    assert not all(each["verified"] for each in found["boundaries"])
    hours = json.loads(rehearse(SWEEP, "search.max_hours=0.1", "--json"))
    assert 0 < hours["launches"] + hours["launches_measure"] < 10
    assert hours["not_reached"] > 0


def test_it_is_the_same_every_time(rehearse: Any) -> None:
    words = (SWEEP, "grid.utilization=[0.93]", "--json")
    assert rehearse(*words, "search.seed=7") == rehearse(*words, "search.seed=7")
