"""The three forms in which a cell is served, as text to paste."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_frontier.engine.serving import Serving, image
from vllm_frontier.report.recommend.serving import config_file, container, shell

COMMAND, CONFIG, DOCKER = "command", "config", "docker"
FORMS = (COMMAND, CONFIG, DOCKER)


@dataclass(frozen=True, slots=True)
class Forms:
    """A cell to serve.

    Attributes:
        command: for a shell.
        config: the content of a config file; None: the sweep has a command of its own.
        config_file: its name.
        config_command: the command that serves what is in it.
        docker: for a shell; None where there is no image.
        environment: the variables that it needs; None is a secret that is not written down.
    """

    command: str
    config: str | None
    config_file: str | None
    config_command: str | None
    docker: str | None
    environment: dict[str, str | None]


def forms(serving: Serving, *, headline: str, file: str, version: str | None) -> Forms:
    """All forms of a cell.

    Args:
        serving: the server.
        headline: what the cell is, in words.
        file: the name of the config file.
        version: of vLLM; None: the newest.
    """
    command, environment = shell.command(serving), shell.environment(serving)
    if serving.command is not None:
        docker = command if serving.command[0] in ("docker", "podman") else None
        return Forms(command, None, None, None, docker, environment)
    found = image(version, cpu=serving.cpu, machine=platform.machine())
    return Forms(
        command=command,
        config=config_file.content(serving, headline),
        config_file=file,
        config_command=config_file.command(serving, file),
        docker=None if found is None else container.command(serving, found),
        environment=environment,
    )


def notes(serving: Serving, version: str | None) -> Iterator[str]:
    """What is to be known of all cells of a sweep.

    Args:
        serving: any of them.
        version: of vLLM; None: the newest.
    """
    secrets = [name for name, each in shell.environment(serving).items() if each is None]
    if secrets:
        yield f"set {' and '.join(secrets)} in your shell first: secrets are not written down"
    if shell.is_masked(serving):
        yield f"{shell.STANDS_FOR}: put it in before you run the command"
    if serving.command is not None:
        yield "the sweep has a command of its own (engine.command), with port and name by default"
    elif image(version, cpu=serving.cpu, machine=platform.machine()) is None:
        yield f"vLLM {version} is no release, so there is no image of it for docker"
