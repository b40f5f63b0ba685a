"""A cell as a call of docker, with the images of the vLLM project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vllm_frontier.characters import quoted
from vllm_frontier.engine.arguments import render
from vllm_frontier.engine.serving import PORT, Serving
from vllm_frontier.report.recommend.serving import shell

_CACHE = "/root/.cache/huggingface"  # where the image looks
_HOME = "HF_HOME"
_BROKEN = " \\\n    "


def command(serving: Serving, image: str) -> str:
    """`docker run` of an image, an option a line.

    The model is given by `--model`, which every image takes. Newer ones start `vllm serve`, which
    also takes it as a word of its own; older ones start vLLM's module, which then serves another.
    """
    arguments = shell.grouped(["--model", serving.model, *render(serving.arguments)])
    return _BROKEN.join(
        ["docker run --rm", *_options(serving), quoted(image), *map(shell.joined, arguments)]
    )


def _options(serving: Serving) -> Iterator[str]:
    if not serving.cpu:
        yield "--gpus all"
    yield "--ipc=host"  # vLLM's processes share memory
    yield f"-p {PORT}:{PORT}"
    yield from map(_mount, sorted(set(_local(serving))))
    if not all(map(_is_local, serving.files)):
        home = serving.environment.get(_HOME)
        place = f'"${{{_HOME}:-$HOME/.cache/huggingface}}"' if home is None else quoted(home)
        yield f"-v {place}:{_CACHE}"
        if "HF_TOKEN" not in serving.environment:
            yield "-e HF_TOKEN"  # from the shell, where it is set
    for name, value in shell.environment(serving).items():
        if name != _HOME:
            yield f"-e {name}" if value is None else f"-e {quoted(f'{name}={value}')}"


def _local(serving: Serving) -> Iterator[str]:
    """What has to be mounted so that everything is found under the same path."""
    for name in filter(_is_local, serving.files):
        # The files of a snapshot in the cache of Hugging Face are links to those beside it.
        path = Path(name)
        yield str(path.parent.parent if path.parent.name == "snapshots" else path)
    for value in serving.arguments.values():  # a chat template, say
        if isinstance(value, str) and _is_local(value) and Path(value).exists():
            yield value


def _is_local(name: str) -> bool:
    return name.startswith("/")


def _mount(folder: str) -> str:
    if ":" in folder:  # which parts the two sides of -v
        return f"--mount {quoted(f'type=bind,src={folder},dst={folder},readonly')}"
    return f"-v {quoted(f'{folder}:{folder}:ro')}"
