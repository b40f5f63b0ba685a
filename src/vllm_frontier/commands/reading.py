"""Commands that read a sweep's folder, also while it runs: status, show, recommend."""

from __future__ import annotations

from pathlib import Path

import click

from vllm_frontier.commands.arguments import folder_argument
from vllm_frontier.commands.console import EXIT_DONE, as_json_option, print_json, terminal


@click.command()
@folder_argument
@as_json_option
def status(folder: Path, as_json: bool) -> int:
    """Progress and outcomes of a sweep so far, also while it runs."""
    from vllm_frontier.report import state
    from vllm_frontier.store.sweep_store import SweepStore

    found = state.document(SweepStore.open(folder), folder)
    if as_json:
        print_json(found)
    else:
        state.show(found, terminal())
    return EXIT_DONE


@click.command()
@folder_argument
@as_json_option
def show(folder: Path, as_json: bool) -> int:
    """What fits and how fast it is: the frontier in the terminal."""
    from vllm_frontier.report import result

    found = result.load(folder)
    if as_json:
        print_json(result.document(found))
    else:
        result.show(found, terminal())
    return EXIT_DONE


@click.command()
@folder_argument
@click.option("--task", help="Choose by the speed of this task instead of the median of all.")
@click.option("--min-context", type=click.IntRange(min=1), help="Shortest window, tokens.")
@click.option("--min-decode", type=click.FloatRange(min=0), help="Slowest decoding, tokens/s.")
@as_json_option
def recommend(
    folder: Path,
    task: str | None,
    min_context: int | None,
    min_decode: float | None,
    as_json: bool,
) -> int:
    """Ready `vllm serve` commands: the fastest, the longest window, the balanced choice."""
    from vllm_frontier.report import advice, result

    wanted = advice.Wanted(task=task, min_context=min_context, min_decode=min_decode)
    choices = advice.choose(result.load(folder), wanted)
    if as_json:
        print_json(advice.document(choices))
    else:
        advice.show(choices, terminal())
    return EXIT_DONE
