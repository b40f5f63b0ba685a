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
    [([90, None, None], 1 / 291, "pass"), ([61, 61], 2 / 124, "pass"), ([57, 58], 2 / 117, "warn")],
)
def test_outputs_that_part_now_and_then_are_rounding(
    places: list[int | None], rate: float, verdict: str
) -> None:
    row = compared([TOKENS if place is None else parted(place) for place in places])
    assert (row["verdict"], row["value"]) == (verdict, pytest.approx(rate))
    assert f"first at token {min(each for each in places if each) + 1}:" in row["detail"]


@pytest.mark.parametrize(("place", "verdict"), [(70, "pass"), (7, "warn")])
def test_without_ids_characters_are_compared(place: int, verdict: str) -> None:
    row = compared([parted(place), parted(place)], ids=False)
    assert row["verdict"] == verdict
    # A token is three digits and a blank here, or four that begin alike.
    assert row["value"] == pytest.approx(1 / (place + 1), rel=0.25)
    assert f"first at character {4 * place + 2}:" in row["detail"]


def test_of_many_outputs_some_are_those_of_depth_0() -> None:
    assert compared([parted(99)] * 5)["verdict"] == "pass"
    row = compared([parted(99)] * 6)
    assert (row["verdict"], row["value"]) == ("warn", pytest.approx(1 / 100))
    assert row["detail"].startswith("0.0 % of 6 outputs are those of depth 0; they part once in")
    assert row["detail"].endswith("none agrees, which rounding does not explain")
    assert compared([parted(99)] * 5 + [TOKENS])["verdict"] == "pass"


def test_texts_that_part_near_token_25_are_no_rounding() -> None:
    row = compared([parted(22 + number) for number in range(3)] + [TOKENS])
    assert row["verdict"] == "warn"
    assert "25 % of 4 outputs" in row["detail"]


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
    """What `output_sane` says by depth; that it knows nothing only where it says nothing else."""
    trials = [BASE, DEEP]
    measured = [run for each in trials for run in decode(each, 50.0, temperature=workload)]
    found = judged("output_sane", trials, runs + measured)
    found.sort(key=lambda row: row["verdict"] != "unknown")
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


def test_depth_0_is_not_condemned_by_what_is_expected_of_it() -> None:
    found = sane(rated(BASE, -9.0) + rated(DEEP, -9.2), workload=1.0)
    assert [found[depth]["verdict"] for depth in (0, 2)] == ["warn", "warn"]
    for depth in (0, 2):
        assert "depth 0 does not write as expected" in found[depth]["detail"]
    # What writes worse still is broken, whatever depth 0 does.
    found = sane(rated(BASE, -3.0) + rated(DEEP, -9.0), workload=1.0)
    assert [found[depth]["verdict"] for depth in (0, 2)] == ["warn", "fail"]
    # A greedy text is more probable than one that is drawn.
    greedy = rated(BASE, -0.2, temperature=0.0) + rated(DEEP, -0.3, temperature=0.0)
    assert [found["verdict"] for found in sane(greedy).values()] == ["pass", "pass"]


@pytest.mark.parametrize("temperature", [1.3, 2.0])
def test_text_sampled_at_a_high_temperature_keeps_every_cell(temperature: float) -> None:
    """As long as what is expected is that of text sampled so."""
    heat = {"temperature": temperature}
    probes = rated(BASE, -4.5, expected=-4.4, **heat) + rated(DEEP, -4.6, expected=-4.5, **heat)
    found = sane(probes, workload=temperature)
    assert {row["verdict"] for row in found.values()} == {"pass"}
    # And where it is not, none is left out.
    probes = rated(BASE, -4.5, expected=-2.0, **heat) + rated(DEEP, -4.6, expected=-2.0, **heat)
    found = sane(probes, workload=temperature)
    assert {row["verdict"] for row in found.values()} == {"warn"}


@pytest.mark.parametrize(
    ("value", "own", "temperature", "verdict"),
    [
        (-0.1, -1.6, 1.0, "fail"),
        (-0.1, -1.6, 0.0, "pass"),  # greedy text is the most probable one
        (-0.1, -0.3, 1.0, "pass"),  # a text that is easier
        (-0.7, -1.9, 1.0, "pass"),
    ],
)
def test_sampled_text_may_be_far_too_probable(
    value: float, own: float, temperature: float, verdict: str
) -> None:
    probes = rated(BASE, -1.5, -1.6, temperature=temperature)
    probes += rated(DEEP, value, value, expected=own, temperature=temperature)
    assert sane(probes, workload=temperature)[2]["verdict"] == verdict


@pytest.mark.parametrize(
    ("base", "deep", "verdict"), [(64, 1, "fail"), (64, 8, "fail"), (64, 9, "pass"), (3, 1, "pass")]
)
def test_text_that_turns_in_circles_is_broken_where_that_of_depth_0_does_not(
    base: int, deep: int, verdict: str
) -> None:
    def tokens(probes: list[Row], different: int) -> list[Row]:
        return [
            row | {"output_token_ids": [each % different for each in range(80)]} for row in probes
        ]

    # Its own beginning makes such a text as probable as the model expects of it.
    probes = tokens(rated(BASE, -0.25, -0.25, expected=-0.25), base)
    probes += tokens(rated(DEEP, -0.01, -0.01, expected=-0.02), deep)
    row = sane(probes, workload=1.0)[2]
    assert row["verdict"] == verdict
    assert ("turn in circles" in row["detail"]) == (deep <= 8)


def test_a_cell_that_nothing_rated_is_named() -> None:
    found = sane(rated(BASE, -1.5), workload=1.0)
    assert (found[2]["verdict"], found[2]["cell_id"]) == ("unknown", DEEP["cell_id"])
    assert found[2]["detail"].startswith("no text of this cell was rated at temperature 1.0")
    # At another temperature it was.
    probes = rated(BASE, -0.2, temperature=0.0) + rated(DEEP, -1.4)
    trials = [BASE, DEEP]
    runs = probes + [run for each in trials for run in decode(each, 50.0)]
    told = [(row["depth"], row["verdict"]) for row in judged("output_sane", trials, runs)]
    assert sorted(told) == [(0, "pass"), (2, "pass"), (2, "unknown")]


def test_where_nothing_was_rated_one_row_says_why() -> None:
    (row,) = sane([]).values()
    assert (row["verdict"], row["cell_id"]) == ("unknown", None)
    assert "`workload.score` is off" in row["detail"]


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


def test_tokens_that_the_model_would_never_write_are_broken_and_no_number_tells_nothing() -> None:
    never, untold = float("-inf"), float("nan")
    base = rated(BASE, -1.4, -1.5, -1.6)
    found = sane(base + rated(DEEP, never, -1.5, -1.5), workload=1.0)
    assert (found[2]["verdict"], found[0]["verdict"]) == ("fail", "pass")
    assert found[2]["value"] == pytest.approx((-100 - 3) / 3)
    found = sane(base + rated(DEEP, untold, -1.5, untold), workload=1.0)
    assert (found[2]["verdict"], found[2]["value"]) == ("pass", -1.5)
    found = sane(base + rated(DEEP, untold, float("inf"), None), workload=1.0)
    assert found[2]["verdict"] == "unknown"


def test_texts_that_part_at_every_token_say_so() -> None:
    turned = compared([[9999 - token for token in TOKENS]] * 3)
    assert "they part at every token, first at token 1: more than rounding" in turned["detail"]
