"""The memory model, taught by logs of which the truth is known."""

import itertools
import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_under_test import refused, works

from vllm_frontier.grid import Cell
from vllm_frontier.memory import (
    Array,
    Figure,
    MemoryModel,
    MemoryPrior,
    Prediction,
    normal_cdf,
    vague_prior,
)
from vllm_frontier.outcome import FailureClass, Outcome, Phase, StartupFacts
from vllm_frontier.search import Ask

CARD = 24.0
GRID = [
    Cell(depth, context, graphs, share)
    for depth, context, graphs, share in itertools.product(
        range(7), (8192, 32768, 65536, 131072), (False, True), (0.85, 0.9, 0.95)
    )
]
FIGURES = [each.name for each in fields(MemoryPrior) if each.name != "basis"]


@dataclass(frozen=True)
class Truth:
    """A model's memory on a card, and what vLLM's log tells of it."""

    weights: float = 13.0
    head: float = 0.6
    activation: float = 1.2
    activation_per_depth: float = 0.02
    graphs: float = 0.7
    graphs_per_depth: float = 0.03
    overhead: float = 0.1
    kv_per_1k: float = 0.06
    head_kv_per_1k: float = 0.004
    state: float = 0.1
    state_per_depth: float = 0.08
    counted: bool = True

    def need(self, cell: Cell, tokens: float) -> float:
        per_1k = self.kv_per_1k + (self.head_kv_per_1k if cell.depth else 0)
        return per_1k * tokens / 1000 + self.state + self.state_per_depth * cell.depth

    def available(self, cell: Cell) -> float:
        graphs = self.of_graphs(cell) if self.counted else 0.0
        head = self.head if cell.depth else 0.0
        activation = self.activation + self.activation_per_depth * cell.depth
        taken = self.weights + head + activation + graphs + self.overhead
        return cell.utilization * CARD - taken

    def of_graphs(self, cell: Cell) -> float:
        return (self.graphs + self.graphs_per_depth * cell.depth) if cell.graphs else 0.0

    def margin(self, cell: Cell) -> float:
        return self.available(cell) - self.need(cell, cell.context)

    def launch(self, cell: Cell, *, parts: bool = True) -> Outcome:
        """What is recorded; without `parts` the log tells of the KV cache only."""
        available, needed = self.available(cell), self.need(cell, cell.context)
        facts = StartupFacts(kv_available_gib=round(available, 2))
        if parts:
            facts = replace(
                facts,
                weights_gib=round(self.weights + (self.head if cell.depth else 0), 2),
                activation_gib=round(self.activation + self.activation_per_depth * cell.depth, 2),
                graph_gib=round(self.of_graphs(cell), 2) if cell.graphs else None,
            )
        if available < 0:
            return refused(FailureClass.KV_NONE, facts=facts)
        if available >= needed:
            tokens = math.floor(available / needed * cell.context)
            return works(Ask(cell), facts=replace(facts, kv_tokens=tokens))
        slope = self.need(cell, 1000) - self.need(cell, 0)
        longest = math.floor((available - self.need(cell, 0)) / slope * 1000 / 16) * 16
        told = longest if longest > 0 else None
        facts = replace(facts, kv_needed_gib=round(needed, 2), max_context_estimate=told)
        return refused(FailureClass.KV_TOO_SMALL, facts=facts)


# Launches that together show every figure: without and with a head, graphs, and two depths.
SHOWING = [
    Cell(0, 32768, False, 0.9),
    Cell(0, 131072, False, 0.9),
    Cell(2, 65536, False, 0.95),
    Cell(2, 131072, False, 0.85),
    Cell(6, 65536, False, 0.9),
    Cell(6, 131072, True, 0.9),
    Cell(0, 8192, True, 0.95),
    Cell(2, 32768, True, 0.9),
]


def taught(truth: Truth, cells: list[Cell], prior: MemoryPrior | None = None) -> MemoryModel:
    model = MemoryModel(CARD, prior)
    for cell in cells:
        model.observe(cell, truth.launch(cell))
    return model


def errors(model: MemoryModel, truth: Truth, cells: list[Cell] = GRID) -> Array:
    mean, _ = model.margins(cells)
    off: Array = np.abs(mean - np.array([truth.margin(cell) for cell in cells]))
    return off


def exact_prior(truth: Truth) -> MemoryPrior:
    figures = {name: Figure(getattr(truth, name), 0.0) for name in FIGURES}
    return MemoryPrior(**figures, basis="the truth")


# Figures


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("times", [0.3, 2.5])
def test_each_figure_is_learned(name: str, times: float) -> None:
    if name == "weights":
        times = min(times, 1.4)  # more than the card holds teaches little
    truth = replace(Truth(), **{name: times * getattr(Truth(), name)})
    model = taught(truth, SHOWING)
    assert errors(model, truth).max() < 0.1
    _, sd = model.margins(GRID)
    assert sd.max() < 0.2


def test_what_differs_between_cells_is_told_apart() -> None:
    truth = Truth()
    model = taught(truth, SHOWING)

    def margin(**axes: float) -> float:
        cell = replace(Cell(3, 65536, True, 0.9), **axes)  # type: ignore[arg-type]
        return model.predict(cell).margin_gib

    window = margin(context=66536) - margin()
    assert window == pytest.approx(-(truth.kv_per_1k + truth.head_kv_per_1k), abs=0.002)
    graphs = margin(graphs=False) - margin()
    assert graphs == pytest.approx(truth.graphs + 3 * truth.graphs_per_depth, abs=0.05)
    depth = margin(depth=4) - margin()
    per_depth = truth.activation_per_depth + truth.graphs_per_depth + truth.state_per_depth
    assert depth == pytest.approx(-per_depth, abs=0.01)
    assert margin(utilization=0.95) - margin() == pytest.approx(0.05 * CARD, abs=1e-9)


def test_a_hybrid_models_state_is_learned_from_depths() -> None:
    truth = Truth(state=0.9, state_per_depth=0.35, kv_per_1k=0.02)
    model = taught(truth, SHOWING)
    assert errors(model, truth).max() < 0.1


@pytest.mark.parametrize("counted", [True, False])
def test_a_log_shows_whether_graphs_come_out_of_the_budget(counted: bool) -> None:
    truth = Truth(counted=counted, graphs=1.1)
    model = taught(truth, SHOWING)
    assert errors(model, truth).max() < 0.1
    with_graphs, without = Cell(2, 8192, True, 0.9), Cell(2, 8192, False, 0.9)
    taken = model.predict(without).margin_gib - model.predict(with_graphs).margin_gib
    assert taken == pytest.approx(1.16 if counted else 0.0, abs=0.05)


def test_without_single_parts_the_sum_is_learned() -> None:
    truth = Truth()
    model = MemoryModel(CARD)
    for cell in SHOWING:
        model.observe(cell, truth.launch(cell, parts=False))
    assert errors(model, truth).max() < 0.15


# Single launches


@pytest.mark.parametrize("depth", [0, 3])
def test_an_estimate_tells_where_the_window_ends(depth: int) -> None:
    truth, cell = Truth(), Cell(depth, 131072, True, 0.85)
    outcome = truth.launch(cell)
    estimate = outcome.facts.max_context_estimate
    assert estimate is not None
    model = taught(truth, [cell])
    at_the_end = model.predict(replace(cell, context=estimate))
    assert at_the_end.margin_gib == pytest.approx(0, abs=0.02)
    assert at_the_end.sd_gib < 0.05
    assert model.predict(replace(cell, context=estimate + 2000)).probability < 0.05
    assert model.predict(replace(cell, context=estimate - 2000)).probability > 0.95


def test_tokens_of_a_cache_tell_where_the_window_ends() -> None:
    truth, cell = Truth(state=0.0, state_per_depth=0.0), Cell(0, 32768, False, 0.9)
    tokens = truth.launch(cell).facts.kv_tokens
    assert tokens is not None
    model = taught(truth, [cell])
    # That there is no state has to be learned as well: what it leaves open is told.
    end = model.predict(replace(cell, context=tokens))
    assert abs(end.margin_gib) < 2 * end.sd_gib + 0.05
    model.observe(cell, truth.launch(replace(cell)))
    second = replace(cell, context=131072)
    model.observe(second, truth.launch(second))
    assert model.predict(replace(cell, context=tokens)).margin_gib == pytest.approx(0, abs=0.05)


def test_estimate_and_tokens_agree() -> None:
    truth = Truth()
    low, high = Cell(2, 32768, False, 0.85), Cell(2, 131072, False, 0.85)
    assert truth.launch(low).facts.kv_tokens is not None
    assert truth.launch(high).facts.max_context_estimate is not None
    column = [replace(low, context=context) for context in range(8192, 140000, 8192)]
    for cells in ([low, high], [high, low]):
        assert errors(taught(truth, cells), truth, column).max() < 0.05


def test_a_launch_with_nothing_left_teaches_as_well() -> None:
    truth, cell = Truth(weights=21.0), Cell(1, 8192, True, 0.85)
    outcome = truth.launch(cell)
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.KV_NONE
    model = taught(truth, [cell])
    assert model.predict(cell).probability < 0.01
    assert errors(model, truth, [replace(cell, utilization=0.95)]).max() < 0.3


def test_a_launch_that_ran_out_of_memory_teaches_what_it_told() -> None:
    truth, cell = Truth(), Cell(2, 32768, True, 0.9)
    facts = truth.launch(cell).facts
    model = MemoryModel(CARD)
    before = model.predict(cell)
    model.observe(
        cell, refused(FailureClass.OOM_GRAPH_CAPTURE, phase=Phase.CAPTURE_GRAPHS, facts=facts)
    )
    after = model.predict(cell)
    assert after.sd_gib < 0.2 * before.sd_gib
    assert after.margin_gib == pytest.approx(truth.margin(cell), abs=0.3)


@pytest.mark.parametrize(
    "why",
    [FailureClass.ENGINE_CRASHED, FailureClass.OOM_LOAD, FailureClass.UTILIZATION_ABOVE_FREE],
)
def test_a_launch_that_says_nothing_of_memory_teaches_nothing(why: FailureClass) -> None:
    model = MemoryModel(CARD)
    before = model.margins(GRID)
    model.observe(GRID[5], refused(why, phase=Phase.LOAD))
    assert np.array_equal(before, model.margins(GRID))
    assert model.basis == vague_prior(CARD).basis


def test_answers_without_figures_move_the_boundary() -> None:
    cell = GRID[30]
    for outcome, sign in (
        (works(Ask(cell)), 1),
        (refused(FailureClass.KV_TOO_SMALL), -1),
        (refused(FailureClass.STATE_SLOTS_TOO_FEW), -1),
    ):
        model = MemoryModel(CARD)
        before = model.predict(cell)
        model.observe(cell, outcome)
        after = model.predict(cell)
        assert sign * (after.margin_gib - before.margin_gib) > 0
        assert after.sd_gib < before.sd_gib
        assert (after.probability > before.probability) == (sign > 0)
        assert model.basis.startswith("1 launch, and ")


def test_answers_alone_find_a_boundary() -> None:
    """Halving, as for a log without a word on memory."""
    truth, model = Truth(), MemoryModel(CARD)
    low, high = 1024, 262144
    for _ in range(10):
        middle = (low + high) // 2
        cell = Cell(2, middle, False, 0.9)
        fits = truth.margin(cell) >= 0
        model.observe(cell, works(Ask(cell)) if fits else refused(FailureClass.KV_TOO_SMALL))
        low, high = (middle, high) if fits else (low, middle)
    assert model.predict(Cell(2, low - 20000, False, 0.9)).probability > 0.8
    assert model.predict(Cell(2, high + 20000, False, 0.9)).probability < 0.2


# How well it is known


def test_launches_make_predictions_firmer() -> None:
    truth, model = Truth(), MemoryModel(CARD)
    widths = [float(model.margins(GRID)[1].mean())]
    for cell in SHOWING:
        model.observe(cell, truth.launch(cell))
        widths.append(float(model.margins(GRID)[1].mean()))
    assert widths[1] < 0.5 * widths[0]
    assert widths[-1] < 0.05 * widths[0]


def test_a_surprise_widens_what_was_believed_too_firmly() -> None:
    truth, model = Truth(), taught(Truth(), SHOWING)
    cell = Cell(4, 65536, True, 0.9)
    before = model.predict(cell)
    odd = replace(truth, weights=truth.weights + 1.5)
    model.observe(cell, odd.launch(cell))
    after = model.predict(cell)
    assert after.sd_gib > 2 * before.sd_gib
    # And the figures follow.
    for each in SHOWING:
        model.observe(each, odd.launch(each))
    assert errors(model, odd).max() < 0.5


def test_a_prior_that_is_right_is_kept_and_a_wrong_one_is_left() -> None:
    truth = Truth()
    prior = exact_prior(truth)
    model = MemoryModel(CARD, prior)
    assert errors(model, truth).max() < 1e-9
    assert model.basis == "the truth"
    wrong = MemoryModel(CARD, exact_prior(replace(truth, weights=10.0, kv_per_1k=0.03)))
    for cell in SHOWING * 2:
        wrong.observe(cell, truth.launch(cell))
    assert errors(wrong, truth).max() < 0.6


def test_what_predictions_rest_on_is_said() -> None:
    model = MemoryModel(CARD)
    assert model.predict(GRID[0]).basis == "nothing but the size of the card"
    for number, cell in enumerate(SHOWING[:2]):
        model.observe(cell, Truth().launch(cell))
        words = "1 launch, and " if number == 0 else "2 launches, and "
        assert model.basis == words + "nothing but the size of the card"


def test_probability_is_that_of_the_margin() -> None:
    assert Prediction(0.0, 1.0, "").probability == 0.5
    assert Prediction(1.6449, 1.0, "").probability == pytest.approx(0.95, abs=1e-4)
    assert Prediction(-3.0, 1.5, "").probability == pytest.approx(normal_cdf(-2))
    assert normal_cdf(-40) >= 0


def test_margins_of_many_are_those_of_each() -> None:
    model = taught(Truth(), SHOWING[:3])
    mean, sd = model.margins(GRID)
    for index in (0, 17, 100):
        prediction = model.predict(GRID[index])
        assert (prediction.margin_gib, prediction.sd_gib) == pytest.approx((mean[index], sd[index]))


def test_imagined_facts_are_those_of_the_launch() -> None:
    truth = Truth()
    model = MemoryModel(CARD, exact_prior(truth))
    for cell in (Cell(0, 32768, False, 0.9), Cell(3, 131072, True, 0.85)):
        imagined, real = model.imagined_facts(cell), truth.launch(cell).facts
        assert imagined.kv_available_gib == pytest.approx(real.kv_available_gib, abs=0.006)
        assert imagined.weights_gib == pytest.approx(real.weights_gib, abs=0.006)
        for name in ("kv_tokens", "max_context_estimate"):
            one, other = getattr(imagined, name), getattr(real, name)
            assert (one is None) == (other is None)
            if other is not None:
                assert one == pytest.approx(other, abs=17)


# Whatever a log says


def facts_within(low: float, high: float, tokens: int) -> st.SearchStrategy[StartupFacts]:
    gib = st.one_of(st.none(), st.floats(low, high))
    count = st.one_of(st.none(), st.integers(0, tokens))
    return st.builds(
        StartupFacts,
        kv_needed_gib=gib,
        kv_available_gib=gib,
        max_context_estimate=count,
        kv_tokens=count,
        weights_gib=gib,
        activation_gib=gib,
        graph_gib=gib,
    )


def cells_within(depth: int, shortest: int, longest: int) -> st.SearchStrategy[Cell]:
    return st.builds(
        Cell,
        depth=st.integers(0, depth),
        context=st.integers(shortest, longest),
        graphs=st.booleans(),
        utilization=st.floats(0.01, 1.0),
    )


def observed(cell: Cell, facts: StartupFacts, fits: bool) -> Outcome:
    return works(Ask(cell), facts=facts) if fits else refused(facts=facts)


@settings(deadline=None, max_examples=50)
@given(
    launches=st.lists(
        st.tuples(cells_within(64, 1, 10**7), facts_within(-200, 1000, 10**9), st.booleans()),
        max_size=8,
    ),
    card=st.sampled_from([0.5, CARD, 640.0]),
)
def test_any_figures_leave_finite_predictions(
    launches: list[tuple[Cell, StartupFacts, bool]], card: float
) -> None:
    model = MemoryModel(card)
    for cell, facts, fits in launches:
        model.observe(cell, observed(cell, facts, fits))
        mean, sd = model.margins([*GRID, cell])
        assert np.isfinite(mean).all()
        assert np.isfinite(sd).all()
        assert (sd > 0).all()
        assert 0 <= model.predict(cell).probability <= 1
        model.imagined_facts(cell)


@settings(deadline=None, max_examples=50)
@given(
    launches=st.lists(
        st.tuples(cells_within(8, 1024, 262144), facts_within(-5, 30, 500000), st.booleans()),
        max_size=8,
    )
)
def test_figures_of_a_card_leave_a_covariance(
    launches: list[tuple[Cell, StartupFacts, bool]],
) -> None:
    model = MemoryModel(CARD)
    for cell, facts, fits in launches:
        model.observe(cell, observed(cell, facts, fits))
        assert np.array_equal(model._cov, model._cov.T)
        eigenvalues = np.linalg.eigvalsh(model._cov)
        assert eigenvalues.min() >= -1e-6 * eigenvalues.max()
