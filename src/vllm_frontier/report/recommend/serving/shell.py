"""Words for a shell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vllm_frontier.characters import quoted
from vllm_frontier.engine.arguments import render
from vllm_frontier.engine.serving import Serving
from vllm_frontier.launch.environment import MASK

STANDS_FOR = f"{MASK} stands for a secret that is not written down"
_INDENT = "    "


def command(serving: Serving) -> str:
    """The command that serves it, an option a line."""
    if serving.command is not None:
        return lines([], serving.command, serving)
    arguments = render(serving.arguments)
    if serving.positional:
        return lines([*serving.launcher, serving.model], arguments, serving)
    return lines(serving.launcher, ["--model", serving.model, *arguments], serving)


def lines(first: Sequence[str], arguments: Iterable[str], serving: Serving | None = None) -> str:
    """A command quoted for a shell: what it is, then an option a line.

    Args:
        first: the words of its first line.
        arguments: the others.
        serving: whose environment comes before; None: none.
    """
    options = grouped(arguments)
    if not first and options:
        first, options = options[0], options[1:]
    before = [] if serving is None else _assignments(serving)
    broken = " \\\n"
    text = f"{broken}{_INDENT}".join([joined(first), *map(joined, options)])
    return broken.join([" ".join(before), text]) if before else text


def joined(words: Iterable[str]) -> str:
    """Words quoted for a shell."""
    return " ".join(map(quoted, words))


def grouped(arguments: Iterable[str]) -> list[list[str]]:
    """The words, every option together with its values."""
    options: list[list[str]] = []
    for word in arguments:
        if word.startswith("--") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    return options


def is_secret(value: str) -> bool:
    """Whether a value was not written down."""
    return MASK in value


def is_masked(serving: Serving) -> bool:
    """Whether a word of the command itself was not written down."""
    words = [serving.model, *render(serving.arguments), *(serving.command or ())]
    return any(map(is_secret, words))


def environment(serving: Serving) -> dict[str, str | None]:
    """The variables that serving needs; None is a secret that was not written down."""
    return {
        name: None if is_secret(value) else value for name, value in serving.environment.items()
    }


def _assignments(serving: Serving) -> list[str]:
    found = [] if serving.path is None else [f'PATH={quoted(serving.path)}:"$PATH"']
    return found + [_assignment(name, value) for name, value in environment(serving).items()]


def _assignment(name: str, value: str | None) -> str:
    # A secret must be in the shell already; with `:?` it says so where it is not.
    return f'{name}="${{{name}:?}}"' if value is None else f"{name}={quoted(value)}"


def plain(names: Mapping[str, str | None]) -> str:
    """Variables as a comment tells them."""
    return " ".join(f"{name}={'...' if value is None else value}" for name, value in names.items())
