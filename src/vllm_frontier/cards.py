"""Which NVIDIA cards of this machine a sweep runs on."""

from __future__ import annotations

import dataclasses
import os

from vllm_frontier import telemetry
from vllm_frontier.errors import ConfigError
from vllm_frontier.spec import SweepSpec


def visible_cards() -> telemetry.Probe:
    """The cards of this machine, less those that `CUDA_VISIBLE_DEVICES` hides from this process.

    Numbers count in PCI order, as NVML and `nvidia-smi` do.
    """
    probe = telemetry.probe()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not probe.cards:
        return probe
    words = [word.strip() for word in visible.split(",") if word.strip()]
    cards = tuple(
        card
        for card in probe.cards
        if any(word == str(card.index) or card.uuid.startswith(word) for word in words)
    )
    problem = probe.problem
    if not cards:
        problem = f"CUDA_VISIBLE_DEVICES={visible} hides every card"
    return dataclasses.replace(probe, cards=cards, problem=problem)


def first_card() -> tuple[str, float, tuple[str, ...]]:
    """What `card=auto` means here: name and GiB of the first card, UUIDs of all like it.

    Raises:
        ConfigError: there is no card, or the driver does not answer.
    """
    probe = visible_cards()
    if not probe.cards:
        raise ConfigError(
            f"card=auto finds no card here ({probe.problem}): name one, such as card=rtx5090, "
            "or choose engine=simulated"
        )
    first = probe.cards[0]
    if first.total_gib is None:
        raise ConfigError(
            f"card=auto cannot read the memory of {first.name}: set card.name and card.memory_gib"
        )
    alike = [
        card.uuid
        for card in probe.cards
        if card.name == first.name and card.total_gib == first.total_gib
    ]
    return first.name, round(first.total_gib, 2), tuple(alike)


def own_cards(spec: SweepSpec) -> tuple[str, ...]:
    """UUIDs of this machine's cards that the sweep may use; empty on a CPU.

    Raises:
        ConfigError: the sweep's card is not in this machine.
    """
    if spec.card.kind != "nvidia" or spec.schedule.address is not None:
        return ()
    probe = visible_cards()
    if probe.problem is not None and not probe.cards:
        raise ConfigError(
            f"this sweep needs {spec.card.name}, but {probe.problem}; "
            "engine=simulated needs no card"
        )
    wanted = spec.card.uuids
    fitting = [
        card.uuid
        for card in probe.cards
        if (card.uuid in wanted if wanted else card.name == spec.card.name)
    ]
    if not fitting:
        names = ", ".join(sorted({card.name for card in probe.cards}))
        raise ConfigError(
            f"this sweep is for {spec.card.name}, but this machine has {names}; add card=auto"
        )
    if len(fitting) < spec.engine.tensor_parallel:
        raise ConfigError(
            f"engine.tensor_parallel is {spec.engine.tensor_parallel}, "
            f"but this machine has {len(fitting)} of the sweep's card"
        )
    return tuple(fitting)
