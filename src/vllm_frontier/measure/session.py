"""What is asked of a server that is up: fill its window once, then measure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vllm_frontier.measure.client import FailureKind, Reply, RequestFailure, ServerClient
from vllm_frontier.measure.pace import SLOWEST, Pace
from vllm_frontier.measure.prompts import SEEDS, PromptSource, load_prompts
from vllm_frontier.measure.runs import RunLabel, run_request
from vllm_frontier.measure.task import Task, load_task
from vllm_frontier.outcome import Run
from vllm_frontier.spec import WorkloadSpec

FILL_ANSWER_TOKENS = 16
_FILL_SEED = SEEDS - 1


@dataclass(frozen=True, slots=True)
class _Step:
    label: RunLabel
    send: Callable[[], Reply | RequestFailure]


def fill(client: ServerClient, context: int, timeout_s: float) -> Run | RequestFailure:
    """Serve one request whose prompt and answer are exactly the window.

    Args:
        client: of a server that is ready and idle.
        context: the window, tokens.
        timeout_s: limit on the request, seconds that pass.

    Returns:
        The run, or why the window cannot be used; an answer of another length is a failure too.
    """
    prompts = load_prompts(client)
    if isinstance(prompts, RequestFailure):
        return prompts
    answer_tokens = min(FILL_ANSWER_TOKENS, context - 1)
    prompt = prompts.prompt(context - answer_tokens, _FILL_SEED)

    def send() -> Reply | RequestFailure:
        return client.complete(
            prompt,
            max_tokens=answer_tokens,
            ignore_eos=True,
            cache_salt="fill",
            timeout_s=timeout_s,
        )

    run = run_request(client, RunLabel("fill", 0, "fill"), send)
    if isinstance(run, RequestFailure):
        return run
    used = (run.prompt_tokens or 0) + (run.completion_tokens or 0)
    if used != context:
        message = f"the window of {context} tokens was filled with {used} only"
        return RequestFailure(FailureKind.STREAM_ERROR, message, http_status=200)
    return run


def planned_runs(workload: WorkloadSpec) -> int:
    """How many runs `measure` yields when nothing fails."""
    return workload.repeats * (1 + len(workload.tasks))


def measure(
    client: ServerClient, workload: WorkloadSpec, context: int, pace: Pace = SLOWEST
) -> Iterator[Run | RequestFailure]:
    """Measure prefill and every task, one request at a time.

    Warm-ups come first and are not yielded, then the prefill runs, then the tasks in turn: each
    once before any of them a second time, so that a drift meets all alike. The first failure is
    yielded and is the last item. Nothing is sent while the caller holds an item, so a caller may
    stop between any two.

    Args:
        client: of a server that is ready and idle.
        workload: what to measure; its tasks must exist.
        context: the window, tokens.
        pace: how long a request may take.

    Raises:
        ConfigError: a task cannot be loaded.
    """
    tasks = [load_task(name) for name in workload.tasks]
    prompts = load_prompts(client)
    if isinstance(prompts, RequestFailure):
        yield prompts
        return
    for number in range(workload.warmups if tasks else 0):
        # A repeat that is not measured, so that nothing of it helps one that is.
        task = tasks[number % len(tasks)]
        warm_up = _task_step(client, workload, task, workload.repeats + number, pace).send()
        if isinstance(warm_up, RequestFailure):
            yield warm_up
            return
    length = max(1, min(workload.prefill_tokens, context // 2))
    prefills = (
        _prefill_step(client, prompts, length, repeat, pace) for repeat in range(workload.repeats)
    )
    answers = (
        _task_step(client, workload, task, repeat, pace)
        for repeat in range(workload.repeats)
        for task in tasks
    )
    for step in itertools.chain(prefills, answers):
        result = run_request(client, step.label, step.send)
        yield result
        if isinstance(result, RequestFailure):
            return


def _prefill_step(
    client: ServerClient, prompts: PromptSource, length: int, repeat: int, pace: Pace
) -> _Step:
    def send() -> Reply | RequestFailure:
        prompt = prompts.prompt(length, repeat)
        return client.complete(
            prompt,
            max_tokens=1,
            cache_salt=f"prefill-{repeat}",
            timeout_s=pace.limit_s(length, 1),
        )

    return _Step(RunLabel("prefill", repeat, "prefill"), send)


def _task_step(
    client: ServerClient, workload: WorkloadSpec, task: Task, repeat: int, pace: Pace
) -> _Step:
    def send() -> Reply | RequestFailure:
        prompt, max_tokens = task.prompt(repeat), workload.max_tokens or task.max_tokens
        return client.chat(
            [{"role": "user", "content": prompt}],
            max_tokens=max_tokens,
            temperature=workload.temperature,
            thinking=workload.thinking,
            cache_salt=f"{task.name}-{repeat}",
            # No text has more tokens than characters, as far as a limit is concerned.
            timeout_s=pace.limit_s(len(prompt), max_tokens),
        )

    label = RunLabel(task.name, repeat, "decode", workload.temperature, workload.thinking)
    return _Step(label, send)
