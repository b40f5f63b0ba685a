"""The engine `simulated`: vLLM's behaviour on a described card, without vLLM or a card."""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path

from vllm_frontier.engine.arguments import MEASURING, render, serve_arguments
from vllm_frontier.engine.protocol import LaunchPlan, LogReading
from vllm_frontier.engine.simulated.card import SimulatedCard
from vllm_frontier.engine.simulated.card_file import find_card, load_card
from vllm_frontier.grid import Cell
from vllm_frontier.spec import CardSpec, EngineSpec, ModelSpec

VERSION = "simulated-1"


def simulated_card_spec(card_file: str | None = None) -> CardSpec:
    """The card that a card file describes; None is the default card.

    Raises:
        ConfigError: the card file is missing or wrong.
    """
    card = load_card(card_file).card
    return CardSpec(kind="simulated", name=card.name, memory_gib=card.total_gib)


class SimulatedEngine:
    """An `Engine` whose server is `vllm_frontier.engine.simulated.server`.

    `EngineSpec.card_file` chooses the card; `args` of model and engine are passed on, where
    vLLM's own names mean what they mean to vLLM. How often a fault has happened is counted for
    the whole sweep (see `faults`).
    """

    def __init__(self, engine: EngineSpec, model: ModelSpec, card: CardSpec) -> None:
        """Keep the specifications; the card file is read when it is needed."""
        self._engine = engine
        self._model = model
        self._card = card

    @property
    def kind(self) -> str:
        """The word of the `engine` column."""
        return "simulated"

    @property
    def time_scale(self) -> float:
        """Seconds that pass per simulated second."""
        return self.card.time.scale

    @cached_property
    def card(self) -> SimulatedCard:
        """The described card.

        Raises:
            ConfigError: the card file is missing or wrong.
        """
        return load_card(self._engine.card_file)

    def version(self) -> str:
        """The version of the simulated server."""
        return VERSION

    def plan_launch(
        self, cell: Cell, *, port: int, served_name: str, cards: tuple[str, ...]
    ) -> LaunchPlan:
        """The command for a cell; `cards` are of no use here."""
        del cards
        argv = (
            *(sys.executable, "-m", "vllm_frontier.engine.simulated.server"),
            *("--model", self._model.id, "--host", "127.0.0.1", "--port", str(port)),
            *("--served-model-name", served_name),
            *("--simulated-card", str(find_card(self._engine.card_file).resolve())),
            *MEASURING,
            *self.serve_arguments(cell),
        )
        env = {"PYTHONUNBUFFERED": "1", **self._engine.env}
        return LaunchPlan(argv=argv, env=env, port=port, served_name=served_name)

    def serve_arguments(self, cell: Cell) -> tuple[str, ...]:
        """The arguments for a cell as a person would give them to `vllm serve`."""
        return render(serve_arguments(cell, self._model, self._engine, self._card))

    def read_log(
        self, log: Path, *, exit_code: int | None = None, signal: int | None = None
    ) -> LogReading:
        """Read a server log, which has vLLM's lines, with vLLM's reader."""
        from vllm_frontier.engine.reading import read

        return read(log, exit_code=exit_code, signal=signal)
