"""The command `vllm-frontier`: reads arguments, calls the rooms, shows what they give.

Heavy rooms (Hydra, Ray, polars) are imported inside the commands that need them, so that
`--help` answers at once.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import click
from click.exceptions import NoArgsIsHelpError

from vllm_frontier import __version__
from vllm_frontier.characters import printable
from vllm_frontier.commands.console import EXIT_DONE, EXIT_USAGE, PROGRAM
from vllm_frontier.commands.examining import doctor, explain
from vllm_frontier.commands.reading import compare, recommend, report, show, status
from vllm_frontier.commands.sweeping import plan, rehearse, resume, run
from vllm_frontier.errors import FrontierError, Interrupted
from vllm_frontier.signals import EXIT_INTERRUPTED

_NO_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Find which vLLM settings start on a card, and which of those are fastest.

    SWEEP is the name of a ready sweep or the path of a YAML file; KEY=VALUE changes one of its
    settings, as in `vllm-frontier run demo-cpu workload.repeats=1 'grid.depth=[0,2]'`.
    """
    try:
        Path.cwd()
    except OSError as error:  # such as that it was removed
        raise FrontierError(
            f"there is no current folder ({error.strerror}): change into one that is there"
        ) from None


for _command in (
    run,
    plan,
    rehearse,
    resume,
    status,
    show,
    report,
    recommend,
    compare,
    explain,
    doctor,
):
    cli.add_command(_command)


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
        code = cli.main(prog_name=PROGRAM, standalone_mode=False)
    except NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return EXIT_DONE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else PROGRAM
        said = error.format_message().rstrip()
        _complain(f"{said}{'' if said.endswith(('.', '?', '!')) else '.'} Try `{command} --help`.")
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
    # A name of a file may have any character in it, and an error is one line.
    click.echo(f"{PROGRAM}: {printable(text)}", err=True)
