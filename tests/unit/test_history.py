"""How long launches take, from earlier sweeps and without any."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_frontier.checkpoint import prior_for
from vllm_frontier.config import compose_sweep
from vllm_frontier.grid import Cell
from vllm_frontier.history import LaunchTimes, launch_times
from vllm_frontier.memory import Figure, vague_prior
from vllm_frontier.spec import SweepSpec, WorkloadSpec

SPEC = compose_sweep("demo-cpu").spec
EAGER, GRAPHS = Cell(0, 8192, False, 0.6), Cell(0, 8192, True, 0.6)


def write_sweep(
    outputs: Path, name: str, rows: list[dict[str, Any]], workload: dict[str, Any] | None = None
) -> Path:
    """A sweep's folder as far as launch times are read from it."""
    folder = outputs / name
    for number, row in enumerate(rows, start=1):
        attempt = folder / "attempts" / "0123456789abcdef" / str(number)
        attempt.mkdir(parents=True)
        (attempt / "outcome.json").write_text(json.dumps(row))
    document = {
        "schema_version": 1,
        "identity": {"digest": "d", "workload": "w", "cell": {}},
        "config": {"name": name, "workload": workload or dataclasses.asdict(SPEC.workload)},
    }
    document = json.loads(json.dumps(document))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    return folder


def row(**columns: Any) -> dict[str, Any]:
    return {
        "engine": SPEC.engine.kind,
        "card": SPEC.card.name,
        "model_name": SPEC.model.name,
        "status": "measured",
        "graphs": False,
        "wall_s": 40.0,
        "measure_s": 10.0,
        **columns,
    }


def times(outputs: Path, spec: SweepSpec = SPEC) -> LaunchTimes:
    return launch_times(spec, None, outputs)


def test_earlier_launches_tell_how_long_each_kind_takes(tmp_path: Path) -> None:
    rows = [
        *(row(wall_s=wall) for wall in (38.0, 40.0, 90.0)),
        row(graphs=True, wall_s=55.0),
        *(row(with_speed=False, wall_s=wall) for wall in (30.0, 32.0)),
        row(status="infeasible", failure_class="kv_too_small", wall_s=28.0),
        row(status="failed", failure_class="unknown", wall_s=900.0),
        row(status="interrupted", wall_s=700.0),
        row(status="invalid", wall_s=8.0),
    ]
    write_sweep(tmp_path, "earlier", rows)
    found = times(tmp_path)
    assert found.seconds(EAGER, works=True, with_speed=True) == 40.0
    assert found.seconds(GRAPHS, works=True, with_speed=True) == 55.0
    assert found.seconds(EAGER, works=True, with_speed=False) == 31.0
    assert found.seconds(GRAPHS, works=True, with_speed=False) == 31.0  # none with graphs
    assert found.seconds(EAGER, works=False, with_speed=True) == 28.0
    assert found.basis == "7 earlier launches of demo-mtp on this engine and card"


def test_measuring_is_scaled_to_what_is_measured_now(tmp_path: Path) -> None:
    plain = dataclasses.replace(SPEC.workload, score=False)
    write_sweep(tmp_path, "earlier", [row(wall_s=40.0, measure_s=10.0)], as_document(plain))
    workload = dataclasses.replace(plain, repeats=6, warmups=2)
    twice = times(tmp_path, dataclasses.replace(SPEC, workload=workload))
    assert twice.seconds(EAGER, works=True, with_speed=True) == pytest.approx(50.0)
    quick = dataclasses.replace(plain, max_tokens=128)
    half = times(tmp_path, dataclasses.replace(SPEC, workload=quick))
    assert half.seconds(EAGER, works=True, with_speed=True) == pytest.approx(35.0)


def as_document(workload: WorkloadSpec) -> dict[str, Any]:
    return dataclasses.asdict(workload)


def test_scores_take_a_short_text_of_each_task(tmp_path: Path) -> None:
    before = as_document(dataclasses.replace(SPEC.workload, score=False))
    del before["score"]  # as sweeps had it that knew of none
    write_sweep(tmp_path, "earlier", [row(wall_s=40.0, measure_s=10.0)], before)
    scored = times(tmp_path).seconds(EAGER, works=True, with_speed=True)
    # 64 tokens of each of three tasks, beside three repeats and a warm-up of 256.
    assert scored == pytest.approx(30 + 10 * (10 * 256 + 3 * 64) / (10 * 256))
    assert "taken" not in times(tmp_path).basis


@pytest.mark.parametrize("earlier", [None, 0.02])
def test_with_a_precision_the_middle_of_what_may_be_is_taken(
    tmp_path: Path, earlier: float | None
) -> None:
    plain = dataclasses.replace(SPEC.workload, score=False, warmups=0, precision=earlier)
    write_sweep(tmp_path, "earlier", [row(wall_s=40.0, measure_s=10.0)], as_document(plain))
    narrow = dataclasses.replace(plain, precision=0.02, repeats_max=9)
    found = times(tmp_path, dataclasses.replace(SPEC, workload=narrow))
    runs_before = 3 if earlier is None else 7.5  # 3 to 12
    assert found.seconds(EAGER, works=True, with_speed=True) == pytest.approx(
        30 + 10 * 6 / runs_before
    )
    assert found.basis.endswith("; 6 of 3 to 9 runs a task taken")


def test_without_one_that_was_not_measured_its_start_counts(tmp_path: Path) -> None:
    write_sweep(tmp_path, "earlier", [row(wall_s=400.0, measure_s=100.0)])
    found = times(tmp_path).seconds(EAGER, works=True, with_speed=False)
    assert 300.0 <= found < 330.0


def test_the_same_model_counts_before_others(tmp_path: Path) -> None:
    others = [row(model_name="large", wall_s=400.0)] * 3
    write_sweep(tmp_path, "others", others)
    assert times(tmp_path).seconds(EAGER, works=True, with_speed=True) == 400.0
    assert times(tmp_path).basis == "3 earlier launches of other models on this engine and card"
    write_sweep(tmp_path, "same", [row(wall_s=41.0)])
    assert times(tmp_path).seconds(EAGER, works=True, with_speed=True) == 41.0


@pytest.mark.parametrize("other", [{"engine": "vllm"}, {"card": "another"}])
def test_other_engines_and_cards_do_not_count(tmp_path: Path, other: dict[str, str]) -> None:
    write_sweep(tmp_path, "other", [row(wall_s=400.0, **other)])
    assert times(tmp_path) == times(tmp_path / "nowhere")


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, "earlier", [row(wall_s=44.0), row(), row(), row(wall_s="x")])
    attempts = folder / "attempts" / "0123456789abcdef"
    (attempts / "2" / "outcome.json").write_bytes(b"\xff{")
    (attempts / "3" / "outcome.json").write_text("[]")
    (folder / "sweep.yaml").write_text("no: [sweep")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    found = times(tmp_path)
    assert found.seconds(EAGER, works=True, with_speed=True) == 44.0
    assert found.basis.startswith("1 earlier launch of")


def test_without_history_a_cpu_start_takes_what_it_took_elsewhere(tmp_path: Path) -> None:
    found = launch_times(SPEC, prior_for(SPEC), tmp_path)
    assert 18 < found.seconds(EAGER, works=False, with_speed=True) < 35
    assert 18 < found.seconds(EAGER, works=True, with_speed=False) < 35
    assert 25 < found.seconds(GRAPHS, works=True, with_speed=True) < 60
    assert found.basis.startswith("no earlier launch on this engine and card: guessed")


def test_without_history_larger_weights_load_longer(tmp_path: Path) -> None:
    spec = compose_sweep("rtx4090-qwen3-14b-awq").spec
    small, large = (
        launch_times(
            spec, dataclasses.replace(vague_prior(24.0), weights=Figure(size, 1.0)), tmp_path
        )
        for size in (2.0, 20.0)
    )
    grown = [
        large.seconds(EAGER, works=works, with_speed=works)
        - small.seconds(EAGER, works=works, with_speed=works)
        for works in (False, True)
    ]
    assert 10 < grown[0] < 20
    assert grown[1] > 100  # every token reads the weights once
    assert "the size of the weights" in large.basis


def test_on_a_simulated_card_its_own_times_count(tmp_path: Path) -> None:
    card = tmp_path / "card.yaml"
    shipped = Path(__file__).parents[2] / "conf/simulated/rtx5090-qwen3.8-27b-nvfp4.yaml"
    content = yaml.safe_load(shipped.read_text())
    found = {}
    for scale in (0.0, 0.5, 1.0):
        content["time"]["scale"] = scale or 1e-9
        card.write_text(yaml.safe_dump(content))
        spec = compose_sweep("demo-cpu", ["engine=simulated", f"engine.card_file={card}"]).spec
        found[scale] = times(tmp_path / "none", spec)
        assert found[scale].basis == "the times in the card file"
    refused = [found[scale].seconds(GRAPHS, works=False, with_speed=True) for scale in found]
    assert refused[2] - refused[0] == pytest.approx(45 + 8)
    assert refused[1] - refused[0] == pytest.approx((45 + 8) / 2)
    started = [found[scale].seconds(GRAPHS, works=True, with_speed=False) for scale in found]
    assert started[2] - started[0] == pytest.approx(45 + 8 + 12 + 16384 / 5400)
