"""The command `vllm-frontier`: reads arguments, calls the rooms, shows what they give.

Heavy rooms (Hydra, Ray, polars) are imported inside the commands that need them, so that
`--help` answers at once.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click.exceptions import NoArgsIsHelpError

from vllm_frontier import __version__
from vllm_frontier.errors import ConfigError, FrontierError, Interrupted
from vllm_frontier.launch.family import kill_family
from vllm_frontier.report.wording import several
from vllm_frontier.signals import EXIT_INTERRUPTED, Signals

if TYPE_CHECKING:
    from vllm_frontier.config import Composed
    from vllm_frontier.sweep import Finished

EXIT_DONE, EXIT_USAGE, EXIT_SOME_FAILED = 0, 2, 3
PROGRAM = "vllm-frontier"
_NO_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_words = click.argument("words", nargs=-1, metavar="SWEEP [KEY=VALUE]...")
_folder = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
_allow_changed = click.option(
    "--allow-changed",
    is_flag=True,
    help="Go on with another engine version, card or model; the rows say so.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Find which vLLM settings start on a card, and which of those are fastest.

    SWEEP is the name of a ready sweep or the path of a YAML file; KEY=VALUE changes one of its
    settings, as in `vllm-frontier run demo-cpu workload.repeats=1 'grid.depth=[0,2]'`.
    """


@cli.command()
@_words
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the results; default outputs/<name of the sweep>.",
)
@_allow_changed
@_json
def run(words: tuple[str, ...], out: Path | None, allow_changed: bool, as_json: bool) -> int:
    """Launch a sweep; on the folder of the same sweep, go on with it."""
    with Signals(at_leave=kill_family) as signals:
        composed = _compose(words)
        folder = out or Path("outputs") / composed.spec.name
        return _run(composed, folder, as_json, allow_changed, signals)


@cli.command()
@_folder
@_allow_changed
@_json
def resume(folder: Path, allow_changed: bool, as_json: bool) -> int:
    """Go on where a sweep stopped."""
    from vllm_frontier.config import Composed, spec_from_document
    from vllm_frontier.store.sweep_store import SweepStore

    with Signals(at_leave=kill_family) as signals:
        document = dict(SweepStore.open(folder).config)
        composed = Composed(spec_from_document(document), document)
        return _run(composed, folder, as_json, allow_changed, signals)


@cli.command()
@_words
@_json
def plan(words: tuple[str, ...], as_json: bool) -> int:
    """What a sweep will launch, what is expected and how long it takes; launches nothing."""
    from vllm_frontier.report import planned

    composed = _compose(words)
    if as_json:
        _print_json(planned.document(composed.spec))
    else:
        planned.show(composed.spec, _console())
    return EXIT_DONE


@cli.command()
@_words
@click.option(
    "--card", metavar="FILE", help="The described card: a name in conf/simulated/ or a YAML file."
)
@_json
def rehearse(words: tuple[str, ...], card: str | None, as_json: bool) -> int:
    """Try a sweep's search on a simulated card, in seconds, and see whether it finds the truth."""
    from vllm_frontier.engine.simulated.card_file import load_card
    from vllm_frontier.rehearse import rehearse as run_rehearsal
    from vllm_frontier.report import rehearsed

    spec = _compose(_on_simulated_card(words, card)).spec
    found = run_rehearsal(spec, load_card(spec.engine.card_file))
    if as_json:
        _print_json(rehearsed.document(spec, found))
    else:
        rehearsed.show(spec, found, _console())
    return EXIT_DONE


@cli.command()
@_folder
@_json
def status(folder: Path, as_json: bool) -> int:
    """Progress and outcomes of a sweep so far, also while it runs."""
    from vllm_frontier.report import state
    from vllm_frontier.store.sweep_store import SweepStore

    found = state.document(SweepStore.open(folder), folder)
    if as_json:
        _print_json(found)
    else:
        state.show(found, _console())
    return EXIT_DONE


@cli.command()
@_folder
@_json
def show(folder: Path, as_json: bool) -> int:
    """What fits and how fast it is: the frontier in the terminal."""
    from vllm_frontier.report import result

    found = result.load(folder)
    if as_json:
        _print_json(result.document(found))
    else:
        result.show(found, _console())
    return EXIT_DONE


@cli.command()
@_folder
@click.option("--task", help="Choose by the speed of this task instead of the median of all.")
@click.option("--min-context", type=click.IntRange(min=1), help="Shortest window, tokens.")
@click.option("--min-decode", type=click.FloatRange(min=0), help="Slowest decoding, tokens/s.")
@_json
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
        _print_json(advice.document(choices))
    else:
        advice.show(choices, _console())
    return EXIT_DONE


@cli.command()
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
@_json
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
        _print_json(found)
    else:
        explanation.show(found, _console())
    return EXIT_DONE


@cli.command()
@click.argument("words", nargs=-1, metavar="[SWEEP] [KEY=VALUE]...")
@_json
def doctor(words: tuple[str, ...], as_json: bool) -> int:
    """Is this machine ready, for SWEEP or at all, and what is missing."""
    from vllm_frontier import doctor as examination
    from vllm_frontier.report import findings

    spec, problem = None, None
    if words:
        try:
            spec = _compose(words).spec
        except ConfigError as error:
            problem = str(error)
    found = examination.examine(spec, Path("outputs"), problem)
    if as_json:
        _print_json(findings.document(found))
    else:
        findings.show(found, _console())
    missing = any(finding.verdict is examination.Verdict.MISSING for finding in found)
    return EXIT_SOME_FAILED if missing else EXIT_DONE


def _opened(log: Path) -> AbstractContextManager[BinaryIO]:
    """A file, or `-` for standard input; not closed there, for it is not ours."""
    if str(log) != "-":
        return log.open("rb")
    if sys.stdin is None:
        raise click.ClickException("standard input is closed: there is nothing to read.")
    return nullcontext(sys.stdin.buffer)


def _on_simulated_card(words: Sequence[str], card: str | None) -> list[str]:
    """The same sweep with another engine, and with another card if one is named."""
    kept = [word for word in words if not word.startswith("engine=")]
    if card is not None:
        kept = [word for word in kept if not word.startswith("engine.card_file=")]
        kept.append(f"engine.card_file={_literally(card)}")
    return [*kept, "engine=simulated"]


def _literally(text: str) -> str:
    """A value for an override in which every character stands for itself."""
    text = text.replace("${", r"\${")
    return "'" + re.sub(r"(\\*)('|\Z)", r"\1\1\2", text).replace("'", r"\'") + "'"


def _compose(words: Sequence[str]) -> Composed:
    """The sweep that the words name: one of them is SWEEP, the others are overrides."""
    from vllm_frontier.cards import first_card
    from vllm_frontier.config import compose_sweep

    names = [word for word in words if "=" not in word and not word.startswith("~")]
    if not names:
        raise click.UsageError("Missing argument 'SWEEP'.", click.get_current_context())
    overrides = list(words)
    overrides.remove(names[0])
    return compose_sweep(names[0], overrides, read_card=first_card)


def _run(
    composed: Composed, folder: Path, as_json: bool, allow_changed: bool, signals: Signals
) -> int:
    from vllm_frontier.report import advice, result
    from vllm_frontier.report.progress import ProgressDisplay
    from vllm_frontier.store.paths import SweepPaths
    from vllm_frontier.sweep import run_sweep

    console = _console(to_stderr=as_json, needs_reader=False)
    display = ProgressDisplay(console)
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
            console.print(f"Interrupted ({interrupted}). {told}", soft_wrap=True)
        return EXIT_INTERRUPTED
    found = result.load(folder)
    if as_json:
        _print_json(result.document(found))
    else:
        result.show(found, console)
        console.print("\nTo serve with these settings:\n")
        advice.show(advice.choose(found, advice.Wanted()), console)
        console.print(f"\n{result.findings(found)}Results: {folder}", soft_wrap=True)
    told = _left_open(finished)
    if told:
        more = f" {_go_on(folder)}" if finished.out_of_budget else ""
        console.print(f"{told}{more}", soft_wrap=True)
    return EXIT_SOME_FAILED if finished.failed else EXIT_DONE


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


def _console(*, to_stderr: bool = False, needs_reader: bool = True) -> Any:
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            """A reader that has seen enough, such as `head`, is no error, and ends no sweep."""
            self.quiet = True
            # Else the interpreter would flush into the broken pipe once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if needs_reader:
                raise SystemExit(EXIT_DONE)

    # Names may hold what looks like markup, such as `[/]`.
    return Terminal(highlight=False, markup=False, file=stream)


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def main() -> None:
    """Entry point: exit codes, and one line for whatever the user can put right."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows `?` for marks
    try:
        code = _invoke()
    except BrokenPipeError:  # `vllm-frontier show DIR | head`
        sys.stderr.close()
        code = EXIT_DONE
    except OSError as error:
        if error.errno not in _NO_OUTPUT:
            raise
        _complain(f"the output cannot be written: {error.strerror}.")
        # Else the interpreter would try once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = EXIT_USAGE
    sys.exit(code)


def _invoke() -> int:
    """Run the command that the arguments name; its exit code."""
    try:
        code = cli.main(standalone_mode=False)
    except NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return EXIT_DONE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else PROGRAM
        _complain(f"{error.format_message()} Try `{command} --help`.")
        return EXIT_USAGE
    except click.ClickException as error:
        _complain(error.format_message())
        return EXIT_USAGE
    except FrontierError as error:
        _complain(str(error))
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt, Interrupted):
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else EXIT_DONE


def _complain(text: str) -> None:
    click.echo(f"{PROGRAM}: {text}", err=True)
