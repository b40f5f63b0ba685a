"""Where commands write to, and the exit codes they end with."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

import click

from vllm_frontier.characters import escaped_json, printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment

EXIT_DONE, EXIT_USAGE, EXIT_SOME_FAILED = 0, 2, 3
PROGRAM = "vllm-frontier"
_COLUMNS = 80  # where COLUMNS is 0
_AS_UTF8 = "as-utf-8"

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def terminal(*, to_stderr: bool = False, needs_reader: bool = True) -> Any:
    """A console of `rich`, with colours only where it is a terminal.

    Args:
        to_stderr: instead of to stdout.
        needs_reader: end the program when nobody reads on, such as after `head`.
    """
    from rich.console import Console
    from rich.segment import Segment

    stream = sys.stderr if to_stderr else sys.stdout

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            """A reader that has seen enough, such as `head`, is no error, and ends no sweep."""
            self.quiet = True
            _nobody_reads(stream)
            if needs_reader:
                raise SystemExit(EXIT_DONE)

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            """Whatever it is, no name or log line in it acts on the terminal."""
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text, lines=True), style, control)

    # Names may hold what looks like markup, such as `[/]`.
    made = Terminal(highlight=False, markup=False, file=stream)
    if made.width < 1:
        made.width = _COLUMNS
    return made


def say(text: str) -> None:
    """Print a line; nobody who reads on, as after `head`, ends the program."""
    _echo(printable(text))


def paste_as_utf8() -> None:
    """Print letters that the output's encoding lacks in UTF-8: what is pasted has no `?` in it."""
    codecs.register_error(_AS_UTF8, _utf8)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_AS_UTF8)


def _utf8(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return error.object[error.start : error.end].encode("utf-8", "surrogateescape"), error.end


def _echo(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        _nobody_reads(sys.stdout)
        raise SystemExit(EXIT_DONE) from None


def _nobody_reads(stream: TextIO) -> None:
    # Else the interpreter would flush into the broken pipe once more when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(document: Any) -> None:
    """Print the one JSON document of a command."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    plain = not encoding.lower().startswith("utf")
    text = json.dumps(document, indent=2, ensure_ascii=plain, allow_nan=False)
    _echo(escaped_json(text))
