"""Commands that read a sweep's folder, also while it runs: status, show, report, recommend."""

from __future__ import annotations

from pathlib import Path

import click

from vllm_frontier.commands.arguments import TOKENS, Named, folder_argument
from vllm_frontier.commands.console import (
    EXIT_DONE,
    as_json_option,
    paste_as_utf8,
    print_json,
    say,
    terminal,
)


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
@click.option(
    "--out",
    type=Named(file_okay=False),
    help="Folder to write to; default: DIR.",
)
@as_json_option
def report(folder: Path, out: Path | None, as_json: bool) -> int:
    """One page to look at and to pass on: report.html, report.md, plots/."""
    from vllm_frontier.report.pages.beside import Beside

    with Beside() as beside:  # first of all: it takes as long to be ready as the rest to be loaded
        from vllm_frontier.report.pages import sweep_report

        target = folder if out is None else out
        written = sweep_report.write(folder, target, beside)
    if as_json:
        print_json(written)
    else:
        for line in sweep_report.told(written):
            say(line)
    return EXIT_DONE


@click.command()
@folder_argument
@click.option("--task", help="Choose by the speed of this task instead of the median of all.")
@click.option(
    "--min-context", type=TOKENS, help="Shortest window, tokens; 130k is 130000, 128K is 131072."
)
@click.option("--min-decode", type=click.FloatRange(min=0), help="Slowest decoding, tokens/s.")
@click.option(
    "--max-utilization",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Largest share of the card's memory, above 0 and at most 1.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(("command", "config", "docker")),
    help="Print this form only: a command, a config file, a container.",
)
@click.option(
    "--write",
    "into",
    type=Named(file_okay=False),
    metavar="FOLDER",
    help="Write the config files into this folder; never over another file.",
)
@as_json_option
def recommend(
    folder: Path,
    *,
    task: str | None,
    min_context: int | None,
    min_decode: float | None,
    max_utilization: float | None,
    form: str | None,
    into: Path | None,
    as_json: bool,
) -> int:
    """Ready `vllm serve` commands: the fastest, the longest window, the balanced choice.

    Each is printed as a command, as a config file of vLLM and as a container. Where no cell
    satisfies the limits, those that come nearest are told, and what they miss.
    """
    from vllm_frontier.report import result, state
    from vllm_frontier.report.recommend import advice
    from vllm_frontier.report.recommend import config_files as written
    from vllm_frontier.store.sweep_store import SweepStore

    progress = state.document(SweepStore.open(folder), folder, analysed=False)
    wanted = advice.Wanted(task, min_context, min_decode, max_utilization)
    choices = advice.choose(result.load(folder), wanted, progress=progress)
    if into is not None:
        choices = written.write(choices, into)
    if as_json:
        print_json(advice.document(choices))
    else:
        paste_as_utf8()
        advice.show(choices, terminal(), advice.FORMS if form is None else (form,))
    return EXIT_DONE


@click.command()
@click.argument("folders", nargs=-1, type=Named(), metavar="DIR DIR...")
@click.option(
    "--html",
    type=Named(dir_okay=False),
    help="Write a page with pictures into this file, too.",
)
@click.option(
    "--markdown",
    "--md",
    type=Named(dir_okay=False),
    help="Write the tables as Markdown into this file, too.",
)
@as_json_option
def compare(
    folders: tuple[Path, ...], html: Path | None, markdown: Path | None, as_json: bool
) -> int:
    """Sweeps side by side: cards, quantizations or versions of vLLM.

    The first DIR is the base, the others are held against it. Nothing is written into their
    folders.
    """
    from vllm_frontier.report.comparison import document
    from vllm_frontier.report.comparison import terminal as tables

    found = document.compare(folders)
    if html is not None or markdown is not None:
        from vllm_frontier.report.comparison import page

        page.write(found, html=html, markdown=markdown)
    if as_json:
        print_json(found)
    else:
        tables.show(found, terminal())
        for path in (html, markdown):
            if path is not None:
                say(f"Written: {path}")
    return EXIT_DONE
