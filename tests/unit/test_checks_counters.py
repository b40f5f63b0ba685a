"""What counters, clocks and samples say of a launch."""

import pytest
from checked_sweep import Row, decode, drafting, judged, launch, verdicts

PLAIN, DEEP = launch(0), launch(3)


def clocks(*ratios: float, engine: str = "vllm") -> Row:
    each = launch(0, engine=engine)
    runs = [
        run | {"decode_tok_s_server": 50.0, "decode_tok_s_client": 50.0 * ratio}
        for run, ratio in zip(decode(each, *[50.0 for _ in ratios]), ratios, strict=True)
    ]
    (row,) = judged("clock_gap", [each], runs)
    return row


@pytest.mark.parametrize(
    ("ratios", "verdict", "share"),
    [
        ([1.0, 1.05, 0.95], "pass", 0.0),
        ([1.09, 0.91], "pass", 0.0),
        ([1.0, 1.12], "warn", 0.5),
        ([1.0, 0.88], "warn", 0.5),
        ([1.0] * 24 + [3.0], "pass", 0.04),
    ],
)
def test_clocks_that_disagree(ratios: list[float], verdict: str, share: float) -> None:
    row = clocks(*ratios)
    assert (row["verdict"], row["value"], row["attempt"]) == (verdict, pytest.approx(share), 1)
    worst = max(ratios, key=lambda each: max(each, 1 / each))
    assert f"at worst the client saw {round(worst, 2)} times" in row["detail"]


@pytest.mark.parametrize("odd", [None, 0.0, float("inf"), float("nan")])
def test_a_client_whose_clock_tells_nothing_is_told(odd: float | None) -> None:
    timed = {"decode_tok_s_server": 50.0, "completion_tokens": 100}
    runs = decode(PLAIN, 50.0, **timed, decode_tok_s_client=51.0)
    runs += decode(PLAIN, 50.0, 50.0, **timed, decode_tok_s_client=odd)
    (row,) = judged("clock_gap", [PLAIN], runs)
    assert (row["verdict"], row["value"]) == ("warn", pytest.approx(2 / 3))
    assert (
        "in 2 of 3 runs; in 2 of them that of the client tells nothing; at worst" in row["detail"]
    )
    (row,) = judged("clock_gap", [PLAIN], runs[1:])
    assert row["detail"].endswith("in 2 of 2 runs; in 2 of them that of the client tells nothing")
    # One token, or nobody knows how many: that takes no time by any clock.
    for tokens in (1, None):
        short = [run | {"completion_tokens": tokens} for run in runs[1:]]
        assert verdicts("clock_gap", [PLAIN], short) == ["unknown"]


def test_a_simulated_server_has_no_clock_to_compare() -> None:
    row = clocks(90.0, engine="simulated")
    assert (row["verdict"], row["cell_id"]) == ("unknown", None)


@pytest.mark.parametrize(
    ("state", "verdict"),
    [("working", "pass"), ("ineffective", "warn"), ("suspect", "warn"), (None, "unknown")],
)
def test_the_state_of_speculation_is_told(state: str | None, verdict: str) -> None:
    each = launch(3, spec_state=state)
    (row,) = judged("spec_state", [each], drafting(each, 50.0, accepted=60))
    assert row["verdict"] == verdict
    assert row["value"] == (None if state is None else pytest.approx(0.2))


def applied(of: Row, method: str | None = None, **counters: object) -> str:
    return verdicts("depth_applied", [of], decode(of, 50.0, **counters), method)[0]


@pytest.mark.parametrize(
    ("drafts", "drafted", "verdict"),
    [(100, 300, "pass"), (100, 290, "pass"), (100, 270, "warn"), (100, 200, "fail")],
)
def test_as_many_tokens_are_drafted_as_the_cell_says(
    drafts: int, drafted: int, verdict: str
) -> None:
    assert applied(DEEP, drafts=drafts, draft_tokens=drafted) == verdict
    assert applied(DEEP, "ngram", drafts=drafts, draft_tokens=drafted) == "pass"


def test_no_more_are_drafted_and_none_without_speculation() -> None:
    assert applied(PLAIN) == applied(PLAIN, drafts=0, draft_tokens=0) == "pass"
    assert applied(PLAIN, drafts=5, draft_tokens=5) == "fail"
    assert applied(DEEP, drafts=100, draft_tokens=400) == "fail"
    assert applied(DEEP, "ngram", drafts=100, draft_tokens=400) == "fail"
    assert applied(DEEP, drafts=0, draft_tokens=0) == "fail"
    assert applied(DEEP, "ngram", drafts=0, draft_tokens=0) == "warn"
    assert applied(DEEP) == "unknown"


def test_positions_are_as_many_as_the_depth() -> None:
    counters = {"drafts": 100, "draft_tokens": 300}
    assert applied(DEEP, **counters, accepted_per_position=[80, 60, 50]) == "pass"
    assert applied(DEEP, **counters, accepted_per_position=[80, 60]) == "fail"
    assert applied(DEEP, "ngram", **counters, accepted_per_position=[80, 60]) == "pass"


@pytest.mark.parametrize(
    ("kind", "cached", "verdict"),
    [
        ("prefill", 0, "pass"),
        ("prefill", 16, "warn"),
        ("fill", 1, "warn"),
        ("prefill", None, "unknown"),
        ("decode", 16, "unknown"),
    ],
)
def test_a_prefill_that_hit_the_cache(kind: str, cached: int | None, verdict: str) -> None:
    run = {"cell_id": PLAIN["cell_id"], "attempt": 1, "task": "prefill", "repeat": 0}
    run |= {"kind": kind, "cached_tokens": cached, "prompt_tokens": 4096}
    (row,) = judged("cache_leak", [PLAIN], [run])
    assert row["verdict"] == verdict
    if verdict == "warn":
        assert row["value"] == cached
        assert row["detail"].endswith(f"up to {cached} tokens: the launch has no prefill speed")
        more = run | {"kind": "prefill", "repeat": 1, "cached_tokens": 0}
        (row,) = judged("cache_leak", [PLAIN], [run, more])
        assert row["detail"].startswith("1 of 2 prefills hit")
        assert row["detail"].endswith("tokens: the prefill speed is that of the others")


@pytest.mark.parametrize(
    ("reasons", "share", "verdict"),
    [
        ([], 0.0, "pass"),
        (["power_cap"], 0.7, "pass"),
        (["power_cap", "thermal_software"], 0.7, "warn"),
        (["hardware_slowdown"], 0.1, "warn"),
        (None, 0.5, "warn"),
        (None, 0.0, "pass"),
        (None, None, "unknown"),
    ],
)
def test_heat_and_hardware_are_warned_of_and_a_power_cap_is_told(
    reasons: list[str] | None, share: float | None, verdict: str
) -> None:
    runs = decode(PLAIN, 50.0, throttle_reasons=reasons, throttled_share=share)
    (row,) = judged("throttled", [PLAIN], runs)
    assert row["verdict"] == verdict
    for reason in reasons or ():
        assert reason in row["detail"]
    if reasons == ["power_cap"]:
        share_told = "(70 % of the time while it was measured)"
        assert row["detail"].endswith(f"{share_told}: the card's own limits")


def test_what_others_do_is_told_with_figures() -> None:
    quiet = {"foreign_cores": 0.2, "foreign_processes": 3, "foreign_gib": 0.6}
    busy = [
        ({}, "pass"),
        ({"foreign_cores": 0.49}, "pass"),
        ({"foreign_cores": 0.6}, "warn"),
        ({"foreign_gib": 1.5}, "pass"),  # a desktop, on another card perhaps
        ({"foreign_gib": 5.0}, "warn"),
        ({"foreign_processes": 4}, "pass"),  # it was there all the time
    ]
    for more, verdict in busy:
        trials = [PLAIN, launch(0, attempt=2)]
        runs = decode(trials[0], 50.0, 50.0, **quiet) + decode(trials[1], 50.0, **(quiet | more))
        assert verdicts("foreign_load", trials, runs) == ["pass", verdict], more
    first, second = decode(PLAIN, 50.0, 50.0, **quiet)
    (row,) = judged("foreign_load", [PLAIN], [first, second | {"foreign_processes": 5}])
    assert row["verdict"] == "warn"
    assert row["detail"] == (
        "others kept 0.2 cores busy, 5 other processes with 0.6 GiB on the card, 2 more than at "
        "first"
    )


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ([1.5, 1.5, 1.5], "pass"),
        ([1.5, 1.5, 2.1], "warn"),
        ([2.1, 1.5, 1.5], "warn"),
        ([9.0, 9.0, 9.0], "warn"),
    ],
)
def test_a_desktop_on_one_of_two_cards_is_no_load(held: list[float], verdict: str) -> None:
    trials = [launch(depth, card="H") for depth in (0, 1)]
    runs = [decode(trials[0], 50.0, foreign_gib=each)[0] for each in held]
    runs += decode(trials[1], 50.0, 50.0, foreign_gib=0.1)
    assert verdicts("foreign_load", trials, runs) == [verdict, "pass"]


def test_what_holds_memory_on_every_launch_of_a_card_is_its_usual_state() -> None:
    trials = [launch(0, card="A"), launch(1, card="A"), launch(2, card="B")]
    runs = decode(trials[0], 50.0, foreign_gib=9.0) + decode(trials[1], 50.0, foreign_gib=9.1)
    runs += decode(trials[2], 50.0, foreign_gib=0.1)
    assert verdicts("foreign_load", trials, runs) == ["pass"] * 3


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"foreign_processes": 4}, "4 other processes on the card"),
        ({"foreign_gib": 1.5}, "others hold 1.5 GiB on the card"),
        ({"foreign_processes": 1, "foreign_gib": 0.5}, "1 other process with 0.5 GiB on the card"),
    ],
)
def test_what_is_not_known_of_others_is_not_said(told: dict, words: str) -> None:
    (row,) = judged("foreign_load", [PLAIN], decode(PLAIN, 50.0, **told))
    assert row["detail"] == words


def test_on_a_cpu_only_cores_are_told() -> None:
    (row,) = judged("foreign_load", [PLAIN], decode(PLAIN, 50.0, foreign_cores=0.9))
    assert (row["verdict"], row["value"]) == ("warn", pytest.approx(0.9))
    assert row["detail"] == "others kept 0.9 cores busy"
