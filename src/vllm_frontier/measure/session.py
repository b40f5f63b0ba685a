"""What is asked of a server that is up: fill its window once, measure, score what it wrote."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vllm_frontier.measure.client import FailureKind, Reply, RequestFailure, ServerClient
from vllm_frontier.measure.pace import SLOWEST, Pace
from vllm_frontier.measure.precision import half_widths
from vllm_frontier.measure.probes import probes
from vllm_frontier.measure.prompts import SEEDS, PromptSource, load_prompts
from vllm_frontier.measure.runs import Measured, RunLabel, measure_request, run_request
from vllm_frontier.measure.scoring import SCORED_PROMPT_MAX, SCORED_TOKENS
from vllm_frontier.measure.task import Task, load_task
from vllm_frontier.outcome import Run
from vllm_frontier.spec import WorkloadSpec

FILL_ANSWER_TOKENS = 16
# A bundled task whose prompts are short in any tokenizer.
_SHORT_TASK = "prose"
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
    """How many runs `measure` measures when nothing fails, at least: with a precision maybe more.

    The probes that follow them are not counted.
    """
    return workload.repeats * (1 + len(workload.tasks))


def measure(
    client: ServerClient, workload: WorkloadSpec, context: int, pace: Pace = SLOWEST
) -> Iterator[Run | RequestFailure]:
    """Measure prefill and every task, one request at a time, then score what was written.

    Warm-ups come first and are not yielded, then the prefill runs, then the tasks in turn: each
    once before any of them a second time, so that a drift meets all alike. With a precision, the
    same prompts are asked in further rounds until the interval of every task is narrow enough. The
    first failure is yielded and is the last item. Nothing is sent while the caller holds an item,
    so a caller may stop between any two.

    Scores come last, as runs of the kind `probe`: nothing of them can spoil a measurement, and a
    failure among them is not yielded, whatever it did to the server.

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
    questions = _Questions(client, workload, pace)
    for number in range(workload.warmups if tasks else 0):
        # A prompt that is not measured, so that nothing of it helps one that is.
        task = tasks[number % len(tasks)]
        warm_up = questions.step(task, number, workload.repeats + number, f"warm-up-{number}")
        answer = warm_up.send()
        if isinstance(answer, RequestFailure):
            yield answer
            return
    length = max(1, min(workload.prefill_tokens, context // 2))
    for repeat in range(workload.repeats):
        step = _prefill_step(client, prompts, length, repeat, pace)
        result = run_request(client, step.label, step.send)
        yield result
        if isinstance(result, RequestFailure):
            return
    written: dict[str, Measured] = {}
    for measured in _answers(client, workload, tasks, questions):
        if isinstance(measured, RequestFailure):
            yield measured
            return
        written.setdefault(measured.run.task, measured)
        yield measured.run
    if workload.score:
        yield from probes(client, _to_score(client, workload, tasks, questions, written), pace)


def _answers(
    client: ServerClient, workload: WorkloadSpec, tasks: Sequence[Task], questions: _Questions
) -> Iterator[Measured | RequestFailure]:
    """Rounds of the same prompts, until they tell enough or there may be no further one."""
    runs: list[Run] = []
    for first in itertools.count(0, workload.repeats):
        for variant in range(workload.repeats):
            for task in tasks:
                repeat = first + variant
                step = questions.step(task, repeat, variant, f"{task.name}-{repeat}")
                measured = measure_request(client, step.label, step.send)
                yield measured
                if isinstance(measured, Measured):
                    runs.append(measured.run)
        most = workload.repeats_max - workload.repeats
        if workload.precision is None or first + workload.repeats > most:
            return
        if all(width <= workload.precision for width in half_widths(runs).values()):
            return


def _to_score(
    client: ServerClient,
    workload: WorkloadSpec,
    tasks: Sequence[Task],
    questions: _Questions,
    written: Mapping[str, Measured],
) -> Iterator[Measured | RequestFailure]:
    """What was measured first of each task, and a short text drawn from the model's distribution.

    Only of tasks with short prompts, since a long one takes memory to score that a server may not
    have; where no task has, of one that is bundled. The shortest come first.
    """
    ordered = sorted(tasks, key=lambda task: written[task.name].reply.prompt_tokens)
    short = [
        task for task in ordered if written[task.name].reply.prompt_tokens <= SCORED_PROMPT_MAX
    ]
    yield from (written[task.name] for task in short)
    told = any(each.reply.token_ids and each.reply.prompt_token_ids for each in written.values())
    if not told:
        return
    further = [] if short else [(load_task(_SHORT_TASK), workload.temperature)]
    if workload.temperature == 0:
        further += [(task, 1.0) for task in short or [load_task(_SHORT_TASK)]]
    for task, warmth in further:
        step = questions.step(
            task, 0, 0, f"{task.name}-at-{warmth}", temperature=warmth, tokens_max=SCORED_TOKENS
        )
        label = replace(step.label, kind="probe")
        yield measure_request(client, label, step.send)


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


@dataclass(frozen=True, slots=True)
class _Questions:
    """Requests for the texts of tasks."""

    client: ServerClient
    workload: WorkloadSpec
    pace: Pace

    def step(
        self,
        task: Task,
        repeat: int,
        variant: int,
        salt: str,
        *,
        temperature: float | None = None,
        tokens_max: int | None = None,
    ) -> _Step:
        """Ask for an answer to a prompt of a task; None is what the workload says."""
        workload = self.workload
        warmth = workload.temperature if temperature is None else temperature
        label = RunLabel(task.name, repeat, "decode", warmth, workload.thinking, variant)

        def send() -> Reply | RequestFailure:
            prompt, max_tokens = task.prompt(variant), workload.max_tokens or task.max_tokens
            max_tokens = min(max_tokens, tokens_max or max_tokens)
            return self.client.chat(
                [{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
                temperature=warmth,
                thinking=workload.thinking,
                cache_salt=salt,
                # No text has more tokens than characters, as far as a limit is concerned.
                timeout_s=self.pace.limit_s(len(prompt), max_tokens),
            )

        return _Step(label, send)
