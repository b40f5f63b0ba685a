"""Commands that look at one log or at this machine: explain, doctor."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import click

from vllm_frontier.commands.arguments import compose
from vllm_frontier.commands.console import (
    EXIT_DONE,
    EXIT_SOME_FAILED,
    as_json_option,
    print_json,
    terminal,
)
from vllm_frontier.errors import ConfigError


@click.command()
@click.argument(
    "log",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    metavar="LOG",
)
@click.option(
    "--exit-code",
    type=click.IntRange(-64, 255),
    help="Of the server, when it has ended; -N or 128 + N for signal N.",
)
@as_json_option
def explain(log: Path, exit_code: int | None, as_json: bool) -> int:
    """What one vLLM server log says: outcome, evidence, memory facts, what to change.

    LOG is a file, or - for standard input.
    """
    from vllm_frontier.engine.log import not_text
    from vllm_frontier.engine.reading import read_stream
    from vllm_frontier.report import explanation

    try:
        with _opened(log) as stream:
            problem = not_text(stream)
            reading = read_stream(stream, exit_code)
    except OSError as error:
        raise click.ClickException(f"{log} cannot be read: {error.strerror}.") from error
    if problem is not None:
        raise click.ClickException(f"{log} is no text: {problem}.")
    found = explanation.document(reading)
    if as_json:
        print_json(found)
    else:
        explanation.show(found, terminal())
    return EXIT_DONE


@click.command()
@click.argument("words", nargs=-1, metavar="[SWEEP] [KEY=VALUE]...")
@as_json_option
def doctor(words: tuple[str, ...], as_json: bool) -> int:
    """Is this machine ready, for SWEEP or at all, and what is missing."""
    from vllm_frontier import doctor as examination
    from vllm_frontier.report import findings

    spec, problem = None, None
    if words:
        try:
            spec = compose(words).spec
        except ConfigError as error:
            problem = str(error)
    found = examination.examine(spec, Path("outputs"), problem)
    if as_json:
        print_json(findings.document(found))
    else:
        findings.show(found, terminal())
    missing = any(finding.verdict is examination.Verdict.MISSING for finding in found)
    return EXIT_SOME_FAILED if missing else EXIT_DONE


def _opened(log: Path) -> AbstractContextManager[BinaryIO]:
    """A file, or `-` for standard input; not closed there, for it is not ours."""
    if str(log) != "-":
        return log.open("rb")
    if sys.stdin is None:
        raise click.ClickException("standard input is closed: there is nothing to read.")
    return nullcontext(sys.stdin.buffer)
