"""The choices as cards: what they give, what they rest on, and the commands to paste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.grid import shortest
from vllm_frontier.outcome import SpecState
from vllm_frontier.report.pages.tabular import fixed, on_off

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Paste:
    """Lines to paste, with what they are."""

    name: str  # for links within the page
    what: str
    text: str
    language: str = "bash"


@dataclass(frozen=True, slots=True)
class Card:
    """A choice as a page shows it; `told` are names and words, in order."""

    name: str
    title: str
    window: str
    speed: str
    interval: str
    told: tuple[tuple[str, str], ...]
    warnings: tuple[tuple[str, str], ...]  # verdict and words
    against: tuple[str, ...]
    command: Paste
    others: tuple[Paste, ...]


def cards(choices: Sequence[Row]) -> list[Card]:
    """A card for each choice.

    Args:
        choices: of `advice.document`.
    """
    return [_card(choice) for choice in choices]


def _card(choice: Row) -> Card:
    names = choice["choices"]
    name = str(names[0])
    return Card(
        name=name,
        title=", ".join(names).capitalize(),
        window=f"{choice['context']:,}",
        speed=fixed(choice["decode_tok_s"], 1),
        interval=_interval(choice),
        told=tuple(_told(choice)),
        warnings=tuple(_warnings(choice)),
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


def _warnings(choice: Row) -> Iterator[tuple[str, str]]:
    if choice.get("note"):
        note = str(choice["note"])
        yield "warn", f"{note[:1].upper()}{note[1:]}."
    if choice.get("spec_state") in (SpecState.INEFFECTIVE, SpecState.SUSPECT):
        yield "warn", f"Speculation is {choice['spec_state']}: see the checks."
    told: set[str] = set()
    for each in choice.get("checks") or ():
        if each["check"] not in told:
            told.add(each["check"])
            more = sum(other["check"] == each["check"] for other in choice["checks"]) - 1
            yield (
                each["verdict"],
                f"{each['check']}: {each['detail']}" + (f" (and {more} more)" if more else ""),
            )


def _against(choice: Row) -> Iterator[str]:
    """What it costs against the other choices, in words."""
    for each in choice.get("against") or ():
        words = str(each["words"])
        yield f"{words[:1].upper()}{words[1:]}."


def _others(choice: Row, name: str) -> Iterator[Paste]:
    """The same settings in other forms."""
    if choice.get("config"):
        started = choice.get("config_command")
        yield Paste(f"config-{name}", "As a file", str(choice["config"]), "yaml")
        if started:
            yield Paste(f"config-command-{name}", "Start with that file", str(started))
    if choice.get("docker"):
        yield Paste(f"docker-{name}", "In a container", str(choice["docker"]))
