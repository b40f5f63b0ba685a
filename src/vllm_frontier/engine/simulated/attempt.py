"""What an attempt at a cell of a described card comes to, without a server.

The outcome is the one that is recorded when the simulated server is really launched and its log
read: the same status, failure class and phase, and memory facts as the log gives them (two
decimals, and only what it told until then). Times are simulated seconds, and speeds are those of
the card without noise. Pure but for the count of faults.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from vllm_frontier.engine.simulated.card import (
    AUTO_CONTEXT,
    SimulatedCard,
    SimulatedStart,
    activation_gib,
    decode_speed,
    free_gib,
    graphs_gib,
    simulate_start,
    start_seconds,
)
from vllm_frontier.engine.simulated.engine import VERSION
from vllm_frontier.engine.simulated.faults import FaultBook
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import (
    Failure,
    FailureClass,
    Outcome,
    Phase,
    Purpose,
    Speed,
    StartupFacts,
    Status,
)

# The workload that a measurement is taken to be: each task so often, with answers so long.
TASKS = ("edit", "code", "prose")
_REPEATS = 3
_ANSWER_TOKENS = 256
_PREFILL_TOKENS = 4096
# Simulated seconds after which an attempt gives up on a server that stands still.
_START_LIMIT_S = 900.0
_REQUEST_LIMIT_S = 60.0

_START = (
    *(Phase.SPAWN, Phase.CONFIGURE, Phase.LOAD, Phase.PROFILE, Phase.ALLOCATE_KV),
    *(Phase.CAPTURE_GRAPHS, Phase.WARM_UP, Phase.READY),
)
_STEP = {phase: step for step, phase in enumerate(_START)}
_BY_ITS_WORDS = {  # whenever it happens
    "crash": FailureClass.ENGINE_CRASHED,
    "kill": FailureClass.KILLED,
    "port": FailureClass.PORT_IN_USE,
    "contended": FailureClass.MEMORY_CONTENDED,
}
_WHILE_STARTING = {
    "hang": FailureClass.STARTUP_TIMEOUT,
    "exit": FailureClass.ENGINE_CRASHED,
}
_WHILE_SERVING = {
    "hang": FailureClass.REQUEST_TIMEOUT,
    "exit": FailureClass.ENGINE_CRASHED,
    "oom": FailureClass.OOM_SERVE,
    "refuse": FailureClass.INVALID_ARGUMENT,
    "error": FailureClass.UNKNOWN,
}
_OUT_OF_MEMORY = {
    Phase.LOAD: FailureClass.OOM_LOAD,
    Phase.PROFILE: FailureClass.OOM_PROFILE,
    Phase.CAPTURE_GRAPHS: FailureClass.OOM_GRAPH_CAPTURE,
    Phase.WARM_UP: FailureClass.OOM_WARMUP,
}
# The API server itself ends without a word; only of its children the log tells that they ended.
_OF_API_SERVER = (Phase.SPAWN, Phase.CONFIGURE, Phase.READY)


@dataclass(frozen=True, slots=True)
class _End:
    """Where an attempt ended, and what of the facts the log had told by then."""

    failure: Failure | None
    phase: Phase
    facts: StartupFacts
    hung: bool = False


def simulate_attempt(
    card: SimulatedCard,
    cell: Cell,
    *,
    purpose: Purpose = Purpose.PROOF,
    with_speed: bool = True,
    faults: FaultBook | None = None,
) -> Outcome:
    """Say what an attempt at a cell comes to.

    Args:
        card: the card.
        cell: what is tried.
        purpose: what for; only noted.
        with_speed: whether speed would be measured once the window is filled.
        faults: the card's, counted over the attempts of a sweep; None: there are none.

    Returns:
        The outcome. It has no runs; `speed` is the median over the tasks edit, code and prose.
    """
    start = simulate_start(card, cell)
    book = (faults or FaultBook(())).at(cell)
    end = _start(card, cell, start, book) or _serve(card, cell, start, book, with_speed)
    started = end.phase in (Phase.FILL, Phase.MEASURE, Phase.STOP)
    filled = end.phase in (Phase.MEASURE, Phase.STOP)
    speed = _speed(card, cell) if with_speed and end.failure is None else None
    ready_s = start_seconds(card, cell) if started else None
    measure_s = _serving_seconds(card, start.context, speed, filled) if started else None
    wall_s = _start_seconds(card, cell, end.phase) if ready_s is None else ready_s
    if end.hung:
        wall_s += _REQUEST_LIMIT_S if started else _START_LIMIT_S
    return Outcome(
        status=Status.MEASURED if end.failure is None else end.failure.failure_class.status,
        phase=end.phase,
        failure=end.failure,
        started=started,
        filled=filled,
        facts=end.facts,
        ready_s=ready_s,
        measure_s=measure_s,
        wall_s=wall_s + (measure_s or 0.0),
        purpose=purpose,
        with_speed=with_speed,
        speed=speed,
    )


def _start(card: SimulatedCard, cell: Cell, start: SimulatedStart, book: FaultBook) -> _End | None:
    """How the start ends; None when it does with a server that is ready."""
    own = start.failure
    for phase in _START:
        kind = None
        if book.faults and (cell.graphs or phase is not Phase.CAPTURE_GRAPHS):
            kind = book.take(phase)
        if kind is not None:
            failure = _fault_of_start(kind, phase)
            return _End(failure, failure.phase, _facts(card, cell, start, phase), kind == "hang")
        if own is not None and own.phase is phase:
            return _End(own, phase, _facts_of_refusal(card, cell, start, own))
    return None


def _serve(
    card: SimulatedCard, cell: Cell, start: SimulatedStart, book: FaultBook, with_speed: bool
) -> _End:
    """How serving ends: filling the window, then measuring."""
    facts = _facts(card, cell, start, None)
    kind = book.take(Phase.FILL) if book.faults else None
    if start.fill_failure is not None and kind not in ("refuse", "error"):
        return _End(start.fill_failure, Phase.FILL, facts)
    if kind is not None:
        return _End(_fault_of_serving(kind, Phase.FILL), Phase.FILL, facts, kind == "hang")
    kind = book.take(Phase.MEASURE) if book.faults and with_speed else None
    if kind is not None:
        return _End(_fault_of_serving(kind, Phase.MEASURE), Phase.MEASURE, facts, kind == "hang")
    return _End(None, Phase.STOP, facts)


def _fault_of_start(kind: str, phase: Phase) -> Failure:
    if kind == "oom":
        failure_class = _OUT_OF_MEMORY[phase]
    elif kind == "exit" and phase in _OF_API_SERVER:
        failure_class = FailureClass.UNKNOWN
    else:
        failure_class = _BY_ITS_WORDS.get(kind) or _WHILE_STARTING[kind]
    seen = phase
    if phase is Phase.READY:
        seen = Phase.WARM_UP  # nothing in the log lies between warmed up and serving
    elif phase is Phase.SPAWN and kind in ("crash", "port"):
        seen = Phase.CONFIGURE  # the first words of the server
    return Failure(failure_class, seen, _told(kind, phase))


def _fault_of_serving(kind: str, phase: Phase) -> Failure:
    failure_class = _BY_ITS_WORDS.get(kind) or _WHILE_SERVING[kind]
    return Failure(failure_class, phase, _told(kind, phase))


def _told(kind: str, phase: Phase) -> str:
    return f"fault of the simulated card: {kind} at {phase}"


def _facts_of_refusal(
    card: SimulatedCard, cell: Cell, start: SimulatedStart, failure: Failure
) -> StartupFacts:
    if failure.failure_class is FailureClass.CONTEXT_EXCEEDS_MODEL:
        return StartupFacts(model_context=card.model.max_context)
    if failure.failure_class is FailureClass.UTILIZATION_ABOVE_FREE:
        return StartupFacts(
            engine_version=VERSION,
            graph_mode=_mode(cell),
            free_gib=_rounded(free_gib(card)),
            device_gib=_rounded(card.card.total_gib),
        )
    return _facts(card, cell, start, failure.phase, refused=True)


def _facts(
    card: SimulatedCard,
    cell: Cell,
    start: SimulatedStart,
    at: Phase | None,
    *,
    refused: bool = False,
) -> StartupFacts:
    """What the log of a start had told when it ended in a phase; None: it came up.

    `refused`: it ended by vLLM's own refusal, whose figures count, too.
    """
    step = len(_START) if at is None else _STEP[at]
    if step < _STEP[Phase.LOAD]:
        return StartupFacts()
    known, allocated = start.facts, step >= _STEP[Phase.ALLOCATE_KV]
    divided = step > _STEP[Phase.ALLOCATE_KV]  # the KV cache, into tokens
    warm = step > _STEP[Phase.WARM_UP]
    too_small = refused and start.failure is not None and at is Phase.ALLOCATE_KV
    graphs_told = step > _STEP[Phase.CAPTURE_GRAPHS] or (allocated and card.memory.graphs_counted)
    return StartupFacts(
        engine_version=VERSION,
        graph_mode=_mode(cell),
        weights_gib=_rounded(known.weights_gib) if step >= _STEP[Phase.PROFILE] else None,
        kv_available_gib=_rounded(known.kv_available_gib) if allocated else None,
        graph_gib=_rounded(graphs_gib(card, cell)) if graphs_told and cell.graphs else None,
        kv_needed_gib=_rounded(known.kv_needed_gib) if too_small else None,
        max_context_estimate=known.max_context_estimate if too_small else None,
        kv_tokens=known.kv_tokens if divided else None,
        auto_context=known.auto_context if divided and cell.context == AUTO_CONTEXT else None,
        activation_gib=_rounded(activation_gib(card, cell)) if warm else None,
        free_gib=_rounded(free_gib(card)) if warm else None,
        device_gib=_rounded(card.card.total_gib) if warm else None,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _mode(cell: Cell) -> str:
    return "FULL_AND_PIECEWISE" if cell.graphs else "NONE"


def _speed(card: SimulatedCard, cell: Cell) -> Speed:
    figure = statistics.median(decode_speed(card, cell, task) for task in TASKS)
    return Speed(figure, figure, figure)


def _start_seconds(card: SimulatedCard, cell: Cell, phase: Phase) -> float:
    """Simulated seconds until a start ends that fails in a phase."""
    step = _STEP[phase]
    loaded = card.time.load_s if step >= _STEP[Phase.LOAD] else 0.0
    profiled = card.time.profile_s if step >= _STEP[Phase.PROFILE] else 0.0
    captured = card.time.capture_s if cell.graphs and step >= _STEP[Phase.CAPTURE_GRAPHS] else 0.0
    return loaded + profiled + captured


def _serving_seconds(card: SimulatedCard, context: int, speed: Speed | None, filled: bool) -> float:
    """Simulated seconds of filling the window and measuring, roughly."""
    seconds = context / card.speed.prefill_tok_s if filled else 0.0
    if speed is None:
        return seconds
    prefill = _REPEATS * min(_PREFILL_TOKENS, context // 2) / card.speed.prefill_tok_s
    return seconds + prefill + (1 + _REPEATS * len(TASKS)) * _ANSWER_TOKENS / speed.decode_tok_s
