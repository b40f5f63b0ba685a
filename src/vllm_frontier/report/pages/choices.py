"""The choices as cards: what they give, what they rest on, and the commands to paste."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_frontier.analyze.checks import Verdict
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.grid import shortest
from vllm_frontier.outcome import SpecState
from vllm_frontier.report.pages import codes
from vllm_frontier.report.pages.tabular import fixed, on_off, sentence

Row = Mapping[str, Any]

_OF_OUTPUT = ("output_sane", "lossless", "depth_applied")
"""Checks of what is written, and of whether the settings are those that were asked for."""
_SEQUENCES = re.compile(r"--max-num-seqs (\d+)")
_PORT = re.compile(r"--port (\d+)")


@dataclass(frozen=True, slots=True)
class Paste:
    """Lines to paste, with what they are."""

    name: str  # for links within the page
    what: str
    text: str
    language: str = "bash"


@dataclass(frozen=True, slots=True)
class Remark:
    """What is to be known before a cell is served; `code` is the check's name, or empty."""

    verdict: str
    title: str
    words: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A choice as a page shows it; `told` are names and words, in order."""

    name: str
    title: str
    window: str
    speed: str
    interval: str
    told: tuple[tuple[str, str], ...]
    warnings: tuple[Remark, ...]  # those that weigh most
    lesser: tuple[Remark, ...]
    against: tuple[str, ...]
    command: Paste
    others: tuple[Paste, ...]


def cards(choices: Sequence[Row]) -> list[Card]:
    """A card for each choice.

    Args:
        choices: of `advice.document`.
    """
    return [_card(choice) for choice in choices]


def how_to(choices: Sequence[Row], notes: Sequence[str], model: str) -> list[str]:
    """How the commands are used, and what is to be known of all of them, a sentence each.

    Args:
        choices: of `advice.document`.
        notes: of the same.
        model: its name, which is never changed.
    """
    if not choices:
        return []
    commands = [str(choice["command"]) for choice in choices]
    ports = {found[1] for each in commands for found in _PORT.finditer(each)} or {"8000"}
    asked = {found[1] for each in commands for found in _SEQUENCES.finditer(each)}
    used = "Paste a command into a shell: once the server is up"
    told = [f"{used}, its port {min(ports)} answers as OpenAI's API does."]
    speeds = "Speeds are those of one request at a time"
    if len(asked) == 1:
        number = min(asked)
        told.append(
            f"{speeds}; --max-num-seqs {number} lets the server take no more than {number} at "
            "once, and another number changes both memory and speed."
        )
    else:
        told.append(f"{speeds}.")
    return told + [sentence(note, model) for note in notes]


def _card(choice: Row) -> Card:
    names = choice["choices"]
    name = str(names[0])
    weighty, lesser = _weighed(choice)
    return Card(
        name=name,
        title=", ".join(names).capitalize(),
        window=f"{choice['context']:,}",
        speed=fixed(choice["decode_tok_s"], 1),
        interval=_interval(choice),
        told=tuple(_told(choice)),
        warnings=tuple(weighty),
        lesser=tuple(lesser),
        against=tuple(_against(choice)),
        command=Paste(f"command-{name}", "Command", str(choice["command"])),
        others=tuple(_others(choice, name)),
    )


def _interval(choice: Row) -> str:
    low, high = choice["decode_tok_s_low"], choice["decode_tok_s_high"]
    if low is None or high is None:
        return "no interval: too few runs"
    within = ", within one launch" if choice.get("interval_basis") == RUNS else ""
    return f"95 % interval {low:,.1f} to {high:,.1f}{within}"


def _told(choice: Row) -> Iterator[tuple[str, str]]:
    depth = choice["depth"]
    yield "Depth", f"{depth}" if depth else "0 (no speculation)"
    yield "Graphs", on_off(choice["graphs"])
    yield "Utilization", shortest(choice["utilization"])
    for name in choice.get("extra_axes", ()):
        yield name, str(choice[name])
    if choice["gain_no_graphs"] is not None:
        doubt = " (in doubt, as the baseline is)" if choice.get("gain_in_doubt") else ""
        yield "Gain", f"{choice['gain_no_graphs']:.2f} × depth 0 without graphs{doubt}"
    if choice["prefill_tok_s"] is not None:
        yield "Prefill", f"{choice['prefill_tok_s']:,.0f} tokens/s"
    if choice["kv_headroom_gib"] is not None:
        yield "Spare", f"{choice['kv_headroom_gib']:.2f} GiB of KV cache beyond one window"


def _weighed(choice: Row) -> tuple[list[Remark], list[Remark]]:
    """What is wrong, and what is said of figures; the latter apart where it is more than one."""
    weighty: list[Remark] = []
    lesser: list[Remark] = []
    if choice.get("note"):
        weighty.append(Remark("warn", "", sentence(str(choice["note"]))))
    if choice.get("spec_state") in (SpecState.INEFFECTIVE, SpecState.SUSPECT):
        told = f"Speculation is {choice['spec_state']}: see the checks."
        weighty.append(Remark("warn", "", told))
    for verdict, name, words in _found(choice):
        wrong = verdict == Verdict.FAIL or name in _OF_OUTPUT
        remark = Remark(verdict, codes.check(name), sentence(words), name)
        (weighty if wrong else lesser).append(remark)
    if len(lesser) == 1:
        return [*weighty, *lesser], []
    return weighty, lesser


def _found(choice: Row) -> Iterator[tuple[str, str, str]]:
    """What each check found worst: verdict, check and words; what weighs most first."""
    by_check: dict[str, list[Row]] = {}
    for each in choice.get("checks") or ():
        by_check.setdefault(each["check"], []).append(each)
    worst_first = sorted(
        by_check.items(),
        key=lambda one: (one[1][0]["verdict"] != Verdict.FAIL, one[0] not in _OF_OUTPUT),
    )
    for name, found in worst_first:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield found[0]["verdict"], name, f"{found[0]['detail']}{more}"


def _against(choice: Row) -> Iterator[str]:
    """What it costs against the other choices, in words."""
    for each in choice.get("against") or ():
        words = str(each["words"])
        yield sentence(words)


def _others(choice: Row, name: str) -> Iterator[Paste]:
    """The same settings in other forms."""
    if choice.get("config"):
        started = choice.get("config_command")
        yield Paste(f"config-{name}", "As a file", str(choice["config"]), "yaml")
        if started:
            yield Paste(f"config-command-{name}", "Start with that file", str(started))
    if choice.get("docker"):
        yield Paste(f"docker-{name}", "In a container", str(choice["docker"]))
