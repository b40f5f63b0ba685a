from __future__ import annotations

from collections.abc import Iterator

import pytest
from measure_fake_server import (
    COUNTERS,
    MODEL,
    Answer,
    FakeServer,
    finished,
    text_event,
    usage_event,
)

from vllm_frontier.measure import session
from vllm_frontier.measure.client import FailureKind, RequestFailure, ServerClient
from vllm_frontier.measure.session import fill, measure, planned_runs
from vllm_frontier.measure.task import load_task
from vllm_frontier.outcome import Run
from vllm_frontier.spec import WorkloadSpec

WORKLOAD = WorkloadSpec(repeats=2, max_tokens=32)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def client(server: FakeServer) -> Iterator[ServerClient]:
    with ServerClient(server.url, MODEL, request_timeout_s=10.0) as made:
        yield made


def good_answer(**more: float) -> Answer:
    events = [text_event("one two"), text_event("", finish="length"), usage_event(20, 5, 0)]
    return Answer([(0, event) for event in events], counted=finished(0.5, 0.1, **more))


def test_order_warm_up_then_prefill_then_tasks_in_turn(
    server: FakeServer, client: ServerClient
) -> None:
    runs = list(measure(client, WORKLOAD, 8192))

    assert [(run.kind, run.task, run.repeat) for run in runs if isinstance(run, Run)] == [
        ("prefill", "prefill", 0),
        ("prefill", "prefill", 1),
        ("decode", "edit", 0),
        ("decode", "code", 0),
        ("decode", "prose", 0),
        ("decode", "edit", 1),
        ("decode", "code", 1),
        ("decode", "prose", 1),
    ]
    assert len(runs) == planned_runs(WORKLOAD) == 8
    warm_up, *measured = server.requests
    assert warm_up["messages"][0]["content"] == load_task("edit").prompt(2)
    assert measured[2]["messages"][0]["content"] == load_task("edit").prompt(0)
    assert all(request["max_tokens"] == 32 for request in measured[2:])
    assert all(request["temperature"] == 0.0 for request in server.requests)


def test_nothing_measured_shares_a_cached_prefix(server: FakeServer, client: ServerClient) -> None:
    fill(client, 4096, 10.0)
    list(measure(client, WORKLOAD, 4096))

    salts = [request["cache_salt"] for request in server.requests]
    assert len(set(salts)) == len(salts) == 10
    blocks = [tuple(each["prompt"][:16]) for each in server.requests if "prompt" in each]
    assert len(set(blocks)) == len(blocks) == 3


def test_the_same_cell_is_asked_the_same_again(server: FakeServer, client: ServerClient) -> None:
    for _ in range(2):
        fill(client, 2048, 10.0)
        list(measure(client, WORKLOAD, 2048))

    assert server.requests[:10] == server.requests[10:]


@pytest.mark.parametrize(
    ("context", "prefill_tokens", "length"),
    [(8192, 4096, 4096), (2048, 4096, 1024), (65536, 20000, 20000)],
)
def test_prefill_is_cut_to_half_of_the_window(
    server: FakeServer, client: ServerClient, context: int, prefill_tokens: int, length: int
) -> None:
    workload = WorkloadSpec(tasks=(), repeats=1, prefill_tokens=prefill_tokens)

    runs = list(measure(client, workload, context))

    assert len(runs) == len(server.requests) == 1
    assert len(server.requests[0]["prompt"]) == length
    assert server.requests[0]["max_tokens"] == 1
    run = runs[0]
    assert isinstance(run, Run)
    assert run.prompt_tokens == length
    assert run.prefill_tok_s == pytest.approx(length / 0.1)
    assert run.decode_tok_s is None


def test_speeds_are_those_of_the_server_s_histogram(
    server: FakeServer, client: ServerClient
) -> None:
    workload = WorkloadSpec(tasks=("prose",), repeats=1, warmups=0)

    run = list(measure(client, workload, 4096))[1]

    assert isinstance(run, Run)
    assert run.completion_tokens == 256
    assert run.decode_tok_s == pytest.approx(255 / 0.5)
    assert run.ttft_s == pytest.approx(0.11)
    assert run.started_at > 1.6e9


def test_speculation_is_counted_per_run(server: FakeServer, client: ServerClient) -> None:
    drafted = {
        "vllm:spec_decode_num_drafts_total": 40.0,
        "vllm:spec_decode_num_draft_tokens_total": 120.0,
        "vllm:spec_decode_num_accepted_tokens_total": 60.0,
    }
    server.answers = [good_answer(), good_answer(), good_answer(**drafted), good_answer(**drafted)]
    workload = WorkloadSpec(tasks=("edit",), repeats=1, warmups=2)

    runs = list(measure(client, workload, 4096))

    assert [(run.drafts, run.draft_tokens, run.accepted_tokens) for run in runs] == [
        (40, 120, 60),
        (40, 120, 60),
    ]


def test_counters_that_lag_behind_the_last_chunk_are_waited_for(
    server: FakeServer, client: ServerClient
) -> None:
    late = good_answer()
    late.lag_s = 0.3
    server.answers = [late]

    run = next(measure(client, WorkloadSpec(warmups=0), 4096))

    assert isinstance(run, Run)
    assert run.decode_tok_s_server == pytest.approx(4 / 0.5)


def test_without_the_server_s_counters_the_client_s_clock_is_used(
    server: FakeServer, client: ServerClient
) -> None:
    server.metric_names = ()
    events = [(0.0, text_event("one")), (0.8, text_event(" two")), (0.0, usage_event(20, 41))]
    server.answers = [Answer(events)]
    workload = WorkloadSpec(warmups=0)

    run = next(measure(client, workload, 4096))

    assert isinstance(run, Run)
    assert run.decode_tok_s_server is None
    assert run.decode_tok_s == run.decode_tok_s_client
    assert 25 < run.decode_tok_s_client < 100
    assert run.drafts is None


def test_a_request_that_is_never_counted_costs_two_seconds_and_the_server_s_clock(
    server: FakeServer, client: ServerClient
) -> None:
    answer = good_answer()
    server.metric_names = COUNTERS
    answer.counted = {"vllm:spec_decode_num_drafts_total": 3.0}
    server.answers = [answer]

    run = next(measure(client, WorkloadSpec(warmups=0), 4096))

    assert isinstance(run, Run)
    assert run.decode_tok_s_server is None
    assert run.drafts is None


@pytest.mark.parametrize("failing", [0, 1, 4])
def test_the_first_failure_is_the_last_item(
    server: FakeServer, client: ServerClient, failing: int
) -> None:
    server.answers = [good_answer() for _ in range(failing)]
    server.answers.append(Answer(status=500, body='{"error": {"message": "EngineDeadError"}}'))

    items = list(measure(client, WORKLOAD, 4096))

    assert items[-1] == RequestFailure(FailureKind.HTTP_ERROR, "EngineDeadError", 500)
    assert all(isinstance(item, Run) for item in items[:-1])
    assert len(items) == max(1, failing)
    assert len(server.requests) == failing + 1


def test_nothing_is_sent_while_the_caller_holds_an_item(
    server: FakeServer, client: ServerClient
) -> None:
    items = measure(client, WORKLOAD, 4096)

    next(items)

    assert len(server.requests) == 2  # the warm-up and the first run
    items.close()
    assert len(server.requests) == 2


@pytest.mark.parametrize("context", [64, 2048, 70000])
def test_fill_is_exactly_the_window(server: FakeServer, client: ServerClient, context: int) -> None:
    run = fill(client, context, 10.0)

    assert isinstance(run, Run)
    request = server.requests[0]
    assert len(request["prompt"]) == context - 16
    assert (request["max_tokens"], request["ignore_eos"]) == (16, True)
    assert (run.kind, run.task) == ("fill", "fill")
    assert (run.prompt_tokens or 0) + (run.completion_tokens or 0) == context
    assert run.prefill_tok_s == pytest.approx((context - 16) / 0.1)


def test_a_window_that_was_not_filled_is_a_failure(
    server: FakeServer, client: ServerClient
) -> None:
    events = [text_event("", chat=False, finish="stop"), usage_event(2032, 15)]
    server.answers = [Answer([(0, event) for event in events], counted=finished())]

    failure = fill(client, 2048, 10.0)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.STREAM_ERROR
    assert "2048" in failure.message
    assert "2047" in failure.message


def test_fill_has_its_own_limit(server: FakeServer, client: ServerClient) -> None:
    server.answers = [Answer(end="hang")]

    failure = fill(client, 2048, 0.3)

    assert isinstance(failure, RequestFailure)
    assert failure.kind is FailureKind.TIMEOUT


def probes_of(items: list[Run | RequestFailure]) -> list[Run]:
    return [item for item in items if isinstance(item, Run) and item.kind == "probe"]


def test_scores_come_last_and_a_sampled_text_with_them(
    server: FakeServer, client: ServerClient
) -> None:
    server.tells_ids = True

    items = list(measure(client, WORKLOAD, 4096))

    assert [isinstance(item, Run) and item.kind for item in items[:8]].count("decode") == 6
    probes = probes_of(items)
    assert items[8:] == probes
    assert [(run.task, run.repeat, run.temperature) for run in probes] == [
        ("prose", 0, 0.0),
        ("code", 0, 0.0),
        ("edit", 0, 0.0),
        ("prose", 0, 1.0),
        ("code", 0, 1.0),
        ("edit", 0, 1.0),
    ]
    measured = next(run for run in items if isinstance(run, Run) and run.kind == "decode")
    copied = next(run for run in probes if run.task == measured.task)
    assert (copied.output, copied.output_token_ids) == (measured.output, (7,) * 32)
    assert (copied.decode_tok_s, copied.drafts, copied.ttft_s) == (None, None, None)
    assert {run.output_logprob for run in probes} == {-0.5}
    assert all(run.output_logprob_expected is not None for run in probes)
    assert measured.output_logprob is None
    # All that was measured had been asked before anything was scored.
    assert [each["temperature"] for each in server.requests[-3:]] == [1.0] * 3
    assert len(server.requests) == 9 + 3
    assert len(server.scored) == 6


def test_a_sampling_workload_needs_no_further_text(
    server: FakeServer, client: ServerClient
) -> None:
    server.tells_ids = True
    workload = WorkloadSpec(tasks=("edit",), repeats=1, warmups=0, temperature=0.7)

    items = list(measure(client, workload, 4096))

    assert [run.temperature for run in probes_of(items)] == [0.7]
    assert len(server.requests) == 2


def test_a_long_prompt_is_not_scored_but_a_short_one_that_is_bundled(
    server: FakeServer, client: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tells_ids = True
    monkeypatch.setattr(session, "SCORED_PROMPT_MAX", 1)  # every answer tells a longer one

    items = list(measure(client, WorkloadSpec(tasks=("edit",), repeats=1, warmups=0), 4096))

    told = [(run.task, run.temperature) for run in probes_of(items)]
    assert told == [("prose", 0.0), ("prose", 1.0)]
    warm = WorkloadSpec(tasks=("edit",), repeats=1, warmups=0, temperature=0.7)
    items = list(measure(client, warm, 4096))
    assert [(run.task, run.temperature) for run in probes_of(items)] == [("prose", 0.7)]


def test_a_sampled_text_is_short(server: FakeServer, client: ServerClient) -> None:
    server.tells_ids = True

    list(measure(client, WorkloadSpec(tasks=("edit",), repeats=1, warmups=0), 4096))

    assert [request["max_tokens"] for request in server.requests] == [1, 256, 64]


@pytest.mark.parametrize("tells_ids", [False, True])
def test_without_ids_or_without_wish_nothing_is_scored(
    server: FakeServer, client: ServerClient, tells_ids: bool
) -> None:
    server.tells_ids = tells_ids
    workload = WorkloadSpec(repeats=1, warmups=0, score=not tells_ids)

    items = list(measure(client, workload, 4096))

    assert len(items) == planned_runs(workload) == len(server.requests) == 4
    assert server.scored == []


@pytest.mark.parametrize(
    ("failure", "healthy", "asked"),
    [
        ((500, "{}"), False, 1),
        ((500, "{}"), True, 6),  # one text that cannot be rated says nothing of the others
        ((200, "{}"), True, 1),
        ((400, "{}"), True, 2 * 6),
    ],
)
def test_a_failure_while_scoring_is_not_told(
    server: FakeServer, client: ServerClient, failure: tuple[int, str], healthy: bool, asked: int
) -> None:
    server.tells_ids, server.score_failure, server.healthy = True, failure, healthy

    items = list(measure(client, WORKLOAD, 4096))

    assert len(items) == 8
    assert all(isinstance(item, Run) for item in items)
    assert len(server.scored) == asked


def paced(speeds: list[float]) -> list[Answer]:
    answers = []
    for speed in speeds:
        events = [text_event("one two"), text_event("", finish="length"), usage_event(20, 101, 0)]
        answers.append(Answer([(0, each) for each in events], counted=finished(100 / speed)))
    return answers


@pytest.mark.parametrize(
    ("noise", "most", "asked"),
    [
        (0.0, 12, 4),  # the second round shows that only the prompts differ
        (0.2, 12, 12),
        (0.2, 7, 6),  # a third round of two would be beyond seven
        (0.2, 3, 2),
    ],
)
def test_rounds_go_on_until_the_interval_is_narrow_enough(
    server: FakeServer, client: ServerClient, noise: float, most: int, asked: int
) -> None:
    speeds = [(100 if at % 2 else 130) * (1 + noise * (at // 2 % 2)) for at in range(12)]
    server.answers = paced([50.0] * 2 + speeds)
    workload = WorkloadSpec(tasks=("edit",), repeats=2, warmups=0, precision=0.02, repeats_max=most)

    items = [item for item in measure(client, workload, 4096) if isinstance(item, Run)]

    runs = [run for run in items if run.kind == "decode"]
    assert len(items) == 2 + asked >= planned_runs(workload)
    assert [run.repeat for run in runs] == list(range(asked))
    assert [run.variant for run in runs] == [0, 1] * (asked // 2)
    requests = server.requests[2:]
    texts = [request["messages"][0]["content"] for request in requests]
    assert texts == [load_task("edit").prompt(at % 2) for at in range(asked)]
    assert len({request["cache_salt"] for request in requests}) == asked


def test_without_a_precision_every_repeat_is_a_prompt_of_its_own(
    server: FakeServer, client: ServerClient
) -> None:
    workload = WorkloadSpec(tasks=("edit",), repeats=8, warmups=0)

    items = [item for item in measure(client, workload, 4096) if isinstance(item, Run)]

    runs = [run for run in items if run.kind == "decode"]
    assert [run.variant for run in runs] == [run.repeat for run in runs] == list(range(8))
    assert len({each["messages"][0]["content"] for each in server.requests[8:]}) == 8
