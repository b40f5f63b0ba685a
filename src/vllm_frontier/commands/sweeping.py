"""Commands that launch a sweep or tell what it would launch: run, resume, plan, rehearse."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vllm_frontier.commands.arguments import (
    Named,
    compose,
    folder_argument,
    on_simulated_card,
    words_argument,
)
from vllm_frontier.commands.console import (
    EXIT_DONE,
    EXIT_SOME_FAILED,
    PROGRAM,
    as_json_option,
    paste_as_utf8,
    print_json,
    terminal,
)
from vllm_frontier.errors import Interrupted
from vllm_frontier.launch.family import kill_family
from vllm_frontier.report.wording import several
from vllm_frontier.signals import EXIT_INTERRUPTED, Signals

if TYPE_CHECKING:
    from vllm_frontier.config import Composed
    from vllm_frontier.search import Ask
    from vllm_frontier.spec import SweepSpec
    from vllm_frontier.sweep import Finished

_allow_changed = click.option(
    "--allow-changed",
    is_flag=True,
    help="Go on with another engine version, card or model; the rows say so.",
)


@click.command()
@words_argument
@click.option(
    "--out",
    type=Named(file_okay=False),
    help="Folder of the results; default outputs/<name of the sweep>.",
)
@_allow_changed
@as_json_option
def run(words: tuple[str, ...], out: Path | None, allow_changed: bool, as_json: bool) -> int:
    """Launch a sweep; on the folder of the same sweep, go on with it."""
    with Signals(at_leave=kill_family) as signals:
        composed = compose(words)
        folder = out or Path("outputs") / composed.spec.name
        return _run(composed, folder, as_json, allow_changed, signals)


@click.command()
@folder_argument
@_allow_changed
@as_json_option
def resume(folder: Path, allow_changed: bool, as_json: bool) -> int:
    """Go on where a sweep stopped."""
    from vllm_frontier.config import Composed, spec_from_document
    from vllm_frontier.store.sweep_store import SweepStore

    with Signals(at_leave=kill_family) as signals:
        store = SweepStore.open(folder)
        document = dict(store.config)
        composed = Composed(spec_from_document(document, file=store.paths.sweep_yaml), document)
        return _run(composed, folder, as_json, allow_changed, signals)


@click.command()
@words_argument
@as_json_option
def plan(words: tuple[str, ...], as_json: bool) -> int:
    """What a sweep will launch, what is expected and how long it takes; launches nothing."""
    from vllm_frontier.report.plan import planned

    composed = compose(words)
    if as_json:
        print_json(planned.document(composed.spec))
    else:
        planned.show(composed.spec, terminal())
    return EXIT_DONE


@click.command()
@words_argument
@click.option(
    "--card", metavar="FILE", help="The described card: a name in conf/simulated/ or a YAML file."
)
@as_json_option
def rehearse(words: tuple[str, ...], card: str | None, as_json: bool) -> int:
    """Try a sweep's search on a simulated card, in seconds, and see whether it finds the truth."""
    from vllm_frontier.engine.simulated.card_file import load_card
    from vllm_frontier.rehearse import rehearse as run_rehearsal
    from vllm_frontier.report.plan import rehearsed

    spec = compose(on_simulated_card(words, card)).spec
    found = run_rehearsal(spec, load_card(spec.engine.card_file))
    if as_json:
        print_json(rehearsed.document(spec, found))
    else:
        rehearsed.show(spec, found, terminal())
    return EXIT_DONE


def _run(
    composed: Composed, folder: Path, as_json: bool, allow_changed: bool, signals: Signals
) -> int:
    from vllm_frontier.report import result, state
    from vllm_frontier.report.recommend import advice
    from vllm_frontier.report.terminal.progress import ProgressDisplay
    from vllm_frontier.store.paths import SweepPaths
    from vllm_frontier.sweep import run_sweep

    console = terminal(to_stderr=as_json, needs_reader=False)
    display = ProgressDisplay(console, partial(_expected, composed.spec))
    try:
        with display.shown():
            finished = run_sweep(
                composed.spec,
                composed.document,
                folder,
                display,
                signals=signals,
                allow_changed=allow_changed,
            )
    except Interrupted as interrupted:
        began = SweepPaths(folder).sweep_yaml.exists()
        told = _go_on(folder) if began else "Nothing was launched."
        with suppress(OSError):  # the terminal may be what is gone
            if began and signals.received is not signal.SIGHUP:
                state.show_stopped(folder, console)
            console.print(f"Interrupted ({interrupted}). {told}", soft_wrap=True)
        return EXIT_INTERRUPTED
    found = result.load(folder)
    if as_json:
        print_json(result.document(found))
    else:
        result.show(found, console, short=True)
        paste_as_utf8()
        console.print("\nTo serve with these settings:\n")
        advice.show(advice.choose(found, advice.Wanted()), console)
        console.print(f"\n{result.findings(found)}{_more(folder)}", soft_wrap=True)
    told = _left_open(finished)
    if told:
        more = f" {_go_on(folder)}" if finished.out_of_budget else ""
        console.print(f"{told}{more}", soft_wrap=True)
    return EXIT_SOME_FAILED if finished.failed else EXIT_DONE


def _expected(spec: SweepSpec) -> Sequence[Ask]:
    """The launches of a sweep of which nothing was launched yet, as `plan` has them."""
    from vllm_frontier.checkpoint import prior_for
    from vllm_frontier.memory import MemoryModel
    from vllm_frontier.report.plan.expected_launches import expected_launches

    prior = prior_for(spec)
    return expected_launches(spec, prior, MemoryModel(spec.card.memory_gib, prior), ())


def _more(folder: Path) -> str:
    """Where the rest is."""
    return (
        f"Results: {folder}\n"
        f"Boundaries, speeds, checks, failures: {PROGRAM} show {folder}\n"
        f"Everything with pictures: {PROGRAM} report {folder}"
    )


def _left_open(finished: Finished) -> str:
    """What was not launched that would have been, and why; empty where all is as it should be."""
    if not finished.left:
        ended = finished.out_of_budget and not finished.aside
        return "The search would launch more, but its budget is used up." if ended else ""
    left = several(finished.left, "cell was", "cells were")
    if finished.aside:
        return f"{left} not reached, for want of a card."
    if finished.out_of_budget:
        return f"{left} not reached within the budget of the search."
    return f"{left} left open: not asked for by the search."


def _go_on(folder: Path) -> str:
    return f"Go on with: {PROGRAM} resume {folder}"
