"""Whether what is written is what should be written."""

import polars as pl
import pytest
from checked_sweep import Row, decode, judged, launch

from vllm_frontier.analyze.derived import derived_tables
from vllm_frontier.analyze.output import broken_cells
from vllm_frontier.store.tables import frame

BASE, DEEP = launch(0), launch(2)
RIGHT = "temperature 0 is right, do not use this with sampling on this engine version"
TOKENS = list(range(100, 200))


def written(of: Row, *texts: list[int], **more: object) -> list[Row]:
    """Greedy runs that wrote these tokens."""
    runs = decode(of, *[50.0 for _ in texts], **more)
    return [
        run
        | {
            "completion_tokens": len(text),
            "output_token_ids": text,
            "output": " ".join(str(each) for each in text),
        }
        for run, text in zip(runs, texts, strict=True)
    ]


def parted(at: int) -> list[int]:
    """The text with another token at a place, and others after it."""
    return TOKENS[:at] + [each + 1000 for each in TOKENS[at:]]


def compared(texts: list[list[int]], *, ids: bool = True, **more: object) -> Row:
    runs = written(BASE, *[TOKENS for _ in texts]) + written(DEEP, *texts, **more)
    if not ids:
        runs = [run | {"output_token_ids": None} for run in runs]
    (row,) = judged("lossless", [BASE, DEEP], runs)
    return row


def test_the_same_output_is_lossless() -> None:
    row = compared([TOKENS, TOKENS, TOKENS])
    assert (row["verdict"], row["value"], row["depth"]) == ("pass", 0.0, 2)
    assert row["detail"] == "all of 3 outputs are those of depth 0"


@pytest.mark.parametrize(
    ("places", "rate", "verdict"),
    [([90, None, None], 1 / 291, "pass"), ([20, 20], 2 / 42, "pass"), ([18, 19], 2 / 39, "warn")],
)
def test_outputs_that_part_now_and_then_are_rounding(
    places: list[int | None], rate: float, verdict: str
) -> None:
    row = compared([TOKENS if place is None else parted(place) for place in places])
    assert (row["verdict"], row["value"]) == (verdict, pytest.approx(rate))
    assert f"first at token {min(each for each in places if each) + 1}:" in row["detail"]


@pytest.mark.parametrize(("place", "verdict"), [(40, "pass"), (7, "warn")])
def test_without_ids_characters_are_compared(place: int, verdict: str) -> None:
    row = compared([parted(place), parted(place)], ids=False)
    assert row["verdict"] == verdict
    # A token is three digits and a blank here, or four that begin alike.
    assert row["value"] == pytest.approx(1 / (place + 1), rel=0.25)
    assert f"first at character {4 * place + 2}:" in row["detail"]


def test_one_text_that_parts_early_may_be_chance() -> None:
    assert compared([parted(3)])["verdict"] == "pass"
    assert compared([parted(3), parted(0)])["verdict"] == "warn"


def test_text_that_ends_early_has_parted() -> None:
    row = compared([TOKENS[:10], TOKENS[:5]])
    assert (row["verdict"], row["value"]) == ("warn", pytest.approx(2 / 17))


@pytest.mark.parametrize(
    "other",
    [{"temperature": 1.0}, {"prompt_tokens": 7}, {"variant": 9}, {"task": "code"}],
)
def test_only_what_was_asked_alike_is_compared(other: dict) -> None:
    runs = written(BASE, TOKENS, prompt_tokens=5) + written(DEEP, parted(1), **other)
    (row,) = judged("lossless", [BASE, DEEP], runs)
    assert (row["verdict"], row["cell_id"]) == ("unknown", None)


def test_a_baseline_with_other_graphs_will_do() -> None:
    plain = launch(0, graphs=False)
    (row,) = judged("lossless", [plain, DEEP], written(plain, TOKENS) + written(DEEP, TOKENS))
    assert row["verdict"] == "pass"


# Likelihood


def rated(
    of: Row, *logprobs: float, expected: float | None = -1.5, temperature: float = 1.0
) -> list[Row]:
    tasks = ("edit", "code", "prose")
    return [
        {
            "cell_id": of["cell_id"],
            "attempt": of["attempt"],
            "task": task,
            "repeat": 0,
            "kind": "probe",
            "temperature": temperature,
            "output_logprob": logprob,
            "output_logprob_expected": expected,
        }
        for task, logprob in zip(tasks, logprobs, strict=False)
    ]


def sane(runs: list[Row], *, workload: float = 0.0) -> dict[tuple[int, float], Row]:
    """What `output_sane` says by depth and expected value."""
    trials = [BASE, DEEP]
    measured = [run for each in trials for run in decode(each, 50.0, temperature=workload)]
    found = judged("output_sane", trials, runs + measured)
    return {row["depth"]: row for row in found}


def test_text_as_probable_as_without_speculation_is_sane() -> None:
    found = sane(rated(BASE, -1.4, -1.6) + rated(DEEP, -1.3, -1.9))
    assert {row["verdict"] for row in found.values()} == {"pass"}
    assert found[2]["expected"] == pytest.approx(-1.5)
    assert found[2]["detail"].startswith("2 texts at temperature 1.0 have a mean log-probability")


@pytest.mark.parametrize(
    ("own", "temperature", "workload", "verdict"),
    [
        (-9.0, 1.0, 0.0, "warn"),
        (-9.0, 1.0, 1.0, "fail"),
        (-9.0, 0.0, 0.0, "fail"),
        (-2.4, 1.0, 1.0, "pass"),
        (-2.6, 1.0, 1.0, "fail"),
    ],
)
def test_broken_at_the_temperature_that_was_measured_or_at_another(
    own: float, temperature: float, workload: float, verdict: str
) -> None:
    probes = rated(BASE, -1.5, temperature=temperature)
    probes += rated(DEEP, own, temperature=temperature)
    row = sane(probes, workload=workload)[2]
    assert row["verdict"] == verdict
    assert RIGHT not in row["detail"]  # for all that is known


@pytest.mark.parametrize(("greedy", "right"), [(-0.3, True), (-9.0, False)])
def test_where_greedy_output_is_right_that_is_said(greedy: float, right: bool) -> None:
    probes = [*rated(BASE, -0.2, temperature=0.0), *rated(BASE, -1.5)]
    probes += [*rated(DEEP, greedy, temperature=0.0), *rated(DEEP, -9.0)]
    trials = [BASE, DEEP]
    runs = probes + [run for each in trials for run in decode(each, 50.0)]
    found = [row for row in judged("output_sane", trials, runs) if row["depth"] == 2]
    assert [row["verdict"] for row in found] == ["pass" if right else "fail", "warn"]
    assert (RIGHT in found[1]["detail"]) == right


def test_another_text_may_be_less_probable_and_right() -> None:
    probes = rated(BASE, -1.0) + rated(DEEP, -3.0, expected=-2.9)
    assert sane(probes, workload=1.0)[2]["verdict"] == "pass"
    greedy = rated(BASE, -0.2, temperature=0.0)
    greedy += rated(DEEP, -3.0, expected=-2.9, temperature=0.0)
    assert sane(greedy)[2]["verdict"] == "fail"


def test_without_a_baseline_the_model_says_what_it_would_expect() -> None:
    found = sane(rated(DEEP, -8.0), workload=1.0)
    assert (found[2]["verdict"], found[2]["expected"]) == ("fail", -1.5)
    found = sane(rated(BASE, -2.0), workload=1.0)
    assert found[0]["verdict"] == "pass"
    assert list(sane(rated(DEEP, -8.0, expected=None))) == [None]


def test_a_broken_baseline_excuses_nothing() -> None:
    found = sane(rated(BASE, -9.0) + rated(DEEP, -9.0), workload=1.0)
    assert [found[depth]["verdict"] for depth in (0, 2)] == ["fail", "fail"]


def test_texts_that_differ_much_need_a_wider_margin() -> None:
    base = rated(BASE, -1.0) + rated(launch(0, attempt=2), -3.0)
    trials = [BASE, launch(0, attempt=2), DEEP]
    runs = base + rated(DEEP, -5.0) + decode(DEEP, 50.0, temperature=1.0)
    found = judged("output_sane", trials, runs)
    assert [row["verdict"] for row in found if row["depth"] == 2] == ["pass"]


def test_broken_cells_and_those_with_their_speed_are_not_on_the_frontier() -> None:
    inferred = launch(2, attempt=0, context=4096, status="inferred")
    trials = [BASE, DEEP, inferred]
    runs = [run for each in (BASE, DEEP) for run in decode(each, 50.0 + each["depth"] * 10)]
    tables = frame("trials", trials).lazy(), frame("runs", runs).lazy()
    assert derived_tables(*tables)["frontier"].collect()["depth"].to_list() == [2]
    runs += rated(BASE, -0.2, temperature=0.0) + rated(DEEP, -9.0, temperature=0.0)
    tables = frame("trials", trials).lazy(), frame("runs", runs).lazy()
    assert broken_cells(*tables).collect()["cell_id"].to_list() == [DEEP["cell_id"]]
    found = derived_tables(*tables)
    assert found["frontier"].collect()["depth"].to_list() == [0]
    failed = found["checks"].filter(pl.col("verdict") == "fail").collect()
    assert failed.select("check", "cell_id").rows() == [("output_sane", DEEP["cell_id"])]
