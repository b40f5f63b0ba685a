"""Commands to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_frontier.grid import shortest
from vllm_frontier.outcome import SpecState
from vllm_frontier.report.serving import shell


def recommendation(choice: Mapping[str, Any], model: str, arguments: Sequence[str]) -> str:
    """A chosen cell as a comment and a command that serves it.

    Args:
        choice: an object of `choices`: what it is, its axes, its speed.
        model: folder or hub id.
        arguments: what an engine gives as `serve_arguments` for the cell.

    Returns:
        Lines for a shell, without a newline at the end.
    """
    return f"# {describe(choice)}\n{serve_command(model, arguments)}"


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


def serve_command(model: str, arguments: Sequence[str]) -> str:
    """`vllm serve` with its arguments, quoted for a shell, an option a line."""
    return shell.lines(["vllm", "serve", model], arguments)
