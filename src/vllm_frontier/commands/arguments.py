"""Arguments that several commands share, and the sweep that they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from vllm_frontier.errors import ConfigError

if TYPE_CHECKING:
    from vllm_frontier.config import Composed

words_argument = click.argument("words", nargs=-1, metavar="SWEEP [KEY=VALUE]...")


class Named(click.Path):
    """A path; an empty text, which would be the current folder, is none."""

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        # Whether it can be read says nothing of what is to be written.
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, readable=False, path_type=Path)

    def convert(  # noqa: D102
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if value == "":
            self.fail("an empty text names no file or folder", param, ctx)
        return super().convert(value, param, ctx)


folder_argument = click.argument("folder", type=Named(), metavar="DIR")


class _Tokens(click.ParamType[int]):
    """A number of tokens, as vLLM reads `--max-model-len`: 130000, 130k, 128K."""

    name = "integer"
    _units: ClassVar = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
    _most = 10**9

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d{1,15})([kKmM]?)", str(value).strip(), re.ASCII)
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r} is no number of tokens, such as 130000 or 130k", param, ctx)
        tokens = int(found[1]) * self._units[found[2]]
        if tokens > self._most:
            self.fail(f"{value!r} is more than {self._most} tokens", param, ctx)
        return tokens


TOKENS = _Tokens()


def on_simulated_card(words: Sequence[str], card: str | None) -> list[str]:
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


def compose(words: Sequence[str]) -> Composed:
    """The sweep that the words name: one of them is SWEEP, the others are overrides."""
    from vllm_frontier.cards import first_card
    from vllm_frontier.config import compose_sweep

    for word in words:
        if "=" in word and not _is_text(word):
            raise ConfigError(
                f"{word} has letters that are not read as UTF-8: set a locale that is, such as "
                "LC_ALL=C.UTF-8"
            )
    names = [word for word in words if "=" not in word and not word.startswith("~")]
    if not names:
        raise click.UsageError("Missing argument 'SWEEP'.", click.get_current_context())
    overrides = list(words)
    overrides.remove(names[0])
    return compose_sweep(names[0], overrides, read_card=first_card)


def _is_text(word: str) -> bool:
    """Whether all bytes of an argument were letters in the encoding of the locale."""
    return re.search("[\ud800-\udfff]", word) is None
