"""What a simulated model reads and writes: tokens, tasks, deterministic answers.

A token is a short piece of text; its id is a checksum of the piece. Greedy answers depend on the
prompt alone, sampled ones on the seed too: speculation and graphs change how fast they come, never
what they say.
"""

from __future__ import annotations

import functools
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

VOCABULARY = 151_000
_FIRST_ID = 1_000  # below lie the ids of the chat template
_NATURAL_TOKENS = 1_024  # an answer without a file to give back ends here by itself
_PIECE = re.compile(r" ?[^\W\d_]{1,5}| ?\d{1,3}| ?[^\w\s]{1,2}|_|\s+?(?=\S)|\s+", re.UNICODE)
_OPENINGS = (("edit", "Here is the file"), ("code", "Write a Python module"))
_PREAMBLE_CHARACTERS = 600
_FILE = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)

_SUBJECTS = (
    *("the reader", "a server", "every request", "the cache", "one worker", "the scheduler"),
    *("a window", "the next step", "a long prompt"),
)
_VERBS = (
    *("keeps", "moves", "measures", "checks", "returns", "releases", "collects", "describes"),
    *("compares", "explains", "replaces"),
)
_OBJECTS = (
    *("what was asked for", "the next block", "a short summary", "its own state"),
    *("the oldest entry", "a list of names", "the remaining memory", "an answer in time"),
    *("the rest of the file", "every second line"),
)
_ENDINGS = (", as expected", ", one at a time", ", before anything else", ", as a rule")
_NOISE = "bcdfghjklmnpqrstvwxz"
_DRAWS = 1500  # texts from which the model's words are taken
_NAMES = (
    *("items", "limit", "buffer", "index", "total", "window", "blocks", "answer", "offset"),
    *("count", "ring", "value"),
)


def pieces(text: str) -> list[str]:
    """Cut a text into the pieces that stand for one token each; joined they give the text."""
    return _PIECE.findall(text)


def token_ids(text: str) -> list[int]:
    """The token ids of a text."""
    return ids_of(pieces(text))


def ids_of(tokens: Iterable[str]) -> list[int]:
    """The ids of tokens that are given by what they stand for."""
    span = VOCABULARY - _FIRST_ID
    return [_FIRST_ID + zlib.crc32(piece.encode()) % span for piece in tokens]


def chat_ids(messages: Sequence[tuple[str, str]]) -> list[int]:
    """The token ids of a conversation of (role, text), the template's own tokens included."""
    roles = {"system": 3, "user": 4, "assistant": 5, "tool": 6}
    ids = [1]
    for role, text in messages:
        ids += [2, roles.get(role, 7), *token_ids(text), 8]
    return [*ids, 2, roles["assistant"]]


def message_texts(messages: Sequence[Any]) -> list[tuple[str, str]]:
    """The (role, text) pairs of a request's `messages`; parts that are not text are left out."""
    result = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content)
        result.append((str(message.get("role", "user")), str(content)))
    return result


def task_of(prompt: str) -> str:
    """Which task a prompt is: `edit`, `code`, or else `prose`; a short preamble may go first."""
    head = prompt[:_PREAMBLE_CHARACTERS]
    found = [(head.find(words), task) for task, words in _OPENINGS if words in head]
    return min(found)[1] if found else "prose"


def answer(
    prompt: str, tokens: int, *, endless: bool, seed: int | None = None
) -> tuple[list[str], bool]:
    """The pieces of the answer to a prompt.

    Args:
        prompt: the text of the request, or anything that tells it from others.
        tokens: how many tokens it may have at most.
        endless: whether it goes on after its natural end.
        seed: of a sampled answer; None: it is greedy.

    Returns:
        The pieces, and whether the answer came to its natural end.
    """
    task = task_of(prompt)
    source = prompt if seed is None else f"{prompt} {seed}"
    file = _FILE.search(prompt)
    if task == "edit" and file:
        whole = pieces(f"```python\n{file.group(1)}```")
        ended = len(whole) <= tokens and not endless
        stream: Iterator[str] = iter(whole)
        if endless:
            stream = _chain(stream, _written("prose", source))
    else:
        ended = tokens >= _NATURAL_TOKENS and not endless
        stream = _written(task, source)
        tokens = tokens if endless else min(tokens, _NATURAL_TOKENS)
    return list(islice(stream, tokens)), ended


def garbage(written: Sequence[str]) -> list[str]:
    """As many tokens that no model would write."""
    draw = random.Random(zlib.crc32("".join(written).encode()))
    return [" " + "".join(draw.choices(_NOISE, k=4)) for _ in written]


@functools.cache
def own_words() -> Mapping[int, str]:
    """What the model writes by itself, by token id."""
    draw = random.Random(0)
    texts = [write(draw) for write in (_sentence, _function) for _ in range(_DRAWS)]
    words = [piece for text in ("```python\n```", *texts) for piece in pieces(text)]
    return dict(zip(ids_of(words), words, strict=True))


def stopped(written: Sequence[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    """An answer up to the first of some texts, which is left out, and that text (or None)."""
    text = ""
    for index, piece in enumerate(written):
        text += piece
        found = [(text.find(stop), stop) for stop in stops if stop in text]
        if found:
            at, stop = min(found)
            kept, position = [], 0
            for each in written[: index + 1]:  # a token whose text is cut still counts
                kept.append(each[: max(0, at - position)])
                position += len(each)
            return kept, stop
    return list(written), None


def _chain(first: Iterator[str], second: Iterator[str]) -> Iterator[str]:
    yield from first
    yield from second


def _written(task: str, prompt: str) -> Iterator[str]:
    draw = random.Random(zlib.crc32(prompt.encode()))
    write = _function if task == "code" else _sentence
    while True:
        yield from pieces(write(draw))


def _sentence(draw: random.Random) -> str:
    subject = draw.choice(_SUBJECTS).capitalize()
    ending = draw.choice(_ENDINGS) if draw.random() < 0.5 else ""
    return f"{subject} {draw.choice(_VERBS)} {draw.choice(_OBJECTS)}{ending}. "


def _function(draw: random.Random) -> str:
    name, first, second = draw.sample(_NAMES, 3)
    return (
        f"def {draw.choice(['take', 'add', 'drop', 'find'])}_{name}({first}, {second}):\n"
        f'    """{_sentence(draw).strip()}"""\n'
        f"    if {first} is None:\n        return {second}\n"
        f"    return {first}[{draw.randrange(1, 99)}] + {second}\n\n\n"
    )
