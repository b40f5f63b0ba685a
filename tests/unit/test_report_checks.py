"""How findings are told: in `show`, in `recommend` and at the end of `run`."""

import io
import json
from typing import Any

import polars as pl
import pytest
from checked_sweep import Row, decode, launch
from rich.console import Console

from vllm_frontier.analyze.checks import NAMES, PRECISION
from vllm_frontier.analyze.derived import derived_tables
from vllm_frontier.report.checks import about, section, summary
from vllm_frontier.report.documents import objects, show_document
from vllm_frontier.report.recommend.headline import describe
from vllm_frontier.report.terminal.tables import print_show
from vllm_frontier.store.tables import frame


def document(trials: list[Row], runs: list[Row]) -> dict[str, Any]:
    tables = frame("trials", trials).lazy(), frame("runs", runs).lazy()
    derived = derived_tables(*tables)
    found = show_document(
        "demo", *tables, derived["frontier"], derived["boundaries"], checks=derived["checks"]
    )
    return dict(json.loads(json.dumps(found)))


def printed(found: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=80)
    if isinstance(found, dict):
        print_show(found, console)
    else:
        console.print(found)
    return out.getvalue()


def finding(check: str, verdict: str, value: float = 2.0, **more: Any) -> Row:
    axes = {"depth": 4, "context": 130_000, "graphs": True, "utilization": 0.95, "extra_axes": []}
    row = {"check": check, "verdict": verdict, "cell_id": "c", "attempt": None, "task": "edit"}
    row |= {**axes, "value": value, "expected": 1.0, "detail": f"{check} says {value} " * 6}
    return row | more


def test_every_check_has_a_line_and_the_worst_come_first() -> None:
    rows = [
        finding("series_gap", "warn"),
        finding("speedup_bound", "fail", 3.0),
        finding("speedup_bound", "fail", 9.0, task="code"),
        finding("speedup_bound", "fail", 5.0),
        finding("speedup_bound", "pass"),
        finding("drift", "unknown", cell_id=None, depth=None),
    ]
    text = printed(section(rows, "Checks"))
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[1].split() == ["pass", "warn", "fail", "unknown"]
    named = [name for name in NAMES if name != PRECISION]  # nobody asked for one
    assert [line.split()[0] for line in lines[2 : 2 + len(named)]] == named
    assert "speedup_bound           1           3" in text
    order = ["graphs on, utilization 0.95, code", "says 9.0", "says 5.0", "1 more of speedup_bound"]
    places = [" ".join(text.split()).index(each) for each in [*order, "warn series_gap"]]
    assert places == sorted(places)
    assert "says 3.0" not in text
    assert summary(rows) == "Checks: 4 findings (3 fail, 1 warn)."


def test_many_findings_are_counted() -> None:
    rows = [
        finding(name, verdict, n) for name in NAMES for verdict in ("warn", "fail") for n in (2, 3)
    ]
    text = printed(section(rows, "Checks"))
    lines = [line.split()[0] for line in text.splitlines() if line and line[0] != " "]
    assert lines.count("fail") == 12
    assert lines.count("warn") == 0
    assert "and 48 findings of other checks; see --json" in text


def test_a_cell_whose_output_nothing_rated_is_marked() -> None:
    plain, deep = launch(0), launch(3)
    probe = {"kind": "probe", "temperature": 0.0, "task": "edit", "repeat": 0, "attempt": 1}
    probe |= {"cell_id": plain["cell_id"], "output_logprob": -0.2, "output_logprob_expected": -0.2}
    runs = [*decode(plain, 50.0), *decode(deep, 90.0), probe]
    found = document([plain, deep], runs)
    text = " ".join(printed(found).split())
    assert "? output not rated" in text
    assert "?FLB" in text
    (told,) = about(found["checks"], {deep["cell_id"]})
    assert (told["check"], told["verdict"]) == ("output_sane", "unknown")
    assert "? output not rated" not in printed(document([plain], [*decode(plain, 50.0), probe]))
    # Where nothing was rated at all, marking every cell would say no more than the one row does.
    assert "? output not rated" not in printed(document([plain, deep], runs[:-1]))


def test_what_is_to_be_known_of_the_sweep_is_told() -> None:
    of_sweep = {"cell_id": None, "depth": None, "task": None}
    rows = [
        finding("outliers", "pass", 0.02, **of_sweep, detail="far off: 2 of 100 runs"),
        finding("series_gap", "pass", 0.0, **of_sweep, detail="launches differ by 0.0 %"),
        finding("series_gap", "pass", 1.0, detail="as it should be"),
    ]
    text = printed(section(rows, "Checks"))
    assert "outliers: far off: 2 of 100 runs" in text
    assert "launches differ" not in text
    assert "as it should be" not in text


def test_nothing_found_is_said_and_nothing_judged_is_not() -> None:
    assert summary([finding("drift", "pass")]) == "Checks: nothing to report."
    assert summary([finding("drift", "unknown")]) == summary([]) == ""
    assert summary([finding("drift", "warn")]) == "Checks: 1 finding (1 warn)."


def test_findings_about_a_cell_are_told_worst_first() -> None:
    rows = [
        finding("drift", "warn", task=None),
        finding("lossless", "fail"),
        finding("drift", "pass"),
    ]
    rows.append(finding("lossless", "warn", cell_id="d"))
    found = about(rows, {"c"})
    assert [(each["check"], each["verdict"]) for each in found] == [
        ("lossless", "fail"),
        ("drift", "warn"),
    ]
    assert found[0]["detail"].startswith("edit: lossless says")


PLAIN, DEEP = launch(0), launch(2)


def probe(of: Row, logprob: float, temperature: float) -> Row:
    row = {"cell_id": of["cell_id"], "attempt": 1, "task": "edit", "kind": "probe", "repeat": 0}
    return row | {
        "temperature": temperature,
        "output_logprob": logprob,
        "output_logprob_expected": -1.0,
    }


def swept(*probes: Row, speed: float = 80.0) -> dict[str, Any]:
    runs = decode(PLAIN, 50.0, 51.0, 49.0) + decode(DEEP, speed, speed + 1, speed - 1)
    return document([PLAIN, DEEP], [*runs, *probes])


def test_the_document_has_every_row_with_its_axes() -> None:
    found = swept()
    assert {row["check"] for row in found["checks"]} == set(NAMES) - {PRECISION}
    row = next(row for row in found["checks"] if row["check"] == "speedup_bound")
    assert (row["depth"], row["verdict"], row["value"]) == (2, "pass", pytest.approx(1.6))
    whole = next(row for row in found["checks"] if row["check"] == "drift")
    assert (whole["verdict"], whole["depth"], whole["extra_axes"]) == ("unknown", None, [])
    leading = found["frontier"][0]
    assert (leading["launches"], leading["runs"], leading["interval_basis"]) == (1, 3, "runs")
    assert leading["against_fastest"] is None


def test_an_interval_within_a_launch_is_marked() -> None:
    text = printed(swept())
    assert "* interval within one launch: launches do not show how much they differ." in text
    assert "95 %: interval of tokens/s" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_what_is_only_broken_when_sampled_stays_and_is_told() -> None:
    greedy = [probe(each, -0.2, 0.0) for each in (PLAIN, DEEP)]
    text = printed(swept(probe(PLAIN, -1.0, 1.0), probe(DEEP, -9.0, 1.0), *greedy))
    table = text.partition("What fits")[0]
    told = " ".join(table.split())
    assert "! depth 2: sampled output is broken; temperature 0 is right, do not use this" in told
    assert next(line for line in table.splitlines() if " 2 on" in line).split()[-1] == "!FLB"
    assert "warn output_sane" in text


def test_what_is_broken_as_it_was_measured_is_left_out() -> None:
    found = swept(probe(PLAIN, -1.0, 0.0), probe(DEEP, -9.0, 0.0))
    assert [row["depth"] for row in found["frontier"]] == [0]
    text = printed(found)
    assert "1 measured cell is left out: the output is broken, see Checks." in text
    assert "fail output_sane, depth 2" in text


def test_a_number_that_cannot_be_trusted_is_marked_on_the_frontier() -> None:
    text = printed(swept(speed=200.0))
    assert "! a number of this cell cannot be trusted: see Checks." in text
    row = next(line for line in text.splitlines() if " 2 on" in line)
    assert row.split()[-1] == "!FLB"


def test_a_cell_as_fast_as_the_fastest_says_so() -> None:
    longer = launch(0, context=16384)
    runs = decode(PLAIN, 50.0) + decode(DEEP, 80.0) + decode(longer, 50.5)
    deeper = launch(3, context=4096)
    found = document([PLAIN, DEEP, longer, deeper], runs + decode(deeper, 85.0))
    assert {row["context"]: row["against_fastest"] for row in found["frontier"]} == {
        16384: "slower",
        8192: "slower",
        4096: None,
    }
    tied = launch(2, context=16384, utilization=0.95)
    found = document([DEEP, tied], decode(DEEP, 80.0) + decode(tied, 80.5))
    against = {row["context"]: row["against_fastest"] for row in found["frontier"]}
    assert against == {16384: None, 8192: "no clear difference"}
    text = printed(found)
    assert "= no clear difference to the fastest." in text
    assert (
        next(line for line in text.splitlines() if "0.9 " in line and "8192" in line)
        .split()[-1]
        .startswith("=")
    )


@pytest.mark.parametrize("graphs", [False, True])
def test_a_gain_over_a_baseline_that_failed_is_marked(graphs: bool) -> None:
    base, other = launch(0, graphs=graphs), launch(0, context=4096, extra='{"a": 1}')
    runs = decode(base, 50.0, drafts=5, draft_tokens=5) + decode(DEEP, 80.0) + decode(other, 90.0)
    found = document([base, DEEP, other], runs)
    told = {(row["depth"], row.get("a")): row["gain_in_doubt"] for row in found["frontier"]}
    assert told[0, 1] is False
    assert told[2, None] is not graphs
    assert [row["gain_in_doubt"] for row in found["choices"]] == [
        told[row["depth"], row.get("a")] for row in found["choices"]
    ]
    # Graphs or not: the column is over depth 0 without graphs.
    text = printed(found)
    row = next(line for line in text.splitlines() if " 2 on" in line)
    assert ("1.60!" in row) is not graphs
    assert ("! x base is in doubt, as depth 0 without graphs is: see Checks." in text) is not graphs
    (deep,) = (each for each in found["frontier"] if each["depth"] == 2)
    words = "1.60 x baseline (in doubt, as is the baseline)"
    assert (words in describe({**deep, "choices": ["fastest"]})) is not graphs


def test_a_gain_over_a_baseline_that_does_not_write_as_expected_is_marked() -> None:
    base = launch(0, graphs=False)
    runs = decode(base, 50.0) + decode(DEEP, 80.0)
    for logprob, doubt in ((-1.0, False), (-9.0, True)):
        found = document([base, DEEP], [*runs, probe(base, logprob, 0.0), probe(DEEP, -1.0, 0.0)])
        (row,) = (each for each in found["frontier"] if each["depth"] == 2)
        assert row["gain_in_doubt"] is doubt


def test_figures_that_are_no_numbers_are_null() -> None:
    odd = [float("inf"), float("nan")]
    runs = decode(PLAIN, 50.0) + decode(DEEP, 80.0)
    trials = [PLAIN | {"kv_available_gib": odd[0], "kv_needed_gib": odd[1]}, DEEP]
    tables = frame("trials", trials).lazy(), frame("runs", runs).lazy()
    found = document(trials, runs)
    assert json.loads(json.dumps(found, allow_nan=False))["frontier"]
    (table,) = objects(
        tables[0].select(figures=pl.concat_list(*[pl.lit(each) for each in odd], 1.0)).head(1)
    )
    assert table == {"figures": [None, None, 1.0]}
    (first, _) = objects(tables[0].select("kv_available_gib"))
    assert first == {"kv_available_gib": None}


def test_show_tells_of_repeats_that_failed() -> None:
    again = launch(2, attempt=2, purpose="replicate", status="failed", failure_class="gpu_lost")
    found = document([PLAIN, DEEP, again], decode(PLAIN, 50.0) + decode(DEEP, 80.0))
    text = " ".join(printed(found).split())
    assert "1 replicate)" in text
    told = "1 of 1 launch that repeats a cell failed (gpu_lost: 1)"
    assert f"warn repeat_launches: {told}" in text
