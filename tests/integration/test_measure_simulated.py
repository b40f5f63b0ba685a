"""Simulated servers whose output is measured and scored as that of a real one."""

from pathlib import Path
from typing import Any

import pytest
from simulated_launch import card_file, launched

from vllm_frontier.grid import Cell
from vllm_frontier.measure.client import ServerClient
from vllm_frontier.measure.session import measure
from vllm_frontier.outcome import Run
from vllm_frontier.spec import WorkloadSpec

WORKLOAD = WorkloadSpec(tasks=("code", "prose"), repeats=2, warmups=0, max_tokens=48)
BROKEN = -10.0  # below it nothing was written that makes sense


def measured(
    folder: Path, depth: int, workload: WorkloadSpec = WORKLOAD, **sections: Any
) -> list[Run]:
    folder.mkdir()
    card = card_file(folder, **sections)
    with launched(card, folder / "log", Cell(depth, 16384, True, 0.9)) as server:
        assert server.ready()
        scale = server.engine.time_scale
        with ServerClient(f"http://127.0.0.1:{server.port}", "served", time_scale=scale) as client:
            items = list(measure(client, workload, 16384))
    assert all(isinstance(item, Run) for item in items)
    return [item for item in items if isinstance(item, Run)]


def test_speculation_changes_no_greedy_text_and_its_texts_are_likely(tmp_path: Path) -> None:
    plain, deep = (measured(tmp_path / f"{depth}", depth) for depth in (0, 3))

    told = [
        [(run.task, run.repeat, run.output_token_ids) for run in runs if run.kind == "decode"]
        for runs in (plain, deep)
    ]
    assert told[0] == told[1]
    assert all(len(ids or ()) == 48 for _, _, ids in told[0])
    probes = [run for run in (*plain, *deep) if run.kind == "probe"]
    assert [(run.task, run.temperature) for run in probes[:4]] == [
        *(("prose", 0.0), ("code", 0.0)),
        *(("prose", 1.0), ("code", 1.0)),
    ]
    assert len(probes) == 8
    for run in probes:
        assert run.output_logprob is not None
        assert run.output_logprob_expected is not None
        assert abs(run.output_logprob - run.output_logprob_expected) < 1.0
    assert probes[0].output != probes[2].output


@pytest.mark.parametrize(
    ("kind", "broken"), [("garbage", [True] * 4), ("garbage_sampled", [False, False, True, True])]
)
def test_garbage_shows_in_the_scores_and_nowhere_else(
    tmp_path: Path, kind: str, broken: list[bool]
) -> None:
    sound = measured(tmp_path / "sound", 2)
    spoiled = measured(tmp_path / "spoiled", 2, faults=[{"kind": kind, "when": {"depth": 2}}])

    scores = [run.output_logprob or 0.0 for run in spoiled if run.kind == "probe"]
    assert [value < BROKEN for value in scores] == broken
    figures = [
        [(run.kind, run.task, run.completion_tokens, run.decode_tok_s, run.drafts) for run in runs]
        for runs in (sound, spoiled)
    ]
    assert figures[0] == figures[1]


def test_noisy_runs_are_repeated_and_quiet_ones_are_not(tmp_path: Path) -> None:
    workload = WorkloadSpec(
        tasks=("code",), repeats=2, warmups=0, max_tokens=48, precision=0.02, score=False
    )
    speed = {"noise": 0.2}

    quiet = measured(tmp_path / "quiet", 0, workload)
    noisy = measured(tmp_path / "noisy", 0, workload, speed=speed)

    variants = [[run.variant for run in runs if run.kind == "decode"] for runs in (quiet, noisy)]
    assert variants[0] in ([0, 1], [0, 1, 0, 1])
    assert variants[1] == [0, 1] * 6
    speeds = {run.decode_tok_s for run in noisy if run.kind == "decode"}
    assert len(speeds) == 12
