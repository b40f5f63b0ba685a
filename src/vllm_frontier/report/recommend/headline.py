"""Recommended cells in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_frontier.grid import shortest
from vllm_frontier.outcome import SpecState


def describe(choice: Mapping[str, Any]) -> str:
    """A chosen cell in one line: what it is, its axes and its speed."""
    parts = [
        f"depth {choice['depth']}",
        f"context {choice['context']}",
        f"graphs {'on' if choice['graphs'] else 'off'}",
        f"utilization {shortest(choice['utilization'])}",
        *(f"{name} {choice[name]}" for name in choice.get("extra_axes", ())),
    ]
    speed = f"{choice['decode_tok_s']:.1f} tokens/s"
    if choice.get("gain_no_graphs") is not None:
        speed += f", {choice['gain_no_graphs']:.2f} x baseline"
        speed += " (in doubt, as is the baseline)" if choice.get("gain_in_doubt") else ""
    if choice.get("spec_state") in (SpecState.INEFFECTIVE, SpecState.SUSPECT):
        speed += f", speculation {choice['spec_state']}"
    label = " (simulated)" if choice.get("engine") == "simulated" else ""
    named = f"{', '.join(choice['choices'])}: " if choice.get("choices") else ""
    return f"{named}{', '.join(parts)}: {speed}{label}"
