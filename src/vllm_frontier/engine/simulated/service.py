"""What the simulated API server does with a request: check, wait, generate, count."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_frontier.engine.simulated import log
from vllm_frontier.engine.simulated.card import simulate_start
from vllm_frontier.engine.simulated.metrics import Metrics
from vllm_frontier.engine.simulated.processes import Channel, Launch, commit_fault
from vllm_frontier.engine.simulated.protocol import Asked, Part, Wording, usage_of
from vllm_frontier.engine.simulated.refusals import ENGINE_DEAD
from vllm_frontier.engine.simulated.requests import Decoding, PrefixCache, plan_decoding
from vllm_frontier.engine.simulated.text import (
    answer,
    garbage,
    ids_of,
    pieces,
    stopped,
    task_of,
    token_ids,
)

_PING_S = 0.05  # how often a running request asks whether the worker still lives


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer laid out in full before its first token is sent.

    `stop` is the text among those asked for that ends it.
    """

    pieces: tuple[str, ...]
    reason: str
    stop: str | None
    cached: int
    decoding: Decoding
    fills: bool
    fault: str | None = None

    def parts(self) -> list[tuple[float, Part]]:
        """Simulated seconds after the request began, and what is there by then."""
        ends = [0.0, *self.decoding.ends_s()]
        rest = iter(self.pieces)
        sizes = [1, *self.decoding.steps]
        parts = [part_of(list(itertools.islice(rest, size))) for size in sizes]
        return [
            (self.decoding.prefill_s + end, part) for end, part in zip(ends, parts, strict=True)
        ]


class Service:
    """The serving side of the API server; used by one thread per connection."""

    def __init__(self, launch: Launch, engine: Channel) -> None:
        """`launch.cell` has the window that is served; `engine` is ready."""
        start = simulate_start(launch.card, launch.cell)
        self.launch = launch
        self.window = launch.cell.context
        self.dead = threading.Event()
        self.metrics = Metrics(
            model=launch.options.served_name or launch.options.model,
            depth=launch.cell.depth,
            block=launch.card.memory.block_tokens,
            facts=start.facts,
            options=launch.options,
        )
        self._log = log.Log("APIServer")
        self._fill_failure = start.fill_failure
        self._engine = engine
        self._turn = threading.Lock()
        self._numbers = itertools.count()
        self._words: dict[int, str] = {}
        self._cache_lock = threading.Lock()
        self._cache = PrefixCache(
            block=launch.card.memory.block_tokens,
            capacity=start.facts.kv_tokens or 0,
            enabled=launch.options.prefix_caching,
        )

    @property
    def model(self) -> str:
        """The name that is served."""
        return self.launch.options.served_name or self.launch.options.model

    def wording(self, asked: Asked) -> Wording:
        """A fresh id and the bodies for a request."""
        number = next(self._numbers)
        head = "chatcmpl" if asked.chat else "cmpl"
        return Wording(asked, f"{head}-{number:016x}", self.model, int(time.time()))

    def remember(self, text: str) -> None:
        """Keep what the tokens of a text stand for."""
        for token, piece in zip(token_ids(text), pieces(text), strict=True):
            self._words.setdefault(token, piece)

    def words(self, tokens: Sequence[int]) -> list[str]:
        """What tokens stand for, as far as this server has met them."""
        return [self._words.get(token, "\ufffd") for token in tokens]

    def lay_out(self, asked: Asked) -> Answer:
        """Decide everything about an answer."""
        with self._cache_lock:
            cached = self._cache.take(asked.ids, asked.cache_salt)
        if asked.prompt_logprobs is not None:
            cached = 0  # nobody remembers how probable it was
        written, ended = answer(
            asked.text, asked.max_tokens, endless=asked.endless, seed=asked.seed
        )
        if self.launch.faults.spoils(sampled=asked.seed is not None):
            written = garbage(written)
        written, stop = stopped(written, asked.stop)
        decoding = plan_decoding(
            self.launch.card,
            self.launch.cell,
            task_of(asked.text),
            uncached=len(asked.ids) - cached,
            completion=len(written),
            run=asked.run_key(),
            seed=self.launch.options.seed,
        )
        tokens = len(asked.ids) + len(written)
        fills = tokens > self.window - self.launch.card.memory.block_tokens
        return Answer(
            pieces=tuple(written),
            reason="stop" if ended or stop is not None else "length",
            stop=stop,
            cached=cached,
            decoding=decoding,
            fills=fills,
            fault=self.launch.faults.take("fill" if fills else "measure"),
        )

    def generate(self, asked: Asked, laid_out: Answer) -> Iterator[Part]:
        """Give the parts of an answer when they are due; stops early when the engine dies.

        Raises:
            EngineDied: EngineCore or its worker is gone.
        """
        number = next(self._numbers)
        self.metrics.begin(number, len(asked.ids) + len(laid_out.pieces))
        try:
            yield from self._timed_parts(laid_out)
        finally:
            self.metrics.end(number)
        self.metrics.finish(
            laid_out.decoding,
            prompt=len(asked.ids),
            cached=laid_out.cached,
            completion=len(laid_out.pieces),
            reason=laid_out.reason,
            limit=asked.max_tokens,
        )

    def usage(self, asked: Asked, laid_out: Answer) -> dict[str, object]:
        """The usage of an answer."""
        details = self.launch.options.prompt_details
        return usage_of(len(asked.ids), len(laid_out.pieces), laid_out.cached, details=details)

    def _timed_parts(self, laid_out: Answer) -> Iterator[Part]:
        began = time.monotonic()
        scale = self.launch.card.time.scale
        fault = laid_out.fault
        if laid_out.fills and self._fill_failure is not None:
            fault = "oom"
        self._ask_worker()
        parts = laid_out.parts()
        # A long prompt exhausts the memory before it is through, anything else half-way.
        breaks_at = 0 if laid_out.fills else len(parts) // 2
        for index, (due, part) in enumerate(parts):
            if fault is not None and index == breaks_at:
                self._break(fault)
            self._wait_until(began + due * scale)
            yield part

    def _break(self, fault: str) -> None:
        if fault == "kill":
            commit_fault(fault, self.launch)
        with self._turn:
            self._engine.send(fault)
        # Never answered: the worker is dead, or hangs and we with it.
        self._ask_worker()

    def _wait_until(self, deadline: float) -> None:
        while (left := deadline - time.monotonic()) > 0:
            if self.dead.wait(min(left, _PING_S)):
                raise EngineDied
            if left > _PING_S:
                self._ask_worker()
        if self.dead.is_set():
            raise EngineDied

    def _ask_worker(self) -> None:
        """Ask whether the worker answers; blocks for ever when it is stopped."""
        with self._turn:
            self._engine.send("ping")
            if self._engine.receive() != "pong":
                self.dead.set()
                raise EngineDied

    def tell_dead(self, where: str) -> None:
        """Log that a request was lost with the engine."""
        frames = (("v1/engine/async_llm.py", 849, "output_handler"),)
        error = f"vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}"
        self._log.failure("serving.py:500", where, frames, error)


def part_of(written: Sequence[str]) -> Part:
    """Tokens as they are sent."""
    return Part("".join(written), ids_of(written))


class EngineDied(Exception):  # noqa: N818  (the name says what happened)
    """EngineCore or its worker is gone."""
