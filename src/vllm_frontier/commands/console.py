"""Where commands write to, and the exit codes they end with."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

EXIT_DONE, EXIT_USAGE, EXIT_SOME_FAILED = 0, 2, 3
PROGRAM = "vllm-frontier"

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def terminal(*, to_stderr: bool = False, needs_reader: bool = True) -> Any:
    """A console of `rich`, with colours only where it is a terminal.

    Args:
        to_stderr: instead of to stdout.
        needs_reader: end the program when nobody reads on, such as after `head`.
    """
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


def print_json(document: Any) -> None:
    """Print the one JSON document of a command."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
